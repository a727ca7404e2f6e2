package tests_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/redisstore"
)

// witness is a Redis store that notes when the request was sent to which each
// lease owes its present time: the last that was confirmed.
type witness struct {
	*redisstore.Store

	mu        sync.Mutex
	confirmed map[string]time.Time // by lease
}

func newWitness(s *redisstore.Store) *witness {
	return &witness{Store: s, confirmed: make(map[string]time.Time)}
}

func (w *witness) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	sent := time.Now()
	res, err := w.Store.Acquire(ctx, req)
	if err == nil && res.Granted {
		w.confirm(req.Token.Lease, sent)
	}
	return res, err
}

func (w *witness) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	sent := time.Now()
	results := w.Store.Renew(ctx, reqs)
	for i, r := range results {
		if r.Err == nil && r.State == tierlock.LeaseOwned {
			w.confirm(reqs[i].Lease, sent)
		}
	}
	return results
}

func (w *witness) confirm(lease string, sent time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sent.After(w.confirmed[lease]) {
		w.confirmed[lease] = sent
	}
}

// believableUntil is the latest moment at which anybody may believe in a lease,
// by what has been confirmed so far.
func (w *witness) believableUntil(lease string, ttl time.Duration) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.confirmed[lease].Add(ttl - ttl/10)
}

var (
	_ tierlock.Store   = (*witness)(nil)
	_ tierlock.Watcher = (*witness)(nil)
)

// loadTTL is the TTL of the resource "load".
const loadTTL = 6 * time.Second

// belief is one hold of the load, as its holder saw it.
type belief struct {
	key          string
	fence        uint64
	asked, began time.Time
	last         time.Time // the last moment at which it was believed in
}

// load is many goroutines of several Lockers that lock and unlock a few keys of
// the resource "load", and look at each hold every few milliseconds.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	beliefs []belief
	lost    int
	down    int      // locks refused as unavailable
	faults  []string // what must not be
}

func startLoad(lockers []*tierlock.Locker, witnesses []*witness, keys []string) *load {
	ctx, stop := context.WithCancel(bg)
	ld := &load{stop: stop}
	for i := range lockers {
		for range 4 {
			ld.wg.Go(func() {
				for ctx.Err() == nil {
					ld.once(ctx, lockers[i], witnesses[i], keys[rand.N(len(keys))])
				}
			})
		}
		// Keys that nobody holds, ever: a store that is down must not be taken
		// for one that says "held".
		ld.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				k, err := lockers[i].TryLock(bg, "load", fmt.Sprintf("fresh-%d-%d", i, n))
				if errors.Is(err, tierlock.ErrHeld) {
					ld.fault("a key that nobody holds: %v", err)
				}
				ld.refused(err)
				if err == nil {
					_ = k.Unlock() // the key may have been lost with the primary
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return ld
}

func (ld *load) fault(format string, args ...any) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	if len(ld.faults) < 10 {
		ld.faults = append(ld.faults, fmt.Sprintf(format, args...))
	}
}

func (ld *load) refused(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, tierlock.ErrUnavailable) {
		ld.mu.Lock()
		ld.down++
		ld.mu.Unlock()
	} else if !errors.Is(err, tierlock.ErrHeld) {
		ld.fault("lock: %v", err)
	}
	if errors.Is(err, tierlock.ErrLost) || errors.Is(err, tierlock.ErrMisconfigured) {
		ld.fault("lock: %v", err)
	}
}

func (ld *load) once(ctx context.Context, l *tierlock.Locker, w *witness, key string) {
	asked := time.Now()
	k, err := l.Lock(bg, "load", key, tierlock.Wait(2*time.Second))
	if err != nil {
		ld.refused(err)
		// Somebody who is refused at once waits a little, too.
		time.Sleep(rand.N(20 * time.Millisecond))
		return
	}
	b := belief{key: key, fence: k.Token().Fence, asked: asked, began: time.Now()}
	b.last = b.began
	length := rand.N(40 * time.Millisecond)
	if rand.N(15) == 0 {
		length = loadTTL * 2 / 3 // which takes renewals
	}
	for {
		// Read before the look at the lock: a process that is stopped between
		// the two begins nothing new.
		at := time.Now()
		if k.Err() != nil {
			ld.mu.Lock()
			ld.lost++
			ld.mu.Unlock()
			break
		}
		if end := w.believableUntil(k.Token().Lease, loadTTL); at.After(end) {
			ld.fault("belief in %v, %v after its end", k.Token(), at.Sub(end))
		}
		b.last = at
		if at.Sub(b.began) > length || ctx.Err() != nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := k.Unlock(); err != nil && !errors.Is(err, tierlock.ErrLost) && !errors.Is(err, tierlock.ErrUnavailable) {
		ld.fault("unlock: %v", err)
	}
	ld.mu.Lock()
	ld.beliefs = append(ld.beliefs, b)
	ld.mu.Unlock()
}

// times counts the holds that had ended before a time, and those that were asked for
// after it.
func (ld *load) times(at time.Time) (before, after int) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	for _, b := range ld.beliefs {
		if b.last.Before(at) {
			before++
		} else if b.asked.After(at) {
			after++
		}
	}
	return before, after
}

// highest is the largest fence that was seen for a key.
func (ld *load) highest(key string) (fence uint64) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	for _, b := range ld.beliefs {
		if b.key == key {
			fence = max(fence, b.fence)
		}
	}
	return fence
}

// finish ends the load and checks what it saw. Between from and to keys may have
// been lost, so that two holders are possible of which one began before to and
// the other had not ended by from: not otherwise.
func (ld *load) finish(t testing.TB, from, to time.Time) {
	t.Helper()
	ld.stop()
	ld.wg.Wait()
	ld.mu.Lock()
	defer ld.mu.Unlock()
	for _, f := range ld.faults {
		t.Error(f)
	}
	before, after, double := 0, 0, 0
	for i, a := range ld.beliefs {
		if a.last.Before(from) {
			before++
		} else if a.asked.After(to) {
			after++
		}
		for _, b := range ld.beliefs[i+1:] {
			if a.key != b.key {
				continue
			}
			first, second := a, b
			if b.began.Before(a.began) {
				first, second = b, a
			}
			// A fence is larger than all that were granted before it was asked for.
			if first.began.Before(second.asked) && first.fence >= second.fence {
				t.Errorf("fence %v, then %v for %s", first.fence, second.fence, a.key)
			}
			if second.began.After(first.last) {
				continue
			}
			if first.last.Before(from) || first.asked.After(to) {
				t.Errorf("two holders of %s: %v to %v, and from %v, though nothing was lost then",
					a.key, first.began.Sub(from), first.last.Sub(from), second.began.Sub(from))
			}
			double++
		}
	}
	t.Logf("%d holds, %d before and %d after the outage, %d lost, %d times two holders; %d times unavailable",
		len(ld.beliefs), before, after, ld.lost, double, ld.down)
	if before < 10 || after < 10 {
		t.Errorf("%d holds before and %d after the outage: the test shows little", before, after)
	}
	if ld.down == 0 {
		t.Error("nobody met an outage")
	}
}
