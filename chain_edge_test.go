package tierlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
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
		if len(a.Status().Chain.Differing) == 0 {
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

// slowToEnd is a context that takes its time to say that it has ended.
type slowToEnd struct {
	context.Context
	ends, slow atomic.Bool
}

func (c *slowToEnd) Err() error {
	if !c.ends.Load() {
		return nil
	}
	if c.slow.Swap(false) {
		time.Sleep(6 * time.Second)
	}
	return context.Canceled
}

// A lease that is adopted while it is between two holders gets no more time than the
// former's bound leaves, and the next, whose bound is later, believes in no more.
func TestChainAdoptedBetweenHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(ranged), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		bounded := []tierlock.Option{tierlock.UntilDone(), tierlock.Lease(10 * time.Second)}
		outer := mustLock(t, b.Locker, "x", "1")
		slow := &slowToEnd{Context: context.Background()}
		first := lockAsync(bg, a.Locker, "x", "1", bounded...)
		time.Sleep(10 * time.Millisecond)
		second := lockAsync(slow, a.Locker, "x", "1", bounded...)
		time.Sleep(10 * time.Millisecond)
		third := lockAsync(bg, a.Locker, "x", "1", tierlock.Wait(20*time.Second), tierlock.Lease(10*time.Second))
		time.Sleep(time.Second)
		mustUnlock(t, outer)
		r := <-first
		slow.slow.Store(true)
		slow.ends.Store(true)
		mustUnlock(t, r.k)
		time.Sleep(4 * time.Second) // the second has the turn, and thinks about it
		w.shift(a, degrade.MySQL, "")
		for start := time.Now(); len(w.mysql.Held()) == 0; time.Sleep(time.Millisecond) {
			if time.Since(start) > 2*time.Second {
				t.Fatal("not adopted: ", w.redis.Held(), a.Status())
			}
		}
		time.Sleep(4 * time.Millisecond) // by now a has acknowledged
		a.mc.SetFaults(cutOff)
		if r := <-second; r.err == nil {
			t.Fatal("the second got it")
		}
		r = <-third
		if r.err != nil {
			t.Fatal(r.err)
		}
		other := lockAsync(bg, b.Locker, "x", "1", tierlock.UntilDone())
		k := (<-other).k
		if k.Token().Tier != tierlock.MySQL {
			t.Errorf("the other got it in %v", k.Token().Tier)
		}
		if err := r.k.Err(); err == nil {
			t.Error("two believe that they hold the key")
		}
		mustUnlock(t, k)
		_ = r.k.Unlock()
		a.mc.SetFaults(near1ms)
	})
}

// A lease that is adopted while it is between two holders, of whom the next wants it no
// more, is freed in both stores.
func TestChainGivenUpBetweenHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(ranged), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		outer := mustLock(t, b.Locker, "x", "1")
		slow := &slowToEnd{Context: context.Background()}
		first := lockAsync(bg, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(10 * time.Millisecond)
		second := lockAsync(slow, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(time.Second)
		mustUnlock(t, outer)
		r := <-first
		slow.slow.Store(true)
		slow.ends.Store(true)
		mustUnlock(t, r.k)
		time.Sleep(3 * time.Second) // the second has the turn, and thinks about it
		b.mc.SetFaults(cutOff)      // the drain lasts
		w.shift(a, degrade.MySQL, "")
		for start := time.Now(); len(w.mysql.Held()) == 0; time.Sleep(time.Millisecond) {
			if time.Since(start) > 2*time.Second {
				t.Fatal("not adopted: ", w.redis.Held(), a.Status())
			}
		}
		if n := len(w.redis.Held()); n != 1 {
			t.Fatalf("%d keys in Redis, want the one that was adopted", n)
		}
		if r := <-second; r.err == nil {
			t.Fatal("the second got it")
		}
		time.Sleep(5 * time.Second) // much less than what is left of the lease
		if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 || !a.Status().Chain.Draining {
			t.Errorf("left: %v in Redis and %v in MySQL; %+v", r, m, a.Status().Chain)
		}
		b.mc.SetFaults(near1ms)
	})
}

// stuckRefresh answers no refreshes while it is stuck.
type stuckRefresh struct {
	*sim.MySQLStore
	stuck atomic.Bool
	hung  atomic.Int32
}

func (s *stuckRefresh) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	if a.Kind == degrade.Refresh && s.stuck.Load() {
		s.hung.Add(1)
		<-ctx.Done()
		return degrade.Reply{}, ctx.Err()
	}
	return s.MySQLStore.Arbitrate(ctx, self, a)
}

// One lost refresh does not keep Close from taking the process off the chain.
func TestChainCloseAfterALostRefresh(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		var s *stuckRefresh
		p := w.start(edgePolls, func(c *tierlock.Config) {
			s = &stuckRefresh{MySQLStore: c.Stores[1].(*sim.MySQLStore)}
			c.Stores[1] = s
		})
		chainTakes(t, 2*time.Second, tierlock.Redis, p)
		s.stuck.Store(true)
		for s.hung.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := p.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		if m := w.mysql.Members("ns"); len(m) != 0 {
			t.Errorf("members after Close: %v", m)
		}
	})
}

// A resource without a floor names the present epoch, too: the record of its fences may
// be shared with locks of the chain, and would give it their epoch for as long as it
// lasts, a minute, and a smaller one after that.
func TestChainDirectLocksNameTheEpoch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		held := mustLock(t, b.Locker, "r", "2")
		waits := lockAsync(bg, a.Locker, "r", "2", tierlock.UntilDone())
		k := mustLock(t, a.Locker, "r", "1")
		was := k.Token()
		w.shift(a, degrade.Redis, w.redis.Incarnation())
		for a.Status().Chain.Epoch != 2 || a.Status().Chain.Draining {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		mustUnlock(t, k)
		mustUnlock(t, held)
		k = mustLock(t, a.Locker, "r", "1")
		if now := k.Token(); now.Epoch != 2 || now.Fence <= was.Fence {
			t.Errorf("epoch %d, fence %d after %d", now.Epoch, now.Fence, was.Fence)
		}
		mustUnlock(t, k)
		for range 2 { // of a process that has just started, too
			k, err := w.start().TryLock(bg, "r", "1")
			if e := k.Token().Epoch; err != nil || e != 2 {
				t.Errorf("the first lock of a process: in epoch %d, %v", e, err)
			}
			mustUnlock(t, k)
		}
		r := <-waits
		if e := r.k.Token().Epoch; r.err != nil || e != 2 {
			t.Errorf("who has waited since before has it in epoch %d: %v", e, r.err)
		}
		mustUnlock(t, r.k)
	})
}
