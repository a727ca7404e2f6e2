//go:build unix

package load

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// guard is what one lock protects: a counter of those who are inside, in memory
// that processes share, so that it does not depend on Redis.
type guard struct {
	inside *int32
	memory []byte
}

// openGuard maps a file, which is made where it is not there.
func openGuard(path string) (*guard, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	defer f.Close()
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	return &guard{inside: (*int32)(unsafe.Pointer(&memory[0])), memory: memory}, nil
}

func (g *guard) close() error { return syscall.Munmap(g.memory) }

// pass goes in and out and reports whether it was alone. In between it yields,
// so that another goroutine of this process that should not be inside has the
// chance to be.
func (g *guard) pass() bool {
	alone := atomic.AddInt32(g.inside, 1) == 1
	runtime.Gosched()
	return atomic.AddInt32(g.inside, -1) == 0 && alone
}
