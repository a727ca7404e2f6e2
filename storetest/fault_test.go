package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// faultRig is a faulty store and a plain one over the same space.
type faultRig struct {
	t     *testing.T
	f     *storetest.Faulty
	plain *localstore.Store
	req   tierlock.AcquireRequest
}

func newFaultRig(t *testing.T) *faultRig {
	plain := localstore.New(localstore.Options{})
	name := tierlock.Name{Namespace: "ns", Resource: "r", Key: "k"}
	return &faultRig{t: t, f: storetest.WithFaults(plain), plain: plain, req: tierlock.AcquireRequest{
		Name: name, TTL: time.Minute, Budget: 10 * time.Second,
		Token: tierlock.Token{Lease: "one", Resource: name.Resource, Key: name.Key},
	}}
}

func (r *faultRig) wantHeld(want bool) {
	r.t.Helper()
	rec, err := r.plain.Inspect(context.Background(), r.req.Name)
	if err != nil || rec.Held != want {
		r.t.Fatalf("Inspect of the wrapped store: got held %v and error %v, want held %v", rec.Held, err, want)
	}
}

func (r *faultRig) left() time.Duration {
	r.t.Helper()
	rec, err := r.plain.Inspect(context.Background(), r.req.Name)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec.Left
}

func (r *faultRig) lock() {
	r.t.Helper()
	res, err := r.plain.Acquire(context.Background(), r.req)
	if err != nil || !res.Granted {
		r.t.Fatalf("Acquire on the wrapped store: got granted %v and error %v, want granted", res.Granted, err)
	}
}

// op makes one call through the faulty store.
func (r *faultRig) op(ctx context.Context, op storetest.Op) (own tierlock.Ownership, err error) {
	switch op {
	case storetest.OpAcquire:
		var res tierlock.AcquireResult
		if res, err = r.f.Acquire(ctx, r.req); res.Granted {
			own = tierlock.LeaseOwned
		}
	case storetest.OpRenew:
		res := r.f.Renew(ctx, []tierlock.RenewRequest{{Name: r.req.Name, Lease: "one", TTL: 2 * time.Minute}})
		own, err = res[0].State, res[0].Err
	case storetest.OpRelease:
		own, err = r.f.Release(ctx, tierlock.ReleaseRequest{Name: r.req.Name, Lease: "one"})
	case storetest.OpInspect:
		var rec tierlock.Record
		if rec, err = r.f.Inspect(ctx, r.req.Name); rec.Held {
			own = tierlock.LeaseOwned
		}
	}
	return own, err
}

// done says whether the effect of op is there.
func (r *faultRig) done(op storetest.Op) bool {
	switch op {
	case storetest.OpAcquire:
		return r.left() > 0
	case storetest.OpRenew:
		return r.left() > time.Minute
	case storetest.OpRelease:
		return r.left() == 0
	}
	return false
}

// Each kind of fault on each operation that has an effect: when the answer
// comes, which it is, and when the effect is there.
func TestFaultMatrix(t *testing.T) {
	const delay = 2 * time.Second
	for _, c := range []struct {
		kind       storetest.Kind
		answer     time.Duration // when
		fails      bool
		now, later bool // effect there with the answer, and after the delay
	}{
		{storetest.Before, 0, true, false, false},
		{storetest.After, 0, true, true, true},
		{storetest.Late, 0, true, false, true},
		{storetest.Slow, delay, false, true, true},
		{storetest.Refuse, 0, false, false, false},
	} {
		for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease} {
			t.Run(fmt.Sprint(c.kind, "/", op), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newFaultRig(t)
					if op != storetest.OpAcquire {
						r.lock()
					}
					r.f.Set(op, storetest.Fault{Kind: c.kind, Delay: delay, Times: 1})
					start := time.Now()
					own, err := r.op(context.Background(), op)
					if took := time.Since(start); took != c.answer {
						t.Errorf("answered after %v, want %v", took, c.answer)
					}
					if c.fails != (err != nil) || c.fails && !errors.Is(err, tierlock.ErrUnavailable) {
						t.Errorf("got error %v, want one that wraps ErrUnavailable: %v", err, c.fails)
					}
					if c.kind == storetest.Slow && own != tierlock.LeaseOwned {
						t.Errorf("got %v, want owned", own)
					}
					if got := r.done(op); got != c.now {
						t.Errorf("effect there with the answer: %v, want %v", got, c.now)
					}
					r.f.Wait()
					if took := time.Since(start); c.kind == storetest.Late && took != delay {
						t.Errorf("Wait returned after %v, want %v", took, delay)
					}
					if got := r.done(op); got != c.later {
						t.Errorf("effect there in the end: %v, want %v", got, c.later)
					}
					// Times is used up.
					start = time.Now()
					if _, err = r.op(context.Background(), op); err != nil || time.Since(start) != 0 {
						t.Errorf("second call: got error %v after %v, want none at once", err, time.Since(start))
					}
					if got := r.f.Calls(op); got != 2 {
						t.Errorf("got %d calls, want 2", got)
					}
				})
			})
		}
	}
}

// A slow call that is given up has its effect when the delay is over.
func TestSlowGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFaultRig(t)
		r.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 3 * time.Second})
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, cause)
		defer cancel()
		start := time.Now()
		_, err := r.op(ctx, storetest.OpAcquire)
		if took := time.Since(start); took != time.Second {
			t.Errorf("answered after %v, want 1s", took)
		}
		for _, want := range []error{tierlock.ErrUnavailable, context.DeadlineExceeded, cause} {
			if !errors.Is(err, want) {
				t.Errorf("got error %v, want one that wraps %v", err, want)
			}
		}
		r.wantHeld(false)
		r.f.Wait()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("Wait returned after %v, want 3s", took)
		}
		r.wantHeld(true)
	})
}

// budgetStore grants nothing and keeps the budget it is given.
type budgetStore struct {
	tierlock.Store
	got []time.Duration
}

func (s *budgetStore) Acquire(_ context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	s.got = append(s.got, req.Budget)
	return tierlock.AcquireResult{}, nil
}

// The wrapped store sees what is left of the budget; with nothing left there
// is no effect.
func TestDelayTakesFromBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &budgetStore{}
		f := storetest.WithFaults(inner)
		call := func(kind storetest.Kind, delay time.Duration) error {
			f.Set(storetest.OpAcquire, storetest.Fault{Kind: kind, Delay: delay})
			_, err := f.Acquire(context.Background(), tierlock.AcquireRequest{Budget: 10 * time.Second})
			f.Wait()
			return err
		}
		call(storetest.Slow, 4*time.Second)
		call(storetest.Late, 9999*time.Millisecond)
		if len(inner.got) != 2 || inner.got[0] != 6*time.Second || inner.got[1] != time.Millisecond {
			t.Errorf("budgets of the wrapped store: got %v, want [6s 1ms]", inner.got)
		}
		inner.got = nil
		for _, delay := range []time.Duration{10 * time.Second, time.Minute} {
			if err := call(storetest.Slow, delay); !errors.Is(err, tierlock.ErrLate) || errors.Is(err, tierlock.ErrUnavailable) {
				t.Errorf("Slow by %v of 10s: got error %v, want ErrLate alone", delay, err)
			}
			if err := call(storetest.Late, delay); !errors.Is(err, tierlock.ErrUnavailable) {
				t.Errorf("Late by %v of 10s: got error %v, want ErrUnavailable", delay, err)
			}
		}
		call(storetest.Before, 0)
		if inner.got != nil {
			t.Errorf("budgets of the wrapped store: got %v, want no call", inner.got)
		}
	})
}

func TestFaultIsSetAndCleared(t *testing.T) {
	r := newFaultRig(t)
	r.lock()
	mine := errors.New("mine")
	all := []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease, storetest.OpInspect}
	for _, op := range all {
		r.f.Set(op, storetest.Fault{Kind: storetest.Before, Err: mine})
	}
	for _, op := range all {
		for range 3 { // Times 0: until it is cleared
			if _, err := r.op(context.Background(), op); err != mine {
				t.Errorf("%v: got error %v, want the one that was set", op, err)
			}
		}
	}
	r.f.Clear(storetest.OpRelease)
	if _, err := r.op(context.Background(), storetest.OpRenew); err != mine {
		t.Errorf("renew with release cleared: got error %v, want the one that was set", err)
	}
	if own, err := r.op(context.Background(), storetest.OpRelease); own != tierlock.LeaseOwned || err != nil {
		t.Errorf("release, cleared: got %v and error %v, want owned", own, err)
	}
	r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Before, Times: 2})
	for i, want := range []bool{true, true, false} {
		if _, err := r.op(context.Background(), storetest.OpRenew); (err != nil) != want {
			t.Errorf("renew %d with Times 2: got error %v, want an error: %v", i, err, want)
		}
	}
	r.f.ClearAll()
	for _, op := range all {
		if _, err := r.op(context.Background(), op); err != nil {
			t.Errorf("%v, all cleared: got error %v", op, err)
		}
	}
}

func TestRefuseAnswers(t *testing.T) {
	r := newFaultRig(t)
	r.lock()
	for _, want := range []tierlock.Ownership{tierlock.LeaseTaken, tierlock.LeaseGone, tierlock.LeaseOwned} {
		for _, op := range []storetest.Op{storetest.OpRenew, storetest.OpRelease} {
			r.f.Set(op, storetest.Fault{Kind: storetest.Refuse, Answer: want})
			if own, err := r.op(context.Background(), op); own != want || err != nil {
				t.Errorf("%v refused: got %v and error %v, want %v", op, own, err, want)
			}
		}
		r.wantHeld(true)
	}
	r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Refuse})
	if own, err := r.op(context.Background(), storetest.OpRenew); own != tierlock.LeaseGone || err != nil {
		t.Errorf("renew refused without Answer: got %v and error %v, want gone", own, err)
	}
	for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpInspect} {
		r.f.Set(op, storetest.Fault{Kind: storetest.Refuse})
		if own, err := r.op(context.Background(), op); own != 0 || err != nil {
			t.Errorf("%v refused: got %v and error %v, want not granted, not held", op, own, err)
		}
	}
}

// A call with an ended context sends nothing and uses no fault up.
func TestFaultAndEndedContext(t *testing.T) {
	for _, kind := range []storetest.Kind{storetest.Before, storetest.After, storetest.Late, storetest.Slow, storetest.Refuse} {
		synctest.Test(t, func(t *testing.T) {
			r := newFaultRig(t)
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			r.f.Set(storetest.OpAcquire, storetest.Fault{Kind: kind, Delay: time.Second, Times: 1})
			_, err := r.op(ended, storetest.OpAcquire)
			if !errors.Is(err, tierlock.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v with an ended context: got error %v, want one that wraps ErrUnavailable and context.Canceled", kind, err)
			}
			r.f.Wait()
			r.wantHeld(false)
			start := time.Now()
			own, err := r.op(context.Background(), storetest.OpAcquire)
			if err == nil && own == tierlock.LeaseOwned && time.Since(start) == 0 {
				t.Errorf("%v: the next call met no fault", kind)
			}
			r.f.Wait()
		})
	}
}

// A late renewal must not read what the caller wrote into its slice meanwhile.
func TestLateRenewalOwnsItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFaultRig(t)
		r.lock()
		r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Late, Delay: time.Second})
		batch := []tierlock.RenewRequest{{Name: r.req.Name, Lease: "one", TTL: 2 * time.Minute}}
		r.f.Renew(context.Background(), batch)
		batch[0] = tierlock.RenewRequest{}
		r.f.Wait()
		if left := r.left(); left != 2*time.Minute {
			t.Errorf("after the late renewal: %v left, want 2m0s", left)
		}
	})
}

func TestSetPanicsOnNonsense(t *testing.T) {
	for _, c := range []struct {
		op    storetest.Op
		fault storetest.Fault
	}{
		{0, storetest.Fault{Kind: storetest.Before}},
		{storetest.OpInspect + 1, storetest.Fault{Kind: storetest.Before}},
		{storetest.OpAcquire, storetest.Fault{}},
		{storetest.OpAcquire, storetest.Fault{Kind: storetest.Refuse + 1}},
		{storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Times: -1}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Set(%v, %+v): no panic", c.op, c.fault)
				}
			}()
			storetest.WithFaults(localstore.New(localstore.Options{})).Set(c.op, c.fault)
		}()
	}
}

func TestFaultyWatch(t *testing.T) {
	r := newFaultRig(t)
	r.lock()
	w, err := r.f.Watch(context.Background(), r.req.Name)
	if err != nil {
		t.Fatalf("Watch: got error %v, want that of the wrapped store", err)
	}
	defer w.Close()
	r.op(context.Background(), storetest.OpRelease)
	select {
	case <-w.C():
	default:
		t.Errorf("no signal after a release")
	}
	f := storetest.WithFaults(struct{ tierlock.Store }{r.plain})
	if _, err := f.Watch(context.Background(), r.req.Name); !errors.Is(err, tierlock.ErrUnavailable) {
		t.Errorf("Watch over a store without: got error %v, want ErrUnavailable", err)
	}
}
