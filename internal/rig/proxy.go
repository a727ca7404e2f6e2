package rig

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections from Addr to a target and injects faults.
// Every method may be called at any time from any goroutine and takes effect on
// present and new connections alike.
//
// The faults are independent settings. The mode is one of Pass (at first),
// BlackHole, DropReplies and DropRequests. Besides it there are HoldReply,
// Delay, Drip, and Refuse with Accept. Cut is an event. Where two settings
// apply, a byte is forwarded when both allow it.
//
// A method that stops a direction returns when no further byte is forwarded
// that way; a byte already written to the peer's socket may still arrive there.
// What happened before the call of a method that opens a direction happens
// before every byte forwarded after it.
//
// The end of a connection travels like a byte: it is held, delayed or lost with
// the bytes before it. So while the proxy holds or drops, neither side learns
// that the other closed or died.
type Proxy struct {
	// Addr is host:port to dial, on the loopback interface.
	Addr string

	t      testing.TB
	target string
	ctx    context.Context // ends with the proxy; bounds dials
	cancel context.CancelFunc
	wg     sync.WaitGroup

	lsn sync.Mutex // held through Refuse, Accept and Cut

	mu        sync.Mutex // guards all below and every link
	ln        *listener  // nil while refusing
	closed    bool
	mode      mode
	holds     int // HoldReply not released yet
	delay     [2]time.Duration
	rate      int // bytes a second, 0 for no limit
	links     map[*link]bool
	forwarded [2]int64
	barriers  map[string]chan *net.TCPConn // by the address dialled from
}

type mode uint8

const (
	pass mode = iota
	blackHole
	dropReplies
	dropRequests
)

type direction uint8

const (
	toServer direction = iota
	toClient
)

type listener struct {
	net.Listener
	done chan struct{} // closed when its accept loop has ended
}

// NewProxy starts a proxy in front of target, a host:port, and ends it with the
// test. The target need not listen yet: it is dialled anew for each connection,
// and a client whose connection cannot be forwarded is reset.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := listenFree()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		Addr: ln.Addr().String(), t: t, target: target, ctx: ctx, cancel: cancel,
		links: make(map[*link]bool), barriers: make(map[string]chan *net.TCPConn),
	}
	t.Cleanup(p.close)
	p.serve(ln)
	return p
}

// Pass ends BlackHole, DropReplies and DropRequests. What a black hole held
// back is forwarded in order, as TCP would retransmit it; so a request whose
// sender gave up long ago may reach the server now. A connection that lost
// bytes to DropReplies or DropRequests is reset instead, on both sides, because
// TCP never loses bytes in the middle of a stream; one that lost none goes on.
func (p *Proxy) Pass() { p.setMode(pass) }

// BlackHole forwards nothing in either direction. Connections stay open, what
// is sent is accepted and kept (up to some megabytes each way, then the sender
// blocks), and new connections are accepted and silent: the server does not see
// them before the mode ends.
func (p *Proxy) BlackHole() { p.setMode(blackHole) }

// DropReplies lets requests through and discards what the server sends, replies
// on their way included.
func (p *Proxy) DropReplies() { p.setMode(dropReplies) }

// DropRequests discards what clients send and lets replies through. The server
// does not see new connections before the mode ends.
func (p *Proxy) DropRequests() { p.setMode(dropRequests) }

func (p *Proxy) setMode(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	p.settleLocked()
}

// HoldReply lets requests through and holds replies back until release is
// called, which may be done more than once. Replies flow again when every hold
// is released. [Proxy.Waiting] tells that a reply has come, so that a test can
// act between the server's execution and the client's knowledge of it.
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

// Delay adds latency to each direction, for bytes that arrive at the proxy from
// now on. Order is kept, and bytes sent later do not wait for those before them
// to arrive: it costs latency, not throughput. Setting up a connection is not
// delayed. Delay(0, 0) ends it.
func (p *Proxy) Delay(toServer, toClient time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = [2]time.Duration{toServer, toClient}
}

// Drip forwards at most that many bytes a second, in each direction of each
// connection, in small pieces. 0 ends it.
func (p *Proxy) Drip(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = max(0, bytesPerSecond)
	for l := range p.links {
		for d := range l.pipes {
			l.pipes[d].next = time.Time{}
		}
	}
	p.settleLocked()
}

// Cut resets all connections that exist when it is called, on both sides, and
// goes on accepting new ones. What it held for them is lost. It returns when
// the resets have been sent.
func (p *Proxy) Cut() {
	p.lsn.Lock()
	defer p.lsn.Unlock()
	p.flushBacklog()
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.resetLocked()
	}
}

// Refuse closes the listener: new connections are refused. Present ones stay;
// Cut ends them. It does nothing while the proxy refuses already.
func (p *Proxy) Refuse() {
	p.lsn.Lock()
	defer p.lsn.Unlock()
	// A client whose dial has succeeded counts as present.
	p.flushBacklog()
	p.mu.Lock()
	ln := p.ln
	p.ln = nil
	p.mu.Unlock()
	if ln != nil {
		ln.Close()
		<-ln.done
	}
}

// Accept ends Refuse: the proxy listens again on the same port.
func (p *Proxy) Accept() {
	p.t.Helper()
	p.lsn.Lock()
	defer p.lsn.Unlock()
	p.mu.Lock()
	accepting := p.ln != nil
	p.mu.Unlock()
	if accepting {
		return
	}
	var ln net.Listener
	var err error
	if !poll(readyWithin, func() bool {
		ln, err = net.Listen("tcp", p.Addr)
		return err == nil
	}) {
		p.t.Fatalf("rig: proxy at %s cannot listen again: %v", p.Addr, err)
	}
	p.serve(ln)
}

// Conns is the number of connections that the proxy has with clients. One whose
// client has closed counts until that could be told to the server.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Forwarded is how many bytes have been forwarded each way since the start. Those
// being written at the moment of their connection's reset do not count.
func (p *Proxy) Forwarded() (toServer, toClient int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forwarded[0], p.forwarded[1]
}

// Waiting is how many bytes have come and are held back or delayed now, each
// way, summed over the connections.
func (p *Proxy) Waiting() (toServer, toClient int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n [2]int64
	for l := range p.links {
		for d := range l.pipes {
			n[d] += int64(l.pipes[d].queued)
		}
	}
	return n[0], n[1]
}

func (p *Proxy) forwardsLocked(d direction) bool {
	switch {
	case p.mode == blackHole, p.dropsLocked(d):
		return false
	case d == toClient:
		return p.holds == 0
	}
	return true
}

func (p *Proxy) dropsLocked(d direction) bool {
	return p.mode == dropReplies && d == toClient || p.mode == dropRequests && d == toServer
}

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
			l.stopWritingLocked(direction(d))
		}
	}
	for l := range p.links {
		for d := range l.pipes {
			pp := &l.pipes[d]
			if p.dropsLocked(direction(d)) {
				pp.dropLocked()
			}
			if pp.lost && p.forwardsLocked(direction(d)) {
				l.resetLocked()
			}
		}
	}
}

func (p *Proxy) serve(ln net.Listener) {
	l := &listener{Listener: ln, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		ln.Close()
		return
	}
	p.ln = l
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		defer close(l.done)
		for {
			conn, err := l.Accept()
			switch {
			case err == nil:
				p.welcome(conn.(*net.TCPConn))
			case errors.Is(err, net.ErrClosed):
				return
			default: // such as: too many open files
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
}

func (p *Proxy) welcome(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seen, ok := p.barriers[client.RemoteAddr().String()]; ok {
		seen <- client
		return
	}
	if p.closed {
		reset(client)
		return
	}
	newLinkLocked(p, client)
}

// flushBacklog returns when every connection whose dial has succeeded so far is
// known to the proxy. The kernel completes dials before Accept returns them, in
// order, so a connection of our own comes out after all of those.
func (p *Proxy) flushBacklog() {
	p.mu.Lock()
	ln := p.ln
	p.mu.Unlock()
	if ln == nil {
		return
	}
	var err error
	for range 10 {
		if err = p.barrier(ln); err == nil {
			return
		}
	}
	p.t.Errorf("rig: proxy at %s: %v", p.Addr, err)
}

func (p *Proxy) barrier(ln *listener) error {
	// The address is registered before the dial: the accept loop may see the
	// connection before Dial returns here.
	port, err := freePort()
	if err != nil {
		return err
	}
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	seen := make(chan *net.TCPConn, 1)
	p.mu.Lock()
	p.barriers[from.String()] = seen
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.barriers, from.String())
		p.mu.Unlock()
	}()
	dialer := net.Dialer{LocalAddr: from, Timeout: readyWithin}
	conn, err := dialer.DialContext(p.ctx, "tcp", p.Addr)
	if err != nil {
		return err
	}
	defer reset(conn.(*net.TCPConn))
	timer := time.NewTimer(readyWithin)
	defer timer.Stop()
	select {
	case client := <-seen:
		// Not reset any earlier: our own dial might not have returned, and
		// would fail.
		reset(client)
		return nil
	case <-ln.done:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	ln := p.ln
	p.ln = nil
	for l := range p.links {
		l.resetLocked()
	}
	p.mu.Unlock()
	p.cancel()
	if ln != nil {
		ln.Close()
	}
	p.wg.Wait()
}
