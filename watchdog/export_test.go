package watchdog

import "time"

// SetSuspended makes the suspend reading f, and returns how to undo it. No
// other goroutine may use the clock meanwhile.
func SetSuspended(f func() time.Duration) (restore func()) {
	old := suspended
	suspended = func(time.Time) time.Duration { return f() }
	return func() { suspended = old }
}

// BeginLate plays a worker that made its batch at sent, was held up since, and
// takes the lease into it only now. It reports whether the lease would be sent.
func (l *Lease) BeginLate(sent Instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = true
	_, ok := l.beginLocked(newCall(sent, l.w.cfg.CallTimeout))
	return ok
}

// TimerSet reports whether another look is to come.
func (w *Watchdog) TimerSet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set
}
