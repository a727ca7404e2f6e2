package tierlock_test

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

// faults are the ways in which one call goes wrong. The late ones are within
// the budget of an acquire, 150 ms of a TTL of 3 s, and beyond it.
func faults(times int) []storetest.Fault {
	var all []storetest.Fault
	for _, kind := range []storetest.Kind{storetest.Before, storetest.After} {
		all = append(all, storetest.Fault{Kind: kind, Times: times})
	}
	for _, kind := range []storetest.Kind{storetest.Late, storetest.Slow} {
		for _, delay := range []time.Duration{10, 140, 160, 450, 700, 1900} {
			all = append(all, storetest.Fault{Kind: kind, Delay: delay * time.Millisecond, Times: times})
		}
	}
	return all
}

func (f faultCase) String() string {
	return fmt.Sprintf("%s %v %v x%d", f.op, f.Kind, f.Delay, f.Times)
}

type faultCase struct {
	op storetest.Op
	storetest.Fault
}

// The fault matrix: whichever call goes wrong in whichever way, once, a few
// times or always, every call ends in its time, no two believe in one key, and
// afterwards nothing is left behind (scenario 42).
func TestFaultMatrix(t *testing.T) {
	for _, times := range []int{1, 2, 5, 0} {
		for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease, storetest.OpInspect} {
			for _, f := range faults(times) {
				c := faultCase{op, f}
				t.Run(c.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { runFault(t, c) }) })
			}
		}
	}
}

func runFault(t *testing.T, c faultCase) {
	a, b, s, _, raw := twoLockers(t)
	n := name("r", "1")
	var rival *tierlock.Lock
	if c.op == storetest.OpInspect { // only who waits reads
		rival = mustLock(t, b, "r", "1")
		time.AfterFunc(2500*time.Millisecond, func() { mustUnlock(t, rival) })
	}
	s.Set(c.op, c.Fault)
	start := time.Now()
	k, err := a.Lock(bg, "r", "1", tierlock.Wait(3*time.Second))
	if d := time.Since(start); d > 3*time.Second+time.Millisecond { // which the last try has at least
		t.Errorf("Lock took %v, want its wait, 3 s, at most", d)
	}
	fine := c.op != storetest.OpAcquire || c.Times > 0 && c.Times < 5 || c.Kind == storetest.Slow && c.Delay < 150*time.Millisecond
	switch {
	case err == nil:
		wantHeldBy(t, raw, n, k)
		// The other process finds it held for as long as it is believed in.
		for ; k.Err() == nil && time.Since(start) < 9*time.Second; time.Sleep(50 * time.Millisecond) {
			if k2, err := b.TryLock(bg, "r", "1"); err == nil && k.Err() == nil {
				t.Fatalf("two holders after %v: %v and %v", time.Since(start), k.Token(), k2.Token())
			}
		}
		// Five renewals in a row that each take their whole time limit are
		// more than one lease.
		long := c.Kind == storetest.Slow && c.Delay > 500*time.Millisecond
		if k.Err() != nil && (c.op != storetest.OpRenew || c.Times > 0 && !(long && c.Times == 5)) {
			t.Errorf("lost: %v", k.Err())
		}
		unlocking := time.Now()
		err := k.Unlock()
		if d := time.Since(unlocking); d > time.Second {
			t.Errorf("Unlock took %v, want two CallTimeouts at most", d)
		}
		if err != nil && c.op != storetest.OpRelease && c.op != storetest.OpRenew {
			t.Errorf("Unlock: %v", err)
		}
		wantNotIs(t, "Unlock", err, tierlock.ErrHeld, context.DeadlineExceeded)
	case fine:
		t.Errorf("Lock: %v, want it to live through that", err)
	default:
		wantNoLock(t, k)
		if rival == nil {
			wantIs(t, "Lock", err, tierlock.ErrUnavailable)
			wantNotIs(t, "Lock", err, tierlock.ErrHeld)
		}
	}

	s.ClearAll()
	renewals := s.Calls(storetest.OpRenew)
	idle(t, a)
	s.Wait()
	time.Sleep(2 * time.Second) // less than a TTL: nothing may depend on that
	wantFree(t, raw, n)
	if d := s.Calls(storetest.OpRenew) - renewals; d != 0 {
		t.Errorf("%d renewals after the end", d)
	}
	for _, l := range []*tierlock.Locker{a, b} {
		k, err := l.Lock(bg, "r", "1")
		if err != nil {
			t.Errorf("next Lock: %v", err)
			continue
		}
		time.Sleep(1500 * time.Millisecond)
		mustUnlock(t, k)
	}
}

// Scenario 41: the context ends at every millisecond around the reply. Either
// the lock is had, or no key stays and nothing renews it.
func TestContextEndsAroundTheReply(t *testing.T) {
	for _, reply := range []struct {
		ttl, after time.Duration
	}{{30 * time.Second, 200 * time.Millisecond}, {3 * time.Second, 20 * time.Millisecond}} {
		granted := 0
		for end := reply.after - 20*time.Millisecond; end <= reply.after+20*time.Millisecond; end += time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				raw := localstore.New(localstore.Options{})
				s := storetest.WithFaults(raw)
				l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: reply.ttl}))
				s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: reply.after, Times: 1})
				ctx, cancel := context.WithTimeout(bg, end)
				defer cancel()
				k, err := l.Lock(ctx, "r", "1")
				if err == nil {
					granted++
					mustUnlock(t, k)
				} else {
					wantNoLock(t, k)
					wantIs(t, fmt.Sprintf("end after %v", end), err, context.DeadlineExceeded)
				}
				s.Wait()
				idle(t, l)
				wantFree(t, raw, name("r", "1"))
				if n := s.Calls(storetest.OpRenew); n != 0 {
					t.Errorf("end after %v: %d renewals", end, n)
				}
			})
		}
		if granted < 15 || granted > 21 {
			t.Errorf("granted %d times of 41, want about half: the test does not reach the reply", granted)
		}
	}
}

// The same, with a store that gives its answer though the context has ended:
// the grant is there, and nobody wants it.
func TestGrantThatNobodyWants(t *testing.T) {
	for _, c := range []struct {
		what string
		end  func(l *tierlock.Locker, cancel context.CancelFunc) // called before the grant comes
		wait time.Duration                                       // until it comes
		is   error
	}{
		{"the context ended", func(_ *tierlock.Locker, cancel context.CancelFunc) { cancel() }, time.Millisecond, context.Canceled},
		{"belief is over", func(*tierlock.Locker, context.CancelFunc) {}, 2900 * time.Millisecond, tierlock.ErrUnavailable},
		{"the Locker is closed", func(l *tierlock.Locker, _ context.CancelFunc) {
			go l.Close(bg)
			synctest.Wait()
		}, time.Millisecond, tierlock.ErrClosed},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpy(nil)
				var l *tierlock.Locker
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
					res, err := s.Store.Acquire(context.WithoutCancel(ctx), req)
					c.end(l, cancel)
					time.Sleep(c.wait)
					return res, err
				}
				l = newLocker(t, s)
				k, err := l.TryLock(ctx, "r", "1")
				wantNoLock(t, k)
				wantIs(t, "TryLock", err, c.is)
				time.Sleep(50 * time.Millisecond) // far less than the TTL
				wantFree(t, s.Store, name("r", "1"))
				time.Sleep(10 * time.Second)
				if n := s.renews.Load(); n != 0 {
					t.Errorf("%d renewals", n)
				}
			})
		})
	}
}

// A lost reply is made good by the retry, under the same lease. And an attempt
// that was given up, and is executed after the unlock, is undone.
func TestEarlierAttemptExecutesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy(nil)
		var reqs []tierlock.AcquireRequest
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			reqs = append(reqs, req)
			res, err := s.Store.Acquire(ctx, req)
			if len(reqs) == 1 {
				time.AfterFunc(120*time.Millisecond, func() {
					// The request of before, on its way till now; within its budget.
					late := req
					late.Budget -= 120 * time.Millisecond
					if res, err := s.Store.Acquire(bg, late); err != nil || !res.Granted {
						t.Errorf("late attempt: %+v, %v", res, err)
					}
				})
				return tierlock.AcquireResult{}, fmt.Errorf("reply lost: %w", tierlock.ErrUnavailable)
			}
			return res, err
		}
		l := newLocker(t, s)
		k := mustLock(t, l, "r", "1")
		if len(reqs) != 2 || reqs[0].Token.Lease != reqs[1].Token.Lease || reqs[0].Token.ID != reqs[1].Token.ID ||
			reqs[0].Token.Lease != k.Token().Lease {
			t.Errorf("requests %+v, want one lease and hold id", reqs)
		}
		mustUnlock(t, k)
		wantFree(t, s.Store, name("r", "1"))
		if n := l.Status().Undos; n != 1 {
			t.Errorf("%d undos, want one that waits for the earlier attempt", n)
		}
		time.Sleep(130 * time.Millisecond)
		if left(t, s.Store, name("r", "1")) == 0 {
			t.Error("the late attempt took nothing: the test shows nothing")
		}
		time.Sleep(1500 * time.Millisecond)
		wantFree(t, s.Store, name("r", "1"))
		idle(t, l)
		if n := s.renews.Load(); n != 0 {
			t.Errorf("%d renewals", n)
		}
	})
}

// With the store away for longer than a TTL, an undo ends by itself: the key
// has expired.
func TestUndoEndsWithTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.After})
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
		_, err := l.TryLock(bg, "r", "1")
		wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
		if st := l.Status(); st.Undos != 1 || st.Holds != 0 {
			t.Errorf("%+v, want one undo and no hold", st)
		}
		time.Sleep(2900 * time.Millisecond)
		if n := s.Calls(storetest.OpRelease); n < 8 || n > 30 {
			t.Errorf("%d releases in 2.9 s, want a backoff up to 250 ms", n)
		}
		time.Sleep(1500 * time.Millisecond)
		wantFree(t, raw, name("r", "1"))
		if n := l.Status().Undos; n != 0 {
			t.Errorf("%d undos after the key has expired", n)
		}
		calls := s.Calls(storetest.OpRelease)
		time.Sleep(10 * time.Second)
		if n := s.Calls(storetest.OpRelease) - calls; n != 0 {
			t.Errorf("%d releases after the key has expired", n)
		}
		if errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("TryLock: %v", err)
		}
	})
}

// Many undos at once, with the store back in between, all get done.
func TestManyUndos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t, withResources(tierlock.Resource{Name: "r", TTL: 30 * time.Second}))
		const keys = 200
		var ks []*tierlock.Lock
		for i := range keys {
			ks = append(ks, mustLock(t, l, "r", fmt.Sprint(i)))
		}
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
		for _, k := range ks {
			wantIs(t, "Unlock", k.Unlock(), tierlock.ErrUnavailable)
		}
		if n := l.Status().Undos; n != keys {
			t.Errorf("%d undos, want %d", n, keys)
		}
		time.Sleep(10 * time.Second)
		if n := s.Calls(storetest.OpRelease) - keys; n > 100 {
			t.Errorf("%d tries in 10 s at a dead store, want one in 250 ms or so", n)
		}
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Slow, Delay: 5 * time.Millisecond})
		time.Sleep(time.Second)
		if n := l.Status().Undos; n != 0 {
			t.Errorf("%d undos a second after the store was back", n)
		}
		for i := range keys {
			wantFree(t, raw, name("r", fmt.Sprint(i)))
		}
	})
}
