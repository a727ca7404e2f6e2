//go:build unix

// Package measure reads what a run costs: the client's CPU time and
// allocations, the server's CPU time and commands, and latencies.
package measure

import (
	"runtime"
	"syscall"
	"time"
)

// Client is what this process has used since its start.
type Client struct {
	CPU    time.Duration
	Allocs uint64
	Bytes  uint64
}

// ReadClient stops the world for a moment, so it belongs before and after a
// measurement, not into it.
func ReadClient() Client {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err) // only for bad arguments
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return Client{
		CPU:    time.Duration(use.Utime.Nano() + use.Stime.Nano()),
		Allocs: mem.Mallocs,
		Bytes:  mem.TotalAlloc,
	}
}

// Sub is what was used between two readings.
func (c Client) Sub(before Client) Client {
	return Client{c.CPU - before.CPU, c.Allocs - before.Allocs, c.Bytes - before.Bytes}
}

// Add is what two processes have used together.
func (c Client) Add(other Client) Client {
	return Client{c.CPU + other.CPU, c.Allocs + other.Allocs, c.Bytes + other.Bytes}
}
