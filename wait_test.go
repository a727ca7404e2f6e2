package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

func TestWaitersOfOneProcessGoInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		k := mustLock(t, l, "r", "1")
		const n = 20
		var mu sync.Mutex
		var got []int
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				time.Sleep(time.Duration(i+1) * time.Millisecond)
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
				if err != nil {
					t.Errorf("waiter %d: %v", i, err)
					return
				}
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mustUnlock(t, k)
			})
		}
		time.Sleep(500 * time.Millisecond)
		if w := l.Status().Waiters; w != n {
			t.Errorf("Status: %d waiters, want %d", w, n)
		}
		if c := s.Calls(storetest.OpAcquire) + s.Calls(storetest.OpInspect); c != 1 {
			t.Errorf("%d calls to the store while the process itself holds the key, want the one of the holder", c)
		}
		start := time.Now()
		mustUnlock(t, k)
		wg.Wait()
		if d := time.Since(start); d != n*10*time.Millisecond {
			t.Errorf("all done after %v, want no gap between holds of 10 ms", d)
		}
		if !slices.IsSorted(got) || len(got) != n {
			t.Errorf("order %v, want 0 to %d", got, n-1)
		}
		wantFree(t, raw, name("r", "1"))
	})
}

// However many wait in a process, one of them asks the store.
func TestOneContenderPerKeyAndProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := localstore.NewSpace()
		other := newLocker(t, localstore.New(localstore.Options{Space: space}))
		s := newSpy(space)
		var inFlight, most atomic.Int64
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			if n := inFlight.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer inFlight.Add(-1)
			time.Sleep(time.Millisecond)
			req.Fences = 0 // else one lease serves many
			return s.Store.Acquire(ctx, req)
		}
		l := newLocker(t, s)
		k := mustLock(t, other, "r", "1")
		const n = 100
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
				if err != nil {
					t.Error(err)
					return
				}
				mustUnlock(t, k)
			})
		}
		time.Sleep(10*time.Second + 500*time.Millisecond)
		if a, i := s.acquires.Load(), s.inspects.Load(); a != 2 || i < 9 || i > 11 {
			t.Errorf("in 10 s %d acquires and %d reads, want 2 (before and after the watch) and one a second", a, i)
		}
		mustUnlock(t, k)
		wg.Wait()
		if a := s.acquires.Load(); a != 2+n {
			t.Errorf("%d acquires for %d callers, want 2 and one for each", a, n)
		}
		if most.Load() != 1 {
			t.Errorf("%d acquires at one time, want 1", most.Load())
		}
	})
}

// result is how a call in a goroutine ended, and when.
type result struct {
	k   *tierlock.Lock
	err error
	at  time.Time
}

func lockAsync(ctx context.Context, l *tierlock.Locker, resource, key string, opts ...tierlock.Option) <-chan result {
	c := make(chan result, 1)
	go func() {
		k, err := l.Lock(ctx, resource, key, opts...)
		c <- result{k, err, time.Now()}
	}()
	return c
}

// A waiter that goes away, in the queue or asking the store, leaves nothing,
// and whoever stands behind it has its turn.
func TestCancelledWaiterPassesTheTurnOn(t *testing.T) {
	for _, held := range []string{"by this process", "by another"} {
		for gone := range 3 {
			t.Run(fmt.Sprintf("held %s, waiter %d goes", held, gone), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b, _, _, raw := twoLockers(t)
					k := mustLock(t, map[bool]*tierlock.Locker{true: a, false: b}[held == "by this process"], "r", "1")
					cause := errors.New("enough")
					var waiters [3]<-chan result
					var cancels [3]context.CancelCauseFunc
					for i := range waiters {
						ctx, cancel := context.WithCancelCause(bg)
						waiters[i], cancels[i] = lockAsync(ctx, a, "r", "1", tierlock.UntilDone()), cancel
						defer cancel(nil)
						time.Sleep(time.Millisecond)
					}
					time.Sleep(100 * time.Millisecond)
					start := time.Now()
					cancels[gone](cause)
					r := <-waiters[gone]
					wantIs(t, "cancelled waiter", r.err, context.Canceled, cause, tierlock.ErrHeld)
					wantNoLock(t, r.k)
					if r.at != start {
						t.Errorf("it returned %v after the cancel", r.at.Sub(start))
					}
					time.Sleep(2500 * time.Millisecond)
					start = time.Now()
					mustUnlock(t, k)
					for i, w := range waiters {
						if i == gone {
							continue
						}
						r := <-w
						if r.err != nil || r.at.Sub(start) > 0 {
							t.Fatalf("waiter %d: %v after %v, want the lock at once", i, r.err, r.at.Sub(start))
						}
						mustUnlock(t, r.k)
					}
					wantFree(t, raw, name("r", "1"))
					idle(t, a)
				})
			})
		}
	}
}

// The turn that comes at the very moment at which the waiter goes is not lost.
func TestCancelAtTheMomentOfTheTurn(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same process %v", same), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _, _, raw := twoLockers(t)
				holder := a
				if !same {
					holder = b
				}
				got := 0
				for i := range 400 {
					k := mustLock(t, holder, "r", "1")
					ctx, cancel := context.WithCancel(bg)
					first := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
					synctest.Wait()
					second := lockAsync(bg, a, "r", "1", tierlock.UntilDone())
					synctest.Wait()
					start := time.Now()
					var wg sync.WaitGroup
					for _, f := range []func(){func() { mustUnlock(t, k) }, cancel} {
						if i%2 == 0 {
							wg.Go(f) // in any order
						} else {
							f()
						}
					}
					if r := <-first; r.err == nil {
						got++
						mustUnlock(t, r.k)
					} else {
						wantIs(t, "cancelled", r.err, context.Canceled)
					}
					r := <-second
					if r.err != nil {
						t.Fatal(r.err)
					}
					if d := r.at.Sub(start); d > 100*time.Millisecond {
						t.Errorf("round %d: the second had its turn after %v", i, d)
					}
					mustUnlock(t, r.k)
					wg.Wait()
					cancel()
				}
				t.Logf("the cancelled one had the lock in %d of 400 rounds", got)
				idle(t, a)
				wantFree(t, raw, name("r", "1"))
			})
		})
	}
}

// Scenario 45: how a wait ended can be told from its error.
func TestEndOfWaitTellsWhy(t *testing.T) {
	cause := errors.New("request budget spent")
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, b, _, _, _ := twoLockers(t)
			holder := a
			if !own {
				holder = b
			}
			k := mustLock(t, holder, "r", "1")
			defer k.Unlock()
			ctx, cancel := context.WithTimeoutCause(bg, 300*time.Millisecond, cause)
			defer cancel()
			start := time.Now()
			got, err := a.Lock(ctx, "r", "1", tierlock.Wait(time.Minute))
			wantNoLock(t, got)
			wantIs(t, "deadline", err, context.DeadlineExceeded, tierlock.ErrHeld, cause)
			wantNotIs(t, "deadline", err, tierlock.ErrUnavailable)
			var held *tierlock.HeldError
			if !errors.As(err, &held) || held.Waited != 300*time.Millisecond || time.Since(start) != held.Waited ||
				held.Resource != "r" || held.Key != "1" || held.Holder != k.Token() {
				t.Errorf("own process %v: %+v after %v", own, held, time.Since(start))
			}
			got, err = a.Lock(bg, "r", "1", tierlock.Wait(200*time.Millisecond))
			wantNoLock(t, got)
			wantIs(t, "end of the wait", err, tierlock.ErrHeld)
			wantNotIs(t, "end of the wait", err, context.DeadlineExceeded, context.Canceled, tierlock.ErrUnavailable)

			ended, end := context.WithCancelCause(bg)
			end(cause)
			got, err = a.Lock(ended, "r", "1")
			wantNoLock(t, got)
			wantIs(t, "ended before", err, context.Canceled, cause)
			wantNotIs(t, "ended before", err, tierlock.ErrHeld, tierlock.ErrUnavailable)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, _ := twoLockers(t)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 10 * time.Second})
		ctx, cancel := context.WithTimeoutCause(bg, 300*time.Millisecond, cause)
		defer cancel()
		k, err := l.Lock(ctx, "r", "1")
		wantNoLock(t, k)
		wantIs(t, "no answer, deadline", err, context.DeadlineExceeded, tierlock.ErrUnavailable, cause)
		wantNotIs(t, "no answer, deadline", err, tierlock.ErrHeld)
		k, err = l.Lock(bg, "r", "1", tierlock.Wait(300*time.Millisecond))
		wantNoLock(t, k)
		wantIs(t, "no answer, end of the wait", err, tierlock.ErrUnavailable)
		wantNotIs(t, "no answer, end of the wait", err, tierlock.ErrHeld, context.DeadlineExceeded)

		s.Set(storetest.OpInspect, storetest.Fault{Kind: storetest.Slow, Delay: 10 * time.Second})
		_, err = l.Inspect(bg, "r", "1")
		wantIs(t, "Inspect, no answer", err, tierlock.ErrUnavailable)
		wantNotIs(t, "Inspect, no answer", err, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeoutCause(bg, 300*time.Millisecond, cause)
		defer cancel()
		_, err = l.Inspect(ctx, "r", "1")
		wantIs(t, "Inspect, deadline", err, tierlock.ErrUnavailable, context.DeadlineExceeded, cause)
		s.Wait()
	})
}

// A wait that ends in the middle of a call tells what the store said before, and
// not that this call was cut short.
func TestEndOfWaitTellsWhatTheStoreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, _ := twoLockers(t)
		full := fmt.Errorf("%w: out of memory", tierlock.ErrUnavailable)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Err: full, Times: 1})
		time.AfterFunc(10*time.Millisecond, func() { // before it is tried again
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 10 * time.Second})
		})
		k, err := l.Lock(bg, "r", "1", tierlock.Wait(200*time.Millisecond))
		wantNoLock(t, k)
		wantIs(t, "end of the wait", err, tierlock.ErrUnavailable, full)
		wantNotIs(t, "end of the wait", err, tierlock.ErrHeld, context.DeadlineExceeded)
		s.ClearAll()
		s.Wait()
		idle(t, l)
	})
}

// Scenario 46: the lease bounds no wait, and the wait no lease.
func TestWaitAndTTLAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _, _ := twoLockers(t, withResources(tierlock.Resource{Name: "r", TTL: time.Second, Wait: time.Minute}))
		k := mustLock(t, b, "r", "1")
		start := time.Now()
		waiter := lockAsync(bg, a, "r", "1")
		time.Sleep(59 * time.Second)
		if k.Err() != nil {
			t.Fatalf("the holder after 59 s: %v", k.Err())
		}
		mustUnlock(t, k)
		r := <-waiter
		if r.err != nil || r.at.Sub(start) != 59*time.Second {
			t.Fatalf("%v after %v, want the lock after 59 s", r.err, r.at.Sub(start))
		}
		if _, err := b.Lock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) || time.Since(start) != 119*time.Second {
			t.Errorf("%v after %v, want ErrHeld after another 60 s", err, time.Since(start))
		}
		mustUnlock(t, r.k)
	})
}

func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, _ := twoLockers(t, withResources(
			tierlock.Resource{Name: "r", TTL: 3 * time.Second, MaxWaiters: 3}, tierlock.Resource{Name: "s", TTL: 3 * time.Second}))
		k, k2 := mustLock(t, l, "r", "1"), mustLock(t, l, "r", "2")
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		waiters := []<-chan result{
			lockAsync(ctx, l, "r", "1", tierlock.UntilDone()),
			lockAsync(bg, l, "r", "1", tierlock.UntilDone()),
			lockAsync(bg, l, "r", "2", tierlock.UntilDone()), // the bound is the resource's, not the key's
		}
		synctest.Wait()
		start := time.Now()
		got, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
		wantNoLock(t, got)
		wantIs(t, "fourth waiter", err, tierlock.ErrQueueFull)
		wantNotIs(t, "fourth waiter", err, tierlock.ErrHeld, tierlock.ErrUnavailable)
		_, err = l.TryLock(bg, "r", "1")
		wantIs(t, "TryLock, which does not queue", err, tierlock.ErrHeld)
		mustUnlock(t, mustLock(t, l, "r", "free"))
		mustUnlock(t, mustLock(t, l, "s", "1"))
		if time.Since(start) != 0 {
			t.Errorf("that took %v", time.Since(start))
		}
		cancel()
		wantIs(t, "cancelled", (<-waiters[0]).err, context.Canceled)
		waiters[0] = lockAsync(bg, l, "r", "2", tierlock.UntilDone()) // there is room again
		synctest.Wait()
		mustUnlock(t, k)
		mustUnlock(t, k2)
		for _, i := range []int{1, 2, 0} {
			r := <-waiters[i]
			if r.err != nil {
				t.Fatalf("waiter %d: %v", i, r.err)
			}
			mustUnlock(t, r.k)
		}
	})
}
