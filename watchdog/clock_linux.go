package watchdog

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7

	// suspendStep is the least gain that counts as a suspend: two clocks
	// cannot be read at once, and a thread that loses its processor between
	// the readings must not look like one.
	suspendStep = int64(time.Millisecond)
	noReading   = math.MinInt64
)

// lastSuspended is what all Instants carry until the clocks show at least one
// more suspendStep. So differences of Instants are exact, free of noise, and
// add up.
var lastSuspended atomic.Int64

const readingAge = time.Millisecond

var (
	firstReading = time.Now()
	lastReading  atomic.Int64 // since firstReading, in ns
)

func init() {
	lastSuspended.Store(noReading)
	lastReading.Store(-int64(readingAge))
}

// readSuspended is by how much CLOCK_BOOTTIME, which counts suspended time, is
// ahead of CLOCK_MONOTONIC, which does not and is what Go's time uses.
//
// The clocks are read once per readingAge at most: two system calls for each
// look at a lease would be a tenth of what a lock costs. A suspend since the
// last reading then shows up to readingAge of running time late, which is less
// than what may pass anyway between a look at belief and what is done by it.
func readSuspended(t time.Time) time.Duration {
	// Go's clock stands still in a suspend as well, so this is running time.
	at := int64(t.Sub(firstReading))
	if age := at - lastReading.Load(); age >= 0 && age < int64(readingAge) {
		if last := lastSuspended.Load(); last != noReading {
			return time.Duration(last)
		}
		return 0 // forbidden by a sandbox, see below
	}
	d := readClocks()
	lastReading.Store(at)
	return d
}

func readClocks() time.Duration {
	m, okM := readClock(clockMonotonic)
	b, okB := readClock(clockBoottime)
	last := lastSuspended.Load()
	if !okM || !okB { // forbidden by a sandbox: as on other systems
		return time.Duration(max(last, 0))
	}
	// The boot clock was read last, so a delay between the two makes the gain
	// look larger, never smaller: what is below the step here is no suspend.
	if last != noReading && b-m-last < suspendStep {
		return time.Duration(last)
	}
	lo, hi := suspendBounds(func(id uintptr) int64 { ns, _ := readClock(id); return ns })
	for {
		last = lastSuspended.Load()
		if last != noReading && lo-last < suspendStep {
			return time.Duration(last)
		}
		// The upper bound: elapsed time may only be overstated.
		if lastSuspended.CompareAndSwap(last, hi) {
			return time.Duration(hi)
		}
	}
}

// suspendBounds encloses the lead of the boot clock as tightly as a few tries
// allow.
func suspendBounds(read func(clock uintptr) int64) (lo, hi int64) {
	for try := range 8 {
		m1, b, m2 := read(clockMonotonic), read(clockBoottime), read(clockMonotonic)
		if try == 0 || m2-m1 < hi-lo {
			lo, hi = b-m2, b-m1
		}
		if hi-lo < suspendStep/20 {
			break
		}
	}
	return lo, hi
}

// readClock asks the kernel itself: fake time in tests is not disturbed, and
// the call never blocks, so the raw form is right.
func readClock(id uintptr) (ns int64, ok bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano(), errno == 0
}
