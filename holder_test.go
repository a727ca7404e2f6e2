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

// The option Holder enters from anywhere: here from the process's other
// goroutines and from another process. Nobody else does.
func TestHolderEntersFromAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _, raw := twoLockers(t)
		saga := tierlock.Holder("saga-7")
		first := mustLock(t, a, "re", "1", saga)
		if first.Token().Holder != "saga-7" {
			t.Errorf("holder %q", first.Token().Holder)
		}
		start := time.Now()
		second := mustLock(t, a, "re", "1", saga, tierlock.NoWait())
		third := mustLock(t, b, "re", "1", saga, tierlock.NoWait())
		if time.Since(start) != 0 {
			t.Errorf("entering took %v", time.Since(start))
		}
		leases := map[string]bool{}
		for _, k := range []*tierlock.Lock{first, second, third} {
			leases[k.Token().Lease] = true
			if k.Token().Fence != first.Token().Fence {
				t.Errorf("fence %d, want that of the hold, %d", k.Token().Fence, first.Token().Fence)
			}
		}
		if len(leases) != 3 {
			t.Errorf("%d leases of three entries, want one each", len(leases))
		}
		if rec, err := raw.Inspect(bg, name("re", "1")); err != nil || rec.Holds != 3 {
			t.Errorf("the store counts %d entries, error %v", rec.Holds, err)
		}
		for what, opts := range map[string][]tierlock.Option{"anonymous": nil, "another id": {tierlock.Holder("saga-8")}} {
			for _, l := range []*tierlock.Locker{a, b} {
				if _, err := l.TryLock(bg, "re", "1", opts...); !errors.Is(err, tierlock.ErrHeld) {
					t.Errorf("%s: %v, want ErrHeld", what, err)
				}
			}
		}
		mustUnlock(t, first)
		time.Sleep(10 * time.Second) // each entry is renewed on its own
		if second.Err() != nil || third.Err() != nil {
			t.Errorf("the others: %v, %v", second.Err(), third.Err())
		}
		mustUnlock(t, second)
		if left(t, raw, name("re", "1")) == 0 {
			t.Error("free before the last has left")
		}
		if _, err := a.TryLock(bg, "re", "1"); !errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("anonymous: %v, want ErrHeld", err)
		}
		w := lockAsync(bg, a, "re", "1", tierlock.UntilDone())
		synctest.Wait()
		mustUnlock(t, third)
		r := <-w
		if r.err != nil {
			t.Fatal(r.err)
		}
		for _, l := range []*tierlock.Locker{a, b} { // nor does an id enter an anonymous hold
			if _, err := l.TryLock(bg, "re", "1", saga); !errors.Is(err, tierlock.ErrHeld) {
				t.Errorf("explicit into anonymous: %v, want ErrHeld", err)
			}
		}
		mustUnlock(t, r.k)
		wantFree(t, raw, name("re", "1"))
	})
}

// Somebody who waits for the key must not stand between a holder and another
// entry under its id: the two would wait for each other.
func TestHolderPassesTheQueue(t *testing.T) {
	for _, c := range []struct {
		what     string
		sameHold bool // the hold is in the process that enters
	}{{"hold in this process", true}, {"hold in another process", false}} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _, _, raw := twoLockers(t)
				saga := tierlock.Holder("saga-7")
				holder := b
				if c.sameHold {
					holder = a
				}
				k := mustLock(t, holder, "re", "1", saga)
				anonymous := lockAsync(bg, a, "re", "1", tierlock.UntilDone())
				synctest.Wait()
				stranger := lockAsync(bg, a, "re", "1", tierlock.UntilDone(), tierlock.Holder("saga-8"))
				synctest.Wait()
				start := time.Now()
				inner, err := a.Lock(bg, "re", "1", saga, tierlock.Wait(10*time.Second))
				if err != nil {
					t.Fatalf("entry past the waiters: %v after %v", err, time.Since(start))
				}
				if d := time.Since(start); d != 0 {
					t.Errorf("entry past the waiters took %v", d)
				}
				mustUnlock(t, k)
				time.Sleep(5 * time.Second)
				if inner.Err() != nil || len(anonymous)+len(stranger) > 0 {
					t.Errorf("with one entry left: Err %v, %d waiters have the lock", inner.Err(), len(anonymous)+len(stranger))
				}
				mustUnlock(t, inner)
				for _, w := range []<-chan result{anonymous, stranger} {
					r := <-w
					if r.err != nil {
						t.Fatal(r.err)
					}
					mustUnlock(t, r.k)
				}
				wantFree(t, raw, name("re", "1"))
				idle(t, a)
			})
		})
	}
}

// The same where the one in front has not been told yet who holds the key.
func TestHolderPassesTheQueueOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s, _, _ := twoLockers(t)
		saga := tierlock.Holder("saga-7")
		k := mustLock(t, b, "re", "1", saga)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 50 * time.Millisecond, Times: 1})
		ctx, cancel := context.WithCancel(bg)
		front := lockAsync(ctx, a, "re", "1", tierlock.UntilDone())
		synctest.Wait()
		start := time.Now()
		inner, err := a.Lock(bg, "re", "1", saga, tierlock.Wait(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 50*time.Millisecond {
			t.Errorf("entry took %v, want no longer than the answer to the one in front, 50 ms", d)
		}
		mustUnlock(t, inner)
		cancel()
		<-front
		mustUnlock(t, k)
	})
}

// Two that come with one id while nobody holds the key: the second enters as
// soon as the first is in.
func TestHoldersArriveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _, raw := twoLockers(t)
		k := mustLock(t, b, "re", "1")
		var waiters []<-chan result
		for range 3 {
			waiters = append(waiters, lockAsync(bg, a, "re", "1", tierlock.UntilDone(), tierlock.Holder("saga-7")))
		}
		time.Sleep(time.Second / 2)
		start := time.Now()
		mustUnlock(t, k)
		for _, w := range waiters {
			r := <-w
			if r.err != nil || r.at.Sub(start) > 0 {
				t.Fatalf("%v after %v, want all at once", r.err, r.at.Sub(start))
			}
			defer mustUnlock(t, r.k)
		}
		if rec, err := raw.Inspect(bg, name("re", "1")); err != nil || rec.Holds != 3 {
			t.Errorf("the store counts %d entries, error %v", rec.Holds, err)
		}
	})
}

func TestHolderWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _, _, raw := twoLockers(t)
		saga := tierlock.Holder("saga-7")
		k := mustLock(t, a, "re", "1", saga)
		// The context alone enters the hold that it carries, with the id or
		// without.
		for _, opts := range [][]tierlock.Option{nil, {saga}} {
			inner := mustLockCtx(t, k.Context(), a, "re", "1", opts...)
			if inner.Token() != k.Token() {
				t.Errorf("token %v, want %v", inner.Token(), k.Token())
			}
			mustUnlock(t, inner)
		}
		anonymous := mustLockCtx(t, k.Context(), a, "re", "2")
		start := time.Now()
		for what, call := range map[string]func() (*tierlock.Lock, error){
			"another id":               func() (*tierlock.Lock, error) { return a.Lock(k.Context(), "re", "1", tierlock.Holder("saga-8")) },
			"an id into an anonymous":  func() (*tierlock.Lock, error) { return a.Lock(anonymous.Context(), "re", "2", saga) },
			"TryLock with another id":  func() (*tierlock.Lock, error) { return a.TryLock(k.Context(), "re", "1", tierlock.Holder("saga-8")) },
			"from the inner's context": func() (*tierlock.Lock, error) { return a.Lock(anonymous.Context(), "re", "1", tierlock.Holder("x")) },
		} {
			got, err := call()
			wantNoLock(t, got)
			wantIs(t, what, err, tierlock.ErrReentrant)
		}
		if time.Since(start) != 0 {
			t.Errorf("the refusals took %v", time.Since(start))
		}
		mustUnlock(t, anonymous)
		mustUnlock(t, k)
		wantFree(t, raw, name("re", "1"))
	})
}

// The crash of one of the holders costs the others nothing, and the key is
// free when the last of their leases is over.
func TestHolderThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _, raw := twoLockers(t)
		saga := tierlock.Holder("saga-7")
		ctx, crash := context.WithCancel(bg) // no renewal from then on
		dead := mustLockCtx(t, ctx, b, "re", "1", saga)
		k := mustLock(t, a, "re", "1", saga)
		crash()
		time.Sleep(10 * time.Second)
		wantLost(t, "the dead one", dead.Err(), "expired")
		if rec, err := raw.Inspect(bg, name("re", "1")); err != nil || rec.Holds != 1 || k.Err() != nil {
			t.Errorf("%d entries, error %v, Err of the other %v", rec.Holds, err, k.Err())
		}
		mustUnlock(t, k)
		wantFree(t, raw, name("re", "1"))
		wantLost(t, "Unlock of the dead one", dead.Unlock(), "expired")
		wantFree(t, raw, name("re", "1"))
	})
}

// A contender that was told "held" looks again later. Who enters by the present
// holder's id meanwhile and leaves again does not change what it goes by, and so what
// those behind it are told.
func TestEntrantLeavesAContender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := localstore.NewSpace()
		other := newLocker(t, newSpy(space))
		l := newLocker(t, pollOnly{newSpy(space)})
		k := mustLock(t, other, "re", "1", tierlock.Holder("job"))
		contender := lockAsync(bg, l, "re", "1", tierlock.UntilDone())
		synctest.Wait()
		mustUnlock(t, mustLock(t, l, "re", "1", tierlock.Holder("job")))
		time.Sleep(time.Millisecond)
		_, err := l.Lock(bg, "re", "1", tierlock.Wait(5*time.Millisecond))
		wantIs(t, "Lock", err, tierlock.ErrHeld)
		_, err = l.TryLock(bg, "re", "1")
		wantIs(t, "TryLock", err, tierlock.ErrHeld)
		mustUnlock(t, k)
		mustUnlock(t, (<-contender).k)
	})
}
