package watchdog

import "time"

// BeforeSuspend returns an Instant read now, and makes it look as if the
// machine had been suspended for d since: the lead of the boot clock that was
// seen last is set back, and the next reading has to find it grown by d.
func BeforeSuspend(d time.Duration) Instant {
	i := Now()
	i.suspended -= d
	lastSuspended.Add(-int64(d))
	lastReading.Store(-int64(readingAge)) // or the next reading would come from memory
	return i
}

// SuspendBounds is suspendBounds over clocks of the test's own.
func SuspendBounds(monotonic, boot func() int64) (lo, hi int64) {
	return suspendBounds(func(id uintptr) int64 {
		if id == clockMonotonic {
			return monotonic()
		}
		return boot()
	})
}
