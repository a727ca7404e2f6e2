package tierlock_test

import (
	"context"
	"errors"
	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// backend is one space with a plain store over it and one that has faults.
type backend struct {
	t     *testing.T
	plain *localstore.Store
	f     *storetest.Faulty
}

func newBackend(t *testing.T) *backend {
	p := localstore.New(localstore.Options{Space: localstore.NewSpace()})
	return &backend{t, p, storetest.WithFaults(p)}
}

func (r *backend) rec(key string) tierlock.Record {
	rec, err := r.plain.Inspect(bg, name("r", key))
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// plainLocker has the one resource "r", and is closed by the test itself.
func plainLocker(t *testing.T, s tierlock.Store, mod func(*tierlock.Config), r tierlock.Resource) *tierlock.Locker {
	t.Helper()
	r.Name = "r"
	cfg := tierlock.Config{App: "a", Namespace: "ns", Stores: []tierlock.Store{s}, Resources: []tierlock.Resource{r},
		Logger: slog.New(slog.DiscardHandler)}
	if mod != nil {
		mod(&cfg)
	}
	l, err := tierlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// pausing is a store after whose calls this process stops for a while.
type pausing struct {
	tierlock.Store
	acquire func(ctx context.Context, req tierlock.AcquireRequest, do func() (tierlock.AcquireResult, error)) (tierlock.AcquireResult, error)
}

func (p *pausing) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	return p.acquire(ctx, req, func() (tierlock.AcquireResult, error) { return p.Store.Acquire(ctx, req) })
}

// The process stops between the store's grant and the look at it. The caller
// keeps its place and asks again: never two of one process at once.
func TestLateGrantKeepsThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		var mu sync.Mutex
		stopped := false
		now, most := 0, 0
		holding, during := 0, 0
		s := &pausing{Store: r.plain}
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest, do func() (tierlock.AcquireResult, error)) (tierlock.AcquireResult, error) {
			mu.Lock()
			now++
			most = max(most, now)
			if holding > 0 {
				during++
			}
			first := !stopped
			stopped = true
			mu.Unlock()
			res, err := do()
			if first {
				time.Sleep(3 * time.Second) // SIGSTOP here
			} else {
				time.Sleep(5 * time.Millisecond) // a round trip
			}
			mu.Lock()
			now--
			mu.Unlock()
			return res, err
		}
		l := plainLocker(t, s, nil, tierlock.Resource{TTL: 3 * time.Second, Wait: time.Minute})
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				k, err := l.Lock(bg, "r", "k")
				if err != nil {
					t.Errorf("Lock %d: %v", i, err)
					return
				}
				mu.Lock()
				holding++
				mu.Unlock()
				time.Sleep(200 * time.Millisecond)
				mu.Lock()
				holding--
				mu.Unlock()
				k.Unlock()
			})
		}
		wg.Wait()
		if during > 0 {
			t.Errorf("the store was asked %d times while another call of this process held the key, want 0", during)
		}
		if most > 1 {
			t.Errorf("%d calls of one process asked for the key at once, want 1 at most", most)
		}
		l.Close(bg)
	})
}

// A grant that comes too late was never anybody's: it is no loss, to the caller
// or to the Observer.
func TestLateGrantIsNoLoss(t *testing.T) {
	for _, opt := range []tierlock.Option{tierlock.NoWait(), tierlock.Lease(time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			r := newBackend(t)
			s := &pausing{Store: r.plain}
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest, do func() (tierlock.AcquireResult, error)) (tierlock.AcquireResult, error) {
				res, err := do()
				time.Sleep(3 * time.Second)
				return res, err
			}
			lost, bound := 0, 0
			l := plainLocker(t, s, func(c *tierlock.Config) {
				c.Observer.Lost = func(tierlock.LostEvent) { lost++ }
				c.Observer.BoundReached = func(tierlock.BoundEvent) { bound++ }
			}, tierlock.Resource{TTL: 3 * time.Second, Wait: time.Second})
			_, err := l.TryLock(bg, "r", "k", opt, tierlock.NoWait())
			l.Close(bg)
			if errors.Is(err, tierlock.ErrLost) || errors.Is(err, tierlock.ErrLeaseExceeded) {
				t.Errorf("TryLock that gave nothing: error matches ErrLost=%v ErrLeaseExceeded=%v: %v", errors.Is(err, tierlock.ErrLost), errors.Is(err, tierlock.ErrLeaseExceeded), err)
			}
			if lost+bound > 0 {
				t.Errorf("Observer.Lost called %d times, BoundReached %d, for a lock that nobody got", lost, bound)
			}
		})
	}
}

// The caller's context ends as a grant arrives, later than TTL/3 after the
// request: the caller does not wait for the renewal that is due at once.
func TestLateGrantIsGivenBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		var cancel context.CancelFunc
		s := &pausing{Store: r.f}
		s.acquire = func(_ context.Context, req tierlock.AcquireRequest, do func() (tierlock.AcquireResult, error)) (tierlock.AcquireResult, error) {
			res, err := do()
			time.Sleep(400 * time.Millisecond)
			cancel()
			return res, err
		}
		r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Slow, Delay: time.Second})
		l := plainLocker(t, s, func(c *tierlock.Config) { c.Observer.Lost = func(tierlock.LostEvent) {} }, tierlock.Resource{TTL: time.Second})
		late := 0
		for range 50 {
			ctx, c := context.WithCancel(bg)
			cancel = c
			start := time.Now()
			_, err := l.Lock(ctx, "r", "k")
			if err == nil {
				t.Fatal("got it")
			}
			if over := time.Since(start) - 400*time.Millisecond; over > 10*time.Millisecond {
				late++
				if late == 1 {
					t.Errorf("Lock returned %v after its context had ended: %v", over, err)
				}
			}
			time.Sleep(3 * time.Second)
		}
		t.Logf("%d of 50 late", late)
		l.Close(bg)
		r.f.Wait()
	})
}
