package tests_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/localstore"
)

// Scenario 1, in a chain: keys that are held for long, callers that do not wait for them,
// and many that time out. They are told so, no store is called down, no other is asked, and nobody votes
// for a switch.
func TestContentionIsNoOutageInAChain(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a, b := s.join(t), s.join(t)
	takesFrom(t, patience, tierlock.Redis, a, b)
	epoch := a.Status().Chain.Epoch
	for _, resource := range []string{"x", "be"} {
		k := mustLock(t, a.Locker, resource, "1")
		for range 10 { // more in a row than the failures of a store that is down
			_, err := b.TryLock(bg, resource, "1")
			wantIs(t, "a caller that does not wait", err, tierlock.ErrHeld)
			wantNotIs(t, "a caller that does not wait", err, tierlock.ErrUnavailable)
		}
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				_, err := []*chained{a, b}[i%2].Lock(bg, resource, "1", tierlock.Wait(time.Duration(1000+20*i)*time.Millisecond))
				wantIs(t, "a caller that timed out", err, tierlock.ErrHeld)
				wantNotIs(t, "a caller that timed out", err, tierlock.ErrUnavailable)
			})
		}
		wg.Wait()
		mustUnlock(t, k)
	}
	if st := b.Status().Chain; st.Epoch != epoch || st.Tier != tierlock.Redis || st.RedisDown {
		t.Errorf("epoch %d has become %+v", epoch, st)
	}
	for _, p := range []*chained{a, b} {
		if lines := p.log.all(); slices.ContainsFunc(lines, saysOutage) {
			t.Errorf("a store was called down: %q", lines)
		}
	}
	if n := countSQL(t, mysqlPool(t, s.mysql.DSN("")).DB, "SELECT COUNT(*) FROM lock_record WHERE namespace=?", namespace); n != 0 {
		t.Errorf("%d locks were taken in MySQL", n)
	}
}

func saysOutage(line string) bool { return strings.Contains(line, "store does not answer") }

// Scenario 8: both stores are away, and a lock whose floor is local is given in the
// process. It is known for what it is; when a store is back the lock goes there, and
// nobody else gets the key; and when it was unlocked the next outage finds nothing of
// it.
func TestLocalLocksComeAndGo(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	low := func(c *tierlock.Config) {
		c.Stores = append(c.Stores, localstore.New(localstore.Options{}))
		c.Resources = append(c.Resources, tierlock.Resource{Name: "low", Floor: tierlock.Local})
	}
	a, b := s.join(t, low), s.join(t, low)
	takesFrom(t, patience, tierlock.Redis, a, b)
	mustUnlock(t, mustLock(t, a.Locker, "low", "1"))
	for round := range 2 {
		s.redis.Kill()
		s.mysql.Kill()
		k, err := a.Lock(bg, "low", "1", tierlock.Wait(patience))
		if err != nil {
			t.Fatalf("outage %d: %v", round, err)
		}
		if got := k.Token(); k.Guarantee() != tierlock.ProcessLocal || got.Tier != tierlock.Local || got.Fence != 0 {
			t.Errorf("outage %d: %v, worth %v", round, got, k.Guarantee())
		}
		_, err = a.TryLock(bg, "low", "1")
		wantIs(t, "the same key again", err, tierlock.ErrHeld)
		_, err = a.TryLock(bg, "x", "1")
		wantIs(t, "an exclusive lock", err, tierlock.ErrUnavailable)
		s.redis.Start()
		s.mysql.Start()
		takesFrom(t, patience, tierlock.Redis, a, b)
		rig.Eventually(t, patience, "no lock is in the process alone", func() bool { return !a.Status().Local })
		if other, err := b.TryLock(bg, "low", "1"); err == nil {
			t.Errorf("outage %d: another process was given %v", round, other.Token())
		}
		if err := k.Err(); err != nil {
			t.Errorf("outage %d: nobody else wanted the key, and the lock was lost: %v", round, err)
		} else if k.Guarantee() != tierlock.ProcessLocal || k.Token().Fence != 0 {
			t.Errorf("outage %d: worth %v now, %v", round, k.Guarantee(), k.Token())
		}
		mustUnlock(t, k)
		next := mustLock(t, b.Locker, "low", "1")
		if next.Token().Tier != tierlock.Redis || next.Token().Fence == 0 {
			t.Errorf("outage %d: then came %v", round, next.Token())
		}
		mustUnlock(t, next)
	}
}
