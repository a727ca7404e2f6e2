package rig_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := rig.StartSentinel(t)
	old := s.Primary()
	if old != s.Nodes[0] {
		t.Fatalf("the primary is %v, want the first node", old)
	}
	old.Do("SET", "k", "v")
	rig.Eventually(t, soon, "the replicas have the key", func() bool {
		return s.Nodes[1].Text("GET", "k") == "v" && s.Nodes[2].Text("GET", "k") == "v"
	})
	if _, err := s.Nodes[1].Try("SET", "k", "w"); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("a write to a replica: %v, want READONLY", err)
	}
	for _, a := range s.Addrs() {
		c := dial(t, a)
		c.send("SENTINEL GET-MASTER-ADDR-BY-NAME " + s.Master + "\r\n")
		c.want(fmt.Sprintf("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n%d\r\n", old.Port))
	}

	old.Kill()
	next := s.NewPrimary(old)
	next.Do("SET", "k", "w")
	old.Start()
	// A busy machine may have seen another failover since.
	p := s.Healthy()
	if p == old {
		t.Error("the former primary, which came back empty, is the primary again")
	}
	if got := old.Text("GET", "k"); got != "w" {
		t.Errorf("the former primary has %q, want what the new one has", got)
	}

	p.Pause()
	s.NewPrimary(p).Do("SET", "k", "x")
	p.Resume()
	if got := p.Text("GET", "k"); got != "w" && got != "x" { // it may follow the new one already
		t.Errorf("a resumed primary has %q", got)
	}
}

func TestClusterMigration(t *testing.T) {
	t.Parallel()
	c := rig.StartCluster(t, false)
	if len(c.Nodes) != 3 || len(c.Addrs()) != 3 {
		t.Fatalf("%d nodes", len(c.Nodes))
	}
	for i, slot := range []int{0, 5461, 16383} {
		if n := c.Owner(slot); n != c.Nodes[i] {
			t.Errorf("slot %d is at %v, want node %d", slot, n, i)
		}
	}
	if got := c.Slot("foo"); got != 12182 {
		t.Errorf("the slot of foo is %d, want 12182", got)
	}
	from, to := c.Nodes[2], c.Nodes[0]
	if n := c.OwnerOf("foo"); n != from {
		t.Fatalf("foo is at %s", n.Addr)
	}
	from.Do("SET", "foo", "bar")
	m := c.Migrate("foo", to)
	if got := from.Text("GET", "foo"); got != "bar" {
		t.Errorf("before its key is moved the source has %q", got)
	}
	m.Keys()
	if _, err := from.Try("GET", "foo"); err == nil || !strings.Contains(err.Error(), "ASK 12182 "+to.Addr) {
		t.Errorf("after its key is moved the source says %v, want ASK", err)
	}
	m.Finish()
	for _, n := range []*rig.RedisServer{c.Nodes[1], from} {
		if _, err := n.Try("GET", "foo"); err == nil || !strings.Contains(err.Error(), "MOVED 12182 "+to.Addr) {
			t.Errorf("%s says %v, want MOVED", n.Addr, err)
		}
	}
	if got := to.Text("GET", "foo"); got != "bar" {
		t.Errorf("the target has %q", got)
	}
	c.Move("foo", from)
	if n := c.OwnerOf("foo"); n != from {
		t.Errorf("foo is at %s after it was moved back", n.Addr)
	}

	// Without a replica the others go on, and the node comes back as it was.
	from.Kill()
	rig.Eventually(t, soon, "the node counts as failed", func() bool {
		return !strings.Contains(to.Text("CLUSTER", "INFO"), "cluster_slots_fail:0\r\n")
	})
	if got := to.Text("SET", "bar", "1"); got != "OK" {
		t.Errorf("SET at a living node: %q", got)
	}
	from.Start()
	c.Healthy()
	if n := c.OwnerOf("foo"); n != from {
		t.Errorf("foo is at %s after its node came back", n.Addr)
	}
}

func TestClusterFailover(t *testing.T) {
	t.Parallel()
	c := rig.StartCluster(t, true)
	if len(c.Nodes) != 6 {
		t.Fatalf("%d nodes", len(c.Nodes))
	}
	old := c.OwnerOf("foo")
	old.Do("SET", "foo", "bar")
	if got := old.Int("WAIT", "1", "5000"); got != 1 {
		t.Fatalf("%d replicas have the key", got)
	}
	old.Pause()
	began := time.Now()
	next := c.NewOwner("foo", old)
	t.Logf("failover after %v", time.Since(began))
	if next != c.Nodes[5] {
		t.Errorf("the new owner is %s, want the master's replica", next.Addr)
	}
	if got := next.Text("GET", "foo"); got != "bar" {
		t.Errorf("the new owner has %q", got)
	}
	old.Resume()
	c.Healthy()
	if n := c.OwnerOf("foo"); n != next {
		t.Errorf("foo is at %s after its former owner came back", n.Addr)
	}
}

// A replica that was promoted, and starts again before anybody has missed it, is still a
// primary: as a replica of the former one, which follows it, it would be in a ring, and
// no sentinel ends that.
func TestSentinelPromotedNodeStartsAgain(t *testing.T) {
	t.Parallel()
	s := rig.StartSentinel(t)
	old := s.Primary()
	old.Kill()
	s.NewPrimary(old)
	old.Start()
	p := s.Healthy()
	p.Kill()
	p.Start()
	s.Healthy()
}
