package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// steadyCluster has three masters that nobody takes for dead.
func steadyCluster(t testing.TB) *rig.Cluster {
	t.Helper()
	c := rig.StartCluster(t, false)
	c.Steady()
	return c
}

// openCluster is a calm store that is connected.
func openCluster(t testing.TB, c *rig.Cluster) *redisstore.Store {
	t.Helper()
	return connected(t, openWith(t, clusterOptions(c), calm))
}

// openBriskCluster is a store that notices within seconds where a node is silent.
func openBriskCluster(t testing.TB, c *rig.Cluster) *redisstore.Store {
	t.Helper()
	return connected(t, openWith(t, redisstore.RecommendedOptions(c.Addrs()...), calm))
}

func clusterOptions(c *rig.Cluster) rueidis.ClientOption { return patient(c.Addrs()...) }

// eventuallyWatch watches a lock once that is possible.
func eventuallyWatch(t testing.TB, s *redisstore.Store, key string) tierlock.Watch {
	t.Helper()
	var w tierlock.Watch
	rig.Eventually(t, time.Minute, "a watch of "+key, func() bool {
		var err error
		w, err = s.Watch(background, name(key))
		return err == nil
	})
	t.Cleanup(w.Close)
	return w
}

// wantPush checks, round for round, that a release comes through as a signal.
func wantPush(t testing.TB, s tierlock.Store, w tierlock.Watch, key string) {
	t.Helper()
	for i := range 3 {
		signalledNow(w)
		lockUnlock(t, s, key)
		if !signalled(w, patience) {
			t.Fatalf("release %d was not signalled", i)
		}
	}
}

// keysOn is a key that each of the nodes serves.
func keysOn(t testing.TB, c *rig.Cluster, nodes ...*rig.RedisServer) []string {
	t.Helper()
	keys := make([]string, len(nodes))
	for i := range nodes {
		for n := 0; keys[i] == ""; n++ {
			if key := fmt.Sprint("key-", n); c.OwnerOf(keyOf(key)) == nodes[i] {
				keys[i] = key
			}
		}
	}
	return keys
}

// The tests here run in parallel: goroutines that they leave are found by
// rig.Main, in the end.

// A watch is subscribed to at the node that serves its lock, and follows the
// lock's slot: the server ends the subscription there without being asked.
func TestWatchFollowsItsSlot(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s, other := openCluster(t, c), openCluster(t, c)
	keys := keysOn(t, c, c.Nodes...)
	watches := make([]tierlock.Watch, len(keys))
	for i, key := range keys {
		watches[i] = watch(t, s, key)
		if n := channels(c.Nodes[i]); n != 1 {
			t.Errorf("node %d has %d channels; wanted the one of its lock", i, n)
		}
		wantPush(t, other, watches[i], key)
	}

	// A hold outlives the migration: renewed where its key is, before and after
	// that has moved, and released at the target, before the others know that.
	from, to := c.Nodes[0], c.Nodes[1]
	lease := newLease()
	mustAcquire(t, other, ask(keys[0], lease, time.Minute))
	signalledNow(watches[0])
	m := c.Migrate(keyOf(keys[0]), to)
	for _, move := range []func(){func() {}, m.Keys} {
		move()
		if r := renewOne(t, other, keys[0], lease, time.Minute); r.Err != nil || r.State != tierlock.LeaseOwned {
			t.Errorf("renewal in a slot on its way: %+v", r)
		}
		// A lock and its fence record are two keys.
		res, err := s.Acquire(t.Context(), ask(keys[0], newLease(), time.Second))
		if err != nil || res.Granted {
			t.Errorf("acquire in a slot on its way: %+v, %v; wanted to hear that it is held", res, err)
		}
	}
	mustRelease(t, other, drop(keys[0], lease), tierlock.LeaseOwned)
	// The server refuses commands of several keys where some are absent.
	_, err := other.Acquire(t.Context(), ask(keys[0], newLease(), time.Second))
	wantClass(t, "acquire of a free lock in a slot on its way", err, tierlock.ErrUnavailable)
	began := time.Now()
	m.Finish()
	if !signalled(watches[0], patience) {
		t.Fatal("no signal after the slot has moved")
	}
	t.Logf("subscribed again %v after the beginning of the end", time.Since(began))
	if channels(from) != 0 || channels(to) != 2 {
		t.Errorf("%d channels at the source, %d at the target; wanted 0 and 2", channels(from), channels(to))
	}
	for i, key := range keys {
		wantPush(t, other, watches[i], key)
	}

	// A new watch in the moved slot, with a table of slots that is out of date.
	w := watch(t, other, keys[0])
	wantPush(t, s, w, keys[0])
	c.Move(keyOf(keys[0]), from)
	again := eventuallyWatch(t, other, keys[0])
	wantPush(t, s, again, keys[0])
	for _, w := range append(watches, w, again) {
		w.Close()
	}
	rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(c.Nodes) == 0 })
}

// A slot that comes back before the watch is gone, watched and closed over and
// over: what the server ended and what we ended are not mixed up.
func TestWatchesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s, other := openCluster(t, c), openCluster(t, c)
	key := keysOn(t, c, c.Nodes[0])[0]
	done := make(chan struct{})
	stop := sync.OnceFunc(func() { close(done) })
	defer stop()
	var wg sync.WaitGroup
	var mu sync.Mutex
	rounds, late := 0, 0
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				w, err := s.Watch(background, name(key))
				if err != nil {
					continue // bounded by CallTimeout; a waiter polls
				}
				lease := newLease()
				res, err := other.Acquire(background, ask(key, lease, 30*time.Second))
				if err == nil && res.Granted {
					_, err = other.Release(background, drop(key, lease))
				}
				// While the slot moves the store may be unavailable for a moment.
				if err == nil && !signalled(w, patience) {
					t.Error("a release after Watch returned was not signalled")
				}
				w.Close()
				mu.Lock()
				rounds++
				if err != nil {
					late++
				}
				mu.Unlock()
			}
		})
	}
	for i := range 6 {
		c.Move(keyOf(key), c.Nodes[(i+1)%2])
		rig.Eventually(t, time.Minute, "more rounds", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return rounds >= 20*(i+1)
		})
	}
	stop()
	wg.Wait()
	t.Logf("%d rounds, %d without an answer", rounds, late)
	w := eventuallyWatch(t, s, key)
	wantPush(t, other, w, key)
	w.Close()
	rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(c.Nodes) == 0 })
}

// Scenario 57 on a Cluster: the master of a watched lock dies, or falls silent,
// and its replica takes over.
func TestWatchOutlivesItsMaster(t *testing.T) {
	t.Parallel()
	for _, lose := range []struct {
		name string
		f    func(*rig.RedisServer)
	}{
		{"killed", (*rig.RedisServer).Kill},
		{"stopped", (*rig.RedisServer).Pause},
	} {
		t.Run(lose.name, func(t *testing.T) {
			t.Parallel()
			c := rig.StartCluster(t, true)
			s, other := openBriskCluster(t, c), openBriskCluster(t, c)
			keys := keysOn(t, c, c.Nodes[0], c.Nodes[1])
			w, calm := eventuallyWatch(t, s, keys[0]), eventuallyWatch(t, s, keys[1])
			wantPush(t, other, w, keys[0])
			began := time.Now()
			lose.f(c.Nodes[0])
			wantPush(t, other, calm, keys[1]) // the others do not suffer
			next := c.NewOwner(keyOf(keys[0]), c.Nodes[0])
			over := time.Since(began)
			if !signalled(w, patience) {
				t.Fatal("no signal after the failover")
			}
			t.Logf("failover after %v, subscribed again after %v", over, time.Since(began))
			rig.Eventually(t, patience, "the store works", func() bool {
				res, err := other.Acquire(background, ask(keys[0], "probe", time.Minute))
				return err == nil && res.Granted
			})
			mustRelease(t, other, drop(keys[0], "probe"), tierlock.LeaseOwned)
			wantPush(t, other, w, keys[0])
			if n := channels(next); n != 1 {
				t.Errorf("the new master has %d channels; wanted 1", n)
			}
			if lose.name == "stopped" {
				c.Nodes[0].Resume()
			} else {
				c.Nodes[0].Start()
			}
			c.Healthy()
			wantPush(t, other, w, keys[0])
			w.Close()
			calm.Close()
			rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(c.Nodes) == 0 })
		})
	}
}

// Where no node serves the lock, or none at all is there, Watch does not keep
// its caller waiting, and works again by itself.
func TestWatchWithoutAMaster(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	keys := keysOn(t, c, c.Nodes...)
	w := watch(t, s, keys[0])
	fails := func(key, what string) {
		t.Helper()
		rig.Eventually(t, patience, what, func() bool {
			began := time.Now()
			_, err := s.Watch(background, name(key))
			if err != nil {
				wantClass(t, "watch", err, tierlock.ErrUnavailable)
			}
			return err != nil && time.Since(began) < 50*time.Millisecond
		})
	}
	c.Nodes[0].Kill()
	fails(keys[0], "the loss is noticed")
	other := watch(t, s, keys[1])
	other.Close()
	for _, n := range c.Nodes[1:] {
		n.Kill()
	}
	fails(keys[1], "the loss of all is noticed")
	for _, n := range c.Nodes {
		n.Start()
	}
	c.Healthy()
	if !signalled(w, time.Minute) {
		t.Fatal("the open watch was not signalled when its node came back")
	}
	rig.Eventually(t, time.Minute, "the store works", func() bool {
		res, err := s.Acquire(background, ask(keys[0], "probe", time.Minute))
		return err == nil && res.Granted
	})
	mustRelease(t, s, drop(keys[0], "probe"), tierlock.LeaseOwned)
	wantPush(t, s, w, keys[0])
	w2 := eventuallyWatch(t, s, keys[1])
	wantPush(t, s, w2, keys[1])
}

// A slot that nobody serves is no business of the other watches at the node that
// served it.
func TestWatchInASlotThatNobodyServes(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	good := watch(t, s, keysOn(t, c, c.Nodes[0])[0])
	bad := ""
	for n := 1000; bad == ""; n++ {
		if key := fmt.Sprint("key-", n); c.OwnerOf(keyOf(key)) == c.Nodes[0] {
			bad = key
		}
	}
	slot := fmt.Sprint(c.Slot(keyOf(bad)))
	for _, n := range c.Nodes {
		n.Do("CLUSTER", "DELSLOTS", slot)
	}
	for range 5 {
		_, err := s.Watch(background, name(bad))
		wantClass(t, "watch in a slot that nobody serves", err, tierlock.ErrUnavailable)
		time.Sleep(50 * time.Millisecond)
	}
	if signalledNow(good) {
		t.Error("another watch of the node was subscribed anew")
	}
	c.Nodes[0].Do("CLUSTER", "ADDSLOTS", slot)
	c.Healthy()
	w := eventuallyWatch(t, s, bad)
	rig.Eventually(t, patience, "the store works", func() bool {
		res, err := s.Acquire(background, ask(bad, "probe", time.Minute))
		return err == nil && res.Granted
	})
	mustRelease(t, s, drop(bad, "probe"), tierlock.LeaseOwned)
	wantPush(t, s, w, bad)
}

// Part names the node that serves a lock. It may be out of date, until a call
// fails.
func TestPart(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	keys := keysOn(t, c, c.Nodes...)
	for i, n := range c.Nodes {
		rig.Eventually(t, patience, "the part is known", func() bool { return s.Part(name(keys[i])) == n.Addr })
	}
	c.Move(keyOf(keys[0]), c.Nodes[1])
	c.Nodes[2].Kill()
	rig.Eventually(t, patience, "the slot's new node is known", func() bool {
		_, err := s.Inspect(background, name(keys[2]))
		return err != nil && s.Part(name(keys[0])) == c.Nodes[1].Addr
	})
	if part := open(t, rig.Redis(t).Addr).Part(name("k")); part != "" {
		t.Errorf("one server has the part %q", part)
	}
}
