package tests_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The server's clock is stepped forward past the lease, in mid hold: Redis lets
// the key expire and another have it, as Redis alone cannot tell. What is
// promised holds: the other's fence is larger, and the holder is told, that it
// is taken or gone, at its next renewal, TTL/3 later at most.
func TestClockSteppedForwardInMidHold(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	srv, clock := rig.RedisWithClock(t)
	res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
	first, second := newLocker(t, open(t, srv.Addr), res), newLocker(t, open(t, srv.Addr), res)
	if g := second.Status().Stores[0].Guarantee; g != tierlock.FencedOnly {
		t.Errorf("the store promises %v", g)
	}
	taken, gone := mustLock(t, first, "job", "taken"), mustLock(t, first, "job", "gone")
	explicit := mustLock(t, first, "job", "explicit", tierlock.Holder("import-7"))
	wantHeld(t, "TryLock before the step", second, "job", "taken")
	clock.Step(40 * time.Second)
	stepped := time.Now()
	for _, k := range []*tierlock.Lock{taken, explicit} {
		next := mustLock(t, second, "job", k.Token().Key)
		if next.Token().Fence <= k.Token().Fence {
			t.Errorf("%s: fence %d after %d", k.Token().Key, next.Token().Fence, k.Token().Fence)
		}
		defer mustUnlock(t, next)
	}
	for _, c := range []struct {
		k      *tierlock.Lock
		reason string
	}{{taken, "taken"}, {explicit, "taken"}, {gone, "gone"}} {
		between(t, "from the step to the signal", waitEnd(t, c.k).Sub(stepped), 0, ttl/3+slack)
		wantLost(t, c.k.Token().Key, context.Cause(c.k.Context()), c.reason)
		wantLost(t, c.k.Token().Key, c.k.Unlock(), c.reason)
	}
	locksAgain(t, first, "job", "gone")
}

// Stepped back in mid hold: keys live longer by as much, which harms nobody who
// unlocks. The hold goes on, the key is free at the unlock, the fence rises. Who
// dies leaves the key for its TTL and the step.
func TestClockSteppedBackInMidHold(t *testing.T) {
	t.Parallel()
	const ttl, step = 4 * time.Second, 40 * time.Second
	srv, clock := rig.RedisWithClock(t)
	res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
	first, second := newLocker(t, open(t, srv.Addr), res), newLocker(t, open(t, srv.Addr), res)
	plain, explicit := mustLock(t, first, "job", "plain"), mustLock(t, first, "job", "explicit", tierlock.Holder("import-7"))
	clock.Step(-step)
	between(t, "left of the key", time.Duration(srv.Int("PTTL", keyOf("job", "plain")))*time.Millisecond, step, step+ttl)
	outlives(t, plain, ttl*3/2)
	outlives(t, explicit, time.Millisecond)
	for _, k := range []*tierlock.Lock{plain, explicit} {
		key := k.Token().Key
		wantHeld(t, "TryLock", second, "job", key)
		mustUnlock(t, k)
		wantGone(t, srv, "job", key)
		next := mustLock(t, second, "job", key)
		if next.Token().Fence <= k.Token().Fence {
			t.Errorf("%s: fence %d after %d", key, next.Token().Fence, k.Token().Fence)
		}
		mustUnlock(t, next)
	}
	// As long as no step goes past the lease, none is noticed.
	k := mustLock(t, first, "job", "plain")
	clock.Step(ttl / 4)
	outlives(t, k, ttl*3/2)
	mustUnlock(t, k)
}

// Steps to and fro, shorter than the leases, under two processes' load: every
// caller gets the lock, one at a time, and fences rise.
func TestClockSteppedUnderLoad(t *testing.T) {
	t.Parallel()
	const (
		keys, callers = 3, 4
		lasting       = 3 * time.Second
	)
	srv, clock := rig.RedisWithClock(t)
	res := tierlock.Resource{Name: "job", TTL: 30 * time.Second}
	lockers := []*tierlock.Locker{newLocker(t, open(t, srv.Addr), res), newLocker(t, open(t, srv.Addr), res)}
	end := time.Now().Add(lasting)
	var steps sync.WaitGroup
	steps.Add(1)
	go func() {
		defer steps.Done()
		at := time.Duration(0)
		for time.Now().Before(end) {
			to := time.Duration(rand.N(int64(20*time.Second))) - 10*time.Second
			clock.Step(to - at)
			at = to
			time.Sleep(30 * time.Millisecond)
		}
	}()
	var inside [keys]atomic.Int32
	var last [keys]tierlock.Token // guarded by the lock under test
	var rounds atomic.Int64
	each(keys*callers*len(lockers), func(i int) error {
		key, l := i%keys, lockers[i%len(lockers)]
		for time.Now().Before(end) {
			k, err := l.Lock(bg, "job", fmt.Sprint(key), tierlock.Wait(patience))
			if err != nil {
				return err
			}
			if n := inside[key].Add(1); n != 1 {
				return fmt.Errorf("%d inside", n)
			}
			tok := k.Token()
			if tok.Fence <= last[key].Fence {
				return fmt.Errorf("fence %d after %d", tok.Fence, last[key].Fence)
			}
			last[key] = tok
			inside[key].Add(-1)
			if err := k.Unlock(); err != nil {
				return err
			}
			rounds.Add(1)
		}
		return nil
	}, t)
	steps.Wait()
	t.Logf("%d rounds over %d steps", rounds.Load(), lasting/(30*time.Millisecond))
	if rounds.Load() < 50 {
		t.Errorf("%d rounds in %v", rounds.Load(), lasting)
	}
}
