package tierlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
)

// A bounded hold: its context ends a margin before the bound, of the last
// lease, and its key at the bound. Scenario 27.
func TestBoundsOfAHold(t *testing.T) {
	for _, c := range []struct {
		what     string
		res      tierlock.Resource
		opts     []tierlock.Option
		renewals int
		from, to time.Duration // when the context ends
		key      time.Duration // when the key ends: leases are in whole milliseconds
	}{
		{"MaxHold below the TTL", tierlock.Resource{TTL: 3 * time.Second, MaxHold: 2 * time.Second}, nil,
			0, 1800 * time.Millisecond, 1800 * time.Millisecond, 2 * time.Second},
		{"MaxHold of several TTLs", tierlock.Resource{TTL: time.Second, MaxHold: 2 * time.Second}, nil,
			3, 1899 * time.Millisecond, 2*time.Second - 1, 2 * time.Second},
		{"MaxHold of many TTLs", tierlock.Resource{TTL: time.Second, MaxHold: 17500 * time.Millisecond}, nil,
			-1, 17399 * time.Millisecond, 17500*time.Millisecond - 1, 17500 * time.Millisecond},
		{"Lease", tierlock.Resource{TTL: 3 * time.Second}, []tierlock.Option{tierlock.Lease(time.Second)},
			0, 900 * time.Millisecond, 900 * time.Millisecond, time.Second},
		{"Lease beyond the TTL", tierlock.Resource{TTL: 3 * time.Second}, []tierlock.Option{tierlock.Lease(7 * time.Second)},
			-1, 6700 * time.Millisecond, 7*time.Second - 1, 7 * time.Second},
		{"Lease below MaxHold", tierlock.Resource{TTL: 3 * time.Second, MaxHold: 5 * time.Second}, []tierlock.Option{tierlock.Lease(time.Second)},
			0, 900 * time.Millisecond, 900 * time.Millisecond, time.Second},
		{"Lease above MaxHold", tierlock.Resource{TTL: 3 * time.Second, MaxHold: time.Second}, []tierlock.Option{tierlock.Lease(5 * time.Second)},
			0, 900 * time.Millisecond, 900 * time.Millisecond, time.Second},
		{"Lease with a shorter TTL", tierlock.Resource{TTL: 3 * time.Second}, []tierlock.Option{tierlock.Lease(2 * time.Second), tierlock.TTL(time.Second)},
			3, 1899 * time.Millisecond, 2*time.Second - 1, 2 * time.Second},
		{"shortest Lease", tierlock.Resource{TTL: 3 * time.Second}, []tierlock.Option{tierlock.Lease(100 * time.Millisecond)},
			0, 90 * time.Millisecond, 90 * time.Millisecond, 100 * time.Millisecond},
		{"MaxRenewals 1", tierlock.Resource{TTL: 3 * time.Second, MaxRenewals: 1}, nil,
			1, 3700 * time.Millisecond, 3700 * time.Millisecond, 4 * time.Second},
		{"MaxRenewals 5", tierlock.Resource{TTL: 3 * time.Second, MaxRenewals: 5}, nil,
			5, 7700 * time.Millisecond, 7700 * time.Millisecond, 8 * time.Second},
		{"MaxHold before MaxRenewals", tierlock.Resource{TTL: 3 * time.Second, MaxRenewals: 5, MaxHold: 2 * time.Second}, nil,
			0, 1800 * time.Millisecond, 1800 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.res.Name = "r"
				var reached events[tierlock.BoundEvent]
				l, other, s, _, raw := twoLockers(t, withResources(c.res), func(cfg *tierlock.Config) {
					cfg.Observer.BoundReached = reached.add
				})
				start := time.Now()
				k := mustLock(t, l, "r", "1", c.opts...)
				<-k.Context().Done()
				if d := time.Since(start); d < c.from || d > c.to {
					t.Errorf("the context ended after %v, want %v to %v", d, c.from, c.to)
				}
				wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrLeaseExceeded)
				wantIs(t, "Err", k.Err(), tierlock.ErrLeaseExceeded)
				wantNotIs(t, "Err", k.Err(), tierlock.ErrLost)
				if n := s.Calls(storetest.OpRenew); c.renewals >= 0 && n != c.renewals {
					t.Errorf("%d renewals, want %d", n, c.renewals)
				}
				// The body still runs: nobody gets in before the key ends, and
				// it ends though it is never unlocked.
				if _, err := other.TryLock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) {
					t.Errorf("another process in the margin: %v, want ErrHeld", err)
				}
				k2 := mustLock(t, other, "r", "1", tierlock.UntilDone())
				if d := time.Since(start); d < c.key-time.Millisecond || d > c.key+time.Millisecond {
					t.Errorf("another process got the key after %v, want %v", d, c.key)
				}
				if n := s.Calls(storetest.OpRelease); n != 0 {
					t.Errorf("%d releases under a running body", n)
				}
				wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLeaseExceeded)
				wantHeldBy(t, raw, name("r", "1"), k2)
				mustUnlock(t, k2)
				if e := reached.all(); len(e) != 1 || e[0].Token != k.Token() || e[0].Held < c.from || e[0].Held > c.to {
					t.Errorf("events %+v, want one", e)
				}
			})
		})
	}
}

// Unlocked in time a bounded hold is like any other.
func TestUnlockBeforeTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, raw := twoLockers(t)
		k := mustLock(t, l, "r", "1", tierlock.Lease(10*time.Second))
		time.Sleep(8 * time.Second)
		mustUnlock(t, k)
		wantFree(t, raw, name("r", "1"))
		time.Sleep(5 * time.Second)
		wantIs(t, "Err", k.Err(), tierlock.ErrReleased)
		wantNotIs(t, "Err", k.Err(), tierlock.ErrLeaseExceeded)
	})
}

func TestTTLOptionShortens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		k := mustLock(t, l, "r", "1", tierlock.TTL(300*time.Millisecond))
		for range 100 {
			time.Sleep(33 * time.Millisecond)
			if d := left(t, raw, name("r", "1")); d <= 0 || d > 300*time.Millisecond {
				t.Fatalf("%v left, want at most 300 ms", d)
			}
		}
		if n := s.Calls(storetest.OpRenew); n < 30 || n > 34 || k.Err() != nil {
			t.Errorf("%d renewals in 3.3 s, Err %v", n, k.Err())
		}
		mustUnlock(t, k)
	})
}

// A job that ended quickly keeps its key for the rest of MinHold, also against
// its own process, and also if its release is lost.
func TestMinHold(t *testing.T) {
	res := withResources(tierlock.Resource{Name: "cron", TTL: 3 * time.Second, MinHold: 2 * time.Second})
	for _, c := range []struct {
		what  string
		fault storetest.Fault
	}{
		{"release confirmed", storetest.Fault{}},
		{"release lost", storetest.Fault{Kind: storetest.Before, Times: 1}},
		{"confirmation lost", storetest.Fault{Kind: storetest.After, Times: 1}},
		{"releases lost for a second", storetest.Fault{Kind: storetest.Before}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, other, s, _, raw := twoLockers(t, res)
				start := time.Now()
				k := mustLock(t, l, "cron", "1")
				time.Sleep(500 * time.Millisecond)
				if c.fault.Kind != 0 {
					s.Set(storetest.OpRelease, c.fault)
					time.AfterFunc(time.Second, s.ClearAll)
				}
				if err := k.Unlock(); (err != nil) != (c.fault.Kind != 0) {
					t.Errorf("Unlock: %v", err)
				}
				waiter := lockAsync(bg, l, "cron", "1", tierlock.UntilDone())
				for time.Since(start) < 1950*time.Millisecond {
					if k2, err := other.TryLock(bg, "cron", "1"); !errors.Is(err, tierlock.ErrHeld) {
						k2.Unlock()
						t.Fatalf("another process after %v: %v, want ErrHeld", time.Since(start), err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				r := <-waiter
				if r.err != nil {
					t.Fatal(r.err)
				}
				if d := r.at.Sub(start); d < 2*time.Second || d > 2010*time.Millisecond {
					t.Errorf("free after %v, want 2 s", d)
				}
				time.Sleep(2500 * time.Millisecond)
				mustUnlock(t, r.k) // longer than MinHold: free at once
				wantFree(t, raw, name("cron", "1"))
				idle(t, l)
			})
		})
	}
	// An acquire that failed is no hold: it keeps nothing.
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t, res)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.After})
		if _, err := l.TryLock(bg, "cron", "1"); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		wantFree(t, raw, name("cron", "1"))
		idle(t, l)
	})
}

func TestOverdueAndTooManyHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var overdue events[tierlock.OverdueEvent]
		var many events[tierlock.TooManyHoldsEvent]
		l := newLocker(t, newSpy(nil), withResources(
			tierlock.Resource{Name: "r", TTL: 3 * time.Second, Expect: 2 * time.Second, MaxHolds: 2}),
			func(c *tierlock.Config) {
				c.Observer.Overdue, c.Observer.TooManyHolds = overdue.add, many.add
			})
		k1 := mustLock(t, l, "r", "1")
		k2 := mustLock(t, l, "r", "2", tierlock.Expect(10*time.Second))
		if e := many.all(); len(e) != 0 {
			t.Errorf("events %+v of two holds, want none", e)
		}
		k3 := mustLock(t, l, "r", "3")
		if e := many.all(); len(e) != 1 || e[0].Holds != 3 || e[0].Want != 2 || e[0].Resource != "r" {
			t.Errorf("events %+v of three holds, want one", e)
		}
		time.Sleep(5 * time.Second)
		mustUnlock(t, k3)
		time.Sleep(time.Second - 1)
		if e := overdue.all(); len(e) != 0 {
			t.Errorf("events %+v before three times the expected time", e)
		}
		time.Sleep(20 * time.Second)
		if e := overdue.all(); len(e) != 1 || e[0].Token != k1.Token() || e[0].Expect != 2*time.Second ||
			!near(e[0].Held, 6*time.Second, time.Millisecond) {
			t.Errorf("events %+v, want one for %v after 6 s", e, k1.Token())
		}
		time.Sleep(10 * time.Second)
		if e := overdue.all(); len(e) != 2 || e[1].Token != k2.Token() || !near(e[1].Held, 30*time.Second, time.Millisecond) {
			t.Errorf("events %+v, want a second one for %v after 30 s", e, k2.Token())
		}
		if k1.Err() != nil || k2.Err() != nil {
			t.Errorf("an overdue hold ended: %v, %v", k1.Err(), k2.Err())
		}
		mustUnlock(t, k1)
		mustUnlock(t, k2)
	})
}

// A hold that ends is no longer counted when the next of its key begins.
func TestHoldsInTurnAreNotTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var many events[tierlock.TooManyHoldsEvent]
		l := newLocker(t, newSpy(nil), withResources(tierlock.Resource{Name: "r", TTL: time.Minute, MaxHolds: 1}),
			func(c *tierlock.Config) { c.Observer.TooManyHolds = many.add })
		// Another TTL than that of who is in front, so that none is handed over.
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for range 100 {
					k, err := l.Lock(bg, "r", "1", tierlock.UntilDone(), tierlock.TTL(time.Minute-time.Duration(i)*time.Second))
					if err != nil {
						t.Error(err)
						return
					}
					mustUnlock(t, k)
				}
			})
		}
		all.Wait()
		if err := l.Close(bg); err != nil { // all events are told
			t.Error(err)
		}
		if e := many.all(); len(e) != 0 {
			t.Errorf("%d events of holds that came one after the other, the first %+v; want none", len(e), e[0])
		}
	})
}

// The caller's context ends the renewal. The key stays while the body may run:
// until Unlock, which is then no error (scenario 31), or else until its TTL
// (scenario 102).
func TestCallersContextEnds(t *testing.T) {
	cause := errors.New("client went away")
	synctest.Test(t, func(t *testing.T) {
		l, other, s, _, raw := twoLockers(t)
		ctx, cancel := context.WithCancelCause(bg)
		k := mustLockCtx(t, ctx, l, "r", "1")
		time.Sleep(1500 * time.Millisecond) // one renewal, at 1 s
		cancel(cause)
		synctest.Wait()
		wantIs(t, "cause", context.Cause(k.Context()), cause)
		wantIs(t, "Err", k.Err(), context.Canceled, cause)
		wantNotIs(t, "Err", k.Err(), tierlock.ErrLost)
		time.Sleep(time.Second)
		wantHeldBy(t, raw, name("r", "1"), k)
		mustUnlock(t, k)
		wantFree(t, raw, name("r", "1"))
		if n := s.Calls(storetest.OpRenew); n != 1 {
			t.Errorf("%d renewals, want 1", n)
		}

		// Never unlocked.
		ctx, stop := context.WithCancel(bg)
		k = mustLockCtx(t, ctx, l, "r", "2")
		stop()
		start := time.Now()
		k2 := mustLock(t, other, "r", "2", tierlock.UntilDone())
		if d := time.Since(start); !near(d, 3*time.Second, time.Millisecond) {
			t.Errorf("another process got the key after %v, want the TTL, 3 s", d)
		}
		wantLost(t, "Err", k.Err(), "expired")
		wantLost(t, "Unlock", k.Unlock(), "expired")
		wantHeldBy(t, raw, name("r", "2"), k2)
		mustUnlock(t, k2)
		if n := s.Calls(storetest.OpRenew); n != 1 {
			t.Errorf("%d renewals, want still 1", n)
		}
	})
	// A context with a deadline bounds the hold as it does the wait.
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, raw := twoLockers(t)
		ctx, cancel := context.WithTimeout(bg, 5*time.Second)
		defer cancel()
		k := mustLockCtx(t, ctx, l, "r", "1")
		<-k.Context().Done()
		wantIs(t, "Err", k.Err(), context.DeadlineExceeded)
		mustUnlock(t, k)
		wantFree(t, raw, name("r", "1"))
	})
}
