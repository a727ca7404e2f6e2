package tierlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// A dead store costs three callers their wait. After that it is tried once a
// second, the others hear of it at once, and the first answer ends it. Holds
// go on all the while: their renewals and releases are not held back.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changed events[tierlock.StoreEvent]
		log := &logBook{}
		l, _, s, _, raw := twoLockers(t, func(c *tierlock.Config) {
			c.Resources = append(c.Resources, tierlock.Resource{Name: "long", TTL: 6 * time.Second})
			c.Observer.StoreChanged = changed.add
			c.Logger = slog.New(log)
		})
		lasting := mustLock(t, l, "long", "lasting")
		dead := func(f storetest.Fault) {
			for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease, storetest.OpInspect} {
				s.Set(op, f)
			}
		}
		dead(storetest.Fault{Kind: storetest.Slow, Delay: time.Minute})
		asked := 0
		for asked < 10 {
			synctest.Wait() // an undo that ends at this moment counts first
			if !l.Status().Stores[0].Available {
				break
			}
			asked++
			start := time.Now()
			k, err := l.TryLock(bg, "r", fmt.Sprint(asked))
			wantNoLock(t, k)
			wantIs(t, "failure", err, tierlock.ErrUnavailable)
			if d := time.Since(start); d != 500*time.Millisecond {
				t.Errorf("took %v, want the CallTimeout", d)
			}
		}
		if asked < 2 || asked > 3 { // the undo of the first counts as well
			t.Errorf("down after %d calls, want 2 or 3", asked)
		}
		st := l.Status().Stores[0]
		if st.Available || st.LastError == nil || st.Tier != tierlock.Local || st.Guarantee != tierlock.ProcessLocal {
			t.Errorf("status %+v", st)
		}
		e := changed.all()
		if len(e) != 1 || e[0].Err == nil || e[0].Tier != tierlock.Local || e[0].App != "test" {
			t.Errorf("events %+v, want one", e)
		}
		if n := len(log.lines("tierlock: store does not answer")); n != 1 {
			t.Errorf("%d log lines, want 1", n)
		}

		dead(storetest.Fault{Kind: storetest.Before})
		// Nor does a call wait in line behind one that has more patience.
		patient, enough := context.WithCancel(bg)
		front := lockAsync(patient, l, "r", "y", tierlock.UntilDone())
		synctest.Wait()
		start := time.Now()
		_, err := l.Lock(bg, "r", "y")
		wantIs(t, "behind a patient one", err, tierlock.ErrUnavailable)
		if d := time.Since(start); d != 0 {
			t.Errorf("behind a patient one a call took %v", d)
		}
		enough()
		<-front

		begin, tries, renewals, releases := time.Now(), s.Calls(storetest.OpAcquire), s.Calls(storetest.OpRenew), s.Calls(storetest.OpRelease)
		calls := 0
		for time.Since(begin) < 2*time.Second {
			for _, lock := range []func(context.Context, string, string, ...tierlock.Option) (*tierlock.Lock, error){l.TryLock, l.Lock} {
				start := time.Now()
				_, err := lock(bg, "r", "x")
				wantIs(t, "while it is down", err, tierlock.ErrUnavailable)
				wantNotIs(t, "while it is down", err, tierlock.ErrHeld)
				if d := time.Since(start); d != 0 {
					t.Errorf("a call while it is down took %v", d)
				}
				calls++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.Calls(storetest.OpAcquire) - tries; n < 1 || n > 3 {
			t.Errorf("%d tries of %d calls in 2 s, want one a second", n, calls)
		}
		if n := s.Calls(storetest.OpRenew) - renewals; n < 2 {
			t.Errorf("%d renewals in 2 s, want them to go on", n)
		}
		if n := s.Calls(storetest.OpRelease) - releases; n < 5 {
			t.Errorf("%d undos in 2 s, want them to go on", n)
		}
		s.Clear(storetest.OpRenew)
		s.Clear(storetest.OpRelease)
		mustUnlock(t, lasting) // an answer: the store is up
		wantFree(t, raw, name("long", "lasting"))
		if !l.Status().Stores[0].Available {
			t.Error("still down after an answer")
		}
		if e := changed.all(); len(e) != 2 || e[1].Err != nil {
			t.Errorf("events %+v, want a second one without error", e)
		}
		if n := len(log.lines("tierlock: store answers again")); n != 1 {
			t.Errorf("%d log lines, want 1", n)
		}
		s.ClearAll()
		mustUnlock(t, mustLock(t, l, "r", "x"))
		s.Wait()
		idle(t, l)
	})
}

// What is no failure of the store does not count as one.
func TestBreakerStaysClosed(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(t *testing.T, a, b *tierlock.Locker, s *storetest.Faulty)
	}{
		{"contention", func(t *testing.T, a, b *tierlock.Locker, _ *storetest.Faulty) {
			k := mustLock(t, b, "r", "1")
			for range 5 {
				_, err := a.TryLock(bg, "r", "1")
				wantIs(t, "contention", err, tierlock.ErrHeld)
				_, err = a.Lock(bg, "r", "1", tierlock.Wait(1500*time.Millisecond))
				wantIs(t, "contention", err, tierlock.ErrHeld)
			}
			mustUnlock(t, k)
		}},
		{"short waits", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 300 * time.Millisecond})
			for range 5 {
				_, err := a.Lock(bg, "r", "1", tierlock.Wait(100*time.Millisecond))
				wantIs(t, "short wait", err, tierlock.ErrUnavailable)
			}
		}},
		{"cancelled contexts", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 300 * time.Millisecond})
			for range 5 {
				ctx, cancel := context.WithCancel(bg)
				time.AfterFunc(100*time.Millisecond, cancel)
				_, err := a.Lock(ctx, "r", "1")
				wantIs(t, "cancelled", err, context.Canceled)
			}
		}},
		{"late requests", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 200 * time.Millisecond})
			for range 5 {
				_, err := a.TryLock(bg, "r", "1")
				wantIs(t, "late", err, tierlock.ErrUnavailable, tierlock.ErrLate)
			}
		}},
		{"misconfiguration", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Err: fmt.Errorf("no: %w", tierlock.ErrMisconfigured)})
			for range 5 {
				start := time.Now()
				_, err := a.Lock(bg, "r", "1", tierlock.UntilDone())
				wantIs(t, "misconfigured", err, tierlock.ErrMisconfigured)
				wantNotIs(t, "misconfigured", err, tierlock.ErrUnavailable, tierlock.ErrHeld)
				if d := time.Since(start); d != 0 {
					t.Errorf("no retry can help, but it took %v", d)
				}
			}
		}},
		{"failures that are not in a row", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) {
			for range 5 {
				s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Times: 2})
				mustUnlock(t, mustLock(t, a, "r", "1"))
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changed events[tierlock.StoreEvent]
				a, b, s, _, raw := twoLockers(t, func(cfg *tierlock.Config) { cfg.Observer.StoreChanged = changed.add })
				c.do(t, a, b, s)
				if st := a.Status().Stores[0]; !st.Available {
					t.Errorf("status %+v, want available", st)
				}
				if e := changed.all(); len(e) != 0 {
					t.Errorf("events %+v, want none", e)
				}
				s.ClearAll()
				mustUnlock(t, mustLock(t, a, "r", "2", tierlock.NoWait()))
				s.Wait()
				idle(t, a)
				wantFree(t, raw, name("r", "1"))
			})
		})
	}
}

// readOnly refuses to grant, and has nothing to release.
type readOnly struct {
	tierlock.Store
	asked atomic.Int32
}

func (s *readOnly) Acquire(context.Context, tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	s.asked.Add(1)
	return tierlock.AcquireResult{}, fmt.Errorf("%w: read only", tierlock.ErrUnavailable)
}

// A store that grants nothing counts as down, though it answers the releases
// that undo each attempt: that there is nothing to release proves nothing.
func TestNothingToUndoIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &readOnly{Store: localstore.New(localstore.Options{Space: localstore.NewSpace()})}
		l := newLocker(t, s)
		for i := range 9 {
			_, err := l.TryLock(bg, "r", fmt.Sprint(i))
			wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.asked.Load(); n != 3 || l.Status().Stores[0].Available {
			t.Errorf("the store was asked %d times in a second, available: %v; want 3 times, and that it counts as down",
				n, l.Status().Stores[0].Available)
		}
		idle(t, l)
	})
}
