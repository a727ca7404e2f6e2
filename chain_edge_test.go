package tierlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
)

// slowly has a process's calls to Redis take longer.
func (p *chainProc) slowly(d time.Duration) {
	f := near1ms
	f.Delay = d
	p.rc.SetFaults(f)
}

// edgePolls has a process look at the mode often.
func edgePolls(c *tierlock.Config) {
	c.Degrade.Poll, c.Degrade.Refresh = 20*time.Millisecond, 20*time.Millisecond
}

// otherPolicy is a process that thinks otherwise of "x".
func otherPolicy(c *tierlock.Config) {
	edgePolls(c)
	c.Resources[0].Exclusive = false
}

// What RequireGuarantee asks for the lock is worth when it is given, also where the
// members came to differ while the store was asked.
func TestChainRequiredWorthAtTheGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(edgePolls)
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		a.slowly(150 * time.Millisecond)
		got := lockAsync(bg, a.Locker, "x", "1", tierlock.RequireGuarantee(tierlock.Exclusive))
		w.start(otherPolicy)
		r := <-got
		if r.err == nil {
			t.Errorf("given: %v", r.k.Guarantee())
			_ = r.k.Unlock()
		} else {
			wantIs(t, "Lock", r.err, tierlock.ErrUnavailable)
		}
		if a.Status().Chain.Agreed {
			t.Error("the members agree: nothing was tested")
		}
		a.slowly(time.Millisecond)
		time.Sleep(time.Second)
		if n := w.redis.Held(); len(n) != 0 {
			t.Errorf("left in Redis: %v", n)
		}
	})
}

// A best-effort hold that a drain has saved from a Redis that then lost its data is
// intact when it is unlocked, too.
func TestChainUnlockOfTheSaved(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "b", "1")
		b.mc.SetFaults(cutOff) // it acknowledges nothing, so the drain stays
		w.shift(a, degrade.MySQL, "")
		time.Sleep(3 * time.Second)
		if n := w.mysql.Held(); len(n) != 1 || !a.Status().Chain.Draining {
			t.Fatalf("adopted: %v; %+v", n, a.Status().Chain)
		}
		w.redis.Flush()
		time.Sleep(12 * time.Second) // a renewal finds nothing
		if err := k.Err(); err != nil {
			t.Fatalf("lost before it is unlocked: %v", err)
		}
		if err := k.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		time.Sleep(10 * time.Second)
		if n := w.mysql.Held(); len(n) != 0 {
			t.Errorf("left in MySQL: %v", n)
		}
		b.mc.SetFaults(near1ms)
	})
}

// A hold that began in the process's memory keeps its key in the store, when its
// bound is reached, until the key ends or the holder unlocks: its body may still run.
func TestLocalHoldAtItsBoundKeepsItsKey(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		p := w.start(redisAndLocal)
		redisAway(p)
		goesLocal(t, time.Minute, p)
		k, err := p.Lock(bg, "b", "1", tierlock.Lease(20*time.Second))
		if err != nil || k.Token().Tier != tierlock.Local {
			t.Fatal(k, err)
		}
		start := time.Now()
		redisBack(p)
		time.Sleep(10 * time.Second)
		if n := w.redis.Held(); len(n) != 1 {
			t.Fatalf("not taken to Redis: %v", n)
		}
		<-k.Context().Done()
		wantIs(t, "the bound", context.Cause(k.Context()), tierlock.ErrLeaseExceeded)
		ended := time.Since(start)
		time.Sleep(500 * time.Millisecond)
		if n := w.redis.Held(); len(n) != 1 {
			t.Errorf("%v after the start, at the bound, the key was freed under a running body", ended)
		}
		_ = k.Unlock()
		time.Sleep(time.Second)
		if n := w.redis.Held(); len(n) != 0 {
			t.Errorf("left after Unlock: %v", n)
		}
	})
}
