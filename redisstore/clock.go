package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// clocks finds the clock of the node that serves a key.
type clocks struct {
	one contract.Clock
	// slots is for Cluster clients: which node serves a slot is not known
	// here, so each slot has a clock of its own. Nil otherwise.
	slots []atomic.Pointer[contract.Clock]

	// era counts the connections made and lost, as far as they are seen. What
	// was learned in an earlier one is not used: the next connection may lead
	// to another server. It is read before a request is sent, so an answer
	// never counts for a younger connection than its own.
	era atomic.Uint64
	// asking says that a goroutine is asking already.
	asking atomic.Bool
}

func (c *clocks) of(slot uint16) *contract.Clock {
	if c.slots == nil {
		return &c.one
	}
	p := &c.slots[slot]
	if k := p.Load(); k != nil {
		return k
	}
	p.CompareAndSwap(nil, new(contract.Clock))
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
			if _, known := s.clocks.one.Offset(s.local(time.Now()), s.clocks.era.Load()); known {
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
		s.clocks.of(slotOf(key)).Learn(s.local(asked), s.local(time.Now()), server, era)
	}
	return err
}
