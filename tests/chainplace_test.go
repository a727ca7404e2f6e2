package tests_test

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Scenario 29, in a chain: Redis starts again at once, empty, before anybody calls it
// down. Other data is another place: holds of an exclusive resource are taken over
// into it, and until they are nobody gets their keys.
func TestRedisStartsAgainEmpty(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	patient := func(c *tierlock.Config) { c.Degrade.Suspect = time.Second }
	a, b := s.join(t, patient), s.join(t, patient)
	takesFrom(t, patience, tierlock.Redis, a, b)
	var holds []*tierlock.Lock
	for i := range 10 {
		holds = append(holds, mustLock(t, []*chained{a, b}[i%2].Locker, "x", fmt.Sprint(i)))
	}
	s.redis.Kill()
	s.redis.Start()
	restart := time.Now()
	for time.Since(restart) < 3*time.Second {
		for i := range holds {
			if k, err := []*chained{b, a}[i%2].TryLock(bg, "x", fmt.Sprint(i)); err == nil {
				t.Fatalf("%v after the restart key %d was given: %v; the hold has %v, %v", time.Since(restart), i, k.Token(), holds[i].Token(), holds[i].Err())
			}
		}
	}
	takesFrom(t, patience, tierlock.Redis, a, b)
	for i, k := range holds {
		if err := k.Err(); err != nil {
			t.Errorf("hold %d: %v", i, err)
		}
		mustUnlock(t, k)
	}
	if got := a.came(); slices.Contains(got, tierlock.MySQL) {
		t.Logf("on the way the modes were %v", got) // allowed: a probe may have found it down thrice
	}
}

// Scenario 66, in a chain: a Redis that answers and takes no writes (it has become a
// replica, its memory is full) is as good as none. All go to MySQL, holds too.
func TestRedisThatRefusesIsLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ refuse, serve func(*rig.RedisServer) }{
		"replica": {
			func(r *rig.RedisServer) { r.Do("REPLICAOF", "127.0.0.1", "1") },
			func(r *rig.RedisServer) { r.Do("REPLICAOF", "NO", "ONE") },
		},
		"full": {
			func(r *rig.RedisServer) { r.Do("CONFIG", "SET", "maxmemory", "1") },
			func(r *rig.RedisServer) { r.Do("CONFIG", "SET", "maxmemory", "0") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startTwoStores(t)
			a, b := s.join(t), s.join(t)
			takesFrom(t, patience, tierlock.Redis, a, b)
			k := mustLock(t, a.Locker, "x", "1")
			c.refuse(s.redis)
			takesFrom(t, patience, tierlock.MySQL, a, b)
			wantHeld(t, "the held key", b.Locker, "x", "1")
			c.serve(s.redis)
			takesFrom(t, patience, tierlock.Redis, a, b)
			wantHeld(t, "the held key, back on Redis", b.Locker, "x", "1")
			mustUnlock(t, k)
		})
	}
}

// Scenario 7: a call may ask for a higher floor than its resource has, and for a
// worth: it is refused where the chain is lower, and told nothing about contention.
func TestFloorOfACall(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a := s.join(t)
	takesFrom(t, patience, tierlock.Redis, a)
	high := []tierlock.Option{tierlock.Floor(tierlock.Redis)}
	for _, resource := range []string{"x", "be"} {
		mustUnlock(t, mustLock(t, a.Locker, resource, "1", high...))
	}
	s.redis.Kill()
	takesFrom(t, patience, tierlock.MySQL, a)
	for _, resource := range []string{"x", "be"} {
		mustUnlock(t, mustLock(t, a.Locker, resource, "1"))
		_, err := a.TryLock(bg, resource, "1", high...)
		wantIs(t, resource+" with floor Redis on MySQL", err, tierlock.ErrUnavailable)
		wantNotIs(t, resource+" with floor Redis on MySQL", err, tierlock.ErrHeld)
	}
	mustUnlock(t, mustLock(t, a.Locker, "x", "1", tierlock.RequireGuarantee(tierlock.Exclusive)))
	_, err := a.TryLock(bg, "be", "1", tierlock.RequireGuarantee(tierlock.Exclusive))
	wantIs(t, "best effort, required to be exclusive", err, tierlock.ErrInvalid)
	s.redis.Start()
}

// On MySQL, with Redis gone, MySQL is restarted and killed: exclusive holds whose
// lease and permit outlast that go on, and fences rise.
func TestArbiterRestartsUnderItsOwnLocks(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	long := func(c *tierlock.Config) { c.Degrade.Permit = 15 * time.Second }
	a, b := s.join(t, long), s.join(t, long)
	takesFrom(t, patience, tierlock.Redis, a, b)
	s.redis.Kill()
	takesFrom(t, patience, tierlock.MySQL, a, b)
	k := mustLock(t, a.Locker, "x", "1")
	last := mustLock(t, b.Locker, "x", "2")
	mustUnlock(t, last)
	for _, again := range []func(){s.mysql.Restart, func() { s.mysql.Kill(); s.mysql.Start() }} {
		again()
		takesFrom(t, patience, tierlock.MySQL, a, b)
		if err := k.Err(); err != nil {
			t.Errorf("the hold: %v", err)
		}
		wantHeld(t, "the held key", b.Locker, "x", "1")
		next := mustLock(t, a.Locker, "x", "2")
		if next.Token().Fence <= last.Token().Fence {
			t.Errorf("after %v came %v", last.Token(), next.Token())
		}
		mustUnlock(t, next)
		last = next
	}
	s.redis.Start()
	takesFrom(t, patience, tierlock.Redis, a, b)
	mustUnlock(t, k)
}

// A failover by Sentinel, in a chain: the primary dies, or is stopped and comes back,
// and a replica takes over, with or without the last writes. No key of an exclusive
// resource is given while its hold is believed in, whichever way the chain goes, to
// MySQL and back or to the new primary at once; and holds survive it.
func TestSentinelFailoverInAChain(t *testing.T) {
	t.Parallel()
	for name, suspect := range map[string]time.Duration{"over MySQL": switchTimes.Suspect, "to the new primary": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := rig.StartSentinel(t)
			s := &twoStores{mysql: migratedServer(t)}
			join := func() *chained {
				// The proxy in front of Redis is not on the way: the sentinels tell others.
				return s.joinVia(t, rig.NewProxy(t, d.Nodes[0].Addr), rig.NewProxy(t, mysqlAddr(s.mysql)), func(c *tierlock.Config) {
					opt := redisstore.RecommendedOptions(d.Addrs()...)
					opt.Sentinel = rueidis.SentinelOption{MasterSet: d.Master, Dialer: net.Dialer{Timeout: 500 * time.Millisecond}, TopologyRefreshInterval: 5 * time.Second}
					store, err := redisstore.Open(opt)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(store.Close)
					c.Stores[0], c.Degrade.Suspect, c.Degrade.Probe = store, suspect, suspect
				})
			}
			a, b := join(), join()
			takesFrom(t, patience, tierlock.Redis, a, b)
			var holds []*tierlock.Lock
			for i := range 20 {
				holds = append(holds, mustLock(t, []*chained{a, b}[i%2].Locker, "x", fmt.Sprint(i)))
			}
			old := d.Primary()
			if old == nil {
				t.Fatal("the sentinels do not agree")
			}
			old.Kill()
			failed := time.Now()
			for time.Since(failed) < 8*time.Second {
				for i, k := range holds {
					if other, err := []*chained{b, a}[i%2].TryLock(bg, "x", fmt.Sprint(i)); err == nil {
						t.Fatalf("%v after the failover key %d was given: %v; the hold has %v, %v", time.Since(failed), i, other.Token(), k.Token(), k.Err())
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			d.NewPrimary(old)
			takesFrom(t, 2*patience, tierlock.Redis, a, b)
			for i, k := range holds {
				if err := k.Err(); err != nil {
					t.Errorf("hold %d: %v", i, err)
				}
				mustUnlock(t, k)
				next := mustLock(t, []*chained{b, a}[i%2].Locker, "x", fmt.Sprint(i))
				if next.Token().Fence <= k.Token().Fence {
					t.Errorf("after %v came %v", k.Token(), next.Token())
				}
				mustUnlock(t, next)
			}
			if got := a.came(); slices.Contains(got, tierlock.MySQL) != (name == "over MySQL") {
				t.Errorf("modes in force were %v", got)
			}
		})
	}
}
