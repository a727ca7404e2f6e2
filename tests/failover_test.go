package tests_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 65, 66 and 70: the primary dies, or falls silent, under load, and a
// replica takes over. Nobody believes past the end of their lease, a hold whose
// key was replicated goes on, its waiter wakes, fences rise, and everything
// works again without anybody's doing. WAIT is not offered, so there is nothing
// that could keep the new primary from being used.
func TestFailover(t *testing.T) {
	for _, where := range []struct {
		name  string
		start func(testing.TB) *topology
	}{
		{"sentinel", onSentinel},
		{"cluster", func(t testing.TB) *topology { d, _ := onCluster(t, true); return d }},
	} {
		for _, lose := range []struct {
			name       string
			away, back func(*rig.RedisServer)
		}{
			{"killed", (*rig.RedisServer).Kill, (*rig.RedisServer).Start},
			{"stopped", (*rig.RedisServer).Pause, (*rig.RedisServer).Resume},
		} {
			t.Run(where.name+", "+lose.name, func(t *testing.T) {
				t.Parallel()
				failover(t, where.start(t), lose.away, lose.back)
			})
		}
	}
}

func failover(t *testing.T, d *topology, away, back func(*rig.RedisServer)) {
	ls, ws := d.lockers(t, 3)
	keys := make([]string, 24)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i)
	}
	steady := mustLock(t, ls[0], "long", "k")
	type got struct {
		lock *tierlock.Lock
		at   time.Time
		err  error
	}
	waited := make(chan got, 1)
	go func() {
		k, err := ls[1].Lock(bg, "long", "k", tierlock.UntilDone())
		waited <- got{k, time.Now(), err}
	}()
	old := d.primary(keyOf("long", "k"))
	if n := old.Int("WAIT", "1", "5000"); n < 1 {
		t.Fatalf("%d replicas have the hold that is to survive", n)
	}
	var again []string // of the same primary, which on a Cluster is one of three
	for n := 0; len(again) < len(ls); n++ {
		if key := fmt.Sprint("again-", n); d.primary(keyOf("load", key)) == old {
			again = append(again, key)
		}
	}
	ld := startLoad(ls, ws, keys)
	time.Sleep(2 * time.Second)
	rig.Eventually(t, patience, "there is a load", func() bool { before, _ := ld.times(time.Now()); return before >= 20 })

	from := time.Now()
	away(old)
	next := d.next(keyOf("long", "k"), old)
	over := time.Now()
	for i, l := range ls {
		works(t, l, "load", again[i])
	}
	to := time.Now()
	t.Logf("failover after %v, all work after %v", over.Sub(from), to.Sub(from))

	// The hold that was replicated, and its waiter.
	if err := steady.Err(); err != nil {
		t.Errorf("a hold of a replicated key: %v", err)
	}
	select {
	case g := <-waited:
		t.Fatalf("the waiter has returned though the lock is held: %v, %v", g.lock, g.err)
	default:
	}
	rig.Eventually(t, patience, "the waiter is subscribed at the new primary", func() bool {
		return len(next.Do("PUBSUB", "SHARDCHANNELS", keyOf("long", "k")+":wake").([]any)) == 1
	})
	released := time.Now()
	mustUnlock(t, steady)
	select {
	case g := <-waited:
		if g.err != nil {
			t.Fatalf("the waiter: %v", g.err)
		}
		// By the poll at the latest, or where its last look failed a second after
		// that; not by the end of the lease.
		between(t, "wake-up of the waiter", g.at.Sub(released), -time.Second, 5*time.Second)
		if g.lock.Token().Fence <= steady.Token().Fence {
			t.Errorf("fence %v after %v", g.lock.Token().Fence, steady.Token().Fence)
		}
		mustUnlock(t, g.lock)
	case <-time.After(patience):
		t.Fatal("the waiter has not got the lock")
	}
	for _, l := range ls { // though nobody asks the old one any more
		rig.Eventually(t, patience, "the store counts as available", func() bool { return l.Status().Stores[0].Available })
	}
	back(old)
	d.healthy() // Sentinel takes some ten seconds to demote a primary that was resumed
	time.Sleep(2 * time.Second)
	rig.Eventually(t, patience, "the load goes on", func() bool { _, after := ld.times(to); return after >= 20 })
	ld.finish(t, from, to)
	for _, key := range keys {
		if token := works(t, ls[0], "load", key); token.Fence <= ld.highest(key) {
			t.Errorf("fence %v of %s after %v", token.Fence, key, ld.highest(key))
		}
	}
	d.leavesNothing(t, ls, ws)
}

// Writes that had not reached a replica are lost with the primary. Who held such
// a lock learns it from the next renewal; until then somebody else may have it,
// with a larger fence.
func TestFailoverLosesWrites(t *testing.T) {
	t.Parallel()
	d := onSentinel(t)
	ls, ws := d.lockers(t, 2)
	old := d.primary("")
	works(t, ls[0], "steady", "warm")
	for _, n := range d.nodes {
		if n != old {
			n.Pause()
		}
	}
	// What is in the sockets of paused processes is not lost.
	if n := old.Int("CLIENT", "KILL", "TYPE", "replica"); n != 2 {
		t.Fatalf("%d replicas were cut off", n)
	}
	gone, taken := mustLock(t, ls[0], "steady", "gone"), mustLock(t, ls[0], "steady", "taken")
	old.Kill()
	for _, n := range d.nodes {
		if n != old {
			n.Resume()
		}
	}
	next := d.next("", old)
	// From now on a renewal has an answer as soon as its store is connected.
	works(t, ls[0], "load", "again")
	began := time.Now()
	works(t, ls[1], "load", "again")
	second := mustLock(t, ls[1], "steady", "taken", tierlock.Wait(patience))
	if second.Token().Fence <= taken.Token().Fence {
		t.Errorf("the second holder's fence is %v, the first one's %v", second.Token().Fence, taken.Token().Fence)
	}
	if taken.Err() == nil {
		t.Log("two holders for a moment")
	}
	waitEnd(t, gone)
	waitEnd(t, taken)
	between(t, "time to the loss", time.Since(began), 0, 10*time.Second/3+slack)
	wantLost(t, "the hold whose key is gone", gone.Err(), "gone")
	// By which of the two depends on whose request came first.
	wantLost(t, "the hold whose key is another's", taken.Err(), "taken", "gone")
	wantLost(t, "its unlock", taken.Unlock(), "taken", "gone")
	wantLost(t, "the other's unlock", gone.Unlock(), "gone")
	if v := next.Text("GET", keyOf("steady", "taken")); v == "" {
		t.Error("the unlock of the first holder took the key of the second")
	}
	mustUnlock(t, second)
	old.Start()
	d.leavesNothing(t, ls, ws)
}

// A former primary that was stopped goes on granting until the sentinels tell it,
// to those who were not told either. Such a hold is worth no more than its own
// server's lease, and ends with the demotion.
func TestResumedFormerPrimary(t *testing.T) {
	t.Parallel()
	d := onSentinel(t)
	ls, ws := d.lockers(t, 1)
	old := d.primary("")
	s := open(t, old.Addr)
	stale := newWitness(s)
	untold := newLocker(t, stale, topologyResources...)
	works(t, untold, "load", "k")
	old.Pause()
	d.next("", old)
	works(t, ls[0], "load", "k")
	old.Resume()

	works(t, untold, "load", "again")
	mine := mustLock(t, untold, "load", "k")
	theirs := mustLock(t, ls[0], "load", "k") // one lock, two servers, two holders
	began := time.Now()
	for {
		at := time.Now()
		if mine.Err() != nil {
			break
		}
		if end := stale.believableUntil(mine.Token().Lease, loadTTL); at.After(end) {
			t.Fatalf("belief %v after its end", at.Sub(end))
		}
		if at.Sub(began) > 60*time.Second {
			t.Fatal("the hold on the former primary has not ended")
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("belief in the former primary's lock ended after %v: %v", time.Since(began), mine.Err())
	wantLost(t, "the hold on the former primary", mine.Err(), "taken", "gone", "expired", "unconfirmed")
	if err := theirs.Err(); err != nil {
		t.Errorf("the hold on the primary: %v", err)
	}
	d.healthy()
	// The untold one talks to a replica now. That is no store.
	rig.Eventually(t, patience, "the former primary refuses", func() bool {
		_, err := untold.TryLock(bg, "load", "other")
		wantNotIs(t, "a lock at a replica", err, tierlock.ErrHeld, tierlock.ErrLost, tierlock.ErrMisconfigured)
		return err != nil
	})
	mustUnlock(t, theirs)
	if token := works(t, ls[0], "load", "k"); token.Fence <= mine.Token().Fence {
		t.Errorf("fence %v after %v on the former primary", token.Fence, mine.Token().Fence)
	}
	d.leavesNothing(t, ls, ws)
}
