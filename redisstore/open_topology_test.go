package redisstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 4 and 70: a Sentinel deployment or a Cluster that is not there, or
// only in part, when the store is opened.
func TestOpenTopologies(t *testing.T) {
	t.Parallel()
	for _, where := range []struct {
		name  string
		start func(testing.TB) (asked, data []*rig.RedisServer, opt rueidis.ClientOption)
	}{
		{"sentinel", func(t testing.TB) (asked, data []*rig.RedisServer, opt rueidis.ClientOption) {
			d, opt := steadySentinel(t)
			return d.Sentinels, d.Nodes, opt
		}},
		{"cluster", func(t testing.TB) (asked, data []*rig.RedisServer, opt rueidis.ClientOption) {
			c := steadyCluster(t)
			return c.Nodes, nil, clusterOptions(c)
		}},
	} {
		t.Run(where.name, func(t *testing.T) {
			t.Parallel()
			asked, data, opt := where.start(t)

			// One address is enough, and need not be of the kind of a single server.
			one := opt
			one.InitAddress = opt.InitAddress[1:2]
			s := connected(t, openWith(t, one, calm))
			for _, key := range []string{"a", "b", "c", "d", "e", "f"} { // of several nodes
				lockUnlock(t, s, key)
			}

			// The first one of several is down.
			asked[0].Kill()
			s = openWith(t, opt, calm)
			if where.name == "sentinel" {
				works(t, s)
			} else {
				rig.Eventually(t, patience, "a lock of a node that is there", func() bool {
					res, err := s.Acquire(background, ask("probe-"+newLease(), newLease(), time.Second))
					return err == nil && res.Granted
				})
			}

			// Nothing is there: calls fail at once, and all is well when it is.
			for _, srv := range append(asked[1:len(asked):len(asked)], data...) {
				srv.Kill()
			}
			within(t, patience, "OpenWith", func() { s = openWith(t, opt, unhurried) })
			failsFast(t, s, tierlock.ErrUnavailable)
			for _, srv := range append(data[:len(data):len(data)], asked...) {
				srv.Start()
			}
			rig.Eventually(t, time.Minute, "the store works", func() bool {
				lease := newLease()
				res, err := s.Acquire(background, ask("later", lease, time.Second))
				return err == nil && res.Granted
			})
			eventuallyWatch(t, s, "watched").Close()
		})
	}
}

// Exclusive calls of a chain that are made while the store finds its Cluster have no
// marker among their keys: the client would panic, since that is in another slot. (What
// is wrong is mostly seen by the race detector alone.)
func TestOpenClusterUnderExclusiveCalls(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	for _, n := range c.Nodes {
		n.Kill()
	}
	s := openWith(t, clusterOptions(c), calm)
	place := exclusive(1)
	place.Incarnation = "other"
	var adoptions []tierlock.AdoptRequest
	for range 60 {
		adoptions = append(adoptions, adoptIn(place, ask(newLease(), newLease(), time.Minute), 1, 1))
	}
	for _, n := range c.Nodes {
		n.Start()
	}
	// Without a pause: some are under way at the moment at which the store is ready.
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for end, all := time.Now().Add(time.Minute), false; !all; {
				if time.Now().After(end) {
					t.Error("not all calls reach the Cluster")
					return
				}
				all = true
				for _, r := range s.Adopt(background, adoptions) {
					all = all && errors.Is(r.Err, tierlock.ErrEpoch)
				}
			}
		})
	}
	group.Wait()
}
