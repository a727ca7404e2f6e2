package redisstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
	"github.com/tierlock/tierlock/watchdog"
)

// Where the server's clock is stepped forward, Redis lets keys expire whose
// holders still believe in them. So an exclusive acquire is refused as late, by
// the server and before it writes anything, where the clock shows more than what
// this store has seen of it until a minute ago explains; see contract.Tripwire.
// What the refusal shows of the clock is not believed sooner for that. Exclusive
// acquires tell the time of the data that they are meant for, and so do probes,
// which come every few seconds where there are no acquires. On a Cluster only probes
// do: a slot may have moved, and its time be that of another node.

// clockGone is how long a server's clock is remembered that tells nothing.
const clockGone = time.Hour

// tripwires has one for the clock of each server that has told its time.
type tripwires struct {
	began watchdog.Instant // where their local time begins
	mu    sync.Mutex
	of    map[clocked]*contract.Tripwire
	// last is the incarnation of the last good probe, and nodes the server of each
	// replication id then.
	last  string
	nodes map[string]string
}

// clocked is a server whose clock is known. Connections do not matter here: other
// data means another server, or one that has been away.
type clocked struct {
	incarnation string
	node        string // with a Cluster client
}

// local is the time of a reading of the clock just now. Suspends count: the
// server's clock went on.
func (w *tripwires) local(now watchdog.Instant) int64 { return now.Sub(w.began).Microseconds() }

// at gives the tripwire for a server.
func (w *tripwires) at(c clocked, now int64) *contract.Tripwire {
	w.mu.Lock()
	defer w.mu.Unlock()
	wire := w.of[c]
	if wire == nil {
		for c, old := range w.of {
			if old.Silent(now) > clockGone {
				delete(w.of, c)
			}
		}
		wire = new(contract.Tripwire)
		w.of[c] = wire
	}
	return wire
}

// learn takes in the times that a good probe was told.
func (w *tripwires) learn(incarnation string, seen map[place]answer) {
	nodes := make(map[string]string, len(seen))
	for _, a := range seen {
		if a.own {
			nodes[a.id] = a.node
		}
	}
	w.mu.Lock()
	w.last, w.nodes = incarnation, nodes
	w.mu.Unlock()
	w.take(incarnation, nodes, seen)
}

// learnPart takes in the times that one was told which did not reach all servers: of
// those that are as they were at the last good one.
func (w *tripwires) learnPart(seen map[place]answer) {
	w.mu.Lock()
	incarnation, nodes := w.last, w.nodes
	w.mu.Unlock()
	w.take(incarnation, nodes, seen)
}

func (w *tripwires) take(incarnation string, nodes map[string]string, seen map[place]answer) {
	for _, a := range seen {
		if node, known := nodes[a.id]; a.own && known && node == a.node {
			w.at(clocked{incarnation, node}, a.sent).Learn(a.sent, a.server)
		}
	}
}

// guard is what one exclusive acquire has of a tripwire. Its zero value, for those
// that are not exclusive, bounds nothing.
type guard struct {
	wires *tripwires
	wire  *contract.Tripwire
	one   bool  // no other server than wire's can answer
	sent  int64 // when the latest try began
	bound bool  // whether it is the tripwire that bounds that try
}

// guard is for an acquire that began at sent, just now.
func (s *Store) guard(sent time.Time, p tierlock.Place, slot uint16) (g guard) {
	if !p.Exclusive {
		return g
	}
	g.wires, g.one, g.sent = &s.wires, s.clocks.slots == nil, s.wires.local(watchdog.At(sent))
	g.wire = s.wires.at(s.clocked(p.Incarnation, slot), g.sent)
	return g
}

func (s *Store) clocked(incarnation string, slot uint16) clocked {
	if s.clocks.slots == nil {
		return clocked{incarnation: incarnation}
	}
	return clocked{incarnation, s.hub.guide.node(slot)}
}

// latest is the latest time of the server for a grant by the try that begins, where
// it would be that without the tripwire.
func (g *guard) latest(server int64, budget time.Duration) int64 {
	if g.wire == nil {
		return server
	}
	most, known := g.wire.Latest(g.sent, budget)
	if g.bound = known && most < server; g.bound {
		return most
	}
	return server
}

// late is what a refusal means whose time some way explains.
func (g *guard) late(budget time.Duration) error {
	if g.bound && budget > contract.TripSlack {
		return fmt.Errorf("%w: %v longer on its way than the best of the last minute, which might as well be a step of the server's clock",
			tierlock.ErrLate, contract.TripSlack)
	}
	return fmt.Errorf("%w: not executed within %v", tierlock.ErrLate, budget)
}

// again begins another try.
func (g *guard) again() {
	if g.wire != nil {
		g.sent = g.wires.local(watchdog.Now())
	}
}

// learn takes in the time of an answer.
func (g *guard) learn(server int64) {
	if g.wire != nil && g.one {
		g.wire.Learn(g.sent, server)
	}
}

// refused takes in the time of a refusal that came just now, and returns what is
// wrong where no time on the way explains it.
func (g *guard) refused(server int64) error {
	if g.wire == nil {
		return nil
	}
	most, known := g.wire.Explained(g.wires.local(watchdog.Now()))
	g.learn(server)
	if !known || server <= most {
		return nil
	}
	return fmt.Errorf("%w: the clock of the server was stepped forward, by %v: nothing exclusive is granted there until it has gone on from that for some %v",
		tierlock.ErrLate, time.Duration(server-most)*time.Microsecond, contract.TripMost)
}
