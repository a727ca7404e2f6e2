package watchdog_test

import (
	"math"
	"testing"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

func TestMargin(t *testing.T) {
	for _, tc := range []struct{ ttl, want time.Duration }{
		{30 * time.Second, 3 * time.Second},
		{100 * time.Millisecond, 10 * time.Millisecond},
		{0, 0},
	} {
		if got := watchdog.Margin(tc.ttl); got != tc.want {
			t.Errorf("Margin(%v) = %v, want %v", tc.ttl, got, tc.want)
		}
	}
}

// The zero Instant is long ago, whatever was suspended: a Spec whose Sent was
// forgotten must not give belief that lasts for ever.
func TestZeroInstantIsLongAgo(t *testing.T) {
	defer watchdog.SetSuspended(func() time.Duration { return time.Hour })()
	var zero watchdog.Instant
	if d := watchdog.Since(zero); d != math.MaxInt64 {
		t.Errorf("since the zero Instant: %v", d)
	}
	if d := zero.Sub(watchdog.Now()); d > -100*365*24*time.Hour {
		t.Errorf("from now to the zero Instant: %v", d)
	}
}
