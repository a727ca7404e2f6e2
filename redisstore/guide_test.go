package redisstore_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// slotsServer is a node that says what it is told to about the table of slots,
// after silent is unlocked.
type slotsServer struct {
	addr   string
	silent sync.Mutex

	mu    sync.Mutex
	table string
	asked int
}

func newSlotsServer(t *testing.T) *slotsServer {
	n := new(slotsServer)
	n.addr = answering(t, func(cmd []string) string {
		switch strings.ToUpper(cmd[0]) {
		case "HELLO":
			return "*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:2\r\n"
		case "CLUSTER":
			n.mu.Lock()
			n.asked++
			table := n.table
			n.mu.Unlock()
			n.silent.Lock()
			defer n.silent.Unlock()
			return table
		}
		return "+OK\r\n"
	})
	n.serve(n.addr)
	return n
}

// serve sets the table to one node for all slots.
func (n *slotsServer) serve(addr string) {
	host, port, _ := net.SplitHostPort(addr)
	n.say(fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%s\r\n", bulk(host), port))
}

func (n *slotsServer) say(table string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table = table
}

func (n *slotsServer) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func openSlots(t *testing.T, n *slotsServer) *redisstore.Store {
	opt := patient(n.addr)
	opt.ForceSingleClient, opt.AlwaysRESP2 = false, true
	s := openWith(t, opt, calm)
	wantPart(t, s, n.addr)
	return s
}

func wantPart(t *testing.T, s *redisstore.Store, want string) {
	t.Helper()
	got := ""
	rig.Eventually(t, patience, "the part is known", func() bool {
		got = s.Part(tierlock.Name{Namespace: "n", Resource: "r", Key: "k"})
		return got == want
	})
}

// What a node that was silent for a while answers after all is no answer to a
// later question.
func TestTableOfANodeThatWasSilent(t *testing.T) {
	t.Parallel()
	n := newSlotsServer(t)
	s := openSlots(t, n)
	n.silent.Lock()
	before := n.questions()
	s.Look()
	rig.Eventually(t, patience, "the node is asked", func() bool { return n.questions() > before })
	time.Sleep(time.Second) // nobody waits for the answer any longer
	n.silent.Unlock()
	time.Sleep(200 * time.Millisecond) // it arrives
	n.serve("127.0.0.1:7")
	s.Look()
	wantPart(t, s, "127.0.0.1:7")
}

// How servers say where a node is.
func TestTableOfSlots(t *testing.T) {
	t.Parallel()
	n := newSlotsServer(t)
	s := openSlots(t, n)
	host, port, _ := net.SplitHostPort(n.addr)
	entry := func(from, to int, node string) string { return fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n%s", from, to, node) }
	for _, c := range []struct{ name, node, want string }{
		{"an address, with an id and more", "*4\r\n" + bulk("10.0.0.1") + ":6379\r\n" + bulk("id") + "*0\r\n", "10.0.0.1:6379"},
		{"a host name", "*2\r\n" + bulk("redis-0.example") + ":6379\r\n", "redis-0.example:6379"},
		{"IPv6", "*2\r\n" + bulk("fd00::1") + ":6379\r\n", "[fd00::1]:6379"},
		{"the host that was asked", "*2\r\n$-1\r\n:" + port + "\r\n", n.addr},
		{"the same as an empty one", "*2\r\n$0\r\n\r\n:7\r\n", net.JoinHostPort(host, "7")},
	} {
		n.say("*1\r\n" + entry(0, 16383, c.node))
		s.Look()
		t.Log(c.name)
		wantPart(t, s, c.want)
	}
	// One that is not known serves nothing; the rest of the table counts.
	slot := int(redisstore.SlotOf("lock:n:{r/k}"))
	n.say("*2\r\n" + entry(slot+1, 16383, "*2\r\n"+bulk("?")+":6379\r\n") + entry(0, slot, "*2\r\n"+bulk("10.0.0.2")+":6379\r\n"))
	s.Look()
	wantPart(t, s, "10.0.0.2:6379")
	n.say("*2\r\n" + entry(slot, slot, "*2\r\n"+bulk("?")+":6379\r\n") + entry(slot+1, 16383, "*2\r\n"+bulk("10.0.0.2")+":6379\r\n"))
	s.Look()
	wantPart(t, s, "")
	// What cannot be read changes nothing.
	n.serve("10.0.0.3:6379")
	s.Look()
	wantPart(t, s, "10.0.0.3:6379")
	for _, bad := range []string{"*0\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n*1\r\n$1\r\na\r\n", "-ERR no\r\n"} {
		before := n.questions()
		n.say(bad)
		s.Look()
		rig.Eventually(t, patience, "the node is asked", func() bool { return n.questions() > before })
		time.Sleep(50 * time.Millisecond)
		wantPart(t, s, "10.0.0.3:6379")
	}
}
