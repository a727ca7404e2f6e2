package redisstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
	"github.com/tierlock/tierlock/storetest"
)

// placedStore makes every call one of a place.
type placedStore struct {
	*redisstore.Store
	place tierlock.Place
	data  *sync.Map // of namespaces
}

// at is the place for a name: on the data of its namespace, where that counts.
func (s placedStore) at(n tierlock.Name) tierlock.Place {
	p := s.place
	if !p.Exclusive {
		return p
	}
	is, known := s.data.Load(n.Namespace)
	if !known {
		res, _ := s.Probe(background, tierlock.ProbeRequest{Namespace: n.Namespace})
		is = res.Incarnation
		s.data.Store(n.Namespace, is)
	}
	p.Incarnation = is.(string)
	return p
}

func (s placedStore) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	req.Place = s.at(req.Name)
	return s.Store.Acquire(ctx, req)
}

func (s placedStore) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	for i := range reqs {
		reqs[i].Place = s.at(reqs[i].Name)
	}
	return s.Store.Renew(ctx, reqs)
}

func (s placedStore) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	req.Place = s.at(req.Name)
	return s.Store.Release(ctx, req)
}

// As long as the mode stays, a chain's locks keep the whole contract.
func TestConformanceInAChain(t *testing.T) {
	for _, mode := range []struct {
		name  string
		start func(testing.TB) ([]*rig.RedisServer, *redisstore.Store)
		place tierlock.Place
	}{
		{"first epoch", chainServer, tierlock.Place{Epoch: 1}},
		{"last epoch", chainServer, tierlock.Place{Epoch: 16383}},
		{"exclusive, first epoch", chainServer, tierlock.Place{Epoch: 1, Exclusive: true}},
		{"exclusive, last epoch", chainServer, tierlock.Place{Epoch: 16383, Exclusive: true}},
		{"exclusive, Cluster", chainCluster, tierlock.Place{Epoch: 77, Exclusive: true}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			servers, _ := mode.start(t)
			var data sync.Map
			opt := patient(servers[0].Addr)
			opt.ForceSingleClient = len(servers) == 1
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
					return placedStore{connected(t, openWith(t, opt, calm)), mode.place, &data}
				}}
			})
			for _, srv := range servers {
				noEternalKeys(t, srv)
			}
		})
	}
}

// The suite for stores of a chain.
func TestChainConformance(t *testing.T) {
	for _, mode := range []struct {
		name  string
		start func(testing.TB) ([]*rig.RedisServer, rueidis.ClientOption)
	}{
		{"one server", oneServer},
		{"Sentinel", func(t testing.TB) ([]*rig.RedisServer, rueidis.ClientOption) {
			d, opt := steadySentinel(t)
			return d.Nodes, opt
		}},
		{"Cluster", threeMasters},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			servers, opt := mode.start(t)
			storetest.RunChain(t, func(t *testing.T) storetest.Harness {
				lose := func() { servers[0].Do("FLUSHALL") }
				if len(servers) > 1 && mode.name != "Sentinel" {
					lose = nil
				}
				return storetest.Harness{Lose: lose, Open: func(t *testing.T) tierlock.Store { return connected(t, openWith(t, opt, calm)) }}
			})
			for _, srv := range servers {
				noEternalKeys(t, srv)
			}
		})
	}
}

func chainServer(t testing.TB) ([]*rig.RedisServer, *redisstore.Store) {
	srv := rig.Redis(t)
	return []*rig.RedisServer{srv}, open(t, srv.Addr)
}

func chainCluster(t testing.TB) ([]*rig.RedisServer, *redisstore.Store) {
	c := steadyCluster(t)
	return c.Nodes, openCluster(t, c)
}

// mustProbe is the incarnation of what the store leads to.
func mustProbe(t testing.TB, s *redisstore.Store) string {
	t.Helper()
	return probeIn(t, s, "test").Incarnation
}

func probeIn(t testing.TB, s *redisstore.Store, namespace string) tierlock.ProbeResult {
	t.Helper()
	res, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: namespace})
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	for _, part := range strings.Split(res.Incarnation, ",") {
		if id, _, _ := strings.Cut(part, "-"); len(id) != 40 {
			t.Fatalf("probe: got %q; wanted replication ids", res.Incarnation)
		}
	}
	return res
}
