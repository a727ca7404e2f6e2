package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// A waiter that goes away at the very moment at which a lease comes to it passes it
// on: to the next, or it is released where there is none, or none that it fits.
func TestLeaveAtTheMomentOfHandOver(t *testing.T) {
	for behind, opts := range map[string][]tierlock.Option{
		"nobody": nil, "one that fits": {}, "one that does not": {tierlock.TTL(time.Second)},
	} {
		for _, how := range []string{"cancelled", "wait over", "closing"} {
			t.Run(behind+", "+how, func(t *testing.T) {
				passed, failed := 0, 0
				for range 100 {
					synctest.Test(t, func(t *testing.T) {
						s := newRanger()
						l := newLocker(t, s)
						k := mustLock(t, l, "r", "1")
						first := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
						synctest.Wait()
						// The wait of the one that goes is over 10 ms from now.
						ctx, cancel := context.WithCancel(bg)
						defer cancel()
						wait := tierlock.UntilDone()
						if how == "wait over" {
							wait = tierlock.Wait(10 * time.Millisecond)
						}
						goes := lockAsync(ctx, l, "r", "1", wait)
						synctest.Wait()
						var stays <-chan result
						if opts != nil {
							stays = lockAsync(bg, l, "r", "1", append(opts, tierlock.UntilDone())...)
							synctest.Wait()
						}
						mustUnlock(t, k)
						k = (<-first).k
						time.Sleep(10 * time.Millisecond)
						closed := make(chan error, 1)
						var wg sync.WaitGroup
						for _, f := range []func(){
							func() { mustUnlock(t, k) },
							func() {
								switch how {
								case "cancelled":
									cancel()
								case "closing":
									closed <- l.Close(bg)
								}
							},
						} {
							wg.Go(f)
						}
						defer wg.Wait()
						r := <-goes
						switch {
						case r.err == nil:
							passed++
							mustUnlock(t, r.k)
						default:
							failed++
							wantNoLock(t, r.k)
							if !errors.Is(r.err, tierlock.ErrHeld) && !errors.Is(r.err, tierlock.ErrClosed) && !errors.Is(r.err, context.Canceled) {
								t.Errorf("Lock: %v", r.err)
							}
						}
						if stays != nil {
							begun := time.Now()
							r := <-stays
							if how != "closing" && (r.err != nil || r.at.Sub(begun) > 100*time.Millisecond) {
								t.Fatalf("the next: %v after %v", r.err, r.at.Sub(begun))
							}
							if r.err == nil {
								mustUnlock(t, r.k)
							}
						}
						if how == "closing" {
							if err := <-closed; err != nil {
								t.Errorf("Close: %v", err)
							}
						}
						idle(t, l)
						wantFree(t, s, name("r", "1"))
					})
				}
				if failed == 0 {
					t.Errorf("%d of 100 got the lock, and nobody left", passed)
				}
			})
		}
	}
}

// Callers come and go all the time; one at a time has the lock, fences rise, and at
// the end no key stays.
func TestHandOverStress(t *testing.T) {
	s := newRanger()
	l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: 30 * time.Second, Reentrant: true}))
	var inside, got, over atomic.Int64
	var fences fenceOrder
	var last atomic.Pointer[string]
	work := func(k *tierlock.Lock, explicit bool) {
		if n := inside.Add(1); n != 1 && !explicit {
			t.Errorf("%d are inside together", n)
		}
		tok := k.Token()
		if !explicit {
			fences.next(t, tok)
		}
		if was := last.Swap(&tok.Lease); was != nil && *was == tok.Lease {
			over.Add(1)
		}
		if err := k.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Err under the lock: %v", k.Err())
		}
		inside.Add(-1)
		got.Add(1)
	}
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for time.Now().Before(end) {
				ctx, cancel := bg, context.CancelFunc(func() {})
				opts := []tierlock.Option{tierlock.UntilDone()}
				brief := false // perhaps over before anybody has asked
				switch n := rnd.IntN(20); {
				case i < 8: // a few that always stay
				case n < 12:
					ctx, cancel = context.WithTimeout(bg, time.Duration(rnd.IntN(300))*time.Microsecond)
				case n < 14:
					opts, brief = []tierlock.Option{tierlock.Wait(time.Duration(1+rnd.IntN(200)) * time.Microsecond)}, true
				case n < 15:
					opts = []tierlock.Option{tierlock.NoWait()}
				case n < 16:
					opts = append(opts, tierlock.TTL(10*time.Second))
				case n < 17:
					opts = append(opts, tierlock.Lease(20*time.Second))
				case n < 18:
					opts = append(opts, tierlock.Lease(time.Minute))
				}
				k, err := l.Lock(ctx, "r", "1", opts...)
				if err == nil {
					work(k, false)
					// Its context may have ended meanwhile: the lock was intact all the same.
					mustUnlock(t, k)
				} else if !errors.Is(err, tierlock.ErrHeld) && ctx.Err() == nil && !brief {
					t.Errorf("Lock: %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	idle(t, l)
	wantFree(t, s, name("r", "1"))
	t.Logf("%d locks, %d by hand-over, %d acquires", got.Load(), over.Load(), s.acquires.Load())
	if over.Load() < got.Load()/4 {
		t.Errorf("%d of %d locks by hand-over: too few to tell anything", over.Load(), got.Load())
	}
}

// With two callers the one that comes finds the queue empty, and the lease may come
// to it before it has looked whether it has to wait.
func TestHandOverAtOnce(t *testing.T) {
	s := newRanger()
	l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: time.Minute}))
	var longest atomic.Int64
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for time.Now().Before(end) {
				start := time.Now()
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
				if err != nil {
					t.Error(err)
					return
				}
				if d := int64(time.Since(start)); d > longest.Load() {
					longest.Store(d)
				}
				mustUnlock(t, k)
			}
		})
	}
	wg.Wait()
	idle(t, l)
	wantFree(t, s, name("r", "1"))
	if d := time.Duration(longest.Load()); d > 20*time.Second { // a lease that is lost ends with its TTL
		t.Errorf("one waited for %v: a lease was lost on its way", d)
	}
}

// Close under load: nobody gets a lock after it began, and no key stays.
func TestCloseDuringHandOvers(t *testing.T) {
	for range 50 {
		s := newRanger()
		l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: time.Minute}))
		var wg sync.WaitGroup
		var begun atomic.Int64
		underLoad := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				for {
					k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
					if err != nil {
						wantIs(t, "Lock", err, tierlock.ErrClosed)
						return
					}
					if begun.Add(1) == 100 {
						close(underLoad)
					}
					mustUnlock(t, k)
				}
			})
		}
		<-underLoad
		if err := l.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		wantFree(t, s, name("r", "1"))
		wg.Wait()
		if st := l.Status(); st.Holds != 0 || st.Waiters != 0 || st.Undos != 0 {
			t.Errorf("after Close: %+v", st)
		}
	}
}

// The store learns of a hold by hand-over that lasts, and of no other.
func TestUpdateAfterHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRanger()
		fail := atomic.Int64{}
		s.update = func(tierlock.UpdateRequest) error {
			if fail.Add(-1) >= 0 {
				return fmt.Errorf("%w: for the test", tierlock.ErrUnavailable)
			}
			return nil
		}
		l := newLocker(t, s)
		h := newHanded(t, l, "r", nil, nil)
		fail.Store(2)
		k := h.unlocked(true)
		begun := time.Now()
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		if n := len(s.updated()); n != 0 {
			t.Errorf("%d updates in the first 100 ms, want none", n)
		}
		for i, at := range []time.Duration{100 * time.Millisecond, 1100 * time.Millisecond, 2100 * time.Millisecond} {
			time.Sleep(at - time.Since(begun))
			synctest.Wait()
			all := s.updated()
			if len(all) != i+1 || all[i].Token != k.Token() || all[i].Name != name("r", "1") {
				t.Fatalf("after %v: updates %v, want %d of %v", at, all, i+1, k.Token())
			}
		}
		rec, err := s.Inspect(bg, name("r", "1"))
		if err != nil || rec.Token != k.Token() {
			t.Errorf("Inspect: %v, %v; want %v", rec.Token, err, k.Token())
		}
		time.Sleep(10 * time.Second)
		if n := len(s.updated()); n != 3 {
			t.Errorf("%d updates, want 3", n)
		}
		mustUnlock(t, k)
	})
}

// An update on its way when the hold ends is worth nothing, and does no harm.
func TestUpdateMeetsTheEnd(t *testing.T) {
	for _, how := range []string{"unlock", "close", "loss"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				s.update = func(tierlock.UpdateRequest) error {
					time.Sleep(50 * time.Millisecond)
					return fmt.Errorf("%w: for the test", tierlock.ErrUnavailable)
				}
				l, err := tierlock.New(tierlock.Config{App: "test", Namespace: "ns", Stores: []tierlock.Store{s},
					Logger: slog.New(slog.DiscardHandler), Resources: []tierlock.Resource{{Name: "r", TTL: 3 * time.Second}}})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(bg)
				h := newHanded(t, l, "r", nil, nil)
				k := h.unlocked(true)
				time.Sleep(120 * time.Millisecond)
				ctx, cancel := context.WithCancel(bg)
				cancel()
				switch how {
				case "unlock":
					mustUnlock(t, k)
				case "close":
					_ = l.Close(ctx) // the hold is left
					_ = k.Unlock()
				case "loss":
					s.Store.Release(bg, tierlock.ReleaseRequest{Name: name("r", "1"), Lease: k.Token().Lease})
					<-k.Context().Done()
					wantLost(t, "Unlock", k.Unlock(), "gone")
				}
				before := len(s.updated())
				time.Sleep(10 * time.Second)
				if n := len(s.updated()); n != before {
					t.Errorf("%d updates after the end", n-before)
				}
				wantFree(t, s, name("r", "1"))
			})
		})
	}
}

// What an observer hears of three holds on one lease.
func TestEventsOfHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		s := newRanger()
		l := newLocker(t, s, d.watch, withResources(tierlock.Resource{Name: "r", MaxHolds: 1}))
		h := newHanded(t, l, "r", nil, nil)
		from := h.hold.Token()
		third := lockAsync(bg, l, "r", "1", tierlock.UntilDone())
		synctest.Wait()
		d.all()
		start := time.Now()
		time.Sleep(20 * time.Millisecond)
		k := h.unlocked(true)
		to := k.Token()
		time.Sleep(10 * time.Millisecond)
		mustUnlock(t, k)
		r := <-third
		mustUnlock(t, r.k)
		all := d.all()
		labels := tierlock.Labels{App: "test", Resource: "r", Tier: tierlock.Local}
		at := start.Add(20 * time.Millisecond)
		end := at.Add(10 * time.Millisecond)
		for _, want := range []any{
			tierlock.ReleasedEvent{Labels: labels, At: at, Token: from, Held: 20 * time.Millisecond},
			tierlock.HandedOverEvent{Labels: labels, At: at, Token: to, From: from, Count: 1},
			tierlock.AcquireEnd{Labels: labels, Key: "1", At: at, Token: to, Waited: at.Sub(start)},
			tierlock.ReleasedEvent{Labels: labels, At: end, Token: to, Held: 10 * time.Millisecond},
			tierlock.HandedOverEvent{Labels: labels, At: end, Token: r.k.Token(), From: to, Count: 2},
			tierlock.ReleasedEvent{Labels: labels, At: end, Token: r.k.Token()},
		} {
			if !slices.Contains(all, want) {
				t.Errorf("no event %s %+v in\n%v", reflect.TypeOf(want).Name(), want, all)
			}
		}
		kinds := d.kinds()
		for kind, n := range map[string]int{"Released": 4, "HandedOver": 2, "AcquireEnd": 4, "TooManyHolds": 0, "Lost": 0} {
			got := 0
			for _, k := range kinds {
				if k == kind {
					got++
				}
			}
			if got != n {
				t.Errorf("%d events %s, want %d, in %v", got, kind, n, kinds)
			}
		}
	})
}

// A store over the memory of the process hands over as well; its fences are 0.
func TestHandOverWithoutFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := localstore.New(localstore.Options{})
		l := newLocker(t, s)
		h := newHanded(t, l, "r", nil, nil)
		k := h.unlocked(true)
		if k.Token().Fence != 0 || k.Token().Seq != 0 {
			t.Errorf("got fence %d, want 0", k.Token().Fence)
		}
		time.Sleep(time.Second)
		if rec, err := s.Inspect(bg, name("r", "1")); err != nil || rec.Token != k.Token() {
			t.Errorf("Inspect after a second: %v, %v; want %v", rec.Token, err, k.Token())
		}
		mustUnlock(t, k)
	})
}
