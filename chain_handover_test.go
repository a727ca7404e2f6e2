package tierlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// rangedRedis grants the further fences that are asked for. It does not note them:
// in a bubble the next grant's is larger by far.
type rangedRedis struct{ *sim.RedisStore }

func (s rangedRedis) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	res, err := s.RedisStore.Acquire(ctx, req)
	if res.Granted {
		res.Fences = req.Fences
	}
	return res, err
}

func ranged(c *tierlock.Config) {
	c.Stores[0] = rangedRedis{c.Stores[0].(*sim.RedisStore)}
}

// A lease of a chain is handed over inside the process; its last holder goes along
// with the chain as any other, and belief in it ends as any other's.
func TestChainHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(ranged), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		// While another holds the key, two queue here: the first asks with somebody
		// behind, and so for further fences.
		outer := mustLock(t, b.Locker, "x", "1")
		first := lockAsync(bg, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(10 * time.Millisecond)
		second := lockAsync(bg, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(time.Second)
		mustUnlock(t, outer)
		r1 := <-first
		mustUnlock(t, r1.k)
		r2 := <-second
		if r1.err != nil || r2.err != nil {
			t.Fatal(r1.err, r2.err)
		}
		k := r2.k
		if k.Token().Lease != r1.k.Token().Lease || k.Token().Fence <= r1.k.Token().Fence || k.Guarantee() != tierlock.Exclusive {
			t.Fatalf("not handed over: %v after %v, worth %v", k.Token(), r1.k.Token(), k.Guarantee())
		}
		redisAway(a, b)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a, b)
		time.Sleep(time.Minute)
		if err := k.Err(); err != nil {
			t.Fatalf("lost in the switch: %v", err)
		}
		rec, err := b.Inspect(bg, "x", "1")
		if err != nil || rec.Token.Fence != k.Token().Fence {
			t.Errorf("the adopted token is %v, want that of the present hold, %v", rec.Token, k.Token())
		}
		a.mc.SetFaults(cutOff)
		<-k.Context().Done()
		wantLost(t, "without the arbiter", k.Unlock(), "unconfirmed")
	})
}

// In a drain nothing is handed over.
func TestChainNoHandOverInDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(ranged), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		outer := mustLock(t, b.Locker, "x", "1")
		first := lockAsync(bg, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(10 * time.Millisecond)
		second := lockAsync(bg, a.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(time.Second)
		b.mc.SetFaults(cutOff) // the drain lasts
		w.shift(a, degrade.MySQL, "")
		mustUnlock(t, outer)
		r1 := <-first // before a has learned of it
		for !a.Status().Chain.Draining {
			time.Sleep(time.Millisecond)
		}
		mustUnlock(t, r1.k)
		start := time.Now()
		r2 := <-second
		if d := time.Since(start); d < 30*time.Second || r2.k.Token().Epoch != 2 {
			t.Errorf("the next has it after %v, in epoch %d", d, r2.k.Token().Epoch)
		}
		mustUnlock(t, r2.k)
	})
}

// Many goroutines of two processes over one key, best effort and exclusive, through
// switches there and back: one at a time, and fences rise.
func TestChainStress(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(ranged), w.start(ranged)
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		var mu sync.Mutex
		var inside, taken int
		var fence uint64
		var group sync.WaitGroup
		for _, p := range []*chainProc{a, b} {
			for range 8 {
				group.Go(func() {
					for ctx.Err() == nil {
						k, err := p.Lock(ctx, "x", "1", tierlock.Wait(10*time.Second))
						if err != nil {
							continue
						}
						mu.Lock()
						inside++
						taken++
						if f := k.Token().Fence; f <= fence || inside != 1 {
							t.Errorf("%d inside, fence %d after %d", inside, f, fence)
						} else {
							fence = f
						}
						mu.Unlock()
						select {
						case <-time.After(150 * time.Millisecond):
						case <-k.Context().Done():
						}
						mu.Lock()
						inside--
						mu.Unlock()
						_ = k.Unlock()
					}
				})
			}
		}
		for range 3 {
			time.Sleep(20 * time.Second)
			redisAway(a, b)
			time.Sleep(30 * time.Second)
			redisBack(a, b)
			time.Sleep(8 * time.Minute)
		}
		cancel()
		group.Wait()
		if got := w.mysql.Mode("ns").Epoch; got < 7 {
			t.Errorf("epoch %d, want three switches and back", got)
		}
		t.Logf("taken %d times", taken)
		idle(t, a.Locker)
		idle(t, b.Locker)
		if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 {
			t.Errorf("left: %v %v", r, m)
		}
	})
}
