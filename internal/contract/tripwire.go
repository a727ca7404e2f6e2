package contract

import (
	"math"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/watchdog"
)

// Tripwire tells that a server's clock was stepped forward, for a server that ends
// leases by that clock itself: those of others, which are still believed in, may
// have ended with the step. Times are microseconds, local ones of a clock that goes
// on in a suspend. It is safe for concurrent use; its zero value knows nothing.
//
// What bounds the clock is the least that it can have been ahead at any sample that
// is remembered. A step back makes that less at once. A step forward makes it more
// when the samples from before are forgotten, which is TripMemory after the first
// one from after the step at the least: by then nobody believes any more what was
// confirmed before it. A clock that is fast by up to a hundredth is believed, but not
// for as long as nobody looks at it: see tripDrift.
type Tripwire struct {
	mu sync.Mutex
	// turns are those in which there were samples, in their order. The first is
	// forgotten when the second is tripTurns old: a step may have come between.
	turns []tripTurn
	last  int64 // when the latest sample was taken
}

// tripTurn is the least of the samples of one turn, without the drift since 0.
type tripTurn struct{ number, least int64 }

const (
	tripTurns  = 15
	tripLength = int64(5 * time.Second / time.Microsecond)
	// tripDrift is the share of the elapsed time that the server's clock may have
	// gained since a sample: 1 in so many. It is what the rates of two clocks are
	// assumed to differ by at most.
	tripDrift = 100
	// tripLate is how long after the latest sample that ends: in a silence of more than
	// two probes it would explain a step that is longer than a margin. From then on it
	// is what a slew of the kernel's gains, tripSlew.
	tripLate = int64(10 * time.Second / time.Microsecond)
	tripSlew = 2000

	// TripMemory is how long at the least, TripMost how long at the most, the
	// clock is not believed from the first sample after a step forward on.
	TripMemory = (tripTurns - 1) * time.Duration(tripLength) * time.Microsecond
	TripMost   = (tripTurns + 1) * time.Duration(tripLength) * time.Microsecond
)

// TripSlack is what a clock may show beyond what explains it: the time that a request
// may be on its way, and a step as short as that. It is half the margin of the shortest
// lease that anybody may believe in, whoever asks; the other half is for the drift.
var TripSlack = watchdog.Margin(tierlock.MinExclusiveTTL) / 2

// Learn takes in a time of the server that was read after sent.
func (w *Tripwire) Learn(sent, server int64) {
	number, least := sent/tripLength, server-sent-sent/tripDrift
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.turns) > 0 && sent > w.last {
		slow := w.slow(sent)
		for i := range w.turns {
			w.turns[i].least -= slow
		}
	}
	w.last = max(w.last, sent)
	if n := len(w.turns); n > 0 && w.turns[n-1].number >= number {
		last := &w.turns[n-1]
		last.least = min(last.least, least)
		return
	}
	w.turns = append(w.turns, tripTurn{number, least})
	old := 0
	for old+1 < len(w.turns) && w.turns[old+1].number <= number-tripTurns {
		old++
	}
	w.turns = append(w.turns[:0], w.turns[old:]...)
}

// Explained is the latest time that the server's clock can show at a local time,
// unless it was stepped forward; false where nothing is known of it.
func (w *Tripwire) Explained(now int64) (server int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.turns) == 0 {
		return 0, false
	}
	least := int64(math.MaxInt64)
	for _, t := range w.turns {
		least = min(least, t.least)
	}
	return now + now/tripDrift + least - w.slow(now), true
}

// slow is by how much less the server's clock may have gained than tripDrift allows,
// since there has been no sample for so long.
func (w *Tripwire) slow(now int64) int64 {
	late := max(0, now-w.last-tripLate)
	return late/tripDrift - late/tripSlew
}

// Latest is the latest time of the server for a grant that is sent at a local time and
// may be on its way for budget; false where nothing is known of the server's clock.
func (w *Tripwire) Latest(sent int64, budget time.Duration) (server int64, ok bool) {
	server, ok = w.Explained(sent)
	return server + min(budget, TripSlack).Microseconds(), ok
}

// Silent is how long there has been no sample; for ever where there was none.
func (w *Tripwire) Silent(now int64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.turns) == 0 {
		return math.MaxInt64
	}
	return time.Duration(now-w.last) * time.Microsecond
}
