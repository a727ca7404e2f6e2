package redisstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock knows how far a server's clock is ahead of this process's monotonic
// one. All times are microseconds; local ones count from the store's making.
//
// An offset comes from one exchange: the server read its clock at some moment
// between sending and receiving, so the middle is wrong by at most half the
// round trip, and the shortest of the last seconds is the best. It is not kept
// over a lost connection: the next one may lead to another server.
type clock struct {
	mu sync.Mutex
	// best is the best sample since turn, older the best of the time before
	// that: together they cover the last clockWindow at most, and half of it
	// at least, as long as samples come.
	best, older sample
	turn        int64
}

type sample struct {
	offset int64 // server - local
	rtt    int64
	at     int64 // local time of receiving
	ok     bool
}

const (
	clockWindow = int64(10 * time.Second / time.Microsecond)
	// clockIdle is how long an offset serves without a newer sample. Clocks
	// drift apart by some 10 µs a second at worst.
	clockIdle = int64(time.Minute / time.Microsecond)
	// clockSlack is how far two samples may contradict each other before the
	// server's clock counts as stepped.
	clockSlack = int64(time.Millisecond / time.Microsecond)
)

// offset is the server's clock less the local one, if it is known.
func (c *clock) offset(now int64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.pickLocked()
	if !s.ok || now-s.at > clockIdle {
		return 0, false
	}
	return s.offset, true
}

// learn takes in a server time that was read between sent and received.
func (c *clock) learn(sent, received, server int64) {
	s := sample{offset: server - (sent+received)/2, rtt: received - sent, at: received, ok: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.pickLocked(); known.ok {
		apart := s.offset - known.offset
		if apart < 0 {
			apart = -apart
		}
		if apart > (s.rtt+known.rtt)/2+clockSlack {
			// No single offset explains both: the clock was stepped, or this
			// is another server. The newer one is true now.
			c.best, c.older, c.turn = s, sample{}, received
			return
		}
	}
	if received-c.turn > clockWindow/2 {
		c.older, c.best, c.turn = c.best, sample{}, received
		if received-c.older.at > clockWindow/2 {
			c.older = sample{}
		}
	}
	if !c.best.ok || s.rtt <= c.best.rtt {
		c.best = s
	}
}

// replace forgets everything but this sample.
func (c *clock) replace(sent, received, server int64) {
	c.forget()
	c.learn(sent, received, server)
}

func (c *clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.best, c.older, c.turn = sample{}, sample{}, 0
}

func (c *clock) pickLocked() sample {
	if !c.best.ok || c.older.ok && c.older.rtt < c.best.rtt {
		return c.older
	}
	return c.best
}

// clocks finds the clock of the node that serves a key.
type clocks struct {
	one clock
	// slots is for Cluster clients: which node serves a slot is not known
	// here, so each slot has a clock of its own. Nil otherwise.
	slots []atomic.Pointer[clock]
}

func (c *clocks) of(key string) *clock {
	if c.slots == nil {
		return &c.one
	}
	p := &c.slots[slotOf(key)]
	if k := p.Load(); k != nil {
		return k
	}
	p.CompareAndSwap(nil, new(clock))
	return p.Load()
}

// only is the one clock, or nil where each slot has its own.
func (c *clocks) only() *clock {
	if c.slots == nil {
		return &c.one
	}
	return nil
}
