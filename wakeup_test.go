package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// Scenario 30: no wake-up is lost between goroutines and processes that take
// turns. A lost one shows as a wait up to the next poll or longer. All through
// it the holders are checked to exclude each other.
func TestNoWakeUpIsLost(t *testing.T) {
	for _, c := range []struct {
		what  string
		push  bool
		bound time.Duration
	}{{"push", true, 900 * time.Millisecond}, {"poll", false, 2500 * time.Millisecond}} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				space := localstore.NewSpace()
				var wg sync.WaitGroup
				var inside, overlaps atomic.Int64
				var mu sync.Mutex
				var longest time.Duration
				for range 2 {
					var s tierlock.Store = localstore.New(localstore.Options{Space: space})
					if !c.push {
						s = pollOnly{s}
					}
					l := newLocker(t, s)
					for range 4 {
						wg.Go(func() {
							for range 150 {
								start := time.Now()
								k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
								if err != nil {
									t.Error(err)
									return
								}
								mu.Lock()
								longest = max(longest, time.Since(start))
								mu.Unlock()
								if inside.Add(1) != 1 {
									overlaps.Add(1)
								}
								time.Sleep(rand.N(100 * time.Microsecond))
								inside.Add(-1)
								mustUnlock(t, k)
								time.Sleep(rand.N(200 * time.Microsecond))
							}
						})
					}
				}
				wg.Wait()
				if overlaps.Load() > 0 {
					t.Errorf("%d times two holders at once", overlaps.Load())
				}
				if longest > c.bound {
					t.Errorf("the longest wait took %v, want at most %v", longest, c.bound)
				}
			})
		})
	}
}

// deaf is a store whose watches never signal anything.
type deaf struct{ *localstore.Store }

func (d deaf) Watch(context.Context, tierlock.Name) (tierlock.Watch, error) { return deaf{}, nil }
func (deaf) C() <-chan struct{}                                             { return nil }
func (deaf) Close()                                                         {}

// deafAtFirst gives no watch at the first call.
type deafAtFirst struct {
	*localstore.Store
	calls atomic.Int64
}

func (d *deafAtFirst) Watch(ctx context.Context, n tierlock.Name) (tierlock.Watch, error) {
	if d.calls.Add(1) == 1 {
		return nil, fmt.Errorf("watch: %w", tierlock.ErrUnavailable)
	}
	return d.Store.Watch(ctx, n)
}

// Behind every push there is a poll, and behind every holder that died its
// lease.
func TestPollBehindThePush(t *testing.T) {
	for _, c := range []struct {
		what            string
		wrap            func(*localstore.Store) tierlock.Store
		released, least time.Duration
		most            time.Duration
	}{
		{"push that fails", func(s *localstore.Store) tierlock.Store { return deaf{s} }, 1700 * time.Millisecond, 1, 1010 * time.Millisecond},
		{"no push", func(s *localstore.Store) tierlock.Store { return pollOnly{s} }, 1700 * time.Millisecond, 1, 250 * time.Millisecond},
		{"push that comes later", func(s *localstore.Store) tierlock.Store { return &deafAtFirst{Store: s} }, 4700 * time.Millisecond, 0, 0},
		{"holder died, push fails", func(s *localstore.Store) tierlock.Store { return deaf{s} }, 0, 0, 2 * time.Millisecond},
		{"holder died, no push", func(s *localstore.Store) tierlock.Store { return pollOnly{s} }, 0, 0, 2 * time.Millisecond},
		{"holder died", func(s *localstore.Store) tierlock.Store { return s }, 0, 0, 2 * time.Millisecond},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw := localstore.New(localstore.Options{})
				const ttl = 7777 * time.Millisecond
				res, err := raw.Acquire(bg, tierlock.AcquireRequest{Name: name("r", "1"), TTL: ttl, Budget: time.Second,
					Token: tierlock.Token{Lease: "x", Tier: tierlock.Local}})
				if err != nil || !res.Granted {
					t.Fatal(res, err)
				}
				l := newLocker(t, c.wrap(raw))
				w := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
				start := time.Now()
				if c.released > 0 {
					time.Sleep(c.released)
					if _, err := raw.Release(bg, tierlock.ReleaseRequest{Name: name("r", "1"), Lease: "x"}); err != nil {
						t.Fatal(err)
					}
				} else {
					c.released = ttl
				}
				r := <-w
				if r.err != nil {
					t.Fatal(r.err)
				}
				if d := r.at.Sub(start) - c.released; d < c.least || d > c.most {
					t.Errorf("had the lock %v after it was free, want %v to %v", d, c.least, c.most)
				}
				mustUnlock(t, r.k)
			})
		})
	}
}

// A call that waits until it is told to stop outlives an outage, and asks a
// dead store about once a second.
func TestUntilDoneThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		w := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		time.Sleep(30 * time.Second)
		if n := s.Calls(storetest.OpAcquire); n < 25 || n > 35 {
			t.Errorf("%d tries in 30 s, want 3 and then about one a second", n)
		}
		if l.Status().Stores[0].Available {
			t.Error("the store counts as available")
		}
		start := time.Now()
		s.ClearAll()
		r := <-w
		if r.err != nil || r.at.Sub(start) > 1100*time.Millisecond {
			t.Fatalf("%v, %v after the store was back", r.err, r.at.Sub(start))
		}
		if st := l.Status().Stores[0]; !st.Available || st.LastError == nil {
			t.Errorf("status after the outage: %+v", st)
		}
		mustUnlock(t, r.k)

		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		start = time.Now()
		k, err := l.Lock(ctx, "r", "1", tierlock.UntilDone())
		wantNoLock(t, k)
		wantIs(t, "until done", err, context.DeadlineExceeded, tierlock.ErrUnavailable)
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("gave up after %v", d)
		}
		s.ClearAll()
		idle(t, l)
		wantFree(t, raw, name("r", "1"))
	})
}

// Who waits for a key that is known to be held goes on waiting through an
// outage, and learns of both in the end.
func TestOutageWhileWaitingForAHeldKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s, _, _ := twoLockers(t)
		k := mustLock(t, b, "r", "1")
		short := lockAsync(bg, a, "r", "1", tierlock.Wait(10*time.Second))
		time.Sleep(500 * time.Millisecond)
		for _, op := range []storetest.Op{storetest.OpAcquire, storetest.OpInspect} {
			s.Set(op, storetest.Fault{Kind: storetest.Before})
		}
		start := time.Now()
		r := <-short
		wantIs(t, "wait over in the outage", r.err, tierlock.ErrHeld, tierlock.ErrUnavailable)
		var held *tierlock.HeldError
		if !errors.As(r.err, &held) || held.Holder != k.Token() || r.at.Sub(start) != 9500*time.Millisecond {
			t.Errorf("%+v after %v", held, r.at.Sub(start))
		}
		s.ClearAll()
		time.Sleep(time.Second) // the store is worth a try again
		long := lockAsync(bg, a, "r", "1", tierlock.Wait(time.Minute))
		time.Sleep(1500 * time.Millisecond)
		s.Set(storetest.OpInspect, storetest.Fault{Kind: storetest.Before})
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		time.Sleep(20 * time.Second)
		mustUnlock(t, k)
		time.Sleep(5 * time.Second)
		s.ClearAll()
		start = time.Now()
		if r = <-long; r.err != nil || r.at.Sub(start) > 1100*time.Millisecond {
			t.Fatalf("%v, %v after the store was back", r.err, r.at.Sub(start))
		}
		mustUnlock(t, r.k)
	})
}
