package degrade

import (
	"sync"
	"sync/atomic"
	"time"
)

// What a [Breaker] does unless it is told otherwise.
const (
	// Threshold is the number of failures in a row that opens a breaker.
	Threshold = 3
	// RetryAfter is the time between two tries while a breaker is open.
	RetryAfter = time.Second
)

// Breaker decides whether a store is worth a try. It opens after [Threshold]
// failures in a row; then it lets one try through every [RetryAfter], and any
// success closes it. It judges nothing by itself: what counts as a failure is
// the caller's to say. A contended lock, the caller's own timeout and a
// store's refusal on grounds of lateness are not failures.
//
// The zero Breaker is closed. It is safe for concurrent use; while nothing
// fails, Allow and Success cost one atomic load.
type Breaker struct {
	failures atomic.Int32 // in a row; read without mu on the fast path
	mu       sync.Mutex
	next     time.Time // while open: when the next try is due
}

// Allow reports whether a try may be made at now. While the breaker is open it
// hands out the one try of each period: whoever gets true makes it.
func (b *Breaker) Allow(now time.Time) bool {
	if b.failures.Load() < Threshold {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures.Load() < Threshold {
		return true
	}
	if now.Before(b.next) {
		return false
	}
	// The next try is counted from this one and not from its failure, so that
	// one whose outcome is never told does not close the door for good.
	b.next = now.Add(RetryAfter)
	return true
}

// Wait is how long at now it is until Allow gives true again; 0 means now.
func (b *Breaker) Wait(now time.Time) time.Duration {
	if b.failures.Load() < Threshold {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, b.next.Sub(now))
}

// Open reports whether the breaker is open.
func (b *Breaker) Open() bool { return b.failures.Load() >= Threshold }

// Success tells that the store has answered. It reports whether this closed
// an open breaker.
func (b *Breaker) Success() (closed bool) {
	if b.failures.Load() == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures.Swap(0) >= Threshold
}

// Failure tells that the store gave no usable answer at now. It reports
// whether this opened the breaker.
func (b *Breaker) Failure(now time.Time) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures.Load() >= Threshold {
		return false
	}
	if b.failures.Add(1) < Threshold {
		return false
	}
	b.next = now.Add(RetryAfter)
	return true
}
