package localstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

var bg = context.Background()

func TestConformance(t *testing.T) {
	storetest.RunInBubble(t, func(*testing.T) storetest.Harness {
		space := localstore.NewSpace()
		return storetest.Harness{Open: func(*testing.T) tierlock.Store {
			return localstore.New(localstore.Options{Space: space})
		}}
	})
}

// rig is a store with its space, and short forms of its calls that fail the
// test on an error.
type rig struct {
	*testing.T
	*localstore.Store
	space *localstore.Space
}

func newRig(t *testing.T) rig {
	space := localstore.NewSpace()
	return rig{t, localstore.New(localstore.Options{Space: space}), space}
}

func name(key string) tierlock.Name {
	return tierlock.Name{Namespace: "ns", Resource: "r", Key: key}
}

func request(key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	return tierlock.AcquireRequest{Name: name(key), TTL: ttl, Budget: time.Minute, Token: tierlock.Token{Lease: lease, TTL: ttl}}
}

func job(key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	req := request(key, lease, ttl)
	req.Explicit, req.Token.Holder = true, "job"
	return req
}

func (r rig) acquire(req tierlock.AcquireRequest) tierlock.AcquireResult {
	r.Helper()
	res, err := r.Acquire(bg, req)
	if err != nil {
		r.Fatalf("Acquire: %v", err)
	}
	return res
}

func (r rig) lock(req tierlock.AcquireRequest) {
	r.Helper()
	if res := r.acquire(req); !res.Granted {
		r.Fatalf("Acquire %s by %s: got held by {%v}, want granted", req.Name, req.Token.Lease, res.Token)
	}
}

func (r rig) renew(key, lease string, ttl time.Duration, want tierlock.Ownership) {
	r.Helper()
	if res := r.Renew(bg, []tierlock.RenewRequest{{Name: name(key), Lease: lease, TTL: ttl}})[0]; res.Err != nil || res.State != want {
		r.Fatalf("Renew %s by %s: got %v and error %v, want %v", key, lease, res.State, res.Err, want)
	}
}

func (r rig) release(key, lease string, keep time.Duration, want tierlock.Ownership) {
	r.Helper()
	own, err := r.Release(bg, tierlock.ReleaseRequest{Name: name(key), Lease: lease, Keep: keep})
	if err != nil || own != want {
		r.Fatalf("Release %s by %s: got %v and error %v, want %v", key, lease, own, err, want)
	}
}

func (r rig) want(key string, left time.Duration, holds int) {
	r.Helper()
	rec, err := r.Inspect(bg, name(key))
	if err != nil || rec.Held != (holds > 0) || rec.Left != left || rec.Holds != holds {
		r.Fatalf("Inspect %s: got held %v for %v, %d times, and error %v, want %v and %d times", key, rec.Held, rec.Left, rec.Holds, err, left, holds)
	}
}

func TestTokenOfGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if r.Tier() != tierlock.Local || r.Guarantee() != tierlock.ProcessLocal {
			t.Errorf("got tier %v and guarantee %v, want local and process-local", r.Tier(), r.Guarantee())
		}
		req := request("k", "one", 1500*time.Millisecond)
		req.Token.Fence, req.Token.Epoch, req.Token.Seq = 9, 9, 9
		want := req.Token
		want.Fence, want.Epoch, want.Seq = 0, 1, 0
		want.ServerTime = time.Now().UTC().Truncate(time.Microsecond)
		want.ExpireAt = want.ServerTime.Add(req.TTL)
		if got := r.acquire(req).Token; got != want {
			t.Errorf("got token %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		if got := r.acquire(req).Token; got != want {
			t.Errorf("repeated: got token %+v, want that of the grant, %+v", got, want)
		}
	})
}

func TestStoresWithoutASpaceInCommonAreApart(t *testing.T) {
	for range 2 {
		newRig(t).lock(request("k", "one", time.Minute))
	}
	a, b := localstore.New(localstore.Options{}), localstore.New(localstore.Options{})
	for _, s := range []*localstore.Store{a, b} {
		if res, err := s.Acquire(bg, request("k", "one", time.Minute)); err != nil || !res.Granted {
			t.Errorf("Acquire: got granted %v and error %v, want granted", res.Granted, err)
		}
	}
}

// scenario 50
func TestNonsenseIsRefused(t *testing.T) {
	r := newRig(t)
	for _, ttl := range []time.Duration{math.MinInt64, -time.Second, 0, 1, 999 * time.Microsecond} {
		if _, err := r.Acquire(bg, request("k", "one", ttl)); !errors.Is(err, tierlock.ErrMisconfigured) {
			t.Errorf("Acquire with TTL %v: got error %v, want ErrMisconfigured", ttl, err)
		}
		r.want("k", 0, 0)
	}
	if _, err := r.Acquire(bg, request("k", "", time.Minute)); !errors.Is(err, tierlock.ErrMisconfigured) {
		t.Errorf("Acquire without a lease id: got error %v, want ErrMisconfigured", err)
	}
	r.lock(request("k", "one", time.Minute))
	res := r.Renew(bg, []tierlock.RenewRequest{
		{Name: name("k"), Lease: "one", TTL: 0},
		{Name: name("k"), Lease: "one", TTL: -1},
		{Name: name("k"), Lease: "one", TTL: time.Millisecond},
	})
	if !errors.Is(res[0].Err, tierlock.ErrMisconfigured) || !errors.Is(res[1].Err, tierlock.ErrMisconfigured) || res[2].State != tierlock.LeaseOwned {
		t.Errorf("Renew with TTL 0, -1 ns, 1 ms: got %v, want ErrMisconfigured twice, then owned", res)
	}
}

func TestEndedContextChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(request("held", "one", time.Minute))
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(bg, time.Second, why)
		defer cancel()
		<-ctx.Done()
		_, acquire := r.Acquire(ctx, request("free", "two", time.Minute))
		renew := r.Renew(ctx, []tierlock.RenewRequest{{Name: name("held"), Lease: "one", TTL: time.Hour}})[0].Err
		_, release := r.Release(ctx, tierlock.ReleaseRequest{Name: name("held"), Lease: "one"})
		_, inspect := r.Inspect(ctx, name("held"))
		_, watch := r.Watch(ctx, name("held"))
		for call, err := range map[string]error{"Acquire": acquire, "Renew": renew, "Release": release, "Inspect": inspect, "Watch": watch} {
			for _, want := range []error{tierlock.ErrUnavailable, context.DeadlineExceeded, why} {
				if !errors.Is(err, want) {
					t.Errorf("%s: got error %v, want one that wraps %v", call, err, want)
				}
			}
		}
		r.want("free", 0, 0)
		r.want("held", 59*time.Second, 1)
		if _, _, watched := r.space.Size(); watched != 0 {
			t.Errorf("got %d keys watched, want 0", watched)
		}
	})
}

// What counts is the time of the change, not that of the call. scenario 41
func TestContextThatEndsOnTheWayChangesNothing(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(bg)
	resume := r.space.Stall()
	done := make(chan error)
	go func() {
		_, err := r.Acquire(ctx, request("k", "one", time.Minute))
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	cancel()
	resume()
	if err := <-done; !errors.Is(err, tierlock.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want one that wraps ErrUnavailable and context.Canceled", err)
	}
	r.want("k", 0, 0)
}

func TestLateAcquireChangesNothing(t *testing.T) {
	r := newRig(t)
	r.lock(job("job", "one", time.Minute))
	for _, req := range []tierlock.AcquireRequest{
		request("free", "two", time.Minute), request("job", "two", time.Minute),
		job("job", "two", time.Minute), job("job", "one", time.Hour),
	} {
		req.Budget = time.Millisecond
		resume := r.space.Stall()
		under, done := make(chan struct{}), make(chan error)
		go func() {
			close(under)
			_, err := r.Acquire(bg, req)
			done <- err
		}()
		<-under
		time.Sleep(200 * time.Millisecond)
		resume()
		if err := <-done; !errors.Is(err, tierlock.ErrLate) || errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("Acquire %s by %s, 200 ms on its way with a budget of 1 ms: got error %v, want ErrLate", req.Name, req.Token.Lease, err)
		}
	}
	r.want("free", 0, 0)
	if rec, _ := r.Inspect(bg, name("job")); rec.Holds != 1 || rec.Left > time.Minute {
		t.Errorf("Inspect: got %d holds and %v left, want 1 and at most 1m0s", rec.Holds, rec.Left)
	}
}

// In a bubble no time passes at all, and still no budget is too little.
func TestAcquireWithoutBudgetIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, budget := range []time.Duration{0, -1, math.MinInt64} {
			req := request("k", "one", time.Minute)
			req.Budget = budget
			if _, err := r.Acquire(bg, req); !errors.Is(err, tierlock.ErrLate) {
				t.Errorf("Acquire with budget %v: got error %v, want ErrLate", budget, err)
			}
		}
		r.want("k", 0, 0)
	})
}

// Everything at once leaves nothing behind.
func TestManyCallersLeaveNothing(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			s := localstore.New(localstore.Options{Space: r.space})
			for n := range 300 {
				key, lease := fmt.Sprint(rand.IntN(4)), fmt.Sprint(i, "-", n)
				ttl := time.Duration(1+rand.IntN(3)) * time.Millisecond
				req := request(key, lease, ttl)
				if rand.IntN(2) == 0 {
					req = job(key, lease, ttl)
				}
				w, err := s.Watch(bg, name(key))
				if err != nil {
					t.Errorf("Watch: %v", err)
					return
				}
				res, err := s.Acquire(bg, req)
				if err != nil {
					t.Errorf("Acquire: %v", err)
				}
				s.Renew(bg, []tierlock.RenewRequest{{Name: name(key), Lease: lease, TTL: ttl}})
				if !res.Granted {
					select {
					case <-w.C():
					case <-time.After(time.Millisecond):
					}
				} else if n%3 > 0 {
					s.Release(bg, tierlock.ReleaseRequest{Name: name(key), Lease: lease, Keep: time.Duration(n%2) * time.Millisecond})
				}
				w.Close()
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		r.want("any", 0, 0) // a call clears what has expired
		entries, heap, watched := r.space.Size()
		if entries+heap+watched == 0 && !r.space.Ticking() {
			break
		}
		if time.Now().Before(end) {
			continue
		}
		t.Fatalf("got %d entries, %d on the heap, %d watched, timer running: %v; want nothing left", entries, heap, watched, r.space.Ticking())
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	s := localstore.New(localstore.Options{})
	req := request("k", "one", time.Minute)
	for b.Loop() {
		s.Acquire(bg, req)
		s.Release(bg, tierlock.ReleaseRequest{Name: req.Name, Lease: "one"})
	}
}
