package tests_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// A slot moves to another master while a lock in it is held and waited for: the
// hold is renewed on both, the waiter wakes on the new one.
func TestSlotMovesInMidHold(t *testing.T) {
	t.Parallel()
	d, c := onCluster(t, false)
	ls, ws := d.lockers(t, 2)
	k := mustLock(t, ls[0], "load", "k")
	key := keyOf("load", "k")
	waited := make(chan *tierlock.Lock, 1)
	go func() {
		k, err := ls[1].Lock(bg, "load", "k", tierlock.UntilDone())
		if err != nil {
			t.Errorf("the waiter: %v", err)
		}
		waited <- k
	}()
	subscribed := func(n *rig.RedisServer) bool {
		return len(n.Do("PUBSUB", "SHARDCHANNELS", key+":wake").([]any)) == 1
	}
	fence := k.Token().Fence
	var woken []time.Duration
	for range 2 { // there and back
		from := c.OwnerOf(key)
		to := c.Nodes[0]
		if to == from {
			to = c.Nodes[1]
		}
		rig.Eventually(t, patience, "the waiter is subscribed at the source", func() bool { return subscribed(from) })
		m := c.Migrate(key, to)
		time.Sleep(loadTTL / 2) // a renewal, and polls, while the key is still at the source
		m.Keys()
		time.Sleep(loadTTL / 2) // and while it is at the target, which does not serve the slot yet
		m.Finish()
		rig.Eventually(t, patience, "the waiter is subscribed at the target", func() bool { return subscribed(to) })
		rig.Eventually(t, patience, "the waiter is no longer subscribed at the source", func() bool { return !subscribed(from) })
		if err := k.Err(); err != nil {
			t.Fatalf("a hold in a slot that moved: %v", err)
		}
		released := time.Now()
		mustUnlock(t, k)
		select {
		case k = <-waited:
		case <-time.After(patience):
			t.Fatal("the waiter has not got the lock")
		}
		if k == nil {
			t.FailNow()
		}
		woken = append(woken, time.Since(released))
		if k.Token().Fence <= fence {
			t.Errorf("fence %v after %v", k.Token().Fence, fence)
		}
		fence = k.Token().Fence
		go func() {
			k, err := ls[0].Lock(bg, "load", "k", tierlock.UntilDone())
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			waited <- k
		}()
	}
	mustUnlock(t, k)
	mustUnlock(t, <-waited)
	// Less than the poll, by which it would have it at the latest, unless the machine
	// stood still.
	if slices.Min(woken) > 900*time.Millisecond {
		t.Errorf("wake-ups of the waiter after %v", woken)
	}
	d.leavesNothing(t, ls, ws)
}

// A master without a replica dies. Its locks are unavailable, the others' are
// not; when it is back, it works again.
func TestMasterAway(t *testing.T) {
	for _, lose := range []struct {
		name       string
		away, back func(*rig.RedisServer)
	}{
		{"killed", (*rig.RedisServer).Kill, (*rig.RedisServer).Start},
		{"stopped", (*rig.RedisServer).Pause, (*rig.RedisServer).Resume},
	} {
		t.Run(lose.name, func(t *testing.T) {
			t.Parallel()
			d, c := onCluster(t, false)
			ls, ws := d.lockers(t, 1)
			var here, there []string // keys of the master that dies, and of others
			for n := 0; len(here) < 10 || len(there) < 10; n++ {
				key := fmt.Sprint("key-", n)
				if c.OwnerOf(keyOf("load", key)) == c.Nodes[1] {
					here = append(here, key)
				} else {
					there = append(there, key)
				}
			}
			for _, key := range append(here[:3:3], there...) {
				works(t, ls[0], "load", key)
			}
			// Their renewals are due at the same time.
			kept, lost := mustLock(t, ls[0], "load", there[1]), mustLock(t, ls[0], "load", here[3])
			lose.away(c.Nodes[1])
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					at := time.Now() // before the look at the lock
					if lost.Err() != nil {
						return
					}
					if end := ws[0].believableUntil(lost.Token().Lease, loadTTL); at.After(end) {
						t.Errorf("belief %v after its end", at.Sub(end))
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			calls, slow := 0, 0
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				for _, key := range here[:3] {
					began := time.Now()
					_, err := ls[0].TryLock(bg, "load", key)
					wantIs(t, "a lock of the master that is away", err, tierlock.ErrUnavailable)
					wantNotIs(t, "a lock of the master that is away", err, tierlock.ErrHeld, tierlock.ErrMisconfigured)
					if time.Since(began) > 100*time.Millisecond {
						slow++
					}
				}
				// One attempt of it may come too late on a busy machine.
				began := time.Now()
				k, err := ls[0].Lock(bg, "load", there[0], tierlock.Wait(patience))
				if err != nil {
					t.Errorf("a lock of another master: %v", err)
					break
				}
				calls += 3
				between(t, "time of a lock of another master", time.Since(began), 0, slack)
				mustUnlock(t, k)
			}
			// Three failures, and then one try a second.
			if slow > calls/2 {
				t.Errorf("%d of %d calls took their time", slow, calls)
			}
			<-ended
			if err := kept.Err(); err != nil {
				t.Errorf("a hold of another master: %v", err)
			}
			mustUnlock(t, kept)
			wantLost(t, "the hold of the master that is away", lost.Err(), "expired", "unconfirmed")
			wantLost(t, "its unlock", lost.Unlock(), "expired", "unconfirmed")
			lose.back(c.Nodes[1])
			c.Healthy()
			for _, key := range here {
				works(t, ls[0], "load", key)
			}
			d.leavesNothing(t, ls, ws)
		})
	}
}
