package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
)

// rtt is a store some way off.
type rtt struct {
	tierlock.Store
	tierlock.Watcher
	d time.Duration
}

func (s rtt) sleep(ctx context.Context) error {
	select {
	case <-time.After(s.d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tierlock.ErrUnavailable, ctx.Err())
	}
}

func (s rtt) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	if err := s.sleep(ctx); err != nil {
		return tierlock.AcquireResult{}, err
	}
	return s.Store.Acquire(ctx, req)
}

// A waiter in line behind one that was told "held" before it came. The
// breaker opens through other keys: the waiter still goes by that "held". Then
// the contender's own calls fail, which nobody tells the waiter.
func TestNotQueuedThroughAnOutageByOldHeld(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newBackend(t)
			other := plainLocker(t, r.plain, nil, tierlock.Resource{TTL: 60 * time.Second})
			k, _ := other.Lock(bg, "r", "k")
			l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 30 * time.Second, Wait: 30 * time.Second})
			ctx, cancel := context.WithCancel(bg)
			go l.Lock(ctx, "r", "k", tierlock.UntilDone()) // told "held" at once
			time.Sleep(100 * time.Millisecond)
			start := time.Now()
			got := make(chan error, 1)
			go func() { _, err := l.Lock(bg, "r", "k"); got <- err }()
			time.Sleep(time.Millisecond)
			for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpInspect, storetest.OpRelease, storetest.OpRenew} {
				r.f.Set(op, storetest.Fault{Kind: storetest.Before})
			}
			n := 3
			if own {
				n = 2 // the contender's own is the third
			}
			for i := range n {
				l.TryLock(bg, "r", fmt.Sprint("x", i))
			}
			err := <-got
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("own=%v: store dead since 1ms after the call: waited %v and then: held=%v unavailable=%v", own, took, errors.Is(err, tierlock.ErrHeld), errors.Is(err, tierlock.ErrUnavailable))
			}
			cancel()
			r.f.ClearAll()
			k.Unlock()
			l.Close(bg)
			other.Close(bg)
		})
	}
}

// One key of another type (WRONGTYPE): its refused acquires are undone,
// too, and each undo fails. The undoer takes the first failure for the
// store's, and pauses for all.
type wrongType struct {
	tierlock.Store
	tried atomic.Int64
}

func (s *wrongType) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	if req.Name.Key == "bad" {
		return tierlock.AcquireResult{}, fmt.Errorf("%w: WRONGTYPE", tierlock.ErrMisconfigured)
	}
	return s.Store.Acquire(ctx, req)
}

func (s *wrongType) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	if req.Name.Key == "bad" {
		s.tried.Add(1)
		return 0, fmt.Errorf("%w: WRONGTYPE", tierlock.ErrMisconfigured)
	}
	return s.Store.Release(ctx, req)
}

func TestBadKeyDoesNotStarveUndos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		s := &wrongType{Store: r.f}
		l := plainLocker(t, s, nil, tierlock.Resource{TTL: 30 * time.Second})
		for range 500 { // 100 calls a second for 5 s
			l.TryLock(bg, "r", "bad")
			time.Sleep(10 * time.Millisecond)
		}
		r.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.After, Times: 1})
		_, err := l.TryLock(bg, "r", "good") // its reply is lost
		if err == nil {
			t.Fatal(err)
		}
		start := time.Now()
		for r.rec("good").Held {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("store answers everything; the key of a failed call stayed for %v (undos now: %d, tried on the bad key: %d)", d, l.Status().Undos, s.tried.Load())
		}
		l.Close(bg)
	})
}

// The same for a release that was not confirmed.
func TestBadKeyDoesNotStarveReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		s := &wrongType{Store: r.f}
		l := plainLocker(t, s, nil, tierlock.Resource{TTL: 30 * time.Second})
		for range 500 {
			l.TryLock(bg, "r", "bad")
			time.Sleep(10 * time.Millisecond)
		}
		k, _ := l.Lock(bg, "r", "good")
		r.f.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before, Times: 1})
		k.Unlock()
		start := time.Now()
		for r.rec("good").Held {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("store answers; the key whose release failed once stayed for %v", d)
		}
		l.Close(bg)
	})
}

// Close after a lock that was refused for a wrong password.
type noAuth struct{ tierlock.Store }

func (noAuth) Acquire(context.Context, tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	return tierlock.AcquireResult{}, fmt.Errorf("%w: NOAUTH", tierlock.ErrMisconfigured)
}

func (noAuth) Release(context.Context, tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	return 0, fmt.Errorf("%w: NOAUTH", tierlock.ErrMisconfigured)
}

func TestCloseAfterNoAuth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, noAuth{r.plain}, nil, tierlock.Resource{TTL: 30 * time.Second})
		l.TryLock(bg, "r", "k")
		start := time.Now()
		err := l.Close(bg)
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("Close took %v after one call that was refused with NOAUTH: %v", d, err)
		}
	})
}

// The hold is lost, and later the handle's own bound comes: Err changes
// from a loss to ErrLeaseExceeded.
func TestErrAfterLossAndLaterBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		outer, _ := l.Lock(bg, "r", "k")
		inner, err := l.Lock(outer.Context(), "r", "k", tierlock.Lease(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		r.plain.Release(bg, tierlock.ReleaseRequest{Name: tierlock.Name{Namespace: "ns", Resource: "r", Key: "k"}, Lease: outer.Token().Lease})
		time.Sleep(5 * time.Second)
		before := inner.Err()
		time.Sleep(10 * time.Second)
		after := inner.Err()
		if errors.Is(before, tierlock.ErrLost) && !errors.Is(after, tierlock.ErrLost) {
			t.Errorf("Err after 5s: %v;\nafter 15s: %v;\ncause: %v\nUnlock: %v", before, after, context.Cause(inner.Context()), inner.Unlock())
		}
		inner.Unlock()
		outer.Unlock()
		l.Close(bg)
	})
}

// The caller's own end, then the bound.
func TestErrAfterCallersEndAndLaterBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		outer, _ := l.Lock(bg, "r", "k")
		ctx, cancel := context.WithCancel(outer.Context())
		inner, _ := l.Lock(ctx, "r", "k", tierlock.Lease(time.Second))
		cancel() // the caller gave up; belief in the hold stays
		before := inner.Err()
		time.Sleep(2 * time.Second)
		if after := inner.Err(); !errors.Is(after, context.Canceled) {
			t.Errorf("Err before %v; after %v; Unlock %v", before, after, inner.Unlock())
		}
		inner.Unlock()
		outer.Unlock()
		l.Close(bg)
	})
}

// The last handle's own bound passed and the release is not confirmed: Do
// is silent about the bound, Unlock says "held until now".
func TestBoundAndFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		outer, _ := l.Lock(bg, "r", "k")
		err := l.Do(context.WithoutCancel(outer.Context()), "r", "k", func(ctx context.Context) error {
			outer.Unlock()
			time.Sleep(2 * time.Second) // past the bound
			r.f.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
			return nil
		}, tierlock.Lease(time.Second))
		if !errors.Is(err, tierlock.ErrLeaseExceeded) {
			t.Errorf("the body ran 1s past its bound, Do says %v", err)
		}
		r.f.ClearAll()
		l.Close(bg)
	})
}

// Ensure promises more than the handle's own bound leaves.
func TestEnsurePastOwnBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		outer, _ := l.Lock(bg, "r", "k")
		inner, _ := l.Lock(outer.Context(), "r", "k", tierlock.Lease(time.Second))
		if err := inner.Ensure(2 * time.Second); err == nil {
			time.Sleep(1900 * time.Millisecond)
			if inner.Err() != nil {
				t.Errorf("Ensure(2s) gave nil, 1.9s later: %v", inner.Err())
			}
		}
		inner.Unlock()
		outer.Unlock()
		l.Close(bg)
	})
}

// A context whose cause is an error of this package ends by deadline: the
// label says that an open Locker is closed.
func TestResultOfADeadlineWithCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		var res string
		l := plainLocker(t, r.f, func(c *tierlock.Config) {
			c.Observer.AcquireEnd = func(_ context.Context, e tierlock.AcquireEnd) { res = e.Result() }
		}, tierlock.Resource{TTL: 3 * time.Second})
		r.f.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		ctx, cancel := context.WithTimeoutCause(bg, 50*time.Millisecond, tierlock.ErrClosed)
		defer cancel()
		_, err := l.Lock(ctx, "r", "k")
		r.f.ClearAll()
		l.Close(bg)
		if res != "unavailable" {
			t.Errorf("Result %q of %v", res, err)
		}
	})
}

// Pure contention, a store in order with 2 ms round trips. A caller in
// line gets its turn with less than a round trip left of its own wait, because
// the one in front goes away. What the one in front knew (held) is forgotten.
func TestTurnAtTheEndOfTheWait(t *testing.T) {
	for _, left := range []time.Duration{0, 300 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			r := newBackend(t)
			other := plainLocker(t, r.plain, nil, tierlock.Resource{TTL: 30 * time.Second})
			k, _ := other.Lock(bg, "r", "k")
			l := plainLocker(t, rtt{r.plain, r.plain, 2 * time.Millisecond}, nil, tierlock.Resource{TTL: 30 * time.Second, Wait: 500 * time.Millisecond})
			ctx, cancel := context.WithCancel(bg)
			go l.Lock(ctx, "r", "k") // the one in front: told "held" at 1 ms and 2 ms
			time.Sleep(10 * time.Millisecond)
			time.AfterFunc(200*time.Millisecond-left, cancel) // its request is cancelled
			_, err := l.Lock(bg, "r", "k", tierlock.Wait(200*time.Millisecond))
			t.Logf("%v: %v", left, err)
			if !errors.Is(err, tierlock.ErrHeld) {
				t.Errorf("waited 200ms in line for a key that was held throughout; %v left at the turn: %v", left, err)
			}
			k.Unlock()
			l.Close(bg)
			other.Close(bg)
		})
	}
}

// Pure contention: a HeldError whose last look was cut short by its own
// wait matches ErrUnavailable, too.
func TestHeldIsNotUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		other := plainLocker(t, r.plain, nil, tierlock.Resource{TTL: 30 * time.Second})
		k, _ := other.Lock(bg, "r", "k")
		l := plainLocker(t, struct{ tierlock.Store }{cut{rtt{r.plain, r.plain, 2 * time.Millisecond}}}, nil, tierlock.Resource{TTL: 30 * time.Second, Wait: 200 * time.Millisecond})
		bad, both := 0, 0
		for range 2000 {
			_, err := l.Lock(bg, "r", "k")
			if !errors.Is(err, tierlock.ErrHeld) {
				bad++
			} else if errors.Is(err, tierlock.ErrUnavailable) {
				if both++; both == 1 {
					t.Logf("such as: %v", err)
				}
			}
		}
		if bad+both > 0 {
			t.Errorf("of 2000 calls for a held key, 2 ms round trips, no fault: %d not ErrHeld, %d match ErrHeld and ErrUnavailable", bad, both)
		}
		k.Unlock()
		l.Close(bg)
		other.Close(bg)
	})
}

// cut makes calls end with their context, as a network client does.
type cut struct{ tierlock.Store }

func (c cut) Inspect(ctx context.Context, n tierlock.Name) (tierlock.Record, error) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
	}
	return c.Store.Inspect(ctx, n)
}
