package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
)

// relays are two processes in fake time, over one store with faults, in each of which
// many want one key, in all ways. What they do follows from the seed.
type relays struct {
	t      *testing.T
	s      *ranger
	procs  [2]*tierlock.Locker
	links  [2]*storetest.Faulty
	faulty bool
	closes bool // the first process closes in the middle

	mu      sync.Mutex
	present map[*tierlock.Lock]bool
	fences  fenceOrder
	leases  map[string]int  // how many holds each has served
	stay    map[string]bool // that were granted, and neither released nor lost
}

func newRelays(t *testing.T, rnd *rand.Rand, faulty bool) *relays {
	r := &relays{t: t, s: newRanger(), faulty: faulty, closes: rnd.IntN(2) == 0,
		present: make(map[*tierlock.Lock]bool), leases: make(map[string]int), stay: make(map[string]bool)}
	r.s.most = []int{64, 64, 5, 1}[rnd.IntN(4)]
	way := time.Duration(rnd.IntN(4)) * time.Millisecond / 2
	acquire := r.s.acquire
	r.s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
		time.Sleep(way)
		defer time.Sleep(way)
		res, err := acquire(ctx, req)
		if res.Granted {
			r.ends(req.Token.Lease, false)
		}
		return res, err
	}
	r.s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
		time.Sleep(way)
		defer time.Sleep(way)
		r.ends(req.Lease, true)
		return r.s.Store.Release(ctx, req)
	}
	for i := range r.procs {
		r.links[i] = storetest.WithFaults(r.s)
		var s tierlock.Store = r.links[i]
		if rnd.IntN(2) == 0 {
			s = pollOnly{s}
		}
		l, err := tierlock.New(tierlock.Config{App: "test", Namespace: "ns", Stores: []tierlock.Store{s}, CallTimeout: 50 * time.Millisecond,
			Logger:    slog.New(slog.DiscardHandler),
			Resources: []tierlock.Resource{{Name: "r", TTL: 600 * time.Millisecond, Reentrant: true}}})
		if err != nil {
			t.Fatal(err)
		}
		r.procs[i] = l
	}
	return r
}

// ends notes that a lease is over, or has begun.
func (r *relays) ends(lease string, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if over {
		delete(r.stay, lease)
	} else {
		r.stay[lease] = true
	}
}

// enter is for who has just got the lock, by an id of its own: nobody else believes
// in it, and no fence was larger.
func (r *relays) enter(k *tierlock.Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.Err() != nil {
		return
	}
	for other := range r.present {
		if other.Err() == nil {
			r.t.Errorf("%v and %v are held together", other.Token(), k.Token())
		}
	}
	r.fences.next(r.t, k.Token())
	r.present[k] = true
	r.leases[k.Token().Lease]++
}

func (r *relays) exit(k *tierlock.Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.present, k)
}

// caller takes the lock again and again until end.
func (r *relays) caller(l *tierlock.Locker, rnd *rand.Rand, end time.Time) {
	up := func(most int) time.Duration { return time.Duration(rnd.IntN(most)) * time.Millisecond }
	for time.Now().Before(end) {
		time.Sleep(up(40))
		ctx, cancel := context.WithCancel(bg)
		opts := []tierlock.Option{tierlock.UntilDone()}
		explicit := false
		switch n := rnd.IntN(16); {
		case n < 3:
			ctx, cancel = context.WithTimeout(bg, time.Millisecond+up(80))
		case n < 5:
			opts = []tierlock.Option{tierlock.Wait(8*time.Millisecond + up(200))} // some round trips at least
		case n < 6:
			opts = []tierlock.Option{tierlock.NoWait()}
		case n < 7:
			opts = append(opts, tierlock.TTL(200*time.Millisecond))
		case n < 8:
			opts = append(opts, tierlock.Lease(400*time.Millisecond))
		case n < 9:
			opts, explicit = append(opts, tierlock.Holder("job"+strconv.Itoa(rnd.IntN(3)))), true
		}
		k, err := l.Lock(ctx, "r", "1", opts...)
		switch {
		case err == nil:
			if !explicit {
				r.enter(k)
			}
			time.Sleep(up([]int{1, 8, 8, 8, 150, 900}[rnd.IntN(6)]))
			if !explicit {
				r.exit(k)
			}
			gone := ctx.Err() != nil // then nothing renewed, and it may have expired
			if err := k.Unlock(); err != nil && !r.faulty && !r.closes && !gone && !errors.Is(err, tierlock.ErrLeaseExceeded) {
				r.t.Errorf("Unlock: %v", err)
			}
		case errors.Is(err, tierlock.ErrClosed):
			cancel()
			return
		case !errors.Is(err, tierlock.ErrHeld) && ctx.Err() == nil && !r.faulty:
			r.t.Errorf("Lock: %v; there were no faults", err)
		}
		cancel()
	}
}

func (r *relays) faults(rnd *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond)
		r.links[rnd.IntN(2)].Set(storetest.Op(1+rnd.IntN(4)), storetest.Fault{Kind: storetest.Kind(1 + rnd.IntN(4)),
			Delay: time.Duration(rnd.IntN(120)) * time.Millisecond, Times: 1 + rnd.IntN(3)})
	}
	for _, f := range r.links {
		for op := storetest.OpAcquire; op <= storetest.OpInspect; op++ {
			f.Clear(op)
		}
	}
}

func (r *relays) run(seed uint64, rnd *rand.Rand) {
	end := time.Now().Add(6 * time.Second)
	var wg sync.WaitGroup
	for i, n := range []int{8, 2} {
		for j := range n {
			wg.Go(func() { r.caller(r.procs[i], rand.New(rand.NewPCG(seed, uint64(i*10+j))), end) })
		}
	}
	if r.faulty {
		wg.Go(func() { r.faults(rand.New(rand.NewPCG(seed, 101)), end) })
	}
	if r.closes {
		time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		ctx, cancel := context.WithTimeout(bg, time.Duration(rnd.IntN(3000))*time.Millisecond)
		_ = r.procs[0].Close(ctx) // holds may be left
		cancel()
		if st := r.procs[0].Status(); st.Holds != 0 || st.Waiters != 0 {
			r.t.Errorf("after Close: %+v", st)
		}
	}
	wg.Wait()
	for i, l := range r.procs {
		r.links[i].Wait()
		if i > 0 || !r.closes {
			idle(r.t, l)
		}
		if err := l.Close(bg); err != nil && (i > 0 || !r.closes) {
			r.t.Errorf("Close: %v", err)
		}
	}
	if len(r.stay) > 0 && !r.faulty && !r.closes {
		r.t.Errorf("never released: %v", r.stay)
	}
	time.Sleep(time.Second) // what Close has left ends with its TTL
	wantFree(r.t, r.s, name("r", "1"))
}

// One at a time believes in the lock, fences rise, contention is told as what it is,
// and no key, goroutine or waiter stays, whatever comes together with a hand-over.
func TestHandOverInManyMixtures(t *testing.T) {
	over := 0
	for seed := range uint64(40) {
		for _, faulty := range []bool{false, true} {
			t.Run(strings.TrimSpace(fmt.Sprint(seed, " ", map[bool]string{true: "faulty"}[faulty])), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rnd := rand.New(rand.NewPCG(seed, 100))
					r := newRelays(t, rnd, faulty)
					r.run(seed, rnd)
					for _, n := range r.leases {
						over += n - 1
					}
				})
			})
		}
	}
	if over < 100 {
		t.Errorf("%d hand-overs in all: too few to tell anything", over)
	}
}
