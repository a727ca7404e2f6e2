package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// steal takes the key away from whoever has it, and gives it to another if
// asked to; undo frees it.
func steal(t *testing.T, raw *localstore.Store, n tierlock.Name, lease string, to string) (undo func()) {
	t.Helper()
	if own, err := raw.Release(bg, tierlock.ReleaseRequest{Name: n, Lease: lease}); err != nil || own != tierlock.LeaseOwned {
		t.Fatal(own, err)
	}
	if to == "" {
		return func() {}
	}
	res, err := raw.Acquire(bg, tierlock.AcquireRequest{Name: n, TTL: time.Hour, Budget: time.Second,
		Token: tierlock.Token{Lease: to, Tier: tierlock.Local}})
	if err != nil || !res.Granted {
		t.Fatal(res, err)
	}
	return func() {
		if own, err := raw.Release(bg, tierlock.ReleaseRequest{Name: n, Lease: to}); err != nil || own != tierlock.LeaseOwned {
			t.Errorf("the other holder's key: %v, %v", own, err)
		}
	}
}

// Each way to lose a lock: the signal comes once (scenario 21), says why (25),
// nothing is renewed after it (23), and the same object locks again (24).
func TestLoss(t *testing.T) {
	renewFault := func(f storetest.Fault) func(*testing.T, *storetest.Faulty, *localstore.Store, *tierlock.Lock, context.CancelFunc) func() {
		return func(_ *testing.T, s *storetest.Faulty, _ *localstore.Store, _ *tierlock.Lock, _ context.CancelFunc) func() {
			s.Set(storetest.OpRenew, f)
			return func() {}
		}
	}
	for _, c := range []struct {
		what   string
		lose   func(t *testing.T, s *storetest.Faulty, raw *localstore.Store, k *tierlock.Lock, cancel context.CancelFunc) (undo func())
		reason string
		at     time.Duration // of the signal, counted from the start of the hold
		isErr  error         // what the loss carries
	}{
		{"deleted", func(t *testing.T, _ *storetest.Faulty, raw *localstore.Store, k *tierlock.Lock, _ context.CancelFunc) func() {
			return steal(t, raw, name("r", "1"), k.Token().Lease, "")
		}, "gone", time.Second, nil},
		{"taken", func(t *testing.T, _ *storetest.Faulty, raw *localstore.Store, k *tierlock.Lock, _ context.CancelFunc) func() {
			return steal(t, raw, name("r", "1"), k.Token().Lease, "thief")
		}, "taken", time.Second, nil},
		{"no renewal is confirmed", renewFault(storetest.Fault{Kind: storetest.Before}), "unconfirmed", 2700 * time.Millisecond, tierlock.ErrUnavailable},
		{"renewals hang", renewFault(storetest.Fault{Kind: storetest.Slow, Delay: time.Minute}), "unconfirmed", 2700 * time.Millisecond, tierlock.ErrUnavailable},
		{"renewals are done but not confirmed", renewFault(storetest.Fault{Kind: storetest.After}), "unconfirmed", 2700 * time.Millisecond, tierlock.ErrUnavailable},
		{"the store says taken", renewFault(storetest.Fault{Kind: storetest.Refuse, Answer: tierlock.LeaseTaken}), "taken", time.Second, nil},
		{"the store is misconfigured", renewFault(storetest.Fault{Kind: storetest.Before, Err: fmt.Errorf("x: %w", tierlock.ErrMisconfigured)}),
			"unconfirmed", 2700 * time.Millisecond, tierlock.ErrMisconfigured},
		{"the caller's context ended", func(_ *testing.T, _ *storetest.Faulty, _ *localstore.Store, _ *tierlock.Lock, cancel context.CancelFunc) func() {
			cancel()
			return func() {}
		}, "expired", 2700 * time.Millisecond, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lost events[tierlock.LostEvent]
				l, other, s, _, raw := twoLockers(t, func(cfg *tierlock.Config) { cfg.Observer.Lost = lost.add })
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				start := time.Now()
				k := mustLockCtx(t, ctx, l, "r", "1")
				signals := make(chan error, 10)
				context.AfterFunc(k.Context(), func() { signals <- context.Cause(k.Context()) })
				undo := c.lose(t, s, raw, k, cancel)
				time.Sleep(c.at - time.Since(start) - 1)
				synctest.Wait()
				if ctx.Err() == nil && (k.Err() != nil || len(signals) != 0) {
					t.Errorf("1 ns before: Err %v", k.Err())
				}
				time.Sleep(time.Nanosecond)
				if c.reason == "gone" || c.reason == "taken" {
					synctest.Wait() // for the store's answer; else the clock tells, whatever else has run
				}
				wantLostErr := wantLost(t, "Err", k.Err(), c.reason)
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				if ctx.Err() == nil {
					wantLost(t, "cause", context.Cause(k.Context()), c.reason)
				}
				if len(signals) != 1 {
					t.Errorf("%d signals, want 1", len(signals))
				}
				if wantLostErr.Token != k.Token() || !near(wantLostErr.Held, c.at, time.Millisecond) {
					t.Errorf("%+v, want Held %v", wantLostErr, c.at)
				}
				if c.isErr != nil {
					wantIs(t, "its cause", wantLostErr.Err, c.isErr)
				}
				// A loss never looks like "nothing is held".
				for _, class := range []error{tierlock.ErrUnavailable, tierlock.ErrMisconfigured, tierlock.ErrLate, context.DeadlineExceeded} {
					if errors.Is(k.Err(), class) {
						t.Errorf("%v matches %v", k.Err(), class)
					}
				}
				renewals := s.Calls(storetest.OpRenew)
				time.Sleep(10 * time.Second)
				s.ClearAll()
				time.Sleep(10 * time.Second)
				if n := s.Calls(storetest.OpRenew) - renewals; n != 0 {
					t.Errorf("%d renewals after the loss", n)
				}
				wantLost(t, "Err", k.Err(), c.reason)
				wantLost(t, "Unlock", k.Unlock(), c.reason)
				wantLost(t, "second Unlock", k.Unlock(), c.reason)
				e := lost.all()
				if len(e) != 1 || e[0].Token != k.Token() || e[0].Err == nil || e[0].Err.Reason.String() != c.reason {
					t.Errorf("events %+v, want one", e)
				}
				undo() // and the other holder still had it
				s.Wait()
				for _, next := range []*tierlock.Locker{l, other, l} {
					mustUnlock(t, mustLock(t, next, "r", "1", tierlock.NoWait()))
				}
				idle(t, l)
			})
		})
	}
}

// Scenario 23: a holder that is cut off keeps nobody out beyond its lease.
func TestLostKeyIsFreeWithinItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other, s, _, raw := twoLockers(t)
		k := mustLock(t, l, "r", "1")
		time.Sleep(10*time.Second + time.Millisecond) // just renewed
		for _, op := range []storetest.Op{storetest.OpRenew, storetest.OpRelease} {
			s.Set(op, storetest.Fault{Kind: storetest.Before})
		}
		start := time.Now()
		w := lockAsync(bg, other, "r", "1", tierlock.UntilDone())
		<-k.Context().Done()
		ended := time.Now()
		r := <-w
		if r.err != nil {
			t.Fatal(r.err)
		}
		if d := r.at.Sub(ended); d < 290*time.Millisecond {
			t.Errorf("another process got the key %v after the first was told, want a margin, 300 ms", d)
		}
		if d := r.at.Sub(start); d > 3*time.Second {
			t.Errorf("another process got the key after %v, want a TTL at most", d)
		}
		// Scenarios 36 and 38: a late unlock is told why, and touches nothing.
		lost := wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
		if lost.Held > 13*time.Second || lost.Held < 12*time.Second {
			t.Errorf("held %v", lost.Held)
		}
		s.ClearAll()
		time.Sleep(5 * time.Second)
		wantHeldBy(t, raw, name("r", "1"), r.k)
		if r.k.Err() != nil {
			t.Errorf("the new holder: %v", r.k.Err())
		}
		mustUnlock(t, r.k)
		idle(t, l)
	})
}

// Scenarios 36 and 38 with the store in order: the holder overslept.
func TestUnlockAfterExpiry(t *testing.T) {
	for _, taken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, other, _, _, raw := twoLockers(t)
			ctx, cancel := context.WithCancel(bg)
			k := mustLockCtx(t, ctx, l, "r", "1")
			cancel() // no renewal
			time.Sleep(3*time.Second + time.Millisecond)
			var k2 *tierlock.Lock
			if taken {
				k2 = mustLock(t, other, "r", "1", tierlock.NoWait())
			}
			wantLost(t, "Unlock", k.Unlock(), "expired")
			if taken {
				wantHeldBy(t, raw, name("r", "1"), k2)
				time.Sleep(10 * time.Second)
				mustUnlock(t, k2)
			}
			wantFree(t, raw, name("r", "1"))
		})
	}
	// In the margin the key is still ours: it is given back, and the loss is
	// told all the same, because others were told so.
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, raw := twoLockers(t)
		ctx, cancel := context.WithCancel(bg)
		k := mustLockCtx(t, ctx, l, "r", "1")
		cancel()
		time.Sleep(2800 * time.Millisecond)
		wantHeldBy(t, raw, name("r", "1"), k)
		wantLost(t, "Unlock", k.Unlock(), "expired")
		wantFree(t, raw, name("r", "1"))
	})
}

// Found only when the key is released: the store lost it since the last
// renewal.
func TestLossFoundAtUnlock(t *testing.T) {
	for _, c := range []struct{ to, reason string }{{"", "gone"}, {"thief", "taken"}} {
		synctest.Test(t, func(t *testing.T) {
			var lost events[tierlock.LostEvent]
			l, _, s, _, raw := twoLockers(t, func(cfg *tierlock.Config) { cfg.Observer.Lost = lost.add })
			k := mustLock(t, l, "r", "1")
			time.Sleep(500 * time.Millisecond)
			undo := steal(t, raw, name("r", "1"), k.Token().Lease, c.to)
			if k.Err() != nil {
				t.Errorf("Err before anybody asked the store: %v", k.Err())
			}
			wantLost(t, "Unlock", k.Unlock(), c.reason)
			wantLost(t, "Err", k.Err(), c.reason)
			if e := lost.all(); len(e) != 1 {
				t.Errorf("events %+v, want one", e)
			}
			if n := s.Calls(storetest.OpRenew); n != 0 {
				t.Errorf("%d renewals", n)
			}
			undo()
			// The release was executed, its answer lost, and the repeat finds
			// nothing: that is no loss.
			s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.After, Times: 1})
			k = mustLock(t, l, "r", "2")
			err := k.Unlock()
			wantIs(t, "answer lost", err, tierlock.ErrUnavailable)
			wantNotIs(t, "answer lost", err, tierlock.ErrLost)
			idle(t, l)
			if e := lost.all(); len(e) != 1 {
				t.Errorf("events %+v, want still one", e)
			}
		})
	}
}

// Scenario 19: some failures do not lose a lock, time does.
func TestFailedRenewalsAreRetried(t *testing.T) {
	for _, f := range []storetest.Fault{
		{Kind: storetest.Before, Times: 1},
		{Kind: storetest.After, Times: 1},
		{Kind: storetest.Before, Times: 8},
		{Kind: storetest.Late, Delay: 300 * time.Millisecond, Times: 2},
		{Kind: storetest.Slow, Delay: 400 * time.Millisecond, Times: 1},
		{Kind: storetest.Slow, Delay: time.Minute, Times: 1},
	} {
		t.Run(fmt.Sprintf("%d times %v", f.Times, f.Kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, other, s, _, raw := twoLockers(t)
				k := mustLock(t, l, "r", "1")
				s.Set(storetest.OpRenew, f)
				for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
					if k.Err() != nil || k.Context().Err() != nil {
						t.Fatalf("lost after %v: %v", time.Since(start), k.Err())
					}
					if _, err := other.TryLock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) {
						t.Fatalf("another process after %v: %v", time.Since(start), err)
					}
				}
				mustUnlock(t, k)
				// A renewal that is executed after the release revives nothing.
				s.Wait()
				wantFree(t, raw, name("r", "1"))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, _ := twoLockers(t)
		k := mustLock(t, l, "r", "1")
		s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Before, Times: 1})
		time.Sleep(1250 * time.Millisecond)
		if n := s.Calls(storetest.OpRenew); n != 2 {
			t.Errorf("%d renewals 250 ms after the first was to be, want a retry", n)
		}
		mustUnlock(t, k)
	})
}

func TestEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		k := mustLock(t, l, "r", "1")
		time.Sleep(900 * time.Millisecond) // 1.8 s of belief left
		for _, c := range []struct {
			d        time.Duration
			ok       bool
			renewals int
		}{{1700 * time.Millisecond, true, 0}, {2700 * time.Millisecond, true, 1}, {2701 * time.Millisecond, false, 0}, {time.Hour, false, 0}, {0, true, 0}} {
			before := s.Calls(storetest.OpRenew)
			if err := k.Ensure(c.d); (err == nil) != c.ok {
				t.Errorf("Ensure(%v): %v", c.d, err)
			}
			if n := s.Calls(storetest.OpRenew) - before; n != c.renewals {
				t.Errorf("Ensure(%v): %d renewals, want %d", c.d, n, c.renewals)
			}
		}
		if d := left(t, raw, name("r", "1")); d != 3*time.Second {
			t.Errorf("%v left, want 3 s", d)
		}
		time.Sleep(900 * time.Millisecond)
		s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Slow, Delay: time.Minute})
		start := time.Now()
		err := k.Ensure(2500 * time.Millisecond)
		wantIs(t, "no answer", err, tierlock.ErrUnavailable)
		wantNotIs(t, "no answer", err, context.DeadlineExceeded)
		if d := time.Since(start); d > 500*time.Millisecond {
			t.Errorf("took %v, want the CallTimeout at most", d)
		}
		if k.Err() != nil {
			t.Errorf("a failed Ensure ended the hold: %v", k.Err())
		}
		s.ClearAll()
		time.Sleep(10 * time.Second)
		mustUnlock(t, k)
		wantIs(t, "unlocked", k.Ensure(1), tierlock.ErrReleased)
		s.Wait()

		// Joined to a renewal under way, and cut off during the one of its own.
		k = mustLock(t, l, "r", "3")
		s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Slow, Delay: time.Minute})
		time.Sleep(1300 * time.Millisecond)
		start = time.Now()
		err = k.Ensure(2500 * time.Millisecond)
		wantIs(t, "no answer to either", err, tierlock.ErrUnavailable)
		wantNotIs(t, "no answer to either", err, context.DeadlineExceeded)
		if d := time.Since(start); d != 500*time.Millisecond {
			t.Errorf("took %v, want the CallTimeout", d)
		}
		s.ClearAll()
		time.Sleep(time.Second)
		mustUnlock(t, k)
		s.Wait()

		k = mustLock(t, l, "r", "2", tierlock.Lease(4*time.Second))
		time.Sleep(1900 * time.Millisecond)
		if err := k.Ensure(2 * time.Second); err == nil {
			t.Error("Ensure beyond the bound gave no error")
		}
		if err := k.Ensure(1500 * time.Millisecond); err != nil {
			t.Errorf("Ensure within the bound: %v", err)
		}
		mustUnlock(t, k)
	})
}

// A Lock that is nil, or that nobody gave.
func TestNotALock(t *testing.T) {
	wantNoLock(t, nil)
	k := &tierlock.Lock{}
	for what, err := range map[string]error{"Err": k.Err(), "Unlock": k.Unlock(), "second Unlock": k.Unlock(), "Ensure": k.Ensure(time.Second),
		"Context": context.Cause(k.Context())} {
		if !errors.Is(err, tierlock.ErrNotHeld) || errors.Is(err, tierlock.ErrLost) || errors.Is(err, tierlock.ErrReleased) {
			t.Errorf("%s of a zero Lock: %v, want ErrNotHeld", what, err)
		}
	}
	if !k.Token().IsZero() || k.Guarantee() != 0 {
		t.Errorf("token %v, guarantee %v", k.Token(), k.Guarantee())
	}
}

// full answers renewals with an error of its own, and those that have less than
// CallTimeout not at all.
type full struct{ tierlock.Store }

func (s full) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	err := fmt.Errorf("%w: the disk is full", tierlock.ErrUnavailable)
	if end, _ := ctx.Deadline(); time.Until(end) < 500*time.Millisecond {
		<-ctx.Done()
		err = fmt.Errorf("%w: %w", tierlock.ErrUnavailable, ctx.Err())
	}
	results := make([]tierlock.RenewResult, len(reqs))
	for i := range results {
		results[i].Err = err
	}
	return results
}

// A loss tells what the store said, and not that the last call was cut short.
func TestLossTellsWhatTheStoreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, full{localstore.New(localstore.Options{Space: localstore.NewSpace()})})
		var locks []*tierlock.Lock
		for i := range 2 { // renewed together, and told before belief ends
			locks = append(locks, mustLock(t, l, "r", fmt.Sprint(i)))
		}
		for _, k := range locks {
			<-k.Context().Done()
			if err := k.Unlock(); !errors.Is(err, tierlock.ErrLost) || !strings.Contains(err.Error(), "the disk is full") {
				t.Errorf("got %v, want a loss that tells what the store said", err)
			}
		}
		idle(t, l)
	})
}
