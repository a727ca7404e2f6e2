package tests_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// chainTTL is that of the exclusive resource where its end is waited for.
const chainTTL = 5 * time.Second

// Scenario 2: one process of three is cut off from Redis, in each way that a link
// fails. It gets ErrUnavailable, for best effort as well, and takes nobody along.
// Its hold ends on time, before anybody else gets the key; and when the link is
// back it goes on.
func TestOneProcessCutOffFromRedis(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	for name, cutOff := range map[string]func(*rig.Proxy){
		"refused":         func(p *rig.Proxy) { p.Refuse(); p.Cut() },
		"silent":          (*rig.Proxy).BlackHole,
		"no answers":      (*rig.Proxy).DropReplies,
		"nothing arrives": (*rig.Proxy).DropRequests,
	} {
		t.Run(name, func(t *testing.T) {
			short := func(c *tierlock.Config) {
				c.Namespace = "cut" + name[:2]
				for i := range c.Resources {
					c.Resources[i].TTL = chainTTL
				}
			}
			a, b, alone := s.join(t, short), s.join(t, short), s.join(t, short)
			takesFrom(t, patience, tierlock.Redis, a, b, alone)
			k, be := mustLock(t, alone.Locker, "x", "1"), mustLock(t, alone.Locker, "be", "1")
			other := mustLock(t, a.Locker, "x", "2")
			epoch := a.Status().Chain.Epoch
			cutOff(alone.toRedis)
			cut := time.Now()

			next, err := b.Lock(bg, "x", "1", tierlock.Wait(patience))
			if err != nil {
				t.Fatalf("the key of the process that is cut off: %v", err)
			}
			if k.Err() == nil || next.Token().Tier != tierlock.Redis || next.Token().Fence <= k.Token().Fence {
				t.Errorf("%v was given while the other has %v (%v)", next.Token(), k.Token(), k.Err())
			}
			mustUnlock(t, next)
			wantLost(t, "the hold", context.Cause(k.Context()), "expired", "unconfirmed")
			waitEnd(t, be)
			for time.Since(cut) < chainTTL+2*time.Second { // its vote is out by now
				for _, resource := range []string{"x", "be"} {
					k, err := alone.TryLock(bg, resource, "3")
					if err == nil {
						t.Fatalf("the process that is cut off got %v", k.Token())
					}
					wantIs(t, "cut off: TryLock "+resource, err, tierlock.ErrUnavailable)
					wantNotIs(t, "cut off: TryLock "+resource, err, tierlock.ErrHeld)
				}
				takesFrom(t, patience, tierlock.Redis, a, b)
				time.Sleep(50 * time.Millisecond)
			}
			if !alone.Status().Chain.RedisDown || a.Status().Chain.RedisDown {
				t.Errorf("down for it: %t, for others: %t", alone.Status().Chain.RedisDown, a.Status().Chain.RedisDown)
			}
			if err := other.Err(); err != nil {
				t.Errorf("another's hold: %v", err)
			}
			mustUnlock(t, other)
			alone.toRedis.Pass()
			alone.toRedis.Accept()
			takesFrom(t, patience, tierlock.Redis, alone)
			if st := a.Status().Chain; st.Epoch != epoch || st.Tier != tierlock.Redis {
				t.Errorf("epoch %d has become %+v", epoch, st)
			}
			k.Unlock()
			be.Unlock()
		})
	}
}

// MySQL, the arbiter, goes away while locks are on Redis: exclusive holds end when
// the permit does and none is given, best effort goes on, and all is as before when
// MySQL is back. So it is when only one process has lost it, and then nobody else
// gets the key of its hold while that is believed in.
func TestArbiterAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(s *twoStores, p *chained) (back func()){
		"killed":  func(s *twoStores, _ *chained) func() { s.mysql.Kill(); return s.mysql.Start },
		"stopped": func(s *twoStores, _ *chained) func() { s.mysql.Pause(); return s.mysql.Resume },
		"cut off": func(_ *twoStores, p *chained) func() { p.toMySQL.BlackHole(); return p.toMySQL.Pass },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startTwoStores(t)
			const ttl = 12 * time.Second // belief goes by the permit, also where that ends late
			lease := func(c *tierlock.Config) { c.Resources[0].TTL = ttl }
			a, b := s.join(t, lease), s.join(t, lease)
			takesFrom(t, patience, tierlock.Redis, a, b)
			k, be := mustLock(t, a.Locker, "x", "1"), mustLock(t, a.Locker, "be", "1")
			back := away(s, a)
			gone := time.Now()
			ended := waitEnd(t, k)
			between(t, "the hold ended when the permit did", ended.Sub(gone),
				switchTimes.Permit/3, switchTimes.Permit+slack)
			wantLost(t, "the hold", context.Cause(k.Context()), "unconfirmed")
			_, err := a.TryLock(bg, "x", "2")
			wantIs(t, "TryLock without an arbiter", err, tierlock.ErrUnavailable)
			if err := be.Err(); err != nil {
				t.Errorf("best effort: %v", err)
			}
			be2 := mustLock(t, a.Locker, "be", "2")
			if be2.Guarantee() != tierlock.FencedOnly || be2.Token().Tier != tierlock.Redis {
				t.Errorf("best effort is %v from %v", be2.Guarantee(), be2.Token().Tier)
			}
			mustUnlock(t, be2)
			mustUnlock(t, be)
			if !a.Status().Chain.ArbiterSilent || a.Status().Chain.Permit != 0 {
				t.Errorf("status %+v", a.Status().Chain)
			}
			back()
			takesFrom(t, patience, tierlock.Redis, a, b)
			next := mustLock(t, b.Locker, "x", "1", tierlock.Wait(ttl+patience))
			if next.Token().Fence <= k.Token().Fence {
				t.Errorf("after %v came %v", k.Token(), next.Token())
			}
			mustUnlock(t, next)
			k.Unlock()
			if got := a.came(); slices.Contains(got, tierlock.MySQL) {
				t.Errorf("modes in force were %v", got)
			}
		})
	}
}

// Scenarios 3, 4 and 5: processes that start while Redis is down, refused or silent,
// take their locks from MySQL, the first process ever as well; and from Redis when
// it is there. New returns at once.
func TestStartWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]func(*rig.Proxy){"refused": (*rig.Proxy).Refuse, "silent": (*rig.Proxy).BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startTwoStores(t)
			var procs []*chained
			for range 2 {
				p := rig.NewProxy(t, s.redis.Addr)
				down(p)
				begin := time.Now()
				procs = append(procs, s.joinVia(t, p, rig.NewProxy(t, mysqlAddr(s.mysql))))
				// Open waits two seconds at most for the first connection.
				if d := time.Since(begin); d > 2*time.Second+slack {
					t.Errorf("it took %v to start", d)
				}
			}
			takesFrom(t, patience, tierlock.MySQL, procs...)
			be := mustLock(t, procs[0].Locker, "be", "1")
			if be.Token().Tier != tierlock.MySQL {
				t.Errorf("best effort from %v", be.Token().Tier)
			}
			_, err := procs[0].TryLock(bg, "first", "1")
			wantIs(t, "a resource without a floor", err, tierlock.ErrUnavailable)
			k := mustLock(t, procs[0].Locker, "x", "1")
			for _, p := range procs {
				p.toRedis.Pass()
				p.toRedis.Accept()
			}
			takesFrom(t, patience, tierlock.Redis, procs...)
			if _, err := procs[1].TryLock(bg, "x", "1"); !errors.Is(err, tierlock.ErrHeld) {
				t.Errorf("a key that was held before the return: %v", err)
			}
			mustUnlock(t, k)
			mustUnlock(t, be)
			mustUnlock(t, mustLock(t, procs[0].Locker, "first", "1"))
		})
	}
}

// A process that starts while MySQL is down gives no exclusive lock, and takes best
// effort from Redis; both go on when MySQL is there. So it is for the first process
// ever, and for one that comes to others, after switches whose records are in Redis:
// there, too, fences rise over what was held before.
func TestStartWhileMySQLIsDown(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	last := map[string]tierlock.Token{}
	for _, who := range []string{"the first", "a later one"} {
		p := rig.NewProxy(t, mysqlAddr(s.mysql))
		p.Refuse()
		a := s.joinVia(t, rig.NewProxy(t, s.redis.Addr), p)
		be, err := a.Lock(bg, "be", "1", tierlock.Wait(patience))
		if err != nil {
			t.Fatalf("%s: best effort: %v", who, err)
		}
		if be.Token().Tier != tierlock.Redis {
			t.Errorf("%s: best effort from %v", who, be.Token().Tier)
		}
		first := mustLock(t, a.Locker, "first", "1", tierlock.Wait(patience))
		for _, k := range []*tierlock.Lock{be, first} {
			if was := last[k.Token().Resource]; k.Token().Fence <= was.Fence {
				t.Errorf("%s: after %v came %v", who, was, k.Token())
			}
		}
		mustUnlock(t, first)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if k, err := a.TryLock(bg, "x", "1"); err == nil {
				t.Fatalf("%s: %v without an arbiter", who, k.Token())
			} else {
				wantIs(t, who+": exclusive", err, tierlock.ErrUnavailable)
			}
		}
		p.Accept()
		takesFrom(t, patience, tierlock.Redis, a)
		if err := be.Err(); err != nil {
			t.Errorf("%s: best effort: %v", who, err)
		}
		mustUnlock(t, be)
		if who == "the first" {
			s.redis.Kill()
			takesFrom(t, patience, tierlock.MySQL, a)
			s.redis.Start()
			takesFrom(t, patience, tierlock.Redis, a)
			for _, resource := range []string{"be", "first"} {
				k := mustLock(t, a.Locker, resource, "1")
				last[resource] = k.Token()
				mustUnlock(t, k)
			}
		}
	}
}

// Processes that do not agree on what is exclusive say so: in the log, in Status,
// and by the worth of their holds. It concerns what they do not agree on, and nothing
// that only one of them has. Each has as many resources as it may.
func TestDifferingPolicies(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	full := func(prefix string) func(c *tierlock.Config) {
		return func(c *tierlock.Config) {
			for len(c.Resources) < tierlock.MaxChainResources {
				c.Resources = append(c.Resources, tierlock.Resource{Name: fmt.Sprint(prefix, len(c.Resources)), Floor: tierlock.MySQL})
			}
		}
	}
	differing := func(p *chained, names ...string) func() bool {
		return func() bool { return slices.Equal(p.Status().Chain.Differing, names) }
	}
	worth := func(p *chained, resource, key string, want tierlock.Guarantee) *tierlock.Lock {
		t.Helper()
		k := mustLock(t, p.Locker, resource, key)
		if k.Guarantee() != want {
			t.Errorf("%s is worth %v, want %v", resource, k.Guarantee(), want)
		}
		return k
	}
	also := func(c *tierlock.Config) {
		c.Resources = append(c.Resources, tierlock.Resource{Name: "also", Exclusive: true, Floor: tierlock.MySQL})
	}
	a := s.join(t, also, full("of-a-"))
	takesFrom(t, patience, tierlock.Redis, a)
	other := s.join(t, also, full("of-another-"))
	takesFrom(t, patience, tierlock.Redis, other)
	before, kept := worth(a, "x", "before", tierlock.Exclusive), worth(a, "also", "kept", tierlock.Exclusive)
	odd := s.join(t, also, func(c *tierlock.Config) { c.Resources[0].Reentrant = !c.Resources[0].Reentrant })
	takesFrom(t, patience, tierlock.Redis, odd)
	for _, p := range []*chained{a, other, odd} {
		rig.Eventually(t, patience, "the difference is noticed", differing(p, "x"))
		mustUnlock(t, worth(p, "x", "1", tierlock.FencedOnly))
		mustUnlock(t, worth(p, "also", "1", tierlock.Exclusive))
		rig.Eventually(t, patience, "the difference is logged", func() bool { return slices.ContainsFunc(p.log.all(), saysPolicies) })
	}
	_, err := a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
	if wantIs(t, "TryLock", err, tierlock.ErrUnavailable); !contains(err, "another policy") {
		t.Errorf("the refusal does not say why: %v", err)
	}
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := odd.Close(ctx); err != nil {
		t.Error(err)
	}
	rig.Eventually(t, patience, "all agree again", differing(a))
	if before.Guarantee() != tierlock.FencedOnly || kept.Guarantee() != tierlock.Exclusive {
		t.Errorf("what was held meanwhile is worth %v and %v", before.Guarantee(), kept.Guarantee())
	}
	mustUnlock(t, before)
	mustUnlock(t, kept)
	mustUnlock(t, worth(a, "x", "after", tierlock.Exclusive))
}

func saysPolicies(line string) bool { return contains(errors.New(line), "other policies") }

// Scenario 76: fences rise over FLUSHALL, from Redis to MySQL, over FLUSHALL again
// and back. (FLUSHALL with holds voids exclusion; here is none at that moment.) The
// clock of Redis is an hour ahead of MySQL's, so that the epoch alone makes them rise.
func TestFencesRiseOverStoresAndLostData(t *testing.T) {
	t.Parallel()
	redis, clock := rig.RedisWithClock(t)
	clock.Step(time.Hour)
	s := &twoStores{redis: redis, mysql: migratedServer(t)}
	a, b := s.join(t), s.join(t)
	takesFrom(t, patience, tierlock.Redis, a, b)
	last := map[string]tierlock.Token{}
	rise := func(when string) {
		t.Helper()
		for i := range 30 {
			resource := []string{"x", "be"}[i%2]
			key := fmt.Sprint(i % 3)
			k := mustLock(t, []*chained{a, b}[i%2].Locker, resource, key)
			if got := k.Token(); got.Fence <= last[resource+key].Fence {
				t.Errorf("%s: after %v came %v", when, last[resource+key], got)
			}
			last[resource+key] = k.Token()
			mustUnlock(t, k)
		}
	}
	rise("at first")
	s.redis.Do("FLUSHALL")
	takesFrom(t, patience, tierlock.Redis, a, b)
	rise("after FLUSHALL")
	s.redis.Kill()
	takesFrom(t, patience, tierlock.MySQL, a, b)
	rise("on MySQL")
	s.redis.Start()
	takesFrom(t, patience, tierlock.Redis, a, b)
	rise("back on Redis")
	s.redis.Do("FLUSHALL")
	takesFrom(t, patience, tierlock.Redis, a, b)
	rise("after FLUSHALL, back on Redis")
}
