package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// RSS is how much memory this process has resident now. It is read from /proc,
// so on Linux only.
func RSS() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	return parseRSS(string(status))
}

func parseRSS(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("measure: /proc/self/status has no VmRSS")
}

// LiveHeap is how much of the heap is in use after a collection.
func LiveHeap() uint64 {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}
