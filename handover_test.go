package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
)

// A lease serves 65 holds in a row, in the order of the calls, each with an id and
// a fence of its own; one ends before the next begins.
func TestHandOverInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", MaxHolds: 1}))
		const n = 200
		k := mustLock(t, l, "r", "1")
		var mu sync.Mutex
		var order []int
		var fences fenceOrder
		leases := map[string]int{}
		ids := map[string]bool{}
		var before *tierlock.Lock
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone(), tierlock.RequestID(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				tok := k.Token()
				order = append(order, i)
				leases[tok.Lease]++
				ids[tok.ID] = true
				fences.next(t, tok)
				if before != nil && (before.Context().Err() == nil || !errors.Is(before.Err(), tierlock.ErrReleased) || !errors.Is(context.Cause(before.Context()), tierlock.ErrReleased)) {
					t.Errorf("hold %d began before the last had ended: %v", i, before.Err())
				}
				if tok.RequestID != fmt.Sprint(i) || k.Err() != nil || k.Guarantee() != tierlock.FencedOnly || l.Status().Holds > 1 {
					t.Errorf("hold %d: %v, error %v, %d holds", i, tok, k.Err(), l.Status().Holds)
				}
				before = k
				mu.Unlock()
				mustUnlock(t, k)
			})
			synctest.Wait()
		}
		mustUnlock(t, k)
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("order %v", order)
			}
		}
		want := map[int]int{65: 3, 5: 1}
		for _, holds := range leases {
			want[holds]--
		}
		if want[65] != 0 || want[5] != 0 || len(ids) != n {
			t.Errorf("%d ids, holds of a lease %v; want %d, and 65, 65, 65, 5", len(ids), leases, n)
		}
		if a, r := s.acquires.Load(), s.releases.Load(); a != 5 || r != 5 {
			t.Errorf("%d acquires and %d releases, want 5", a, r)
		}
		if len(s.updated()) != 0 {
			t.Errorf("updates of holds that lasted for no time: %v", s.updated())
		}
		wantFree(t, s, name("r", "1"))
	})
}

// It goes on for 50 ms at most. Then others have their turn: half of that, no more
// than the round trips that were saved, and 2 ms where waiters are woken.
func TestHandOverTime(t *testing.T) {
	for _, c := range []struct {
		push    bool
		latency time.Duration
		rest    time.Duration
	}{
		{true, 0, 0}, {false, 0, 0},
		{true, time.Millisecond, 2 * time.Millisecond},
		{false, time.Millisecond, 4 * time.Millisecond},
		{false, 100 * time.Microsecond, 0},
		{false, 10 * time.Millisecond, 25 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("push %v, latency %v", c.push, c.latency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				acquire, release := s.acquire, s.Store.Release
				var asked, freed events[time.Time]
				s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
					asked.add(time.Now())
					defer time.Sleep(c.latency)
					return acquire(ctx, req)
				}
				s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
					defer func() { freed.add(time.Now()) }()
					return release(ctx, req)
				}
				var store tierlock.Store = s
				if !c.push {
					store = pollOnly{s}
				}
				l := newLocker(t, store)
				if c.push { // a wait has shown that there is push
					other := mustLock(t, newLocker(t, s.Store), "r", "1")
					_, err := l.Lock(bg, "r", "1", tierlock.Wait(time.Second))
					wantIs(t, "Lock", err, tierlock.ErrHeld)
					mustUnlock(t, other)
					idle(t, l)
				}
				before := len(asked.all())
				k := mustLock(t, l, "r", "1")
				leases := map[string]int{}
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
						if err != nil {
							t.Error(err)
							return
						}
						leases[k.Token().Lease]++ // nobody else is here
						time.Sleep(10 * time.Millisecond)
						mustUnlock(t, k)
					})
				}
				synctest.Wait()
				mustUnlock(t, k)
				wg.Wait()
				for lease, n := range leases {
					if n != 5 {
						t.Errorf("lease %s served %d holds of 10 ms, want 5", lease, n)
					}
				}
				a, f := asked.all()[before:], freed.all()
				if len(a) != 5 || len(f) != 5 {
					t.Fatalf("%d acquires and %d releases, want 5", len(a), len(f))
				}
				for i := range 4 {
					want := c.rest
					if i == 0 {
						want = 0 // nothing was handed over yet
					}
					if got := a[i+1].Sub(f[i]); got != want {
						t.Errorf("acquire %d came %v after the release, want %v", i+1, got, want)
					}
				}
			})
		})
	}
}

// What is not handed over is released, and the next asks the store.
func TestNeverHandedOver(t *testing.T) {
	minHold := tierlock.Resource{Name: "min", TTL: 3 * time.Second, MinHold: time.Millisecond}
	for _, c := range []struct {
		name          string
		resource      string
		first, second []tierlock.Option
		most          int
		before        func(t *testing.T, h *handed, s *ranger)
	}{
		{name: "a waiter with a shorter TTL", resource: "re", second: []tierlock.Option{tierlock.TTL(time.Second)}},
		{name: "a waiter with a longer TTL", resource: "re", first: []tierlock.Option{tierlock.TTL(time.Second)}},
		{name: "a waiter with a bound below the TTL", resource: "re", second: []tierlock.Option{tierlock.Lease(time.Second)}},
		{name: "an explicit waiter", resource: "re", second: []tierlock.Option{tierlock.Holder("job")}},
		{name: "an explicit hold", resource: "re", first: []tierlock.Option{tierlock.Holder("job")}},
		{name: "two explicit holders", resource: "re", first: []tierlock.Option{tierlock.Holder("a")}, second: []tierlock.Option{tierlock.Holder("b")}},
		{name: "MinHold", resource: "min"},
		{name: "a store without ranges", resource: "re", most: -1},
		{name: "after 50 ms", resource: "re", before: func(*testing.T, *handed, *ranger) { time.Sleep(50 * time.Millisecond) }},
		{name: "with less than half of the lease left", resource: "short", before: func(_ *testing.T, _ *handed, s *ranger) {
			s.renewBy(unanswered)
			time.Sleep(45 * time.Millisecond)
		}},
		{name: "with a renewal in flight", resource: "short", before: func(_ *testing.T, _ *handed, s *ranger) {
			s.renewBy(func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				time.Sleep(10 * time.Millisecond)
				return s.Store.Renew(ctx, reqs)
			})
			time.Sleep(35 * time.Millisecond)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				if s.most += c.most; c.most < 0 {
					s.most = 0
				}
				l := newLocker(t, s, withResources(minHold,
					tierlock.Resource{Name: "re", TTL: 3 * time.Second, Reentrant: true}, tierlock.Resource{Name: "short", TTL: short}))
				h := newHanded(t, l, c.resource, c.first, c.second)
				if c.before != nil {
					c.before(t, h, s)
				}
				next := h.unlocked(false)
				s.renewBy(nil)
				mustUnlock(t, next)
				idle(t, l)
				time.Sleep(time.Millisecond)
				wantFree(t, s, name(c.resource, "1"))
			})
		})
	}
}

// The cases of TestNeverHandedOver would be, were it not for what they are about.
func TestHandedOver(t *testing.T) {
	for _, c := range []struct {
		name          string
		resource      string
		first, second []tierlock.Option
		before        func(t *testing.T, h *handed)
	}{
		{name: "plainly", resource: "re"},
		{name: "before 50 ms", resource: "re", before: func(*testing.T, *handed) { time.Sleep(49 * time.Millisecond) }},
		{name: "with other options", resource: "re", first: []tierlock.Option{tierlock.Lease(time.Minute)},
			second: []tierlock.Option{tierlock.Lease(4 * time.Second), tierlock.Expect(time.Second), tierlock.RequestID("q")}},
		{name: "with one TTL for both", resource: "re", first: []tierlock.Option{tierlock.TTL(time.Second)}, second: []tierlock.Option{tierlock.Lease(time.Second)}},
		{name: "after a renewal", resource: "short", before: func(*testing.T, *handed) { time.Sleep(45 * time.Millisecond) }},
		{name: "by the last handle", resource: "re", before: func(t *testing.T, h *handed) {
			inner := mustLockCtx(t, h.hold.Context(), h.l, "re", "1")
			mustUnlock(t, h.hold)
			select {
			case r := <-h.next:
				t.Fatalf("the next got %v while the hold has a handle", r.k.Token())
			case <-time.After(time.Millisecond):
			}
			h.hold = inner
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				l := newLocker(t, s, withResources(
					tierlock.Resource{Name: "re", TTL: 3 * time.Second, Reentrant: true}, tierlock.Resource{Name: "short", TTL: short}))
				h := newHanded(t, l, c.resource, c.first, c.second)
				if c.before != nil {
					c.before(t, h)
				}
				mustUnlock(t, h.unlocked(true))
				wantFree(t, s, name(c.resource, "1"))
			})
		})
	}
}

// The range that was granted ends the row of holds.
func TestHandOverUsesUpTheRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		s.most = 3
		l := newLocker(t, s)
		k := mustLock(t, l, "r", "1")
		leases := map[string]int{}
		var fences fenceOrder
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
				if err != nil {
					t.Error(err)
					return
				}
				fences.next(t, k.Token())
				leases[k.Token().Lease]++
				mustUnlock(t, k)
			})
		}
		synctest.Wait()
		mustUnlock(t, k)
		wg.Wait()
		for lease, n := range leases {
			if n != 4 {
				t.Errorf("lease %s served %d holds, want 4: its first and three further", lease, n)
			}
		}
	})
}

// Belief goes on from the last renewal of the lease, renewal with it, and each hold
// has bounds of its own.
func TestBeliefOverAHandOver(t *testing.T) {
	const ttl = 3 * time.Second
	start := func(t *testing.T, opts ...tierlock.Option) (*tierlock.Locker, *ranger, *tierlock.Lock, *handed, time.Time) {
		s := newRanger()
		l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: ttl}, tierlock.Resource{Name: "two", TTL: ttl, MaxRenewals: 2}))
		resource := "r"
		if opts == nil {
			resource = "two"
		}
		h := newHanded(t, l, resource, nil, opts)
		granted := time.Now()
		time.Sleep(40 * time.Millisecond)
		return l, s, h.unlocked(true), h, granted
	}
	ends := func(t *testing.T, k *tierlock.Lock, granted time.Time, want time.Duration) {
		t.Helper()
		<-k.Context().Done()
		if got := time.Since(granted); got != want {
			t.Errorf("it ended %v after the grant, want %v", got, want)
		}
	}
	plain := tierlock.RequestID("q")
	for what, test := range map[string]func(t *testing.T){
		"renewed on": func(t *testing.T) {
			_, s, k, _, _ := start(t, plain)
			time.Sleep(20 * time.Second)
			if n := s.renews.Load(); n != 20 || k.Err() != nil {
				t.Errorf("%d renewals in 20 s, error %v; want one a second, as of the grant", n, k.Err())
			}
			mustUnlock(t, k)
			wantFree(t, s, name("r", "1"))
		},
		"ends with the lease": func(t *testing.T) {
			_, s, k, h, granted := start(t, plain)
			s.renewBy(unanswered)
			ends(t, k, granted, ttl-ttl/10)
			lost := wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
			if lost.Token != k.Token() || lost.Held != ttl-ttl/10-40*time.Millisecond {
				t.Errorf("lost is %v after %v", lost.Token, lost.Held)
			}
			wantIs(t, "the former hold", h.hold.Err(), tierlock.ErrReleased)
		},
		"taken away": func(t *testing.T) {
			l, s, k, h, granted := start(t, plain)
			time.Sleep(200 * time.Millisecond) // the store has been told of the hold
			s.Store.Release(bg, tierlock.ReleaseRequest{Name: name("r", "1"), Lease: k.Token().Lease})
			ends(t, k, granted, ttl/3)
			if lost := wantLost(t, "Unlock", k.Unlock(), "gone"); lost.Token != k.Token() {
				t.Errorf("lost is %v", lost.Token)
			}
			wantIs(t, "the former hold", h.hold.Err(), tierlock.ErrReleased)
			if err := h.hold.Unlock(); err != nil {
				t.Errorf("the former hold's Unlock: %v", err)
			}
			idle(t, l)
		},
		"own Lease": func(t *testing.T) {
			_, s, k, _, granted := start(t, tierlock.Lease(10*time.Second))
			<-k.Context().Done()
			end := 40*time.Millisecond + 10*time.Second
			if got := time.Since(granted); got >= end || got < end-ttl/10 {
				t.Errorf("it ended %v after the grant, want a margin before %v", got, end)
			}
			wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrLeaseExceeded)
			if by := time.Since(granted) + left(t, s, name("r", "1")); by > end || by < end-10*time.Millisecond {
				t.Errorf("the key ends %v after the grant, want at the bound, %v", by, end)
			}
			wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLeaseExceeded)
		},
		"own MaxRenewals": func(t *testing.T) {
			_, s, k, _, granted := start(t)
			ends(t, k, granted, 2*time.Second+ttl-ttl/10)
			if n := s.renews.Load(); n != 2 {
				t.Errorf("%d renewals, want 2", n)
			}
			wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLeaseExceeded)
		},
		"renewed by Ensure": func(t *testing.T) {
			_, _, k, h, _ := start(t, plain)
			time.Sleep(500 * time.Millisecond)
			if err := k.Ensure(ttl - ttl/10 - time.Millisecond); err != nil {
				t.Errorf("Ensure: %v", err)
			}
			wantIs(t, "Ensure of the former hold", h.hold.Ensure(time.Millisecond), tierlock.ErrReleased)
			mustUnlock(t, k)
		},
	} {
		t.Run(what, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// The caller's context had ended before the unlock, so nothing renewed any more:
// the next hold is renewed again.
func TestHandOverOfAPausedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		l := newLocker(t, s)
		k := mustLock(t, l, "r", "1")
		ctx, cancel := context.WithCancel(bg)
		first := lockAsync(ctx, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		second := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		mustUnlock(t, k)
		k = (<-first).k
		cancel()
		synctest.Wait()
		mustUnlock(t, k)
		next := (<-second).k
		if next.Token().Lease != k.Token().Lease {
			t.Error("not handed over")
		}
		time.Sleep(20 * time.Second)
		if err := next.Err(); err != nil {
			t.Errorf("the next hold: %v", err)
		}
		mustUnlock(t, next)
	})
}

// A lost answer to the acquire may still be executed after the release: the undo
// of the call that got the lease goes with the lease.
func TestHandOverKeepsTheUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		f := storetest.WithFaults(s)
		defer f.Wait()
		l := newLocker(t, f)
		k := mustLock(t, l, "r", "1")
		first := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		second := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		// Executed in time, and when all is over.
		f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Late, Delay: 120 * time.Millisecond, Times: 1})
		begun := time.Now()
		mustUnlock(t, k)
		k = (<-first).k
		mustUnlock(t, k)
		next := (<-second).k
		if next.Token().Lease != k.Token().Lease {
			t.Error("not handed over")
		}
		mustUnlock(t, next)
		wantFree(t, s, name("r", "1"))
		if n := l.Status().Undos; n != 1 {
			t.Errorf("%d undos, want one for what may still be executed", n)
		}
		time.Sleep(125*time.Millisecond - time.Since(begun))
		if left(t, s, name("r", "1")) == 0 {
			t.Error("the late one has granted nothing: the test shows nothing")
		}
		idle(t, l)
		wantFree(t, s, name("r", "1"))
	})
}

// A panic under the lock hands it over as well.
func TestHandOverAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		l := newLocker(t, s)
		k := mustLock(t, l, "r", "1")
		res, err := l.Resource("r")
		if err != nil {
			t.Fatal(err)
		}
		var lease string
		go func() {
			defer func() { recover() }()
			_ = res.Do(bg, "1", func(ctx context.Context) error {
				lease = tierlock.TokenFrom(ctx).Lease
				panic("enough")
			}, tierlock.UntilDone())
		}()
		synctest.Wait()
		next := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		mustUnlock(t, k)
		r := <-next
		if r.err != nil || r.k.Token().Lease != lease {
			t.Fatalf("next: %v, %v; want the lease %s", r.k.Token(), r.err, lease)
		}
		mustUnlock(t, r.k)
		wantFree(t, s, name("r", "1"))
	})
}
