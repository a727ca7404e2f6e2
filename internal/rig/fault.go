package rig

import (
	"fmt"
	"sync"
	"time"
)

// Direction is one of the two ways through a [Proxy].
type Direction uint8

const (
	// ToServer is the way of requests.
	ToServer Direction = iota
	// ToClient is the way of replies.
	ToClient
)

// back is the other direction. Its end is where this one comes from.
func (d Direction) back() Direction { return 1 - d }

// String is "to server" or "to client".
func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Flow says what becomes of the bytes of a direction.
type Flow uint8

const (
	// Forward lets bytes through.
	Forward Flow = iota
	// Hold accepts and keeps them (up to some megabytes, then the sender
	// blocks), and forwards them in order when the direction is opened, as TCP
	// would retransmit them. In one direction only it makes a connection
	// half-open: one side is heard and hears nothing.
	Hold
	// Drop accepts and discards them, those held or delayed so far included. A
	// connection that lost bytes is reset, on both sides, when the direction
	// is opened: TCP never loses bytes in the middle of a stream. One that lost
	// none goes on.
	Drop
)

// String is "forward", "hold" or "drop".
func (f Flow) String() string {
	switch f {
	case Forward:
		return "forward"
	case Hold:
		return "hold"
	case Drop:
		return "drop"
	}
	return fmt.Sprintf("flow(%d)", uint8(f))
}

// Fault is how a [Proxy] treats one direction. The zero Fault is none. All that
// is set applies together: with a Delay and a Rate, bytes arrive late and
// slowly; what is held or dropped is so whatever the rest says, and what was
// held drips once it is let go.
type Fault struct {
	Flow Flow
	// Delay is the latency of bytes that come to the proxy while it is set.
	// Order is kept, and bytes sent later do not wait for those before them to
	// arrive: it costs latency, not throughput. Setting up a connection is not
	// delayed.
	Delay time.Duration
	// Rate, where positive, is how many bytes a second are forwarded at most, on
	// each connection, in small pieces.
	Rate int
}

// String tells what is set, "none" if nothing is.
func (f Fault) String() string {
	if f == (Fault{}) {
		return "none"
	}
	s := f.Flow.String()
	if f.Delay > 0 {
		s += fmt.Sprintf(", %v late", f.Delay)
	}
	if f.Rate > 0 {
		s += fmt.Sprintf(", %d bytes/s", f.Rate)
	}
	return s
}

// Set replaces the settings of one direction. Connections live through it,
// unless opening the direction resets those that lost bytes: see [Drop]. While
// ToServer does not forward, the server does not see new connections; they are
// accepted and silent.
func (p *Proxy) Set(d Direction, f Fault) {
	p.change(func(faults *[2]Fault) { faults[d] = f })
}

// Fault is what was set last.
func (p *Proxy) Fault(d Direction) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults[d]
}

// Pass opens both directions: it ends BlackHole, DropReplies, DropRequests and
// the Flow of any Set. What was held is forwarded in order; so a request whose
// sender gave up long ago may reach the server now.
func (p *Proxy) Pass() { p.setFlows(Forward, Forward) }

// BlackHole holds both directions: connections stay open and are silent, new
// ones too.
func (p *Proxy) BlackHole() { p.setFlows(Hold, Hold) }

// DropReplies lets requests through and discards what the server sends, replies
// on their way included.
func (p *Proxy) DropReplies() { p.setFlows(Forward, Drop) }

// DropRequests discards what clients send and lets replies through.
func (p *Proxy) DropRequests() { p.setFlows(Drop, Forward) }

func (p *Proxy) setFlows(toServer, toClient Flow) {
	p.change(func(faults *[2]Fault) { faults[ToServer].Flow, faults[ToClient].Flow = toServer, toClient })
}

// Delay sets the latency of each direction. Delay(0, 0) ends it.
func (p *Proxy) Delay(toServer, toClient time.Duration) {
	p.change(func(faults *[2]Fault) { faults[ToServer].Delay, faults[ToClient].Delay = toServer, toClient })
}

// Drip sets the rate of both directions. 0 ends it.
func (p *Proxy) Drip(bytesPerSecond int) {
	p.change(func(faults *[2]Fault) { faults[ToServer].Rate, faults[ToClient].Rate = bytesPerSecond, bytesPerSecond })
}

// HoldReply lets requests through and holds replies back until release is
// called, which may be done more than once. Replies flow again when every hold
// is released. It is independent of what Set and the others do.
// [Proxy.Waiting] tells that a reply has come, so that a test can act between
// the server's execution and the client's knowledge of it.
func (p *Proxy) HoldReply() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds++
	p.settleLocked()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.holds--
		p.settleLocked()
	})
}

// Finish ends the stream of one direction on all connections that exist, as if
// the side that sends it had closed (a FIN): the peer at the end of the
// direction reads what was on its way and then the end. The other side is not
// told: what it sends from now on is discarded, as by a process that has closed
// and is still sent to. The connection lives until the peer closes it as well,
// or is reset: then see Reset.
func (p *Proxy) Finish(d Direction) { p.strike(func(l *link) { l.finishLocked(d) }) }

// Reset resets the connections that exist to one side, the one that d leads to,
// as if the other had crashed and started again, and leaves the other side with
// a half-open connection: it is silent, and what comes from it is answered by a
// reset, once it is forwarded, also after Finish. What the lost side had sent
// before still travels. A connection that the server has not seen yet has no
// other side, and one whose other side has closed, as the lost one was told,
// leaves nothing.
func (p *Proxy) Reset(d Direction) { p.strike(func(l *link) { l.loseLocked(d) }) }

// Cut resets all connections that exist when it is called, on both sides, and
// goes on accepting new ones. What it held for them is lost. It returns when
// the resets have been sent.
func (p *Proxy) Cut() { p.strike((*link).resetLocked) }

// strike does something to every connection whose dial has succeeded so far.
func (p *Proxy) strike(each func(*link)) {
	p.lsn.Lock()
	defer p.lsn.Unlock()
	p.flushBacklog()
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		each(l)
	}
}

func (p *Proxy) change(set func(faults *[2]Fault)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set(&p.faults)
	for d := range p.faults {
		p.faults[d].Rate = max(0, p.faults[d].Rate)
		p.faults[d].Delay = max(0, p.faults[d].Delay)
	}
	for l := range p.links {
		for d := range l.pipes {
			l.pipes[d].next = time.Time{} // a piece that waits its turn goes by the new rate
		}
	}
	p.settleLocked()
}

func (p *Proxy) forwardsLocked(d Direction) bool {
	return p.faults[d].Flow == Forward && (d == ToServer || p.holds == 0)
}

func (p *Proxy) dropsLocked(d Direction) bool { return p.faults[d].Flow == Drop }

// settleLocked carries a changed setting through to every link.
func (p *Proxy) settleLocked() {
	for l := range p.links {
		for d := range l.pipes {
			l.pipes[d].changed.Broadcast()
		}
	}
	// First let writes in flight end, where their direction is closed now. The
	// wait gives up the mutex, and another caller may open the direction again:
	// then its setting is the later one and nothing is left to wait for.
	for l := range p.links {
		for d := range l.pipes {
			l.stopWritingLocked(Direction(d))
		}
	}
	for l := range p.links {
		for d := range l.pipes {
			pp := &l.pipes[d]
			if p.dropsLocked(Direction(d)) {
				pp.dropLocked()
			}
			if pp.lost && p.forwardsLocked(Direction(d)) {
				l.resetLocked()
			}
		}
	}
}
