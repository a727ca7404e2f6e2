package contract

import (
	"sync"
	"time"
)

// Tripwire tells that a server's clock was stepped forward, for a server that ends
// leases by that clock itself: those of others, which are still believed in, may
// have ended with the step. Times are microseconds, local ones not before 0 and
// of a clock that goes on in a suspend. It is safe for concurrent use; its zero
// value knows nothing.
//
// What bounds the clock is the least that it can have been ahead at any sample of
// the last TripMemory. A step back makes that less at once. A step forward does
// not make it more before the last sample from before the step is forgotten: by
// then no belief is left that was confirmed before the step, as long as samples
// come more often than TripMemory is longer than a lease. A clock that is fast by
// up to a hundredth is believed: see tripDrift.
type Tripwire struct {
	mu    sync.Mutex
	turns [tripTurns]tripTurn
}

// tripTurn is the least of the samples of one turn, without the drift since 0.
type tripTurn struct {
	number, least int64
	ok            bool
}

const (
	tripTurns  = 16
	tripLength = int64(5 * time.Second / time.Microsecond)
	// tripDrift is the share of the elapsed time that the server's clock may have
	// gained since a sample: 1 in so many. It is what the rates of two clocks are
	// assumed to differ by at most.
	tripDrift = 100

	// TripMemory is how long after a step forward the clock is not believed at
	// the least; TripMost at the most, where it was sampled in the moment before.
	TripMemory = TripMost - time.Duration(tripLength)*time.Microsecond
	TripMost   = time.Duration(tripTurns*tripLength) * time.Microsecond
)

// Learn takes in a time of the server that was read after sent.
func (w *Tripwire) Learn(sent, server int64) {
	number, least := sent/tripLength, server-sent-sent/tripDrift
	w.mu.Lock()
	defer w.mu.Unlock()
	switch t := &w.turns[number%tripTurns]; {
	case !t.ok || t.number < number:
		*t = tripTurn{number, least, true}
	case t.number == number:
		t.least = min(t.least, least)
	}
}

// Explained is the latest time that the server's clock can show at a local time,
// unless it was stepped forward; false where nothing is known of it.
func (w *Tripwire) Explained(now int64) (server int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var least int64
	for _, t := range w.turns {
		if t.ok && t.number > now/tripLength-tripTurns && (!ok || t.least < least) {
			least, ok = t.least, true
		}
	}
	return now + now/tripDrift + least, ok
}
