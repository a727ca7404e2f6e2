package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// clock knows how far a server's clock is ahead of this process's monotonic
// one, at the least. All times are microseconds; local ones count from the
// store's making.
//
// One exchange gives two limits: the server read its clock after the request
// was sent and before the reply was received. The lower one is used, so that
// the latest moment of a grant, as the server judges it, is never after the
// moment that was meant, whatever the two ways took. It is too early by what
// the reply was on its way, at the best of the last seconds.
type clock struct {
	mu sync.Mutex
	// best is the best sample since turn, older the best of the time before
	// that: together they cover the last clockWindow at most, and half of it
	// at least, as long as samples come.
	best, older sample
	turn        int64
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
	// clockSlack is how far two samples may contradict each other before the
	// server's clock counts as stepped back.
	clockSlack = int64(time.Millisecond / time.Microsecond)
)

// offset is the least that the server's clock is ahead of the local one, if it
// is known in this era.
func (c *clock) offset(now int64, era uint64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.pickLocked()
	if !s.ok || s.era != era || now-s.at > clockIdle {
		return 0, false
	}
	return s.low, true
}

// learn takes in a server time that was read between sent and received, by the
// answer to a request of the given era.
func (c *clock) learn(sent, received, server int64, era uint64) {
	s := sample{low: server - received, high: server - sent, at: received, era: era, ok: true}
	c.mu.Lock()
	defer c.mu.Unlock()
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

func (c *clock) pickLocked() sample {
	if !c.best.ok || c.older.ok && c.older.low > c.best.low {
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

	// era counts the connections made and lost, as far as they are seen. What
	// was learned in an earlier one is not used: the next connection may lead
	// to another server. It is read before a request is sent, so an answer
	// never counts for a younger connection than its own.
	era atomic.Uint64
	// asking says that a goroutine is asking already.
	asking atomic.Bool
}

func (c *clocks) of(slot uint16) *clock {
	if c.slots == nil {
		return &c.one
	}
	p := &c.slots[slot]
	if k := p.Load(); k != nil {
		return k
	}
	p.CompareAndSwap(nil, new(clock))
	return p.Load()
}

// askClock finds out the server's clock in the background, so that the next
// acquire need not. It ends with the first failure: then acquires ask.
func (s *Store) askClock() {
	if _, err := s.ready(); err != nil || s.clocks.slots != nil || !s.clocks.asking.CompareAndSwap(false, true) {
		return
	}
	if !s.spawn(func() {
		defer s.clocks.asking.Store(false)
		// Asking may make a connection, which begins an era: so not once only.
		for range 3 {
			if s.greet() != nil {
				return
			}
			if _, known := s.clocks.one.offset(s.local(time.Now()), s.clocks.era.Load()); known {
				return
			}
		}
	}) {
		s.clocks.asking.Store(false)
	}
}

// learnClock asks the node of a key for its clock.
func (s *Store) learnClock(ctx context.Context, until time.Time, key string) error {
	era, asked := s.clocks.era.Load(), time.Now()
	server, _, err := s.probe(ctx, until, key)
	if err == nil {
		s.clocks.of(slotOf(key)).learn(s.local(asked), s.local(time.Now()), server, era)
	}
	return err
}
