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
// Each [Direction] has settings of its own, a [Fault], which [Proxy.Set]
// changes: whether bytes are forwarded, held or dropped, their latency, their
// rate. BlackHole, DropReplies, DropRequests, Pass, Delay and Drip are short for
// common pairs of them. Besides them there are HoldReply, and Refuse with
// Accept. Where two settings apply, a byte is forwarded when both allow it.
//
// Events strike the connections that exist: Finish and Reset one side of them,
// Cut both.
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
	ctx    context.Context // ends with the proxy; bounds dials
	cancel context.CancelFunc
	wg     sync.WaitGroup

	lsn sync.Mutex // held through Refuse, Accept and Cut

	mu        sync.Mutex // guards all below and every link
	target    string
	ln        *listener // nil while refusing
	closed    bool
	faults    [2]Fault // by direction
	holds     int      // HoldReply not released yet
	links     map[*link]bool
	forwarded [2]int64
	barriers  map[string]chan *net.TCPConn // by the address dialled from
}

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

// Aim makes another server the target of the links that are not connected yet, as a
// failover does. Present ones stay; Cut ends them.
func (p *Proxy) Aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
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
// client has closed counts until that could be told to the server, and one of
// which the client's side was reset does not count.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if !l.gone[ToClient] {
			n++
		}
	}
	return n
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
	defer giveBack(port) // there is a barrier for each event, and they are many
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
