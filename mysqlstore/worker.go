package mysqlstore

import "time"

const (
	// maxIdle is how many goroutines are kept for a next call.
	maxIdle = 4
	// idleFor is how long one waits for it.
	idleFor = time.Second
)

// run executes f, a call that has begun and not left, on another goroutine than the
// caller's: on one that is idle, where there is one. What goes down into a driver
// needs more stack than a goroutine begins with, and a new one would have to copy it
// a few times as it grows, with each call.
func (s *Store) run(f func()) {
	select {
	case s.idle <- f:
	default:
		s.workers.Go(func() { s.work(f) })
	}
}

// work executes f and what comes after it, until nothing comes for a while.
func (s *Store) work(f func()) {
	f()
	if s.kept.Add(1) > maxIdle {
		s.kept.Add(-1)
		return
	}
	defer s.kept.Add(-1)
	limit := time.NewTimer(idleFor)
	defer limit.Stop()
	for {
		select {
		case f := <-s.idle:
			f()
			limit.Reset(idleFor)
		case <-limit.C:
			return
		case <-s.quit:
			return
		}
	}
}
