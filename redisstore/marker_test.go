package redisstore_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Each probe looks at the settings anew: a limit with a policy that evicts is
// unsafe, whichever policy, and named; without a limit nothing is evicted.
func TestProbeTellsEviction(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, c := range []struct{ limit, policy, says string }{
		{"0", "noeviction", ""},
		{"0", "allkeys-lru", ""},
		{"104857600", "allkeys-lru", "maxmemory-policy is allkeys-lru, with maxmemory 104857600, and has to be noeviction"},
		{"104857600", "volatile-ttl", "maxmemory-policy is volatile-ttl"},
		{"104857600", "noeviction", ""},
		{"209715200", "volatile-random", "with maxmemory 209715200"},
		{"0", "volatile-random", ""},
	} {
		srv.Do("CONFIG", "SET", "maxmemory", c.limit)
		srv.Do("CONFIG", "SET", "maxmemory-policy", c.policy)
		if got := probeIn(t, s, "test").Unsafe; (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("maxmemory %s, %s: got %q, want %q in it", c.limit, c.policy, got, c.says)
		}
	}
}

// One master of a Cluster is enough.
func TestProbeTellsEvictionOnACluster(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	for _, n := range c.Nodes {
		if got := probeIn(t, s, "test").Unsafe; got != "" {
			t.Errorf("got %q, want nothing", got)
		}
		n.Do("CONFIG", "SET", "maxmemory", "104857600")
		n.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
		if got := probeIn(t, s, "test").Unsafe; !strings.Contains(got, "allkeys-lfu") {
			t.Errorf("got %q, want allkeys-lfu in it", got)
		}
		n.Do("CONFIG", "SET", "maxmemory", "0")
	}
}

// Who may not read the settings has locks all the same, and is told what they are
// not worth.
func TestProbeWithoutTheRightToReadSettings(t *testing.T) {
	srv := rig.Redis(t)
	s := restricted(t, srv)
	permit(srv, beside("+info|replication")...)
	res := probeIn(t, s, "test")
	if !strings.Contains(res.Unsafe, "cannot be read") || !strings.Contains(res.Unsafe, "can't run this command") {
		t.Errorf("got %q, want that it cannot be read, and why", res.Unsafe)
	}
	place := exclusive(1)
	place.Incarnation = res.Incarnation
	mustAcquire(t, s, askIn(place, ask("k", "a", time.Minute)))
	permit(srv, beside("+info")...)
	if res := probeIn(t, s, "test"); res.Unsafe != "" || res.Incarnation != place.Incarnation {
		t.Errorf("with the right: got %+v", res)
	}
}

// After FLUSHALL, and after a loss of the marker alone, all exclusive calls for the
// former data are refused, whether somebody has probed since or not. Others go on.
func TestLostMarker(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	marker := func() string { return srv.Do("KEYS", "*}:marker").([]any)[0].(string) }
	for what, lose := range map[string]func(){
		"FLUSHALL":       func() { srv.Do("FLUSHALL") },
		"DEL":            func() { srv.Do("DEL", marker()) },
		"other content":  func() { srv.Do("SET", marker(), "none of ours", "PX", "100000") },
		"too far":        func() { srv.Do("SET", marker(), "0badc0de 16384", "PX", "100000") },
		"another marker": func() { srv.Do("SET", marker(), "0badc0de 7", "PX", "100000") },
	} {
		for _, explicit := range []bool{false, true} {
			place := exclusive(3)
			place.Incarnation = mustProbe(t, s)
			req := ask("k-"+what, newLease(), 30*time.Second)
			req.Explicit = explicit
			mustAcquire(t, s, askIn(place, req))
			lose()
			refused := func(when string) {
				t.Helper()
				_, err := s.Acquire(t.Context(), askIn(place, ask("other", newLease(), time.Second)))
				wantEpochError(t, what+": acquire "+when, err)
				wantEpochError(t, what+": renewal "+when, renewIn(t, s, place, req.Name.Key, req.Token.Lease, explicit, time.Minute).Err)
				wantEpochError(t, what+": adoption "+when, adoptOne(t, s, adoptIn(place, req, 2, 1)).Err)
				_, err = s.Release(t.Context(), dropIn(place, req.Name.Key, req.Token.Lease, explicit))
				wantEpochError(t, what+": release "+when, err)
			}
			refused("before a probe")
			res := probeIn(t, s, "test")
			if !res.Lost || res.Incarnation == place.Incarnation || res.Unsafe != "" {
				t.Errorf("%s: probe: got %+v, want other data than %s, which were lost", what, res, place.Incarnation)
			}
			refused("after a probe")
			if again := probeIn(t, s, "test"); again.Lost || again.Incarnation != res.Incarnation {
				t.Errorf("%s: probe again: got %+v after %+v", what, again, res)
			}
			loose := place
			loose.Exclusive = false
			other := ask("loose", newLease(), time.Second)
			mustAcquire(t, s, askIn(loose, other))
			mustRelease(t, s, dropIn(loose, "loose", other.Token.Lease, false), tierlock.LeaseOwned)
			srv.Do("FLUSHALL")
			probeIn(t, s, "test")
		}
	}
}

// On a Cluster no script sees the marker. A master that has lost its keys is told
// and makes holds worth less, to all stores that have seen it before.
func TestLostMarkerOnACluster(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s, other := openCluster(t, c), openCluster(t, c)
	before := mustProbe(t, s)
	probeIn(t, other, "test")
	c.Nodes[1].Do("FLUSHALL")
	for i, s := range []*redisstore.Store{s, other} {
		if res := probeIn(t, s, "test"); !res.Lost || res.Unsafe == "" || res.Incarnation != before {
			t.Errorf("store %d: got %+v, want %s, lost and unsafe", i, res, before)
		}
		if res := probeIn(t, s, "test"); res.Lost || res.Unsafe == "" {
			t.Errorf("store %d, again: got %+v, want it unsafe, and nothing lost", i, res)
		}
	}
	if res := probeIn(t, openCluster(t, c), "test"); res.Lost || res.Unsafe != "" {
		t.Errorf("a store that has not seen it: got %+v", res)
	}
}

// A node of a Cluster that has all slots, with a client for one server: it would refuse
// every exclusive call, since the marker is in another slot than the lock. So the probe
// is refused, and a chain does not stay there.
func TestProbeOfANodeOfAClusterWithAClientForOneServer(t *testing.T) {
	bus, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := bus.Addr().(*net.TCPAddr).Port
	bus.Close()
	srv := rig.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", strconv.Itoa(port))
	srv.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	rig.Eventually(t, time.Minute, "the slots are served", func() bool {
		return strings.Contains(srv.Text("CLUSTER", "INFO"), "cluster_state:ok")
	})
	opt := patient(srv.Addr)
	opt.ForceSingleClient = true
	s := openWith(t, opt, calm)
	place := exclusive(1)
	place.Incarnation = strings.Repeat("0", 40) + "-00000000"
	if _, err := s.Acquire(t.Context(), askIn(place, ask("k", "a", time.Minute))); !errors.Is(err, tierlock.ErrMisconfigured) {
		t.Fatalf("an exclusive acquire: got %v, want ErrMisconfigured", err)
	}
	if res, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"}); !errors.Is(err, tierlock.ErrMisconfigured) {
		t.Errorf("the probe: got %+v %v, want ErrMisconfigured", res, err)
	}
	mustAcquire(t, s, askIn(shared(1), ask("k", "a", time.Minute)))
}
