package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// Ten thousand watches made and closed in any order, over three masters, of
// which one is silent for part of the time.
func TestChurnOfWatches(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openBriskCluster(t, c)
	for i := range 100 { // until the client has all its connections
		lockUnlock(t, s, fmt.Sprint("warm-", i))
	}
	conns := allConnections(c.Nodes)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	counts := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return made, refused
	}
	var enough atomic.Bool
	for range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, rand.Uint64()))
			var open []interface{ Close() }
			for n := 0; n < 320 || !enough.Load(); n++ {
				if len(open) > 0 && r.IntN(2) == 0 {
					i := r.IntN(len(open))
					open[i].Close()
					open[i] = open[len(open)-1]
					open = open[:len(open)-1]
				}
				w, err := s.Watch(background, name(fmt.Sprint("churn-", r.IntN(20000))))
				mu.Lock()
				if err == nil {
					open = append(open, w)
					made++
				} else {
					refused++
				}
				mu.Unlock()
			}
			for _, w := range open {
				w.Close()
			}
		})
	}
	defer enough.Store(true)
	rig.Eventually(t, time.Minute, "watches are made", func() bool { made, _ := counts(); return made > 1000 })
	c.Nodes[1].Pause()
	rig.Eventually(t, time.Minute, "a watch is refused", func() bool { _, refused := counts(); return refused > 0 })
	c.Nodes[1].Resume()
	rig.Eventually(t, time.Minute, "many watches are made", func() bool { made, _ := counts(); return made > 5000 })
	enough.Store(true)
	wg.Wait()
	t.Logf("%d made, %d refused", made, refused)
	c.Healthy()
	for _, key := range keysOn(t, c, c.Nodes...) {
		w := eventuallyWatch(t, s, key)
		wantPush(t, s, w, key)
		w.Close()
	}
	rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(c.Nodes) == 0 })
	rig.Eventually(t, patience, "connections for watches are gone", func() bool { return allConnections(c.Nodes) <= conns })
}

// A connection for messages that is cut 50 times, each time while watches of
// its node are made: every open watch is signalled after each cut.
func TestCutOverAndOver(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	for i := range 100 {
		lockUnlock(t, s, fmt.Sprint("warm-", i))
	}
	conns := allConnections(c.Nodes)
	key := keysOn(t, c, c.Nodes[0])[0]
	w := watch(t, s, key)
	for i := range 50 {
		signalledNow(w)
		if n := c.Nodes[0].Int("CLIENT", "KILL", "TYPE", "pubsub"); n == 0 && i == 0 {
			t.Fatal("nothing was cut")
		}
		if !signalled(w, patience) {
			t.Fatalf("cut %d was not signalled", i)
		}
	}
	wantPush(t, s, w, key)
	w.Close()
	rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(c.Nodes) == 0 })
	rig.Eventually(t, patience, "connections for watches are gone", func() bool { return allConnections(c.Nodes) <= conns })
}

// Close at any moment of getting a connection, while nodes are silent.
func TestCloseWhileWatchesAreMade(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	for i := range 12 {
		s := openBriskCluster(t, c)
		var wg sync.WaitGroup
		if i%2 == 0 {
			c.Nodes[i/2%3].Pause()
		}
		for k := range 30 {
			wg.Go(func() {
				if w, err := s.Watch(background, name(fmt.Sprint("k-", k))); err == nil {
					w.Close()
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		began := time.Now()
		s.Close()
		if took := time.Since(began); took > patience {
			t.Errorf("Close took %v", took)
		}
		wg.Wait()
		if i%2 == 0 {
			c.Nodes[i/2%3].Resume()
		}
	}
}
