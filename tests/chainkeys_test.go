package tests_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// said reports whether a process has logged an error with a text in it.
func (c *chained) said(text string) bool {
	for _, line := range c.log.all() {
		if strings.HasPrefix(line, "ERROR ") && strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// FLUSHALL under exclusive holds: it is told, nobody gets their keys, and they go on
// in the new data, as exclusive as before.
func TestFlushUnderExclusiveHolds(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a, b := s.join(t), s.join(t)
	takesFrom(t, patience, tierlock.Redis, a, b)
	var holds []*tierlock.Lock
	for i := range 10 {
		holds = append(holds, mustLock(t, []*chained{a, b}[i%2].Locker, "x", fmt.Sprint(i)))
	}
	s.redis.Do("FLUSHALL")
	for flushed := time.Now(); time.Since(flushed) < 3*time.Second; {
		for i := range holds {
			if k, err := []*chained{b, a}[i%2].TryLock(bg, "x", fmt.Sprint(i)); err == nil {
				t.Fatalf("%v after FLUSHALL key %d was given: %v; the hold has %v, %v", time.Since(flushed), i, k.Token(), holds[i].Token(), holds[i].Err())
			}
		}
	}
	takesFrom(t, patience, tierlock.Redis, a, b)
	for i, k := range holds {
		if err, g := k.Err(), k.Guarantee(); err != nil || g != tierlock.Exclusive {
			t.Errorf("hold %d: worth %v, %v", i, g, err)
		}
		mustUnlock(t, k)
		next := mustLock(t, []*chained{b, a}[i%2].Locker, "x", fmt.Sprint(i))
		if next.Token().Fence <= k.Token().Fence {
			t.Errorf("key %d: fence %d after %d", i, next.Token().Fence, k.Token().Fence)
		}
		mustUnlock(t, next)
	}
	for i, c := range []*chained{a, b} {
		if !c.said("Redis has lost its keys") {
			t.Errorf("process %d has not told it", i)
		}
	}
}

// A Redis that begins to evict is told, and what holds are worth falls.
func TestEvictionInAChain(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a := s.join(t)
	takesFrom(t, patience, tierlock.Redis, a)
	k := mustLock(t, a.Locker, "x", "1")
	if g := k.Guarantee(); g != tierlock.Exclusive {
		t.Fatalf("at first worth %v", g)
	}
	s.redis.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	s.redis.Do("CONFIG", "SET", "maxmemory", "209715200")
	rig.Eventually(t, patience, "the hold is worth less", func() bool { return k.Guarantee() == tierlock.FencedOnly })
	rig.Eventually(t, patience, "it is told", func() bool { return a.said("maxmemory-policy is allkeys-lru") })
	_, err := a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
	wantIs(t, "a lock that has to be exclusive", err, tierlock.ErrUnavailable)
	if !strings.Contains(fmt.Sprint(err), "noeviction") {
		t.Errorf("it is refused by %v, want what to set", err)
	}
	s.redis.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	next, err := a.Lock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive), tierlock.Wait(patience))
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, next)
	if g := k.Guarantee(); g != tierlock.FencedOnly {
		t.Errorf("the old hold is worth %v again", g)
	}
	mustUnlock(t, k)
}

// After a switch and the return a process starts that cannot reach MySQL, when the
// records of fences have been forgotten: fences go on rising, since Redis has noted
// the epoch. What is exclusive waits for MySQL.
func TestStartWithoutMySQLAfterASwitch(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a := s.join(t)
	takesFrom(t, patience, tierlock.Redis, a)
	s.redis.Kill()
	takesFrom(t, patience, tierlock.MySQL, a)
	s.redis.Start()
	takesFrom(t, patience, tierlock.Redis, a)
	last := map[string]tierlock.Token{}
	take := func(c *chained, when string) {
		t.Helper()
		for _, resource := range []string{"be", "first"} {
			k, err := c.Lock(bg, resource, "1", tierlock.Wait(patience))
			if err != nil {
				t.Fatalf("%s %s: %v", resource, when, err)
			}
			if got, was := k.Token(), last[resource]; got.Fence <= was.Fence {
				t.Errorf("%s %s: fence %d in epoch %d, after %d in %d", resource, when, got.Fence, got.Epoch, was.Fence, was.Epoch)
			}
			last[resource] = k.Token()
			mustUnlock(t, k)
		}
	}
	take(a, "at first")
	epoch := a.Status().Chain.Epoch
	rig.Eventually(t, patience, "the epoch is noted", func() bool {
		keys := s.redis.Do("KEYS", "*}:marker").([]any)
		return len(keys) == 1 && strings.HasSuffix(s.redis.Text("GET", keys[0].(string)), fmt.Sprint(" ", epoch))
	})
	if epoch < 3 {
		t.Fatalf("epoch %d", epoch)
	}
	for _, key := range s.redis.Do("KEYS", "*:fence").([]any) {
		s.redis.Do("DEL", key.(string))
	}
	p := rig.NewProxy(t, mysqlAddr(s.mysql))
	p.Refuse()
	c := s.joinVia(t, rig.NewProxy(t, s.redis.Addr), p)
	take(c, "without MySQL")
	_, err := c.TryLock(bg, "x", "1")
	wantIs(t, "exclusive, without MySQL", err, tierlock.ErrUnavailable)
	p.Accept()
	takesFrom(t, patience, tierlock.Redis, c)
	take(c, "with MySQL")
}
