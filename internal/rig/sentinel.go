package rig

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// formWithin bounds how long several servers may take to find each other. A sentinel that
// stood still for two seconds waits for half a minute before it does anything.
const formWithin = 2 * time.Minute

// Sentinel is a primary with two replicas, watched by three sentinels, of which
// two have to agree. They count a server as down after a second; on a quiet
// machine a failover is over about two seconds after that.
//
// Which node is the primary changes; each of them may be killed, paused,
// resumed and started by its own methods. A node that is started again comes
// empty, and as what it last was: its part is in its configuration file, which it
// rewrites when the sentinels tell it another one.
type Sentinel struct {
	// Master is the name of the set, for ClientOption.Sentinel.MasterSet.
	Master string
	// Nodes are the data servers; the first was the primary at the start.
	Nodes []*RedisServer
	// Sentinels are the three sentinels. Their Do and Try speak to them.
	Sentinels []*RedisServer

	t testing.TB
}

// StartSentinel starts a Sentinel deployment and returns when every sentinel
// knows all the others and both replicas, which follow the primary. All end
// with the test. args are for the data servers, see [Redis].
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{Master: "mymaster", t: t}
	for i := range 3 {
		s.Nodes = append(s.Nodes, startRedis(t, newRedis("redis-server"), func(n *RedisServer) ([]string, error) {
			part := ""
			if i > 0 {
				part = fmt.Sprintf("replicaof 127.0.0.1 %d\n", s.Nodes[0].Port)
			}
			return append([]string{"--repl-diskless-sync-delay", "0"}, args...), n.configure(part)
		}))
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startRedis(t, newRedis("redis-sentinel"), s.sentinelArgs))
	}
	Eventually(t, formWithin, "the replicas follow and the sentinels know all", func() bool {
		for _, n := range s.Nodes[1:] {
			if !strings.Contains(info(n, "replication"), "master_link_status:up") {
				return false
			}
		}
		return s.agree(s.Nodes[0])
	})
	return s
}

// Steady makes a minute of the second after which a server counts as down: for tests
// that are not about that, on a machine that may stand still for longer. It does not
// wait for the end of a failover that has begun: see [Sentinel.Healthy].
func (s *Sentinel) Steady() {
	s.t.Helper()
	for _, n := range s.Sentinels {
		n.Do("SENTINEL", "SET", s.Master, "down-after-milliseconds", "60000")
	}
}

// sentinelArgs writes the file that a sentinel keeps its state in.
func (s *Sentinel) sentinelArgs(n *RedisServer) ([]string, error) {
	text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 2\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 3000\n"+
		"sentinel parallel-syncs %[1]s 1\n", s.Master, s.Nodes[0].Port)
	return []string{"--sentinel"}, n.configure(text)
}

// configure writes the file that the server rewrites.
func (s *RedisServer) configure(text string) error {
	s.conf = filepath.Join(s.Dir, "redis.conf")
	if err := os.WriteFile(s.conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	return nil
}

// Addrs are the sentinels' addresses, for ClientOption.InitAddress.
func (s *Sentinel) Addrs() []string { return addrs(s.Sentinels) }

func addrs(servers []*RedisServer) []string {
	var all []string
	for _, n := range servers {
		all = append(all, n.Addr)
	}
	return all
}

// Primary is the node that the sentinels which answer call the primary, nil
// while they do not agree. It need not be reachable, nor know of its part yet.
func (s *Sentinel) Primary() *RedisServer {
	var agreed *RedisServer
	for i, sentinel := range s.Sentinels {
		v, err := sentinel.Try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Master)
		pair, ok := v.([]any)
		if err != nil || !ok || len(pair) != 2 {
			return nil
		}
		n := s.node(net.JoinHostPort(fmt.Sprint(pair[0]), fmt.Sprint(pair[1])))
		if n == nil || i > 0 && n != agreed {
			return nil
		}
		agreed = n
	}
	return agreed
}

func (s *Sentinel) node(addr string) *RedisServer {
	for _, n := range s.Nodes {
		if n.Addr == addr {
			return n
		}
	}
	return nil
}

// NewPrimary waits until the sentinels agree on a primary other than old, and
// that is one, and returns it.
func (s *Sentinel) NewPrimary(old *RedisServer) *RedisServer {
	s.t.Helper()
	var p *RedisServer
	Eventually(s.t, formWithin, "there is another primary than "+old.Addr, func() bool {
		p = s.Primary()
		return p != nil && p != old && role(p) == "master"
	})
	return p
}

// Healthy waits until all nodes run again, two of them as replicas of the
// third, and the sentinels say so, and returns the primary.
func (s *Sentinel) Healthy() *RedisServer {
	s.t.Helper()
	var p *RedisServer
	Eventually(s.t, formWithin, "two replicas follow the primary", func() bool {
		p = s.Primary()
		if p == nil {
			return false
		}
		for _, n := range s.Nodes {
			text := info(n, "replication")
			if n == p {
				if !strings.Contains(text, "role:master") || !strings.Contains(text, "connected_slaves:2") {
					return false
				}
			} else if !strings.Contains(text, "master_link_status:up") ||
				!strings.Contains(text, fmt.Sprintf("master_port:%d\r\n", p.Port)) {
				return false
			}
		}
		return s.agree(p)
	})
	return p
}

// agree reports whether each sentinel says that all is well with p.
func (s *Sentinel) agree(p *RedisServer) bool {
	want := fmt.Sprintf("name=%s,status=ok,address=%s,slaves=2,sentinels=3", s.Master, p.Addr)
	for _, n := range s.Sentinels {
		if !strings.Contains(info(n, "sentinel"), want) {
			return false
		}
	}
	return true
}

// info is a section of INFO, "" where the server does not answer within a
// second.
func info(n *RedisServer, section string) string {
	v, err := n.own.count([]string{"info"}, func() (any, error) { return n.roundTrip(time.Second, "INFO", section) })
	if err != nil {
		return ""
	}
	text, _ := v.(string)
	return text
}

// role is "master" or "slave", "" where the server does not answer.
func role(n *RedisServer) string {
	_, after, _ := strings.Cut(info(n, "replication"), "role:")
	name, _, _ := strings.Cut(after, "\r\n")
	return name
}
