package tierlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/sim"
	"github.com/tierlock/tierlock/localstore"
)

// withLocal lets resource "b" go down to the memory of the process.
func withLocal(c *tierlock.Config) {
	c.Stores = append(c.Stores, localstore.New(localstore.Options{}))
	for i := range c.Resources {
		if c.Resources[i].Name == "b" {
			c.Resources[i].Floor = tierlock.Local
		}
	}
}

// redisAndLocal is a chain without an arbiter.
func redisAndLocal(c *tierlock.Config) {
	c.Stores = c.Stores[:1]
	c.Resources = []tierlock.Resource{{Name: "b"}, {Name: "r"}}
	withLocal(c)
}

// goesLocal waits until a process gives locks of b in its memory.
func goesLocal(t *testing.T, limit time.Duration, p *chainProc) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		k, err := p.TryLock(bg, "b", "probe")
		tier := k.Token().Tier
		if err == nil {
			_ = k.Unlock()
		}
		if err == nil && tier == tierlock.Local {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("after %v there are no local locks: %v, %v", limit, tier, err)
		}
	}
}

func (p *chainProc) alarms() (n int, over bool) {
	for _, e := range p.day.all() {
		if e, ok := e.(tierlock.LocalAlarmEvent); ok {
			n++
			over = e.Over
		}
	}
	return n, over
}

// With both stores away, and only then, locks are given in the process, and loudly.
// A hold is taken to a store when one is back, and stays what it was worth.
func TestLocalTier(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(withLocal), w.start(withLocal)
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		redisAway(a)
		for range 20 { // MySQL answers: no local locks
			if k, err := a.TryLock(bg, "b", "1"); err == nil {
				t.Fatalf("a lock from %v", k.Token().Tier)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n, _ := a.alarms(); n != 0 || a.Status().Local {
			t.Error("alarm while a store answers")
		}
		a.mc.SetFaults(cutOff)
		goesLocal(t, 10*time.Second, a)
		k := mustLock(t, a.Locker, "b", "1")
		if token := k.Token(); token.Fence != 0 || token.Tier != tierlock.Local || k.Guarantee() != tierlock.ProcessLocal {
			t.Errorf("token %v, worth %v", token, k.Guarantee())
		}
		_, err := a.TryLock(bg, "b", "1")
		wantIs(t, "TryLock in the same process", err, tierlock.ErrHeld)
		_, err = a.TryLock(bg, "b", "2", tierlock.RequireGuarantee(tierlock.FencedOnly))
		wantIs(t, "TryLock that requires a fence", err, tierlock.ErrUnavailable)
		_, err = a.TryLock(bg, "b", "2", tierlock.Floor(tierlock.MySQL))
		wantIs(t, "TryLock with a floor", err, tierlock.ErrUnavailable)
		_, err = a.TryLock(bg, "x", "2")
		wantIs(t, "TryLock of an exclusive resource", err, tierlock.ErrUnavailable)
		if rec, err := a.Inspect(bg, "b", "1"); err != nil || rec.Token.Lease != k.Token().Lease {
			t.Errorf("Inspect: %+v %v", rec, err)
		}
		time.Sleep(time.Minute)
		if n, over := a.alarms(); n < 6 || n > 8 || over || !a.Status().Local {
			t.Errorf("%d alarms in a minute, over %v", n, over)
		}
		if n := len(a.log.lines("tierlock: no store can be used: locks are given within this process only")); n != 1 {
			t.Errorf("%d lines", n)
		}
		lost := mustLock(t, a.Locker, "b", "2") // b has it in Redis
		theirs := mustLock(t, b.Locker, "b", "2")
		token := k.Token()
		redisBack(a)
		time.Sleep(8 * time.Second)
		if n, over := a.alarms(); !over || a.Status().Local {
			t.Errorf("%d alarms, over %v", n, over)
		}
		rec, err := b.Inspect(bg, "b", "1")
		if err != nil || rec.Token.Lease != token.Lease {
			t.Errorf("in the store: %+v %v", rec, err)
		}
		if k.Err() != nil || k.Guarantee() != tierlock.ProcessLocal || k.Token() != token {
			t.Errorf("the hold: %v, worth %v, %v", k.Err(), k.Guarantee(), k.Token())
		}
		wantLost(t, "the hold of a key that another has", context.Cause(lost.Context()), "taken")
		wantLost(t, "its Unlock", lost.Unlock(), "taken")
		_, err = b.TryLock(bg, "b", "2")
		wantIs(t, "what the other has", err, tierlock.ErrHeld)
		mustUnlock(t, theirs)
		time.Sleep(time.Minute) // renewed in Redis
		_, err = b.TryLock(bg, "b", "1")
		wantIs(t, "TryLock elsewhere", err, tierlock.ErrHeld)
		mustUnlock(t, k)
		idle(t, a.Locker)
		mustUnlock(t, mustLock(t, b.Locker, "b", "1", tierlock.NoWait()))
	})
}

// A chain of a store and the process needs no arbiter.
func TestLocalTierAfterOneStore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(redisAndLocal)
		k := mustLock(t, a.Locker, "b", "1")
		if a.Status().Chain != nil || k.Token().Tier != tierlock.Redis {
			t.Errorf("status %+v, taken from %v", a.Status(), k.Token().Tier)
		}
		mustUnlock(t, k)
		redisAway(a)
		start := time.Now()
		k = mustLock(t, a.Locker, "b", "1", tierlock.Wait(3*time.Second)) // after three failures
		if d := time.Since(start); k.Token().Tier != tierlock.Local || d < time.Second {
			t.Errorf("taken from %v after %v", k.Token().Tier, d)
		}
		start = time.Now()
		mustUnlock(t, mustLock(t, a.Locker, "b", "2", tierlock.NoWait()))
		if d := time.Since(start); d > 0 {
			t.Errorf("the next took %v", d)
		}
		_, err := a.TryLock(bg, "r", "1")
		wantIs(t, "TryLock without a floor", err, tierlock.ErrUnavailable)
		redisBack(a)
		time.Sleep(2 * time.Second)
		if held := w.redis.Held(); len(held) != 1 {
			t.Errorf("held in Redis: %v", held)
		}
		mustUnlock(t, k)
		mustUnlock(t, mustLock(t, a.Locker, "b", "1", tierlock.RequireGuarantee(tierlock.FencedOnly)))
		idle(t, a.Locker)
		if held := w.redis.Held(); len(held) != 0 {
			t.Errorf("left in Redis: %v", held)
		}
	})
}

// A hold that is unlocked while it is being taken to a store leaves nothing there.
func TestLocalHoldUnlockedOnTheWay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(redisAndLocal)
		redisAway(a)
		goesLocal(t, 10*time.Second, a)
		for _, late := range []time.Duration{0, 50, 100, 150, 200, 250} {
			k := mustLock(t, a.Locker, "b", "1", tierlock.NoWait())
			if k.Token().Tier != tierlock.Local {
				t.Fatalf("taken from %v", k.Token().Tier)
			}
			a.rc.SetFaults(sim.Faults{Delay: 100 * time.Millisecond})
			for a.Status().Stores[0].Available == false {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(late * time.Millisecond) // the acquire is under way, or answered
			mustUnlock(t, k)
			time.Sleep(5 * time.Second)
			if held := w.redis.Held(); len(held) != 0 {
				t.Errorf("%v ms: left in Redis: %v", int64(late), held)
			}
			redisAway(a)
			goesLocal(t, 10*time.Second, a)
		}
	})
}

// Stores that come and go under many callers: whatever is locked is unlocked, nothing
// is left at the end, and the alarm is over.
func TestLocalTierFlapping(t *testing.T) {
	for _, chain := range []func(*tierlock.Config){withLocal, redisAndLocal} {
		inBubble(t, func(t *testing.T, w *chainWorld) {
			before := goroutines()
			procs := []*chainProc{w.start(chain), w.start(chain)}
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			var group sync.WaitGroup
			var local atomic.Int64
			for i, p := range procs {
				for j := range 6 {
					rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
					group.Go(func() {
						for ctx.Err() == nil {
							k, err := p.Lock(ctx, "b", fmt.Sprint(rng.IntN(3)), tierlock.Wait(3*time.Second))
							if err != nil {
								time.Sleep(100 * time.Millisecond)
								continue
							}
							if k.Guarantee() == tierlock.ProcessLocal {
								local.Add(1)
							}
							select {
							case <-time.After(time.Duration(rng.ExpFloat64() * float64(2*time.Second))):
							case <-k.Context().Done():
							}
							_ = k.Unlock()
						}
					})
				}
			}
			rng := rand.New(rand.NewPCG(7, 7))
			for range 60 {
				p := procs[rng.IntN(2)]
				p.rc.SetFaults([]sim.Faults{near1ms, cutOff}[rng.IntN(2)])
				p.mc.SetFaults([]sim.Faults{near1ms, cutOff, cutOff}[rng.IntN(3)])
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(15*time.Second)))
			}
			for _, p := range procs {
				p.rc.SetFaults(near1ms)
				p.mc.SetFaults(near1ms)
			}
			time.Sleep(3 * time.Minute)
			cancel()
			group.Wait()
			if local.Load() == 0 {
				t.Error("no lock was ever local: nothing was tried here")
			}
			for _, p := range procs {
				idle(t, p.Locker)
				if n, over := p.alarms(); n > 0 && !over || p.Status().Local {
					t.Errorf("%d alarms, over %v", n, over)
				}
				if err := p.Close(bg); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 {
				t.Errorf("left: %v %v", r, m)
			}
			synctest.Wait()
			if n := goroutines(); n > before {
				t.Errorf("%d goroutines, %d before", n, before)
			}
		})
	}
}

// Close with local locks ends in time and leaves no goroutine.
func TestLocalTierClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		before := goroutines()
		a := w.start(redisAndLocal)
		redisAway(a)
		goesLocal(t, 10*time.Second, a)
		k := mustLock(t, a.Locker, "b", "1", tierlock.NoWait())
		time.AfterFunc(time.Second, func() { mustUnlock(t, k) })
		start := time.Now()
		_ = a.Close(bg)
		if d := time.Since(start); d > 45*time.Second { // undos go on until the key has expired
			t.Errorf("Close took %v", d)
		}
		a.rc.Close()
		synctest.Wait()
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
	})
}
