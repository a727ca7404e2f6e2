package tests_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The clock of Redis is stepped forward past the leases of Exclusive holds. Those
// who hold on in that belief are told at the next renewal, or, cut off from Redis,
// keep it to its end; nobody else gets the key before, from processes that were in
// the chain at the step. The chain stays on Redis, best effort goes on, and some
// 80 s after the step all is as before.
func TestChainOverASteppedClock(t *testing.T) {
	t.Parallel()
	const ttl, over = 6 * time.Second, 80 * time.Second
	redis, clock := rig.RedisWithClock(t)
	s := &twoStores{redis: redis, mysql: migratedServer(t)}
	lease := func(c *tierlock.Config) {
		for i := range c.Resources {
			c.Resources[i].TTL = ttl
		}
	}
	a, b, c := s.join(t, lease), s.join(t, lease), s.join(t, lease)
	takesFrom(t, patience, tierlock.Redis, a, b, c)
	told, alone := mustLock(t, b.Locker, "x", "told"), mustLock(t, a.Locker, "x", "alone")
	free := mustLock(t, b.Locker, "be", "1")
	epoch := c.Status().Chain.Epoch
	a.toRedis.BlackHole() // a's hold is believed in for as long as can be
	clock.Step(time.Minute)
	stepped := time.Now()

	type got struct {
		k   *tierlock.Lock
		err error
	}
	waiting := make(chan got, 1)
	go func() {
		k, err := c.Lock(bg, "x", "alone", tierlock.Wait(over+patience))
		waiting <- got{k, err}
	}()
	for alone.Err() == nil || told.Err() == nil {
		for _, key := range []string{"told", "fresh"} {
			k, err := c.TryLock(bg, "x", key)
			if err == nil {
				t.Fatalf("%v was given while others believe in holds: %v, %v", k.Token(), told.Err(), alone.Err())
			}
			wantIs(t, "TryLock after the step", err, tierlock.ErrUnavailable)
			wantNotIs(t, "TryLock after the step", err, tierlock.ErrHeld)
			if !strings.Contains(err.Error(), "clock of the server was stepped forward") {
				t.Errorf("TryLock after the step: %v; wanted the reason", err)
			}
		}
		// One that has expired is gone for best effort, as ever.
		mustUnlock(t, mustLock(t, c.Locker, "be", "2"))
		time.Sleep(100 * time.Millisecond)
	}
	waitEnd(t, told)
	waitEnd(t, alone)
	wantLost(t, "the hold of a process that reaches Redis", context.Cause(told.Context()), "gone")
	wantLost(t, "the hold of one that does not", context.Cause(alone.Context()), "expired", "unconfirmed")
	told.Unlock()
	alone.Unlock()
	free.Unlock()
	a.toRedis.Pass()

	select {
	case g := <-waiting:
		if g.err != nil {
			t.Fatalf("the waiter: %v", g.err)
		}
		between(t, "from the step to the next grant", time.Since(stepped), over-10*time.Second, over+2*time.Second+slack) // it asks each second
		if g.k.Token().Fence <= alone.Token().Fence || g.k.Token().Tier != tierlock.Redis {
			t.Errorf("%v after %v", g.k.Token(), alone.Token())
		}
		mustUnlock(t, g.k)
	case <-time.After(over + patience):
		t.Fatal("no grant")
	}
	takesFrom(t, patience, tierlock.Redis, a, b, c)
	if st := c.Status().Chain; st.Epoch != epoch || st.Tier != tierlock.Redis || st.RedisDown {
		t.Errorf("epoch %d has become %+v", epoch, st)
	}
}
