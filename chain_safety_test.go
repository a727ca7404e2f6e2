package tierlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// What is said about Redis, and a reason.
const (
	mayLose = "tierlock: Redis may lose the keys of live locks: exclusive holds there are fenced-only"
	keeps   = "tierlock: Redis keeps the keys of live locks again"
	hasLost = "tierlock: Redis has lost its keys and goes on, as after FLUSHALL"
	evicts  = "maxmemory-policy is allkeys-lru"
)

// oneLine checks that something was logged once, beginning so.
func (p *chainProc) oneLine(t *testing.T, message, begin string) {
	t.Helper()
	if lines := p.log.lines(message); len(lines) != 1 || !strings.HasPrefix(lines[0], begin) {
		t.Errorf("%s: lines %q, want one: %s", message, lines, begin)
	}
}

// A Redis that evicts makes exclusive holds fenced-only, those that are there for
// good, and is told once; when it keeps its keys again new holds are exclusive.
func TestChainEvictionCapsHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k := mustLock(t, a.Locker, "x", "1")
		if g := k.Guarantee(); g != tierlock.Exclusive {
			t.Fatalf("at first worth %v", g)
		}
		w.redis.SetUnsafe(evicts)
		time.Sleep(6 * time.Second)
		if g := k.Guarantee(); g != tierlock.FencedOnly {
			t.Errorf("the hold is worth %v", g)
		}
		next := mustLock(t, a.Locker, "x", "2")
		if g := next.Guarantee(); g != tierlock.FencedOnly {
			t.Errorf("a new hold is worth %v", g)
		}
		mustUnlock(t, next)
		_, err := a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
		wantIs(t, "TryLock that requires Exclusive", err, tierlock.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), evicts) {
			t.Errorf("it says %v, want the setting named", err)
		}
		time.Sleep(20 * time.Second)
		a.oneLine(t, mayLose, "ERROR why="+evicts)
		w.redis.SetUnsafe("")
		time.Sleep(6 * time.Second)
		a.oneLine(t, keeps, "INFO")
		next, err = a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, next)
		if g := k.Guarantee(); g != tierlock.FencedOnly {
			t.Errorf("the old hold is worth %v again", g)
		}
		mustUnlock(t, k)
	})
}

// What Redis does with its keys does not matter to holds in MySQL, until they return.
func TestChainEvictionMattersInRedisOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		redisAway(a)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a)
		k := mustLock(t, a.Locker, "x", "1")
		w.redis.SetUnsafe(evicts)
		redisBack(a)
		time.Sleep(20 * time.Second)
		a.oneLine(t, mayLose, "ERROR")
		next := mustLock(t, a.Locker, "x", "2")
		if g, n := k.Guarantee(), next.Guarantee(); g != tierlock.Exclusive || n != tierlock.Exclusive {
			t.Errorf("in MySQL worth %v and %v", g, n)
		}
		mustUnlock(t, next)
		chainTakes(t, 5*time.Minute, tierlock.Redis, a)
		if err, g := k.Err(), k.Guarantee(); err != nil || g != tierlock.FencedOnly {
			t.Errorf("after the return worth %v, %v", g, err)
		}
		mustUnlock(t, k)
	})
}

// slowProbe answers other calls sooner than probes.
type slowProbe struct{ *sim.RedisStore }

func (s slowProbe) Probe(ctx context.Context, req tierlock.ProbeRequest) (tierlock.ProbeResult, error) {
	time.Sleep(300 * time.Millisecond)
	return s.RedisStore.Probe(ctx, req)
}

// A process that has just started waits for Redis' first answer rather than give an
// exclusive hold that is not known to be one.
func TestChainFirstHoldIsExclusive(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		for _, options := range [][]tierlock.Option{nil, {tierlock.RequireGuarantee(tierlock.Exclusive)}} {
			b := w.start(func(c *tierlock.Config) { c.Stores[0] = slowProbe{c.Stores[0].(*sim.RedisStore)} })
			k, err := b.TryLock(bg, "x", "1", options...)
			if err != nil {
				t.Fatal(err)
			}
			if g := k.Guarantee(); g != tierlock.Exclusive {
				t.Errorf("worth %v", g)
			}
			mustUnlock(t, k)
		}
	})
}

// FLUSHALL under an exclusive hold: nobody gets its key, whenever they ask; the hold
// moves to the new data and stays what it is; and it is told.
func TestChainFlush(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		time.Sleep(6 * time.Second)
		w.redis.Flush()
		for start := time.Now(); time.Since(start) < 12*time.Second; time.Sleep(50 * time.Millisecond) {
			if got, err := b.TryLock(bg, "x", "1"); err == nil {
				t.Fatalf("%v after FLUSHALL it was given to another: %v", time.Since(start), got.Token())
			}
		}
		if err, g := k.Err(), k.Guarantee(); err != nil || g != tierlock.Exclusive {
			t.Fatalf("worth %v, %v", g, err)
		}
		rec, err := b.Inspect(bg, "x", "1")
		if err != nil || rec.Token.Lease != k.Token().Lease || rec.Token.Fence != k.Token().Fence || rec.Token.Epoch != 2 {
			t.Errorf("Inspect: %+v %v", rec, err)
		}
		for _, p := range []*chainProc{a, b} {
			p.oneLine(t, hasLost, "ERROR")
		}
		time.Sleep(time.Minute)
		if err := k.Err(); err != nil {
			t.Errorf("later: %v", err)
		}
		mustUnlock(t, k)
		next := mustLock(t, b.Locker, "x", "1", tierlock.RequireGuarantee(tierlock.Exclusive))
		if next.Token().Fence <= k.Token().Fence {
			t.Errorf("fence %d after %d", next.Token().Fence, k.Token().Fence)
		}
		mustUnlock(t, next)
	})
}

// FLUSHALL at any time between two probes, under a lease of ten seconds, of which some
// six are left: the first refusal has Redis probed, and what one process has seen has the
// others look, too. So the hold moves before it ends.
func TestChainFlushUnderAShortLease(t *testing.T) {
	for phase := range 10 {
		inBubble(t, func(t *testing.T, w *chainWorld) {
			a, b := w.start(), w.start()
			chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
			time.Sleep(time.Duration(phase) * 500 * time.Millisecond)
			best := mustLock(t, a.Locker, "b", "1", tierlock.TTL(10*time.Second)) // is renewed with it
			k := mustLock(t, a.Locker, "x", "1", tierlock.TTL(10*time.Second))
			time.Sleep(13 * time.Second) // a moment before a renewal
			w.redis.Flush()
			time.Sleep(15 * time.Second)
			if err, g := k.Err(), k.Guarantee(); err != nil || g != tierlock.Exclusive {
				t.Errorf("phase %d: worth %v, %v", phase, g, err)
			}
			_ = best.Unlock() // lost
			_ = k.Unlock()
		})
	}
}

// A process that starts while the arbiter is away goes on from the epoch that Redis
// has noted, also where all else has been forgotten there: fences rise. It gives
// nothing exclusive.
func TestChainEpochWithoutTheArbiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		for epoch := uint16(2); epoch <= 3; epoch++ {
			w.shift(a, degrade.Redis, w.redis.Incarnation())
			time.Sleep(10 * time.Second)
			if e := a.Status().Chain.Epoch; e != epoch {
				t.Fatalf("in epoch %d, want %d", e, epoch)
			}
		}
		last := map[string]tierlock.Token{}
		take := func(p *chainProc, when string) {
			t.Helper()
			for _, resource := range []string{"b", "r"} {
				k, err := p.TryLock(bg, resource, "1")
				if err != nil {
					t.Fatalf("%s %s: %v", resource, when, err)
				}
				if got, was := k.Token(), last[resource]; got.Fence <= was.Fence || got.Epoch != 3 {
					t.Errorf("%s %s: fence %d in epoch %d, after %d", resource, when, got.Fence, got.Epoch, was.Fence)
				}
				last[resource] = k.Token()
				mustUnlock(t, k)
			}
		}
		take(a, "before")
		if err := a.Close(bg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute) // no record of a fence is left
		c := w.start(func(c *tierlock.Config) { c.Stores[1].(*sim.MySQLStore).SetFaults(cutOff) })
		take(c, "without the arbiter, at once")
		_, err := c.TryLock(bg, "x", "1")
		wantIs(t, "TryLock of an exclusive resource", err, tierlock.ErrUnavailable)
		time.Sleep(3 * time.Minute)
		w.redis.Flush() // what a process knows it notes again
		time.Sleep(6 * time.Second)
		take(c, "without the arbiter, later")
		time.Sleep(3 * time.Minute)
		d := w.start(func(c *tierlock.Config) { c.Stores[1].(*sim.MySQLStore).SetFaults(cutOff) })
		take(d, "in another such process")
		_, err = d.TryLock(bg, "x", "1")
		wantIs(t, "TryLock of an exclusive resource", err, tierlock.ErrUnavailable)
	})
}
