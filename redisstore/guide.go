package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sort"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
)

// The pause from one look at the table of slots to the next grows as long as
// there is cause for another: while a slot moves, the nodes do not agree for a
// moment; while a node is down, for longer.
const (
	guidePause    = 50 * time.Millisecond
	guideMaxPause = time.Second
)

// guide knows which node of a Cluster serves a topic's slot: sharded channels
// are known there only, and the client does not tell. It reads the Cluster's
// table of slots before the first subscription, and again when a subscription
// is refused or ended by its node, or a connection is lost. It is guarded by
// hub.mu, but for table and asked.
type guide struct {
	table   atomic.Pointer[[]slotRange] // by first slot; what was read last
	stale   bool                        // it has to be read again while there are topics
	once    bool                        // it is to be read once in any case
	hint    string                      // the node to ask first
	running bool
	// down is why topics could not be placed by the last look: until retryAt no
	// new watch is kept waiting.
	down    error
	retryAt time.Time

	// read is closed, and replaced, when the table has been read.
	read chan struct{}

	// asked holds the nodes that have not answered yet; a look that gives up
	// does not end the question.
	asked map[string]chan slotsAnswer
}

type slotRange struct {
	first, last uint16
	node        string
}

type slotsAnswer struct {
	table []slotRange
	err   error
}

// node is the node that serves a slot, "" if it is not known.
func (g *guide) node(slot uint16) string {
	read := g.table.Load()
	if read == nil {
		return ""
	}
	table := *read
	i := sort.Search(len(table), func(i int) bool { return table[i].last >= slot })
	if i == len(table) || table[i].first > slot {
		return ""
	}
	return table[i].node
}

// Part implements [tierlock.Partitioned]. With a Cluster client it is the address
// of the node that serves the lock, as far as that is known.
func (s *Store) Part(name tierlock.Name) string {
	if s.trouble.Load() != nil || s.clocks.slots == nil {
		return ""
	}
	g := &s.hub.guide
	if g.table.Load() == nil {
		s.hub.lookOnce()
		return ""
	}
	return g.node(slotOf(lockKey(name, "")))
}

// lookOnce has the table read although, perhaps, nothing is watched: before the
// first call, and after one that failed.
func (h *hub) lookOnce() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guide.once = true
	h.guide.lookLocked(h, "")
}

// lookNow has the table read and returns what is closed when it has been.
func (h *hub) lookNow() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.guide
	if g.read == nil {
		g.read = make(chan struct{})
	}
	g.once = true
	g.lookLocked(h, "")
	return g.read
}

// linkLocked is where a new topic probably belongs: a table that is out of date
// costs a refusal. It is nil, and a look begun, if that is not known.
func (g *guide) linkLocked(h *hub, channel string) *link {
	node := g.node(slotOf(channel))
	if node == "" || g.stale {
		g.lookLocked(h, "")
	}
	if node == "" {
		return nil
	}
	return h.linkLocked(node)
}

// lookLocked has the table read again.
func (g *guide) lookLocked(h *hub, hint string) {
	g.stale = true
	if hint != "" {
		g.hint = hint
	}
	if !g.running {
		g.running = h.store.spawn(h.look)
	}
}

// look reads the table and places topics until there is nothing to do.
func (h *hub) look() {
	for pause := guidePause; ; pause = min(2*pause, guideMaxPause) {
		hint, wanted := h.lookWanted()
		if !wanted {
			return
		}
		table, err := h.readSlots(hint)
		h.place(table, err, pause)
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-h.store.quit:
			wait.Stop()
		}
	}
}

func (h *hub) lookWanted() (hint string, wanted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.guide
	if h.closed || !g.once && (!g.stale || len(h.topics) == 0) {
		g.running = false // if the table is stale, the next topic begins a look
		return "", false
	}
	hint, g.hint, g.stale, g.once = g.hint, "", false, false
	return hint, true
}

// place moves each topic to the node that serves it. Where that is not known,
// nobody waits for a first subscription any longer, and the look is repeated.
func (h *hub) place(table []slotRange, err error, pause time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.guide
	if err == nil {
		g.table.Store(&table)
		if g.read != nil {
			close(g.read)
			g.read = nil
		}
	}
	g.down, g.retryAt = err, time.Now().Add(pause)
	for channel, t := range h.topics {
		node := g.node(slotOf(channel))
		switch {
		case err == nil && node == "":
			g.down = fmt.Errorf("no node serves slot %d", slotOf(channel))
			h.detachLocked(channel, t)
		case err == nil && (t.link == nil || t.link.node != node):
			h.detachLocked(channel, t)
			h.attachLocked(channel, t, h.linkLocked(node))
		}
		if t.link == nil {
			h.failLocked(channel, t, g.down)
		}
	}
	if g.down != nil {
		g.stale = true
		return
	}
	for node, l := range h.links { // those of nodes that have left
		if !l.running && !slices.ContainsFunc(table, func(r slotRange) bool { return r.node == node }) {
			delete(h.links, node)
		}
	}
}

// readSlots asks one node after the other, the one given first, until one knows
// which node serves which slots. A node may hold an older table than others, so
// the answer is only where to try.
func (h *hub) readSlots(first string) ([]slotRange, error) {
	s := h.store
	client, err := s.ready()
	if err != nil {
		return nil, err
	}
	nodes := client.Nodes()
	order := make([]string, 0, len(nodes))
	for addr := range nodes { // at random, as maps are
		order = append(order, addr)
	}
	if i := slices.Index(order, first); i > 0 {
		order[0], order[i] = order[i], order[0]
	}
	err = errors.New("the client knows no node")
	for _, addr := range order {
		var table []slotRange
		if table, err = h.askSlots(addr, nodes[addr]); err == nil {
			return table, nil
		}
	}
	return nil, fmt.Errorf("asking where slots are: %w", err)
}

// askSlots asks one node, which may be silent: there is one question to each at
// a time, and who asks again waits for its answer.
func (h *hub) askSlots(addr string, node rueidis.Client) ([]slotRange, error) {
	s := h.store
	if h.guide.asked == nil {
		h.guide.asked = make(map[string]chan slotsAnswer)
	}
	answer := h.guide.asked[addr]
	select {
	case <-answer:
		answer = nil // it came after its look had given up, and may be old
	default:
	}
	if answer == nil {
		answer = make(chan slotsAnswer, 1)
		go func() {
			reply, err := node.Do(context.Background(), node.B().ClusterSlots().Build()).ToArray()
			var a slotsAnswer
			if a.err = err; err == nil {
				a.table, a.err = readTable(reply, addr)
			}
			answer <- a
		}()
		h.guide.asked[addr] = answer
	}
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	select {
	case a := <-answer:
		delete(h.guide.asked, addr)
		return a.table, a.err
	case <-limit.C:
		return nil, s.noAnswer()
	case <-s.quit:
		return nil, errClosed
	}
}

// readTable reads the answer to CLUSTER SLOTS of the node at addr: of each range
// of slots the first, the last, and the nodes that serve it, the master first.
func readTable(reply []rueidis.RedisMessage, addr string) ([]slotRange, error) {
	var table []slotRange
	for _, m := range reply {
		entry, err := m.ToArray()
		if err == nil && len(entry) < 3 {
			err = errors.New("wanted two slots and a node")
		}
		var first, last, port int64
		var master []rueidis.RedisMessage
		if err == nil {
			first, err = entry[0].AsInt64()
		}
		if err == nil {
			last, err = entry[1].AsInt64()
		}
		if err == nil {
			master, err = entry[2].ToArray()
		}
		if err == nil && len(master) < 2 {
			err = errors.New("wanted a host and a port")
		}
		if err == nil {
			port, err = master[1].AsInt64()
		}
		if err != nil {
			return nil, fmt.Errorf("unexpected answer to CLUSTER SLOTS: %w", err)
		}
		host, _ := master[0].ToString() // null where it is the same as addr's
		switch host {
		case "?":
			continue // not known
		case "":
			host, _, _ = net.SplitHostPort(addr)
		}
		table = append(table, slotRange{
			first: uint16(first), last: uint16(last),
			node: net.JoinHostPort(host, strconv.FormatInt(port, 10)),
		})
	}
	if len(table) == 0 {
		return nil, errors.New("the node knows of no slots")
	}
	slices.SortFunc(table, func(a, b slotRange) int { return int(a.first) - int(b.first) })
	return table, nil
}
