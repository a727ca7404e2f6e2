package tests_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// topology is a deployment of several servers.
type topology struct {
	nodes   []*rig.RedisServer
	primary func(key string) *rig.RedisServer                       // that has a Redis key
	next    func(key string, old *rig.RedisServer) *rig.RedisServer // waits for it
	healthy func()                                                  // waits until all is well
	open    func() (*redisstore.Store, error)
	conns   int // that a store keeps for its calls, at most
}

// clientName marks the connections of the stores under test on the servers.
const clientName = "under-test"

func onSentinel(t testing.TB) *topology {
	t.Helper()
	d := rig.StartSentinel(t)
	return &topology{
		nodes:   d.Nodes,
		primary: func(string) *rig.RedisServer { return d.Primary() },
		next:    func(_ string, old *rig.RedisServer) *rig.RedisServer { return d.NewPrimary(old) },
		healthy: func() { d.Healthy() },
		conns:   1,
		open: func() (*redisstore.Store, error) {
			opt := redisstore.RecommendedOptions(d.Addrs()...)
			opt.Sentinel.MasterSet = d.Master
			opt.ClientName = clientName
			return redisstore.Open(opt)
		},
	}
}

func onCluster(t testing.TB, replicas bool) (*topology, *rig.Cluster) {
	t.Helper()
	c := rig.StartCluster(t, replicas)
	return &topology{
		nodes:   c.Nodes,
		primary: c.OwnerOf,
		next:    c.NewOwner,
		healthy: c.Healthy,
		conns:   len(c.Nodes),
		open: func() (*redisstore.Store, error) {
			opt := redisstore.RecommendedOptions(c.Addrs()...)
			opt.ClientName = clientName
			return redisstore.Open(opt)
		},
	}, c
}

// topologyResources: "load" is what the load locks, "steady" what is held through
// an outage, and "long" what is waited for through one.
var topologyResources = []tierlock.Resource{
	{Name: "load", TTL: loadTTL}, {Name: "steady", TTL: 10 * time.Second}, {Name: "long", TTL: 18 * time.Second},
}

// lockers makes Lockers with a store each.
func (d *topology) lockers(t testing.TB, n int) (ls []*tierlock.Locker, ws []*witness) {
	t.Helper()
	for range n {
		s, err := d.open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		w := newWitness(s)
		ws = append(ws, w)
		ls = append(ls, newLocker(t, w, topologyResources...))
	}
	return ls, ws
}

// subscriptions counts the channels of all nodes.
func (d *topology) subscriptions() (n int) {
	for _, srv := range d.nodes {
		n += len(srv.Do("PUBSUB", "SHARDCHANNELS", "lock:*").([]any)) + len(srv.Do("PUBSUB", "CHANNELS", "lock:*").([]any))
	}
	return n
}

// connections counts those of the stores under test, on all nodes.
func (d *topology) connections() (n int) {
	for _, srv := range d.nodes {
		for line := range strings.Lines(srv.Text("CLIENT", "LIST")) {
			if strings.Contains(line, " name="+clientName+" ") {
				n++
			}
		}
	}
	return n
}

// leavesNothing checks that nothing of Lockers that rest is left on the servers
// but the connections for calls, and after their end not even those.
func (d *topology) leavesNothing(t testing.TB, ls []*tierlock.Locker, ws []*witness) {
	t.Helper()
	for _, l := range ls {
		idle(t, l)
	}
	rig.Eventually(t, patience, "no subscription is left", func() bool { return d.subscriptions() == 0 })
	rig.Eventually(t, patience, "only connections for calls are left", func() bool {
		return d.connections() <= len(ls)*d.conns
	})
	for i, l := range ls {
		if err := l.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		ws[i].Close()
	}
	rig.Eventually(t, patience, "no connection is left", func() bool { return d.connections() == 0 })
}

// works waits until a Locker gives a lock that nobody holds.
func works(t testing.TB, l *tierlock.Locker, resource, key string) tierlock.Token {
	t.Helper()
	var token tierlock.Token
	rig.Eventually(t, patience, "a lock of "+key, func() bool {
		k, err := l.Lock(bg, resource, key, tierlock.Wait(time.Second))
		if err != nil {
			return false
		}
		token = k.Token()
		return k.Unlock() == nil
	})
	return token
}
