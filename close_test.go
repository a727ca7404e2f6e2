package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

func closeAsync(ctx context.Context, l *tierlock.Locker) <-chan result {
	c := make(chan result, 1)
	go func() {
		err := l.Close(ctx)
		c <- result{err: err, at: time.Now()}
	}()
	return c
}

// Close waits for what is held, keeps it renewed, and lets nobody else in.
func TestCloseWaitsForHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s, _, raw := twoLockers(t)
		k := mustLock(t, a, "re", "1")
		remote := mustLock(t, b, "r", "2")
		waiters := map[string]<-chan result{
			"behind a hold of the process": lockAsync(bg, a, "re", "1", tierlock.UntilDone()),
			"asking the store":             lockAsync(bg, a, "r", "2", tierlock.UntilDone()),
		}
		synctest.Wait()
		waiters["behind the one that asks"] = lockAsync(bg, a, "r", "2", tierlock.UntilDone())
		synctest.Wait()
		start := time.Now()
		done := closeAsync(bg, a)
		for what, w := range waiters {
			r := <-w
			wantIs(t, what, r.err, tierlock.ErrClosed)
			wantNotIs(t, what, r.err, tierlock.ErrUnavailable)
			wantNoLock(t, r.k)
			if r.at != start {
				t.Errorf("%s: failed after %v, want at once", what, r.at.Sub(start))
			}
		}
		for what, call := range map[string]func(context.Context, string, string, ...tierlock.Option) (*tierlock.Lock, error){"Lock": a.Lock, "TryLock": a.TryLock} {
			got, err := call(bg, "r", "free")
			wantNoLock(t, got)
			wantIs(t, what+" while it closes", err, tierlock.ErrClosed)
		}
		if !a.Status().Closed || b.Status().Closed {
			t.Error("Status.Closed")
		}
		time.Sleep(10 * time.Second)
		if len(done) != 0 || k.Err() != nil || s.Calls(storetest.OpRenew) < 9 {
			t.Errorf("after 10 s: closed %v, Err %v, %d renewals", len(done) != 0, k.Err(), s.Calls(storetest.OpRenew))
		}
		mustUnlock(t, k)
		r := <-done
		if r.err != nil || r.at != start.Add(10*time.Second) {
			t.Errorf("Close: %v after %v", r.err, r.at.Sub(start))
		}
		wantFree(t, raw, name("re", "1"))
		mustUnlock(t, remote)

		err := a.Do(bg, "r", "1", func(context.Context) error { t.Error("ran"); return nil })
		wantIs(t, "Do after Close", err, tierlock.ErrClosed)
		if err := a.Close(bg); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if n := s.Calls(storetest.OpAcquire); n != 3 {
			t.Errorf("%d acquires, want the three from before", n)
		}
	})
}

// What is still held when Close's context ends is told so, and left to end on
// time: its body may still run.
func TestCloseEndsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := localstore.NewSpace()
		raw := localstore.New(localstore.Options{Space: space})
		a, s := ownLocker(t, space)
		b := newLocker(t, raw)
		k, k2 := mustLock(t, a, "r", "1"), mustLock(t, a, "r", "2")
		cause := errors.New("shutdown deadline")
		ctx, cancel := context.WithTimeoutCause(bg, 5500*time.Millisecond, cause)
		defer cancel()
		start := time.Now()
		err := a.Close(ctx)
		wantIs(t, "Close", err, context.DeadlineExceeded, cause)
		if d := time.Since(start); d != 5500*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		if again := a.Close(bg); again == nil || again.Error() != err.Error() {
			t.Errorf("second Close: %v, want the same", again)
		}
		for _, k := range []*tierlock.Lock{k, k2} {
			wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrClosed)
			wantIs(t, "Err", k.Err(), tierlock.ErrClosed)
			wantNotIs(t, "Err", k.Err(), tierlock.ErrLost)
			wantHeldBy(t, raw, name("r", k.Token().Key), k)
		}
		if n := s.Calls(storetest.OpRelease); n != 0 {
			t.Errorf("%d releases under running bodies", n)
		}
		renewals := s.Calls(storetest.OpRenew)
		mustUnlock(t, k) // works still
		mustUnlock(t, k)
		wantFree(t, raw, name("r", "1"))
		k3 := mustLock(t, b, "r", "2", tierlock.UntilDone())
		if d := time.Since(start); d > 8*time.Second || d < 7900*time.Millisecond {
			t.Errorf("the key was free %v after the start, want 3 s after its last renewal at 5 s", d)
		}
		wantLost(t, "Unlock after the lease", k2.Unlock(), "expired")
		wantHeldBy(t, raw, name("r", "2"), k3)
		if n := s.Calls(storetest.OpRenew) - renewals; n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
		mustUnlock(t, k3)
	})
}

func TestCloseWithEndedContext(t *testing.T) {
	ended, cancel := context.WithCancel(bg)
	cancel()
	synctest.Test(t, func(t *testing.T) {
		_, b, _, _, _ := twoLockers(t)
		start := time.Now()
		if err := b.Close(ended); err != nil || time.Since(start) != 0 {
			t.Errorf("with nothing to wait for: %v after %v", err, time.Since(start))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l, s := ownLocker(t, nil)
		k := mustLock(t, l, "r", "1")
		start := time.Now()
		wantIs(t, "Close", l.Close(ended), context.Canceled)
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v", d)
		}
		wantIs(t, "Err", k.Err(), tierlock.ErrClosed)
		mustUnlock(t, k)
		wantFree(t, s, name("r", "1"))
	})
}

// ownLocker is a Locker that the test closes by itself, perhaps with an error.
func ownLocker(t *testing.T, space *localstore.Space) (*tierlock.Locker, *storetest.Faulty) {
	t.Helper()
	s := storetest.WithFaults(localstore.New(localstore.Options{Space: space}))
	cfg := goodConfig()
	cfg.Namespace, cfg.Stores = "ns", []tierlock.Store{s}
	cfg.Resources = []tierlock.Resource{{Name: "r", TTL: 3 * time.Second}}
	cfg.Logger = slog.New(slog.DiscardHandler)
	l, err := tierlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// While Close waits for something else, what it has given up is not renewed.
// And when it is done, no goroutine is left, though the lease runs on.
func TestCloseStopsRenewalAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := goroutines()
		l, s := ownLocker(t, nil)
		k := mustLock(t, l, "r", "1")
		failing := mustLock(t, l, "r", "2")
		time.Sleep(900 * time.Millisecond)
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
		wantIs(t, "Unlock", failing.Unlock(), tierlock.ErrUnavailable)
		ctx, cancel := context.WithCancel(bg)
		cancel()
		start := time.Now()
		wantIs(t, "Close", l.Close(ctx), context.Canceled, tierlock.ErrUnavailable)
		if d := time.Since(start); d < 500*time.Millisecond {
			t.Errorf("Close took %v: the test shows nothing", d)
		}
		if n := s.Calls(storetest.OpRenew); n != 0 {
			t.Errorf("%d renewals of what Close has given up", n)
		}
		synctest.Wait()
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines after Close, %d before New", n, before)
		}
		s.ClearAll()
		mustUnlock(t, k)
		synctest.Wait()
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines after an unlock after Close, %d before New", n, before)
		}
	})
}

// Scenario 40: Close and Unlock, many times and at once, all return.
func TestConcurrentCloseAndUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := ownLocker(t, nil)
		k := mustLock(t, l, "r", "1")
		first := closeAsync(bg, l)
		synctest.Wait()
		short, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		start := time.Now()
		err := l.Close(short)
		wantIs(t, "a second Close whose context ends first", err, context.DeadlineExceeded)
		if d := time.Since(start); d != time.Second {
			t.Errorf("it took %v", d)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := l.Close(bg); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			wg.Go(func() { mustUnlock(t, k) })
		}
		wg.Wait()
		if r := <-first; r.err != nil {
			t.Errorf("first Close: %v", r.err)
		}
		mustUnlock(t, k)
		wantFree(t, s, name("r", "1"))
		if n := s.Calls(storetest.OpRelease); n != 1 {
			t.Errorf("%d releases, want 1", n)
		}
	})
}

// One release that fails does not keep the others from being done.
func TestCloseFinishesReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		var ks []*tierlock.Lock
		for i := range 10 {
			ks = append(ks, mustLock(t, l, "r", fmt.Sprint(i)))
		}
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
		for _, k := range ks[:4] {
			wantIs(t, "Unlock", k.Unlock(), tierlock.ErrUnavailable)
		}
		synctest.Wait() // the repeats have failed once, too, and rest
		s.ClearAll()
		for _, k := range ks[4:] {
			mustUnlock(t, k)
		}
		if n := l.Status().Undos; n != 4 {
			t.Fatalf("%d undos, want 4", n)
		}
		start := time.Now()
		if err := l.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("Close took %v", d)
		}
		for i := range ks {
			wantFree(t, raw, name("r", fmt.Sprint(i)))
		}
	})
}

// A dead store does not hold Close up for more than three CallTimeouts after
// its context has ended, whatever goes on.
func TestCloseWithADeadStore(t *testing.T) {
	for _, kind := range []storetest.Kind{storetest.Before, storetest.Slow} {
		synctest.Test(t, func(t *testing.T) {
			l, s := ownLocker(t, nil)
			held, unlocked, unlocking := mustLock(t, l, "r", "held"), mustLock(t, l, "r", "unlocked"), mustLock(t, l, "r", "unlocking")
			for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpRenew, storetest.OpRelease, storetest.OpInspect} {
				s.Set(op, storetest.Fault{Kind: kind, Delay: time.Minute})
			}
			wantIs(t, "Unlock", unlocked.Unlock(), tierlock.ErrUnavailable)
			acquiring := lockAsync(bg, l, "r", "acquiring", tierlock.UntilDone())
			go unlocking.Unlock()
			ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			err := l.Close(ctx)
			wantIs(t, "Close", err, context.DeadlineExceeded, tierlock.ErrUnavailable)
			if d := time.Since(start); d > 1800*time.Millisecond {
				t.Errorf("Close took %v, want 300 ms and 1.5 s at most", d)
			}
			wantIs(t, "acquire", (<-acquiring).err, tierlock.ErrClosed)
			if n := l.Status().Undos; n == 0 {
				t.Error("no undo is left: the test shows nothing")
			}
			wantIs(t, "Err", held.Err(), tierlock.ErrClosed)
			calls := s.Calls(storetest.OpRelease) + s.Calls(storetest.OpRenew)
			time.Sleep(10 * time.Second)
			if n := s.Calls(storetest.OpRelease) + s.Calls(storetest.OpRenew) - calls; n > 1 {
				t.Errorf("%d calls after Close", n)
			}
			s.ClearAll()
			s.Wait()
		})
	}
}

// Nor does one that dies while many releases are repeated at once.
func TestCloseWhileManyReleasesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 200
		s := newSpy(nil)
		var answers atomic.Int64 // below 0 it is down, at 0 it hangs
		answers.Store(-1)
		s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
			switch {
			case answers.Load() < 0:
				return 0, fmt.Errorf("no: %w", tierlock.ErrUnavailable)
			case answers.CompareAndSwap(1, 0):
				return s.Store.Release(ctx, req)
			}
			<-ctx.Done()
			return 0, fmt.Errorf("no answer: %w", tierlock.ErrUnavailable)
		}
		cfg := goodConfig()
		cfg.Stores, cfg.Logger = []tierlock.Store{s}, slog.New(slog.DiscardHandler)
		l, err := tierlock.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var ks []*tierlock.Lock
		for i := range keys {
			ks = append(ks, mustLock(t, l, "r", fmt.Sprint(i)))
		}
		for _, k := range ks {
			wg.Go(func() { wantIs(t, "Unlock", k.Unlock(), tierlock.ErrUnavailable) })
		}
		wg.Wait()
		answers.Store(1)
		time.Sleep(400 * time.Millisecond)
		if n := l.Status().Undos; n != keys-1 {
			t.Errorf("%d undos, want all but one of %d", n, keys)
		}
		ctx, cancel := context.WithCancel(bg)
		cancel()
		start := time.Now()
		wantIs(t, "Close", l.Close(ctx), tierlock.ErrUnavailable)
		if d := time.Since(start); d > 1500*time.Millisecond {
			t.Errorf("Close took %v, want three CallTimeouts at most", d)
		}
	})
}

// An acquire that is under way when Close begins leaves no key, whatever
// becomes of it.
func TestCloseDuringAnAcquire(t *testing.T) {
	for _, f := range faults(0) {
		synctest.Test(t, func(t *testing.T) {
			l, s := ownLocker(t, nil)
			s.Set(storetest.OpAcquire, f)
			w := lockAsync(bg, l, "r", "1")
			time.Sleep(5 * time.Millisecond)
			if err := l.Close(bg); err != nil {
				t.Errorf("%v %v: Close: %v", f.Kind, f.Delay, err)
			}
			r := <-w
			wantNoLock(t, r.k)
			wantIs(t, fmt.Sprintf("%v %v: Lock", f.Kind, f.Delay), r.err, tierlock.ErrClosed)
			s.Wait()
			wantFree(t, s, name("r", "1"))
			if n := s.Calls(storetest.OpRenew); n != 0 {
				t.Errorf("%v %v: %d renewals", f.Kind, f.Delay, n)
			}
		})
	}
}
