package tierlock_test

import (
	"context"
	"errors"
	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
	"testing"
	"testing/synctest"
	"time"
)

// Nobody says "held" of a key that no store has spoken of for a minute.
func TestNotHeldThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rg := newBackend(t)
		other := plainLocker(t, rg.plain, nil, tierlock.Resource{TTL: time.Second})
		k, err := other.Lock(bg, "r", "k")
		if err != nil {
			t.Fatal(err)
		}
		l := plainLocker(t, rg.f, nil, tierlock.Resource{TTL: time.Second, Wait: 100 * time.Millisecond})
		go l.Lock(bg, "r", "k", tierlock.UntilDone())
		time.Sleep(100 * time.Millisecond)
		for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRelease, storetest.OpInspect, storetest.OpRenew} {
			rg.f.Set(op, storetest.Fault{Kind: storetest.Slow, Delay: time.Hour})
		}
		k.Unlock() // free from here on
		time.Sleep(time.Minute)
		_, err = l.TryLock(bg, "r", "k")
		if errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("a minute after the last answer, and the key is free: TryLock says %v (store available: %v)", err, l.Status().Stores[0].Available)
		}
		_, err = l.Lock(bg, "r", "k")
		if errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("Lock says %v", err)
		}
		rg.f.ClearAll()
		ctx, cancel := context.WithCancel(bg)
		cancel()
		l.Close(ctx)
		rg.f.Wait()
	})
}

// A waiter that sleeps until a dead store is due for another try is woken when
// something else finds that it answers.
func TestRecoveryWakesTheWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rg := newBackend(t)
		l := plainLocker(t, rg.f, nil, tierlock.Resource{TTL: 30 * time.Second, Wait: 300 * time.Millisecond})
		o, _ := l.Lock(bg, "r", "other")
		rg.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		got := make(chan time.Time, 1)
		go func() {
			k, _ := l.Lock(bg, "r", "k", tierlock.UntilDone())
			got <- time.Now()
			k.Unlock()
		}()
		for l.Status().Stores[0].Available {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		rg.f.ClearAll()
		o.Unlock() // is answered, and closes the breaker
		up := time.Now()
		if !l.Status().Stores[0].Available {
			t.Fatal("not closed")
		}
		if d := (<-got).Sub(up); d > 100*time.Millisecond {
			t.Errorf("the waiter got the key %v after the store was known to be up", d)
		}
		l.Close(bg)
	})
}

// A call that is in line when the store goes down, behind one that waits
// through outages, is not kept for its whole wait.
func TestNotQueuedThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rg := newBackend(t)
		l := plainLocker(t, rg.f, nil, tierlock.Resource{TTL: 30 * time.Second, Wait: 30 * time.Second})
		rg.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		ctx, cancel := context.WithCancel(bg)
		go l.Lock(ctx, "r", "k", tierlock.UntilDone())
		time.Sleep(10 * time.Second)
		// New calls, one every 7 ms: each is refused at once, or waits in full.
		type res struct{ took time.Duration }
		got := make(chan res, 1000)
		for range 500 {
			go func() {
				start := time.Now()
				_, err := l.Lock(bg, "r", "k")
				if !errors.Is(err, tierlock.ErrUnavailable) {
					t.Errorf("%v", err)
				}
				got <- res{time.Since(start)}
			}()
			time.Sleep(7 * time.Millisecond)
		}
		slow := 0
		for range 500 {
			if r := <-got; r.took > time.Second {
				slow++
			}
		}
		if slow > 0 {
			t.Errorf("store down for 10s and known to be: %d of 500 calls waited their whole 30s in line", slow)
		}
		cancel()
		l.Close(bg)
	})
}

// A store that answers some calls and not others is asked less and less often by
// those that get no answer: each of their attempts costs it an undo as well.
func TestUnansweredCallsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rg := newBackend(t)
		l := plainLocker(t, rg.f, nil, tierlock.Resource{TTL: 30 * time.Second})
		other := mustLock(t, l, "r", "other")
		calls := rg.f.Calls(storetest.OpAcquire)
		rg.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := l.Lock(ctx, "r", "k", tierlock.UntilDone())
			done <- err
		}()
		for ctx.Err() == nil { // its answers keep the store from counting as down
			if err := other.Ensure(27*time.Second - time.Millisecond); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		mustUnlock(t, other)
		if err := <-done; !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		// A few in the first second, then one in 0.3 to 1 s.
		if n := rg.f.Calls(storetest.OpAcquire) - calls; n < 20 || n > 80 {
			t.Errorf("%d attempts in 20 s; wanted some forty", n)
		}
		l.Close(bg)
	})
}
