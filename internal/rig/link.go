package rig

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// pipeLimit is how much one direction of a connection keeps before its
	// sender has to wait.
	pipeLimit = 4 << 20
	// dripsPerSecond is into how many pieces Drip cuts a second's bytes.
	dripsPerSecond = 50
	dialWithin     = 10 * time.Second
)

// link is one client's connection and the one to the server that it is
// forwarded over. All fields are guarded by the proxy's mutex; only reads,
// writes and the dial run without it.
//
// Each direction has a reader, which takes bytes from one socket into the pipe
// whatever the mode is, and a writer, which takes them out when it may.
type link struct {
	p      *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until dialled
	dead   bool
	gone   [2]bool // by direction: the peer at its end was reset, alone
	pipes  [2]pipe // by direction
}

// pipe is what has come for one direction and was not forwarded yet.
type pipe struct {
	changed *sync.Cond // any change of this pipe, its link's death, the proxy's settings
	queue   []chunk
	queued  int       // bytes in queue
	writing bool      // the writer is in Write with the head of queue
	lost    bool      // bytes were dropped: nothing may follow them
	ending  bool      // the end of the stream has come, or was made up by Finish
	over    bool      // the sender has closed, whether or not ending was made up before
	done    bool      // the end of the stream was forwarded
	next    time.Time // the earliest moment for the next piece, under Drip
}

// chunk is a piece of a stream, or its end.
type chunk struct {
	data []byte
	due  time.Time
	end  ending
}

type ending uint8

const (
	goesOn ending = iota
	closes        // the sender closed its side
	madeUp        // by Finish
	resets        // the sender reset the connection, or has to be told of a reset
)

func newLinkLocked(p *Proxy, client *net.TCPConn) {
	l := &link{p: p, client: client}
	for d := range l.pipes {
		l.pipes[d].changed = sync.NewCond(&p.mu)
	}
	p.links[l] = true
	p.wg.Add(2)
	go l.read(ToServer, client)
	go l.connect()
}

// connect dials the server as soon as requests may pass and then starts the
// other three goroutines. Until then the server sees nothing of the link.
func (l *link) connect() {
	defer l.p.wg.Done()
	p := l.p
	p.mu.Lock()
	for !l.dead && !p.forwardsLocked(ToServer) {
		l.pipes[ToServer].changed.Wait()
	}
	dead, target := l.dead, p.target
	p.mu.Unlock()
	if dead {
		return
	}
	dialer := net.Dialer{Timeout: dialWithin}
	conn, err := dialer.DialContext(p.ctx, "tcp", target)

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		l.resetLocked()
		return
	}
	l.server = conn.(*net.TCPConn)
	if l.dead { // while we dialled
		reset(l.server)
		return
	}
	p.wg.Add(3)
	go l.read(ToClient, l.server)
	go l.write(ToServer, l.server)
	go l.write(ToClient, l.client)
}

func (l *link) read(d Direction, src net.Conn) {
	defer l.p.wg.Done()
	pp := &l.pipes[d]
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if !l.took(d, buf[:n], err) || err != nil {
			return
		}
		l.p.mu.Lock()
		for !l.dead && pp.queued >= pipeLimit {
			pp.changed.Wait()
		}
		l.p.mu.Unlock()
	}
}

// took puts what a read returned into the pipe and reports whether the link
// still lives.
func (l *link) took(d Direction, data []byte, err error) bool {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.dead {
		return false
	}
	pp := &l.pipes[d]
	if len(data) > 0 {
		if pp.ending {
			l.afterEndLocked(d)
		} else {
			l.putLocked(d, chunk{data: append([]byte(nil), data...)})
		}
	}
	switch {
	case err == nil:
	case l.gone[d.back()]:
		// The error is that of our own reset, which the other side must not
		// see.
	case !errors.Is(err, io.EOF):
		l.putLocked(d, chunk{end: resets})
	default:
		pp.over = true
		if pp.ending {
			l.afterEndLocked(d)
		} else {
			l.putLocked(d, chunk{end: closes})
		}
	}
	return true
}

// afterEndLocked is for what comes after an end that Finish made up. It leads
// nowhere, and its sender notices nothing, unless there is nobody any more to
// have got that end: then what is sent is answered by a reset, as without the
// end. An end is such a thing too; nothing comes after it, so nothing else would
// end the link.
func (l *link) afterEndLocked(d Direction) {
	queue := l.pipes[d].queue
	if l.gone[d] && (len(queue) == 0 || queue[len(queue)-1].end != resets) {
		l.putLocked(d, chunk{end: resets})
	}
}

// putLocked adds a piece, or the end, to what is on its way.
func (l *link) putLocked(d Direction, c chunk) {
	pp := &l.pipes[d]
	c.due = time.Now().Add(l.p.faults[d].Delay)
	pp.queue = append(pp.queue, c)
	pp.queued += len(c.data)
	pp.ending = pp.ending || c.end != goesOn
	// While the writer is in Write the head of the queue is its own; the method
	// that closes the direction waits for it and then drops the queue itself.
	if !pp.writing && (l.p.dropsLocked(d) || pp.lost) {
		pp.dropLocked()
	}
	pp.changed.Broadcast()
}

// dropLocked loses what the pipe holds. The writer must not be in Write.
func (pp *pipe) dropLocked() {
	if len(pp.queue) > 0 {
		pp.lost = true
	}
	pp.queue, pp.queued = nil, 0
	pp.changed.Broadcast()
}

func (l *link) write(d Direction, dst *net.TCPConn) {
	p := l.p
	defer p.wg.Done()
	pp := &l.pipes[d]
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		c, ok := l.nextLocked(d)
		if !ok {
			return
		}
		switch c.end {
		case resets:
			l.resetLocked()
			return
		case closes, madeUp:
			pp.queue, pp.done = pp.queue[1:], true
			switch {
			case l.pipes[ToServer].done && l.pipes[ToClient].done:
				l.closeLocked()
			case l.gone[d]:
				// Nobody reads it, and of one that was made up its sender must
				// not learn. One that has closed leaves nothing open.
				if pp.over {
					l.resetLocked()
				}
			default:
				if err := dst.CloseWrite(); err != nil {
					l.resetLocked()
				}
			}
			continue // a reset may follow, nothing else
		}
		data := c.data
		if rate := p.faults[d].Rate; rate > 0 {
			data = data[:min(len(data), max(1, rate/dripsPerSecond))]
			now := time.Now()
			if pp.next.Before(now) {
				pp.next = now
			}
			pp.next = pp.next.Add(time.Duration(len(data)) * time.Second / time.Duration(rate))
		}
		// Clearing the deadline and setting writing is one step under the
		// mutex: stopWritingLocked sees either no write or one that the
		// deadline it sets will end, begun or not.
		pp.writing = true
		dst.SetWriteDeadline(time.Time{})
		p.mu.Unlock()
		n, err := dst.Write(data)
		p.mu.Lock()
		pp.writing = false
		pp.changed.Broadcast()
		if l.dead {
			// The write ended before the reset did, but counting it only now
			// would move the counter of a direction that is closed meanwhile.
			return
		}
		p.forwarded[d] += int64(n)
		pp.queued -= n
		if n == len(pp.queue[0].data) {
			pp.queue[0] = chunk{}
			pp.queue = pp.queue[1:]
		} else {
			pp.queue[0].data = pp.queue[0].data[n:]
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			// Nobody is there any more, perhaps by Proxy.Reset: so the sender
			// is answered.
			l.resetLocked()
			return
		}
	}
}

// nextLocked waits until the head of the pipe may be forwarded; it is false once
// the link is dead.
func (l *link) nextLocked(d Direction) (chunk, bool) {
	pp := &l.pipes[d]
	for !l.dead {
		if len(pp.queue) == 0 || pp.lost || !l.p.forwardsLocked(d) {
			pp.changed.Wait()
			continue
		}
		head := pp.queue[0]
		at := head.due
		if l.p.faults[d].Rate > 0 && pp.next.After(at) {
			at = pp.next
		}
		wait := time.Until(at)
		if wait <= 0 {
			return head, true
		}
		timer := time.AfterFunc(wait, func() {
			l.p.mu.Lock()
			defer l.p.mu.Unlock()
			pp.changed.Broadcast()
		})
		pp.changed.Wait()
		timer.Stop()
	}
	return chunk{}, false
}

// stopWritingLocked returns when the direction is closed and nothing is being
// written in it, or when it is open. A write may be blocked by a peer that does
// not read, so it is broken off; what it had not written stays in the pipe.
func (l *link) stopWritingLocked(d Direction) {
	pp := &l.pipes[d]
	for pp.writing && !l.dead && !l.p.forwardsLocked(d) {
		l.end(d).SetWriteDeadline(time.Unix(1, 0))
		pp.changed.Wait()
	}
}

// end is the connection to the peer that a direction leads to.
func (l *link) end(d Direction) *net.TCPConn {
	if d == ToServer {
		return l.server
	}
	return l.client
}

// finishLocked makes up the end of a stream: see Proxy.Finish.
func (l *link) finishLocked(d Direction) {
	if !l.pipes[d].ending {
		l.putLocked(d, chunk{end: madeUp})
	}
}

// loseLocked resets the connection to one peer and leaves the other half-open:
// see Proxy.Reset.
func (l *link) loseLocked(d Direction) {
	switch {
	case l.server == nil && d == ToServer:
		// It was not passed on to the server yet.
	case l.server == nil, l.gone[d.back()], l.pipes[d].over && l.pipes[d].done:
		l.resetLocked() // there is nobody else to leave behind
	case !l.gone[d]:
		l.gone[d] = true
		reset(l.end(d))
	}
}

// resetLocked ends both connections with a reset. Closing a socket waits for
// nothing but its readers and writers to leave the system call, which they do
// at once and without the mutex.
func (l *link) resetLocked() {
	if l.endLocked() {
		reset(l.client)
		if l.server != nil {
			reset(l.server)
		}
	}
}

// closeLocked ends a link that both sides have closed.
func (l *link) closeLocked() {
	if l.endLocked() {
		l.client.Close()
		l.server.Close()
	}
}

func (l *link) endLocked() bool {
	if l.dead {
		return false
	}
	l.dead = true
	delete(l.p.links, l)
	for d := range l.pipes {
		l.pipes[d].queue, l.pipes[d].queued = nil, 0
		l.pipes[d].changed.Broadcast()
	}
	return true
}

// reset closes a connection so that the peer gets a reset instead of an end of
// stream, and unsent bytes are lost.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
