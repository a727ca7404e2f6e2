package tierlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// A call that does not wait, in each state in which it may find the key.
func TestTryLock(t *testing.T) {
	try := func(l *tierlock.Locker) (*tierlock.Lock, error) { return l.TryLock(bg, "r", "1") }
	noWait := func(l *tierlock.Locker) (*tierlock.Lock, error) {
		return l.Lock(bg, "r", "1", tierlock.Wait(time.Minute), tierlock.NoWait())
	}
	slow := func(d time.Duration) storetest.Fault { return storetest.Fault{Kind: storetest.Slow, Delay: d} }
	for _, c := range []struct {
		what string
		// before brings the key into its state; its func ends that.
		before func(t *testing.T, a, b *tierlock.Locker, s *storetest.Faulty) (holder tierlock.Token, after func())
		is     error // nil: granted
		not    error
		took   time.Duration
		calls  int // to the store, by this call; -1: others call at the same time
	}{
		{"free", func(*testing.T, *tierlock.Locker, *tierlock.Locker, *storetest.Faulty) (tierlock.Token, func()) {
			return tierlock.Token{}, func() {}
		}, nil, nil, 0, 1},
		{"held by this process", func(t *testing.T, a, _ *tierlock.Locker, _ *storetest.Faulty) (tierlock.Token, func()) {
			k := mustLock(t, a, "r", "1")
			return k.Token(), func() { mustUnlock(t, k) }
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 0, 0},
		{"held by another", func(t *testing.T, _, b *tierlock.Locker, _ *storetest.Faulty) (tierlock.Token, func()) {
			k := mustLock(t, b, "r", "1")
			return k.Token(), func() { mustUnlock(t, k) }
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 0, 1},
		{"a contender in front has its answer", func(t *testing.T, a, b *tierlock.Locker, _ *storetest.Faulty) (tierlock.Token, func()) {
			k := mustLock(t, b, "r", "1")
			ctx, cancel := context.WithCancel(bg)
			w := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
			time.Sleep(400 * time.Millisecond)
			return k.Token(), func() { cancel(); <-w; mustUnlock(t, k) }
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 0, 0},
		{"a contender in front is about to hear that it is held", func(t *testing.T, a, b *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			k := mustLock(t, b, "r", "1")
			s.Set(storetest.OpAcquire, slow(50*time.Millisecond))
			ctx, cancel := context.WithCancel(bg)
			w := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
			synctest.Wait()
			return k.Token(), func() { cancel(); <-w; mustUnlock(t, k) }
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 50 * time.Millisecond, -1}, // the contender itself asks again at that moment
		{"a contender in front is about to have it", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, slow(50*time.Millisecond))
			w := lockAsync(bg, a, "r", "1")
			synctest.Wait()
			return tierlock.Token{}, func() {
				r := <-w
				if r.err != nil {
					t.Fatal(r.err)
				}
				mustUnlock(t, r.k)
			}
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 50 * time.Millisecond, 0},
		{"a contender in front gets an error", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, slow(time.Minute))
			ctx, cancel := context.WithTimeout(bg, 10*time.Second)
			w := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
			synctest.Wait()
			time.Sleep(400 * time.Millisecond)
			return tierlock.Token{}, func() { cancel(); <-w; s.ClearAll(); s.Wait() }
		}, tierlock.ErrUnavailable, tierlock.ErrHeld, 100 * time.Millisecond, 0},
		{"a contender in front goes before its answer", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: time.Minute, Times: 1})
			ctx, cancel := context.WithTimeout(bg, 70*time.Millisecond)
			w := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
			synctest.Wait()
			return tierlock.Token{}, func() { cancel(); <-w; s.Wait() }
		}, nil, nil, 70 * time.Millisecond, 1},
		{"a contender in front has only just begun, after one that failed", func(t *testing.T, a, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Times: 1})
			ctx, cancel := context.WithCancel(bg)
			first := lockAsync(ctx, a, "r", "1", tierlock.UntilDone())
			synctest.Wait()
			second := lockAsync(bg, a, "r", "1")
			synctest.Wait()
			s.Set(storetest.OpAcquire, slow(50*time.Millisecond))
			cancel()
			<-first
			synctest.Wait()
			return tierlock.Token{}, func() {
				r := <-second
				if r.err != nil {
					t.Fatal(r.err)
				}
				mustUnlock(t, r.k)
			}
		}, tierlock.ErrHeld, tierlock.ErrUnavailable, 50 * time.Millisecond, 0},
		{"no answer", func(t *testing.T, _, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, slow(time.Minute))
			return tierlock.Token{}, func() { s.Wait() }
		}, tierlock.ErrUnavailable, tierlock.ErrHeld, 500 * time.Millisecond, 1},
		{"an error", func(t *testing.T, _, _ *tierlock.Locker, s *storetest.Faulty) (tierlock.Token, func()) {
			s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
			return tierlock.Token{}, func() {}
		}, tierlock.ErrUnavailable, tierlock.ErrHeld, 0, 1},
	} {
		for what, call := range map[string]func(*tierlock.Locker) (*tierlock.Lock, error){"TryLock": try, "NoWait": noWait} {
			t.Run(c.what+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b, s, _, raw := twoLockers(t)
					holder, after := c.before(t, a, b, s)
					calls := s.Calls(storetest.OpAcquire) + s.Calls(storetest.OpInspect)
					start := time.Now()
					k, err := call(a)
					if d := time.Since(start); d != c.took {
						t.Errorf("took %v, want %v", d, c.took)
					}
					if n := s.Calls(storetest.OpAcquire) + s.Calls(storetest.OpInspect) - calls; c.calls >= 0 && n != c.calls {
						t.Errorf("%d calls to the store, want %d", n, c.calls)
					}
					if c.is == nil {
						if err != nil {
							t.Errorf("got %v, want the lock", err)
						} else {
							mustUnlock(t, k)
						}
					} else {
						wantNoLock(t, k)
						wantIs(t, "error", err, c.is)
						wantNotIs(t, "error", err, c.not)
						var held *tierlock.HeldError
						if errors.As(err, &held) && !holder.IsZero() && held.Holder != holder {
							t.Errorf("holder %v, want %v", held.Holder, holder)
						}
					}
					after()
					idle(t, a)
					wantFree(t, raw, name("r", "1"))
				})
			})
		}
	}
}

func TestTryLockEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, s, _, _ := twoLockers(t)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 100 * time.Millisecond})
		w := lockAsync(bg, a, "r", "1")
		synctest.Wait()
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(bg, 30*time.Millisecond, cause)
		defer cancel()
		start := time.Now()
		k, err := a.TryLock(ctx, "r", "1") // behind the one that still waits for its answer
		wantNoLock(t, k)
		wantIs(t, "error", err, context.DeadlineExceeded, cause, tierlock.ErrUnavailable)
		if d := time.Since(start); d != 30*time.Millisecond {
			t.Errorf("took %v", d)
		}
		r := <-w
		if r.err != nil {
			t.Fatal(r.err)
		}
		mustUnlock(t, r.k)
	})
}

// A store that breaks its contract, and stays away beyond its deadline, holds
// up its own caller and not those who only ask.
func TestTryLockBehindAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy(nil)
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			time.Sleep(10 * time.Second)
			return tierlock.AcquireResult{}, tierlock.ErrUnavailable
		}
		l := newLocker(t, s)
		w := lockAsync(bg, l, "r", "1")
		synctest.Wait()
		start := time.Now()
		k, err := l.TryLock(bg, "r", "1")
		wantNoLock(t, k)
		wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
		wantNotIs(t, "TryLock", err, tierlock.ErrHeld)
		if d := time.Since(start); d != 500*time.Millisecond {
			t.Errorf("took %v, want the CallTimeout", d)
		}
		wantIs(t, "the one in front", (<-w).err, tierlock.ErrUnavailable)
	})
}

// Scenario 52: the wait bounds the call, though the store takes longer.
func TestWaitIsShorterThanTheStoreIsSlow(t *testing.T) {
	for _, push := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			raw := localstore.New(localstore.Options{})
			s := storetest.WithFaults(raw)
			var store tierlock.Store = s
			if !push {
				store = pollOnly{s}
			}
			l := newLocker(t, store)
			for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpInspect} {
				s.Set(op, storetest.Fault{Kind: storetest.Slow, Delay: 200 * time.Millisecond})
			}
			for range 5 { // more than would open the breaker if these counted
				start := time.Now()
				k, err := l.Lock(bg, "r", "1", tierlock.Wait(25*time.Millisecond))
				wantNoLock(t, k)
				wantIs(t, "slow store", err, tierlock.ErrUnavailable)
				wantNotIs(t, "slow store", err, tierlock.ErrHeld)
				if d := time.Since(start); d != 25*time.Millisecond {
					t.Errorf("took %v, want 25 ms", d)
				}
				idle(t, l)
				wantFree(t, raw, name("r", "1"))
			}
			// A context does the same as the wait.
			ctx, cancel := context.WithTimeout(bg, 25*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := l.Lock(ctx, "r", "1")
			wantIs(t, "slow store", err, context.DeadlineExceeded, tierlock.ErrUnavailable)
			if d := time.Since(start); d != 25*time.Millisecond {
				t.Errorf("took %v, want 25 ms", d)
			}
			s.ClearAll()
			s.Wait()
			idle(t, l)
			wantFree(t, raw, name("r", "1"))
			if !l.Status().Stores[0].Available {
				t.Error("the callers' own limits made the store count as down")
			}
		})
	}
}
