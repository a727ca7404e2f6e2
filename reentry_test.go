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

// Scenario 35: of five entries four unlocks leave the hold renewed, and the
// fifth leaves nothing.
func TestReentryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other, s, _, raw := twoLockers(t)
		ctx := bg
		var ks []*tierlock.Lock
		for range 5 {
			k := mustLockCtx(t, ctx, l, "re", "1")
			ks, ctx = append(ks, k), k.Context()
		}
		if n := s.Calls(storetest.OpAcquire); n != 1 {
			t.Errorf("%d acquires for five entries, want 1", n)
		}
		for i, k := range ks {
			if k.Token() != ks[0].Token() || tierlock.TokenFrom(k.Context()) != ks[0].Token() {
				t.Errorf("entry %d has token %v, want that of the hold, %v", i, k.Token(), ks[0].Token())
			}
		}
		for i := 4; i > 0; i-- {
			mustUnlock(t, ks[i])
			mustUnlock(t, ks[i]) // counts once
			wantIs(t, "unlocked handle", ks[i].Err(), tierlock.ErrReleased)
			wantIs(t, "its cause", context.Cause(ks[i].Context()), tierlock.ErrReleased)
			if ks[i-1].Err() != nil || ks[i-1].Context().Err() != nil {
				t.Errorf("entry %d after the unlock of entry %d: %v", i-1, i, ks[i-1].Err())
			}
		}
		before := s.Calls(storetest.OpRenew)
		time.Sleep(10 * time.Second)
		if n := s.Calls(storetest.OpRenew) - before; n < 9 || n > 11 || ks[0].Err() != nil {
			t.Errorf("%d renewals in 10 s with one entry left, want one a second; Err %v", n, ks[0].Err())
		}
		if _, err := other.TryLock(bg, "re", "1"); !errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("another process: %v, want ErrHeld", err)
		}
		mustUnlock(t, ks[0])
		wantFree(t, raw, name("re", "1"))
		before = s.Calls(storetest.OpRenew)
		time.Sleep(10 * time.Second)
		if n := s.Calls(storetest.OpRenew) - before; n != 0 {
			t.Errorf("%d renewals after the last unlock", n)
		}
		if n := s.Calls(storetest.OpRelease); n != 1 {
			t.Errorf("%d releases, want 1", n)
		}
	})
}

func TestOuterUnlockedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		outer := mustLock(t, l, "re", "1")
		// Deriving from the outer handle's context, the inner one would end
		// with it. A caller that wants it to go on cuts that.
		dependent := mustLockCtx(t, outer.Context(), l, "re", "1")
		own := mustLockCtx(t, context.WithoutCancel(outer.Context()), l, "re", "1")
		mustUnlock(t, outer)
		wantIs(t, "outer", outer.Err(), tierlock.ErrReleased)
		if dependent.Context().Err() == nil {
			t.Error("a context derived from the outer handle's goes on after its unlock")
		}
		time.Sleep(10 * time.Second)
		if own.Err() != nil || own.Context().Err() != nil || s.Calls(storetest.OpRenew) < 9 {
			t.Errorf("the other entry: %v, after %d renewals", own.Err(), s.Calls(storetest.OpRenew))
		}
		wantHeldBy(t, raw, name("re", "1"), own)
		mustUnlock(t, dependent)
		wantHeldBy(t, raw, name("re", "1"), own)
		mustUnlock(t, own)
		wantFree(t, raw, name("re", "1"))

		// What carries an unlocked hold enters nothing any more.
		for _, resource := range []string{"re", "r"} {
			k := mustLock(t, l, resource, "2")
			ctx := context.WithoutCancel(k.Context())
			mustUnlock(t, k)
			again := mustLockCtx(t, ctx, l, resource, "2", tierlock.NoWait())
			if again.Token().Lease == k.Token().Lease || tierlock.TokenFrom(again.Context()) != again.Token() {
				t.Errorf("%s: got %v, want a new hold", resource, again.Token())
			}
			if _, err := l.TryLock(bg, resource, "2"); !errors.Is(err, tierlock.ErrHeld) {
				t.Errorf("%s: %v, want ErrHeld", resource, err)
			}
			mustUnlock(t, again)
		}
	})
}

// A call that would wait for itself is told so at once.
func TestSelfDeadlockIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other, s, _, _ := twoLockers(t)
		k := mustLock(t, l, "r", "1")
		inner := mustLockCtx(t, k.Context(), l, "r", "2") // another key
		ctx := inner.Context()
		calls := s.Calls(storetest.OpAcquire)
		start := time.Now()
		for what, call := range map[string]func() (*tierlock.Lock, error){
			"Lock":      func() (*tierlock.Lock, error) { return l.Lock(ctx, "r", "1") },
			"inner key": func() (*tierlock.Lock, error) { return l.Lock(ctx, "r", "2") },
			"TryLock":   func() (*tierlock.Lock, error) { return l.TryLock(ctx, "r", "1") },
			"UntilDone": func() (*tierlock.Lock, error) { return l.Lock(ctx, "r", "1", tierlock.UntilDone()) },
			"Do": func() (*tierlock.Lock, error) {
				return nil, l.Do(ctx, "r", "1", func(context.Context) error { t.Error("entered"); return nil })
			},
		} {
			got, err := call()
			wantNoLock(t, got)
			wantIs(t, what, err, tierlock.ErrReentrant)
			wantNotIs(t, what, err, tierlock.ErrHeld, tierlock.ErrUnavailable)
		}
		if time.Since(start) != 0 || s.Calls(storetest.OpAcquire) != calls {
			t.Errorf("took %v and %d calls to the store", time.Since(start), s.Calls(storetest.OpAcquire)-calls)
		}
		// To another Locker it is a stranger's hold, which may end.
		_, err := other.TryLock(ctx, "r", "1")
		wantIs(t, "another Locker", err, tierlock.ErrHeld)
		wantNotIs(t, "another Locker", err, tierlock.ErrReentrant)
		if k.Err() != nil || inner.Err() != nil {
			t.Errorf("the holds: %v, %v", k.Err(), inner.Err())
		}
		mustUnlock(t, inner)
		mustUnlock(t, k)
	})
}

func TestNestedTryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, _ := twoLockers(t)
		k := mustLock(t, l, "re", "1")
		w := lockAsync(bg, l, "re", "1", tierlock.UntilDone()) // must not stand in the way
		synctest.Wait()
		inner, err := l.TryLock(k.Context(), "re", "1")
		if err != nil || inner.Token() != k.Token() {
			t.Fatalf("%v, token %v", err, inner.Token())
		}
		if n := s.Calls(storetest.OpAcquire); n != 1 {
			t.Errorf("%d acquires, want 1", n)
		}
		mustUnlock(t, inner)
		mustUnlock(t, k)
		r := <-w
		if r.err != nil {
			t.Fatal(r.err)
		}
		mustUnlock(t, r.k)
	})
}

// A shorter bound of an entry ends its own context and nothing else.
func TestNestedLeaseBoundsItsHandleOnly(t *testing.T) {
	for _, innerLast := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, _, _, _, raw := twoLockers(t)
			k := mustLock(t, l, "re", "1")
			inner := mustLockCtx(t, context.WithoutCancel(k.Context()), l, "re", "1", tierlock.Lease(time.Second))
			start := time.Now()
			<-inner.Context().Done()
			if d := time.Since(start); d > time.Second || d < 800*time.Millisecond {
				t.Errorf("the inner context ended after %v, want 1 s at most", d)
			}
			wantIs(t, "inner cause", context.Cause(inner.Context()), tierlock.ErrLeaseExceeded)
			wantIs(t, "inner Err", inner.Err(), tierlock.ErrLeaseExceeded)
			time.Sleep(10 * time.Second)
			if k.Err() != nil || k.Context().Err() != nil {
				t.Errorf("the outer: %v", k.Err())
			}
			wantHeldBy(t, raw, name("re", "1"), k)
			if innerLast {
				mustUnlock(t, k)
				wantHeldBy(t, raw, name("re", "1"), k) // the body may still run
			}
			wantIs(t, "inner Unlock", inner.Unlock(), tierlock.ErrLeaseExceeded)
			if !innerLast {
				mustUnlock(t, k)
			}
			wantFree(t, raw, name("re", "1"))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, _ := twoLockers(t)
		k := mustLock(t, l, "re", "1")
		inner := mustLockCtx(t, k.Context(), l, "re", "1", tierlock.Lease(time.Second))
		time.Sleep(500 * time.Millisecond)
		mustUnlock(t, inner)
		time.Sleep(time.Second)
		wantIs(t, "unlocked in time", inner.Err(), tierlock.ErrReleased)
		mustUnlock(t, k)
	})
}

// A hold whose callers' contexts have all ended is renewed no more: to enter it
// would be to lose it soon.
func TestNoEntryIntoADyingHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, _ := twoLockers(t)
		ctx, cancel := context.WithCancel(bg)
		k := mustLockCtx(t, ctx, l, "re", "1")
		inner := mustLockCtx(t, context.WithoutCancel(k.Context()), l, "re", "1")
		cancel()
		synctest.Wait()
		// One entry of two lives: it is renewed, and may be entered.
		third := mustLockCtx(t, inner.Context(), l, "re", "1")
		time.Sleep(10 * time.Second)
		if inner.Err() != nil || third.Err() != nil {
			t.Errorf("%v, %v", inner.Err(), third.Err())
		}
		wantIs(t, "outer", k.Err(), context.Canceled)
		mustUnlock(t, third)
		mustUnlock(t, inner)
		_, err := l.Lock(context.WithoutCancel(k.Context()), "re", "1")
		wantIs(t, "entry after the last living one left", err, tierlock.ErrReentrant)
		mustUnlock(t, k)
	})
}

func TestGoroutinesEnterTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		k := mustLock(t, l, "re", "1")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					inner, err := l.Lock(k.Context(), "re", "1")
					if err != nil {
						t.Error(err)
						return
					}
					if inner.Token() != k.Token() {
						t.Errorf("token %v, want %v", inner.Token(), k.Token())
					}
					time.Sleep(time.Millisecond)
					mustUnlock(t, inner)
				}
			})
		}
		wg.Wait()
		wantHeldBy(t, raw, name("re", "1"), k)
		if n := s.Calls(storetest.OpAcquire) + s.Calls(storetest.OpRelease); n != 1 {
			t.Errorf("%d acquires and releases, want the one acquire", n)
		}
		mustUnlock(t, k)
		wantFree(t, raw, name("re", "1"))
	})
}

// The unlock of the last handle and an entry from the same context race: each
// entry is either part of the old hold or a hold of its own.
func TestEntryRacesLastUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _, _, raw := twoLockers(t)
		entered := 0
		for range 300 {
			k := mustLock(t, l, "re", "1")
			ctx := context.WithoutCancel(k.Context())
			var wg sync.WaitGroup
			wg.Go(func() { mustUnlock(t, k) })
			var inner *tierlock.Lock
			wg.Go(func() {
				var err error
				if inner, err = l.Lock(ctx, "re", "1"); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			if inner == nil {
				return
			}
			if inner.Err() != nil {
				t.Errorf("the entry: %v", inner.Err())
			}
			if inner.Token() == k.Token() {
				entered++
			}
			wantHeldBy(t, raw, name("re", "1"), inner)
			mustUnlock(t, inner)
			wantFree(t, raw, name("re", "1"))
		}
		t.Logf("%d of 300 entered the hold", entered)
	})
}
