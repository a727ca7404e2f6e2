package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
)

// lane is one contended key and what its holders see there.
type lane struct {
	name   tierlock.Name
	inside atomic.Int32 // holders at this moment
	// count is read, and written back larger by one at the end of the hold.
	// Only its access is atomic; the sum is right only if holds exclude.
	count atomic.Int64
	holds atomic.Int64

	mu     sync.Mutex
	fences []uint64 // in the order of the holds
}

// exclusion: 32 goroutines on each of two stores compete for 4 keys for some
// time, and never meet.
func exclusion(b *bench) {
	const goroutines, keys, lasts = 64, 4, 1500 * time.Millisecond
	lanes := make([]*lane, keys)
	for i := range lanes {
		lanes[i] = &lane{name: b.name(fmt.Sprint("contended ", i))}
	}
	var calls, failed atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(lasts)
	for i := range goroutines {
		wg.Go(func() {
			for time.Now().Before(end) {
				calls.Add(1)
				if err := b.visit(b.side(i), lanes[rand.IntN(keys)]); err != nil {
					failed.Add(1)
					b.Logf("exclusion: %v", err)
				}
				time.Sleep(time.Duration(1+rand.IntN(4)) * time.Millisecond)
			}
		})
	}
	wg.Wait()

	// A busy machine may cost a call its deadline, now and then.
	if failed.Load()*20 > calls.Load() {
		b.Errorf("exclusion: %d of %d calls failed, want at most one in twenty on a healthy backend", failed.Load(), calls.Load())
	}
	for _, l := range lanes {
		if l.count.Load() != l.holds.Load() || l.holds.Load() == 0 {
			b.Errorf("%s: counter is %d after %d holds, want the same and some holds", l.name, l.count.Load(), l.holds.Load())
		}
		// In the order of the holds, as each holder noted it while inside.
		for i := 1; i < len(l.fences); i++ {
			b.checkRise(tierlock.Token{Resource: l.name.Resource, Key: l.name.Key, Fence: l.fences[i-1]},
				tierlock.Token{Resource: l.name.Resource, Key: l.name.Key, Fence: l.fences[i]})
		}
		wait := patience
		if failed.Load() > 0 {
			wait += long // one whose undo failed, too, ends by itself
		}
		b.freeWithin(b.a, l.name, wait)
	}
}

// visit tries once to lock, and unlocks.
func (b *bench) visit(s *side, l *lane) error {
	ctx, cancel := b.ctx()
	defer cancel()
	req := b.request(s, l.name, long)
	release := tierlock.ReleaseRequest{Name: l.name, Lease: req.Token.Lease}
	res, err := s.Acquire(ctx, req)
	if err != nil {
		// It may be ours all the same.
		_, undo := giveUp(ctx, s, release)
		return fmt.Errorf("acquire: %w (undo: %v)", err, undo)
	}
	if !res.Granted {
		return nil
	}
	if n := l.inside.Add(1); n != 1 {
		b.Errorf("%s: %d holders at the same time, want 1", l.name, n)
	}
	l.holds.Add(1)
	seen := l.count.Load()
	l.mu.Lock()
	l.fences = append(l.fences, res.Token.Fence)
	l.mu.Unlock()
	time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
	l.count.Store(seen + 1)
	l.inside.Add(-1)
	own, err := giveUp(ctx, s, release)
	if err == nil && own != tierlock.LeaseOwned {
		b.Errorf("%s: release of a hold: got %v, want owned", l.name, own)
	}
	return err
}

// giveUp releases, and repeats what failed. The error is the last failure, if
// there was one: then a repeat may well have found the lease gone.
func giveUp(ctx context.Context, s *side, req tierlock.ReleaseRequest) (own tierlock.Ownership, failed error) {
	for range 5 {
		own, err := s.Release(ctx, req)
		if err == nil {
			return own, failed
		}
		failed = fmt.Errorf("release: %w", err)
	}
	return 0, failed
}
