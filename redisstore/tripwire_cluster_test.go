package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// The clocks of two masters are ten seconds apart. While a slot moves from one to
// the other, and after it, before this store has read that, the other answers for
// the slot. What it shows is not taken for the clock of the one it came from, which
// would seem to have been stepped.
func TestSlotsMoveBetweenClocks(t *testing.T) {
	t.Parallel()
	c, clock := rig.ClusterWithClock(t)
	c.Steady()
	behind, from := c.Nodes[0], c.Nodes[1]
	clock.Step(-10 * time.Second)
	s := openCluster(t, c)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, s)
	// Two keys of from: one in its first slot, by which it is probed, the other not.
	var first, other string
	for n := 0; first == ""; n++ {
		key := fmt.Sprint("key-", n)
		switch slot := redisstore.SlotOf(keyOf(key)); {
		case slot == 5461:
			first = key
		case slot > 6000 && slot < 10000:
			other = key
		}
	}
	take := func(what, key string) {
		t.Helper()
		if c.OwnerOf(keyOf(other)) != from {
			t.Fatal("the key is elsewhere")
		}
		lease := newLease()
		if res, err := s.Acquire(t.Context(), askIn(place, ask(key, lease, 30*time.Second))); err != nil || !res.Granted {
			t.Errorf("%s: got %+v, %v; wanted a grant", what, res, err)
		}
		s.Release(t.Context(), dropIn(place, key, lease, false))
	}
	take("before all", other)
	m := c.Migrate(keyOf(first), behind)
	m.Keys()
	mustProbe(t, s)
	take("after a probe by a slot that is on its way", other)
	m.Finish()
	take("in the slot that has moved", first)
	take("after that, in one that has not", other)
	mustProbe(t, s)
	take("after another probe", other)
	take("after another probe, in the slot that has moved", first)
}

// While one master is away, as for this store alone, the others' clocks are seen as
// before: what they have shown long ago would leave room for a step.
func TestProbeOfSomeMastersKnowsTheirClocks(t *testing.T) {
	t.Parallel()
	c, clock := rig.ClusterWithClock(t)
	c.Steady()
	s := openCluster(t, c)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, s)
	key := keysOn(t, c, c.Nodes[0])[0]
	mustAcquire(t, s, askIn(place, ask(key, newLease(), time.Minute)))
	c.Nodes[0].Do("DEL", keyOf(key))
	c.Nodes[2].Pause()
	defer c.Nodes[2].Resume()
	s.Later(10 * time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := s.Probe(ctx, tierlock.ProbeRequest{Namespace: "test"}); err == nil {
		t.Fatal("a probe found all masters")
	}
	clock.Step(10 * time.Second) // less than a node's timeout
	req := askIn(place, ask(key, newLease(), 30*time.Second))
	req.Budget = 200 * time.Millisecond
	wantTripped(t, "after a step, with one master away", s, req)
}
