package sim

import (
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// Clock is a server's clock. It is not safe for concurrent use: its server guards
// it.
type Clock struct {
	at    time.Time // when it was last set …
	shown int64     // … and what it showed then, in Unix µs
	ppm   int64     // by how many millionths it is fast
}

// newClock is right, but for bubbles, which begin before fences can count.
func newClock() Clock {
	now := time.Now()
	return Clock{at: now, shown: max(now.UnixMicro(), contract.SeqOrigin+365*24*3600*1_000_000)}
}

// now is what the clock shows, in Unix µs.
func (c *Clock) now() int64 {
	d := time.Since(c.at).Microseconds()
	return c.shown + d + d*c.ppm/1_000_000
}

func (c *Clock) set(step time.Duration, ppm int64) {
	c.shown = c.now() + step.Microseconds()
	c.at, c.ppm = time.Now(), ppm
}
