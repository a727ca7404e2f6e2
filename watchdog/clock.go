package watchdog

import (
	"math"
	"time"
)

// Instant is a moment on this machine's own clock, good for nothing but
// differences within this process. Unlike time.Time's monotonic reading it
// goes on while the machine is suspended (on Linux; elsewhere it stands still
// then). Setting the wall clock does not touch it. The zero Instant is long
// ago.
type Instant struct {
	t         time.Time     // with monotonic reading
	suspended time.Duration // total suspended so far, from an arbitrary origin
}

// Now reads the clock.
func Now() Instant { return At(time.Now()) }

// At is the Instant of a time that was read from [time.Now] just now.
func At(t time.Time) Instant {
	// This order: a suspend between the two readings then counts as already
	// past. The other way round it would be missing, and a belief that it
	// ended would be taken for alive.
	return Instant{t: t, suspended: suspended(t)}
}

// Since is the time elapsed since i.
func Since(i Instant) time.Duration { return Now().Sub(i) }

// Sub is the time from j to i, negative if i is the earlier one. It includes
// time suspended, to within 1 ms, and saturates like time.Time.Sub.
func (i Instant) Sub(j Instant) time.Duration {
	d, gain := i.t.Sub(j.t), i.suspended-j.suspended
	switch {
	case gain > 0 && d > math.MaxInt64-gain:
		return math.MaxInt64
	case gain < 0 && d < math.MinInt64-gain:
		return math.MinInt64
	}
	return d + gain
}

// Margin is how long before the end of a lease of that TTL belief ends: a
// tenth of it. It is there for clocks of different rates, for the wake-up of
// this process and for the reaction of the holder.
func Margin(ttl time.Duration) time.Duration { return ttl / 10 }

// Add is the Instant d later, if the machine is not suspended in between.
func (i Instant) Add(d time.Duration) Instant { return i.add(d) }

func (i Instant) add(d time.Duration) Instant {
	return Instant{t: i.t.Add(d), suspended: i.suspended}
}

func (i Instant) before(j Instant) bool { return i.Sub(j) < 0 }

// suspended gives the total time for which the machine had been suspended at
// t, which is now, from an arbitrary origin; it never falls. Tests replace it.
var suspended = readSuspended
