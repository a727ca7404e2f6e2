package contract

import (
	"sync"
	"time"
)

// Clock knows how far a server's clock is ahead of this process's monotonic
// one, at the least. All times are microseconds; local ones count from the
// store's making.
//
// One exchange gives two limits: the server read its clock after the request
// was sent and before the reply was received. The lower one is used, so that
// the latest moment of a grant, as the server judges it, is never after the
// moment that was meant, whatever the two ways took. It is too early by what
// the reply was on its way, at the best of the last seconds.
type Clock struct {
	mu sync.Mutex
	// best is the best sample since turn, older the best of the time before
	// that: together they cover the last clockWindow at most, and half of it
	// at least, as long as samples come.
	best, older sample
	turn        int64
	// least is the least that the server's clock can have been ahead at the
	// most, since leastTurn, and leastOlder before that, as above.
	least, leastOlder limit
	leastTurn         int64
}

type limit struct {
	ahead int64
	ok    bool
}

func (l *limit) lower(ahead int64) {
	if !l.ok || ahead < l.ahead {
		*l = limit{ahead, true}
	}
}

type sample struct {
	low, high int64  // limits of server - local
	at        int64  // local time of receiving
	era       uint64 // of the request: see eras
	ok        bool
}

const (
	clockWindow = int64(10 * time.Second / time.Microsecond)
	// clockIdle is how long an offset serves without a newer sample. Clocks
	// drift apart by some 10 µs a second at worst.
	clockIdle = int64(time.Minute / time.Microsecond)
	// clockMemory is how long a step forward is not believed.
	clockMemory = int64(time.Minute / time.Microsecond)
	// clockSlack is how far two samples may contradict each other before the
	// server's clock counts as stepped back.
	clockSlack = int64(time.Millisecond / time.Microsecond)
)

// Offset is the least that the server's clock is ahead of the local one, if it
// is known in this era.
func (c *Clock) Offset(now int64, era uint64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.pickLocked()
	if !s.ok || s.era != era || now-s.at > clockIdle {
		return 0, false
	}
	return s.low, true
}

// Learn takes in a server time that was read between sent and received, by the
// answer to a request of the given era.
func (c *Clock) Learn(sent, received, server int64, era uint64) {
	s := sample{low: server - received, high: server - sent, at: received, era: era, ok: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limitLocked(s)
	known := c.pickLocked()
	switch {
	case !known.ok:
	case era < known.era:
		return // an answer over a former connection
	case era > known.era, s.high < known.low-clockSlack:
		// Another server perhaps, or the clock was stepped back: nothing older
		// is true now. A step forward needs no such care, it is the best.
		c.best, c.older, c.turn = sample{}, sample{}, received
	}
	if received-c.turn > clockWindow/2 {
		c.older, c.best, c.turn = c.best, sample{}, received
		if received-c.older.at > clockWindow/2 {
			c.older = sample{}
		}
	}
	if !c.best.ok || s.low >= c.best.low {
		c.best = s
	}
}

func (c *Clock) limitLocked(s sample) {
	if s.at-c.leastTurn > clockMemory {
		if s.at-c.leastTurn > 2*clockMemory {
			c.least = limit{} // too old to be the older one
		}
		c.leastOlder, c.least, c.leastTurn = c.least, limit{}, s.at
	}
	c.least.lower(s.high)
}

// Explained is the latest time that the server's clock can show at a local time
// if it only went on since any sample of the last minute, or more: where it was
// stepped forward it shows a later one. Connections do not matter to it.
func (c *Clock) Explained(now int64) (server int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now-c.leastTurn > 2*clockMemory {
		return 0, false
	}
	least := c.leastOlder
	if c.least.ok {
		least.lower(c.least.ahead)
	}
	return now + least.ahead, least.ok
}

func (c *Clock) pickLocked() sample {
	if !c.best.ok || c.older.ok && c.older.low > c.best.low {
		return c.older
	}
	return c.best
}
