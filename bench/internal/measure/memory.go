package measure

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// RSS is how many bytes of memory this process has resident now. It is read
// from /proc; where there is none, it is 0.
func RSS() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		var kb uint64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, errors.New("measure: /proc/self/status has no VmRSS")
}

// LiveHeap is how much of the heap is in use after a collection.
func LiveHeap() uint64 {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}
