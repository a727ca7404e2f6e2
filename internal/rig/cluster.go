package rig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// slots is the number of slots of a Cluster.
const slots = 16384

// Cluster is a Redis Cluster of three masters, with one replica each or none. A
// node counts as down after a second; a replica has taken over some two seconds
// after that. The masters that are left serve their slots whatever happens to
// the others.
//
// Each node may be killed, paused, resumed and started by its own methods; it
// finds its place again by the file that it keeps.
type Cluster struct {
	// Nodes are the masters first, in the order of their slots at the start,
	// and then their replicas, in the same order.
	Nodes []*RedisServer

	t testing.TB
}

// StartCluster starts a Cluster and returns when every node says that all slots
// are served and, where there are replicas, that they follow. All end with the
// test. args are for each node, see [Redis].
func StartCluster(t testing.TB, replicas bool, args ...string) *Cluster {
	t.Helper()
	return startCluster(t, replicas, nil, args)
}

// ClusterWithClock is StartCluster without replicas, whose first node has a wall
// clock of its own; see [RedisWithClock].
func ClusterWithClock(t testing.TB) (*Cluster, *WallClock) {
	t.Helper()
	clock := newWallClock(t)
	return startCluster(t, false, clock.env, nil), clock
}

// startCluster has env for the first node.
func startCluster(t testing.TB, replicas bool, env, args []string) *Cluster {
	t.Helper()
	const masters = 3
	c := &Cluster{t: t}
	count := masters
	if replicas {
		count *= 2
	}
	for i := range count {
		node := newRedis("redis-server")
		if i == 0 {
			node.env = env
		}
		c.Nodes = append(c.Nodes, startRedis(t, node, func(*RedisServer) ([]string, error) {
			bus, err := freePort()
			return append([]string{
				"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-announce-ip", "127.0.0.1",
				"--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000",
				"--cluster-require-full-coverage", "no",
				// A replica takes over however long its master is away, and stays
				// with its master's slots.
				"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
				"--repl-diskless-sync-delay", "0",
			}, args...), err
		}))
	}
	for i, n := range c.Nodes {
		if i < masters {
			n.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
		}
		// Nodes of one epoch would first have to sort out who yields.
		n.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	for _, n := range c.Nodes[1:] {
		n.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(c.Nodes[0].Port), c.busPort(c.Nodes[0]))
	}
	Eventually(t, formWithin, "the nodes know each other", func() bool {
		for _, n := range c.Nodes {
			if !strings.Contains(c.state(n), fmt.Sprintf("cluster_known_nodes:%d\r\n", count)) {
				return false
			}
		}
		return true
	})
	for i, n := range c.Nodes[masters:] {
		id := c.id(c.Nodes[i])
		Eventually(t, formWithin, "a replica knows its master", func() bool {
			_, err := n.Try("CLUSTER", "REPLICATE", id)
			return err == nil
		})
	}
	c.Healthy()
	return c
}

// Steady makes a minute of the second after which a node counts as down: for tests that
// are not about that, on a machine that may stand still for longer.
func (c *Cluster) Steady() {
	c.t.Helper()
	downAfter := func(ms string) {
		for _, n := range c.Nodes {
			n.Do("CONFIG", "SET", "cluster-node-timeout", ms)
		}
	}
	for range 10 {
		downAfter("60000")
		if !slices.ContainsFunc(c.Nodes, func(n *RedisServer) bool { return c.unwell(n) != "" }) {
			return
		}
		// Who counts as down already would do so for twice that time.
		downAfter("1000")
		c.Healthy()
	}
	c.t.Fatal("rig: in ten tries the cluster was never well")
}

func (c *Cluster) busPort(n *RedisServer) string {
	for i, a := range n.args {
		if a == "--cluster-port" {
			return n.args[i+1]
		}
	}
	return ""
}

// Addrs are the nodes' addresses, for ClientOption.InitAddress.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

func (c *Cluster) id(n *RedisServer) string { return n.Text("CLUSTER", "MYID") }

// state is CLUSTER INFO, "" where the node does not answer within a second.
func (c *Cluster) state(n *RedisServer) string { return c.ask(n, "INFO") }

func (c *Cluster) ask(n *RedisServer, what string) string {
	v, err := n.own.count([]string{"cluster", what}, func() (any, error) {
		return n.roundTrip(time.Second, "CLUSTER", what)
	})
	if err != nil {
		return ""
	}
	text, _ := v.(string)
	return text
}

// member is one line of CLUSTER NODES.
type member struct {
	id, addr, flags, master string
	linked                  bool
	slots                   []string
}

// members is how n sees the Cluster, nil where it does not answer.
func (c *Cluster) members(n *RedisServer) []member {
	var all []member
	for line := range strings.Lines(c.ask(n, "NODES")) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		addr, _, _ := strings.Cut(f[1], "@")
		all = append(all, member{id: f[0], addr: addr, flags: f[2], master: f[3], linked: f[7] == "connected", slots: f[8:]})
	}
	return all
}

// Healthy waits until every node runs and sees every other, all slots are
// served, and each replica follows its master.
func (c *Cluster) Healthy() {
	c.t.Helper()
	var why string
	if !poll(formWithin, func() bool {
		for _, n := range c.Nodes {
			if why = c.unwell(n); why != "" {
				why = n.Addr + ": " + why
				return false
			}
		}
		return true
	}) {
		c.t.Fatalf("rig: the cluster is not well within %v: %s", formWithin, why)
	}
}

// unwell is what n says is wrong.
func (c *Cluster) unwell(n *RedisServer) string {
	state := c.state(n)
	if !strings.Contains(state, "cluster_state:ok\r\n") || !strings.Contains(state, fmt.Sprintf("cluster_slots_ok:%d\r\n", slots)) {
		return state
	}
	masters := 0
	for _, m := range c.members(n) {
		myself := strings.Contains(m.flags, "myself")
		if strings.Contains(m.flags, "fail") || !m.linked && !myself {
			return fmt.Sprintf("%+v", m)
		}
		if strings.Contains(m.flags, "master") {
			masters++
		}
		if myself && strings.Contains(m.flags, "slave") && !strings.Contains(info(n, "replication"), "master_link_status:up") {
			return "it does not follow its master"
		}
	}
	if masters != 3 {
		return fmt.Sprintf("%d masters", masters)
	}
	return ""
}

// Slot is the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	for _, n := range c.Nodes {
		if v, err := n.own.count([]string{"cluster", "keyslot"}, func() (any, error) {
			return n.roundTrip(time.Second, "CLUSTER", "KEYSLOT", key)
		}); err == nil {
			return int(v.(int64))
		}
	}
	c.t.Fatal("rig: no node answers")
	return 0
}

// Owner is the node that serves a slot, in the eyes of all nodes that answer;
// nil while they do not agree, or nobody serves it. It need not be reachable.
func (c *Cluster) Owner(slot int) *RedisServer {
	var agreed *RedisServer
	for _, n := range c.Nodes {
		members := c.members(n)
		if members == nil {
			continue
		}
		owner := c.node(ownerOf(members, slot))
		if owner == nil || agreed != nil && owner != agreed {
			return nil
		}
		agreed = owner
	}
	return agreed
}

func ownerOf(members []member, slot int) string {
	for _, m := range members {
		for _, r := range m.slots {
			first, last, ranged := strings.Cut(r, "-")
			if !ranged {
				last = first
			}
			from, err := strconv.Atoi(first)
			if err != nil {
				continue // [slot->-node], a migration
			}
			to, err := strconv.Atoi(last)
			if err == nil && from <= slot && slot <= to {
				return m.addr
			}
		}
	}
	return ""
}

func (c *Cluster) node(addr string) *RedisServer {
	for _, n := range c.Nodes {
		if n.Addr == addr {
			return n
		}
	}
	return nil
}

// OwnerOf is [Cluster.Owner] of a key's slot, and waits for the nodes to agree.
func (c *Cluster) OwnerOf(key string) *RedisServer {
	c.t.Helper()
	slot := c.Slot(key)
	var n *RedisServer
	Eventually(c.t, formWithin, "the nodes agree on the owner of a slot", func() bool {
		n = c.Owner(slot)
		return n != nil
	})
	return n
}

// NewOwner waits until the slot of a key is served by another node than old,
// and returns that.
func (c *Cluster) NewOwner(key string, old *RedisServer) *RedisServer {
	c.t.Helper()
	slot := c.Slot(key)
	var n *RedisServer
	Eventually(c.t, formWithin, "another node than "+old.Addr+" serves the slot of "+key, func() bool {
		n = c.Owner(slot)
		return n != nil && n != old && role(n) == "master" && strings.Contains(c.state(n), "cluster_state:ok")
	})
	return n
}

// Migration is a slot on its way from one master to another.
type Migration struct {
	c        *Cluster
	slot     int
	from, to *RedisServer
}

// Migrate begins to move the slot of a key to another master, as resharding
// tools do: from now on the source sends those who ask for keys that it has not
// got to the target, by ASK. [Migration.Keys] and [Migration.Finish] follow.
func (c *Cluster) Migrate(key string, to *RedisServer) *Migration {
	c.t.Helper()
	m := &Migration{c: c, slot: c.Slot(key), from: c.OwnerOf(key), to: to}
	if m.from == to {
		c.t.Fatalf("rig: slot %d is at %s already", m.slot, to.Addr)
	}
	slot := strconv.Itoa(m.slot)
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", c.id(m.from))
	m.from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", c.id(to))
	return m
}

// Keys moves the keys that the source has now.
func (m *Migration) Keys() {
	m.c.t.Helper()
	slot, port := strconv.Itoa(m.slot), strconv.Itoa(m.to.Port)
	for {
		keys := m.from.Do("CLUSTER", "GETKEYSINSLOT", slot, "100").([]any)
		if len(keys) == 0 {
			return
		}
		args := []string{"MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"}
		for _, k := range keys {
			args = append(args, k.(string))
		}
		m.from.Do(args...)
	}
}

// Finish moves the remaining keys and gives the slot to the target; it returns
// when all nodes that answer know.
func (m *Migration) Finish() {
	m.c.t.Helper()
	slot, id := strconv.Itoa(m.slot), m.c.id(m.to)
	for end := time.Now().Add(formWithin); ; {
		m.Keys()
		// The target first: if the source were alone in having let go of the
		// slot, nobody would serve it.
		m.to.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
		// Refused where a key has come back to the source since.
		_, err := m.from.Try("CLUSTER", "SETSLOT", slot, "NODE", id)
		if err == nil {
			break
		}
		var refused replyError
		if !errors.As(err, &refused) || time.Now().After(end) {
			m.c.t.Fatal(err)
		}
	}
	Eventually(m.c.t, formWithin, m.to.Addr+" serves the slot", func() bool {
		return m.c.Owner(m.slot) == m.to
	})
}

// Move is a whole migration of a key's slot.
func (c *Cluster) Move(key string, to *RedisServer) {
	c.t.Helper()
	c.Migrate(key, to).Finish()
}
