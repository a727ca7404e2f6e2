package watchdog_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// The two clocks cannot be read at once. Differences must show nothing of it:
// they equal those of Go's own clock, even with threads that lose their
// processor between the readings.
func TestNoFalseSuspend(t *testing.T) {
	before := time.Now()
	first := watchdog.Now()
	after := time.Now()
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
				least := time.Since(after)
				d := watchdog.Since(first)
				most := time.Since(before)
				if d < least || d > most {
					t.Errorf("elapsed %v, want within [%v, %v]", d, least, most)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Once the boot clock has gained on the monotonic one, all elapsed times
// include the gain, exactly once.
func TestSuspendCounts(t *testing.T) {
	const gain = 40 * time.Second
	before := watchdog.BeforeSuspend(gain)
	if d := watchdog.Since(before); d < gain || d > gain+30*time.Second {
		t.Errorf("elapsed %v after a suspend of %v", d, gain)
	}
	after := watchdog.Now()
	if d := watchdog.Since(after); d < 0 || d > 30*time.Second {
		t.Errorf("elapsed %v since after the suspend", d)
	}
	if d := before.Sub(after); d > -gain || d < -gain-30*time.Second {
		t.Errorf("backwards: %v, want about %v", d, -gain)
	}
}

// A thread that loses its processor while it reads the clocks tries again: the
// lead of the boot clock is known to within a fraction of a millisecond.
func TestSuspendBounds(t *testing.T) {
	const lead = int64(7 * time.Second)
	for _, held := range []int{0, 1, 2, 3, 4, 7} { // readings that take 10 ms
		now, n := int64(time.Hour), 0
		pass := func() int64 {
			if n++; n <= held {
				now += int64(10 * time.Millisecond)
			}
			now += 200
			return now
		}
		lo, hi := watchdog.SuspendBounds(pass, func() int64 { return pass() + lead })
		if lo > lead || hi < lead || hi-lo > int64(50*time.Microsecond) {
			t.Errorf("%d readings held up: [%d, %d], want narrow around %d", held, lo, hi, lead)
		}
	}
}
