package tests_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// joinProcess starts a process of its own, with direct ways to both stores.
func (s *twoStores) joinProcess(t testing.TB) *peer {
	t.Helper()
	return newPeer(t, peerConfig{Addr: s.redis.Addr, Locks: s.mysql.DSN(mysqlParams), Resources: chainedResources, Degrade: switchTimes})
}

// A process is stopped with an exclusive hold, and killed in another case, and Redis
// dies. The switch waits for its permit to end, some W, and then its key is given to
// others. When it goes on its hold is over at the first look, and the late unlock
// frees nobody's lock. Holds of those who answer are kept.
func TestMemberStoppedAtASwitch(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"stopped", "killed"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := startTwoStores(t)
			a := s.join(t)
			p := s.joinProcess(t)
			takesFrom(t, patience, tierlock.Redis, a)
			id, token := p.lock("x", "1", patience)
			kept := mustLock(t, a.Locker, "x", "2")
			p.send(order{ID: id, Op: "step"})
			p.waitFor(id, "step", patience)
			if p.p.Pause(); way == "killed" {
				p.p.Kill()
			}
			stopped := time.Now()
			s.redis.Kill()
			// The permit was refreshed up to one period ago.
			next, err := a.Lock(bg, "x", "1", tierlock.UntilDone())
			if err != nil {
				t.Fatal(err)
			}
			between(t, "the others waited", time.Since(stopped), switchTimes.Permit/2, switchWait+5*slack)
			if got := next.Token(); got.Tier != tierlock.MySQL || got.Fence <= token.Fence {
				t.Errorf("after %v came %v", token, got)
			}
			if err := kept.Err(); err != nil {
				t.Errorf("a hold of the process that was there: %v", err)
			}
			if way == "stopped" {
				p.p.Resume()
				for {
					e := p.next(patience)
					if e.What == "step" && e.at().After(stopped.Add(time.Second)) {
						t.Fatalf("a step %v after it was stopped, while others have the key", e.at().Sub(stopped))
					}
					if e.What == "stopped" {
						if !e.is("lost") {
							t.Errorf("its hold ended with %v", e.Err)
						}
						break
					}
				}
				if e := p.unlock(id); !e.is("lost") {
					t.Errorf("its unlock: %q", e.Err)
				}
			}
			if err := next.Err(); err != nil {
				t.Errorf("the next hold: %v", err)
			}
			mustUnlock(t, next)
			mustUnlock(t, kept)
			defer s.redis.Start() // what it was asked as it died is given back: Close waits for that
			if way == "stopped" { // it takes part again
				rig.Eventually(t, patience, "the process that was stopped takes locks from MySQL", func() bool {
					id := p.send(order{Op: "lock", Resource: "x", Key: "3", Wait: time.Second})
					for {
						switch e := p.next(patience); {
						case e.ID == id && e.What == "refused":
							return false
						case e.ID == id && e.What == "locked":
							p.mustUnlock(id)
							return e.Token.Tier == tierlock.MySQL
						}
					}
				})
			}
		})
	}
}

// Scenario 13: Redis comes and goes, ten times, for less time than a return needs.
// The chain goes to MySQL once at most and stays, no hold of an exclusive resource is
// lost, and one that is asked for is given or refused, never twice.
func TestFlappingRedis(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	slow := func(c *tierlock.Config) { c.Degrade.Up = 3 * time.Second }
	a, b := s.join(t, slow), s.join(t, slow)
	takesFrom(t, patience, tierlock.Redis, a, b)
	epoch := a.Status().Chain.Epoch
	k := mustLock(t, a.Locker, "x", "kept")
	got, refused := 0, 0
	for i := range 10 {
		s.redis.Kill()
		for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); {
			for j, p := range []*chained{a, b} {
				k, err := p.Lock(bg, "x", fmt.Sprint("flap", j), tierlock.Wait(100*time.Millisecond))
				if err != nil {
					wantIs(t, "while it flaps", err, tierlock.ErrUnavailable)
					refused++
					continue
				}
				got++
				if err := k.Unlock(); err != nil {
					wantIs(t, "Unlock while it flaps", err, tierlock.ErrUnavailable)
				}
			}
		}
		s.redis.Start()
		if i < 9 {
			time.Sleep(300 * time.Millisecond)
		}
	}
	if err := k.Err(); err != nil {
		t.Errorf("the hold: %v", err)
	}
	st := a.Status().Chain
	t.Logf("%d locks given and %d refused, %+v", got, refused, st)
	if got == 0 {
		t.Error("no lock was given all the time")
	}
	takesFrom(t, patience, tierlock.Redis, a, b)
	// Where Redis answered in between, empty, there may have been a switch to that
	// first; then one to MySQL and one back. Each needs votes of both.
	if last := a.Status().Chain.Epoch; last > epoch+6 {
		t.Errorf("ten outages made %d switches", last-epoch)
	}
	if _, err := b.TryLock(bg, "x", "kept"); err == nil {
		t.Error("the key of the hold was given twice")
	}
	mustUnlock(t, k)
}

// Scenario 12: a Redis that is silent, all connections up, is left with time to
// spare: within 0.56 of a TTL with the defaults, whose periods are ten times those
// of this test and more. All holds live on.
func TestSilentRedisIsLeftInTime(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]func(*twoStores, ...*chained){
		"stopped": func(s *twoStores, _ ...*chained) { s.redis.Pause() },
		"cut off": func(_ *twoStores, all ...*chained) {
			for _, p := range all {
				p.toRedis.BlackHole()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startTwoStores(t)
			short := func(c *tierlock.Config) { c.Resources[0].TTL = 10 * time.Second }
			a, b := s.join(t, short), s.join(t, short)
			takesFrom(t, patience, tierlock.Redis, a, b)
			var holds []*tierlock.Lock
			for i := range 50 {
				holds = append(holds, mustLock(t, []*chained{a, b}[i%2].Locker, "x", fmt.Sprint(i)))
			}
			silence(s, a, b)
			begin := time.Now()
			takesFrom(t, patience, tierlock.MySQL, a, b)
			left := time.Since(begin)
			t.Logf("locks come from MySQL after %v", left)
			if limit := 56 * 10 * time.Second / 100; left > limit {
				t.Errorf("that took %v, more than %v", left, limit)
			}
			for i, k := range holds {
				if err := k.Err(); err != nil {
					t.Errorf("hold %d: %v", i, err)
				}
			}
			// Over the first lease and more: they are renewed in MySQL.
			time.Sleep(time.Until(begin.Add(12 * time.Second)))
			s.redis.Resume()
			a.toRedis.Pass()
			b.toRedis.Pass()
			takesFrom(t, patience, tierlock.Redis, a, b)
			for _, k := range holds {
				mustUnlock(t, k)
			}
		})
	}
}
