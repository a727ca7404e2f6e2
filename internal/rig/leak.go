package rig

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// NoLeak fails the test, with their stacks, if goroutines that started after
// this call are still there 10 s after the test and its other cleanups. Call it
// first: cleanups run last in, first out, so the check then comes after all
// others.
//
// It sees the goroutines of the whole process, so it is not for tests that run
// in parallel with others, nor inside a synctest bubble (which reports its own).
func NoLeak(t testing.TB) {
	t.Helper()
	noLeak(t, leakWithin)
}

func noLeak(t testing.TB, within time.Duration) {
	t.Helper()
	before := goroutineIDs()
	t.Cleanup(func() {
		t.Helper()
		var left []string
		if !poll(within, func() bool {
			left = goroutinesBut(before)
			return len(left) == 0
		}) {
			t.Errorf("rig: the test left %d goroutines:\n\n%s", len(left), strings.Join(left, "\n\n"))
		}
	})
}

// harmless are goroutines that the runtime and the standard library start once
// and never end, told by a function on their stack.
var harmless = []string{
	"os/signal.signal_recv",
	"os/signal.loop",
	"runtime.ensureSigM",
	"runtime/trace.Start.func1",
	"runtime.ReadTrace",
	"runtime/pprof.profileWriter",
}

// goroutinesBut returns the stacks of all goroutines but those given and the
// harmless.
func goroutinesBut(ids map[string]bool) []string {
	var left []string
	for _, stack := range goroutines() {
		if !ids[goroutineID(stack)] && !isHarmless(stack) {
			left = append(left, stack)
		}
	}
	return left
}

func goroutineIDs() map[string]bool {
	ids := make(map[string]bool)
	for _, stack := range goroutines() {
		ids[goroutineID(stack)] = true
	}
	return ids
}

func goroutines() []string {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")
		}
		buf = make([]byte, 2*len(buf))
	}
}

// goroutineID takes "12" from "goroutine 12 [running]:…". The ids of a process
// are never used again.
func goroutineID(stack string) string {
	rest := strings.TrimPrefix(stack, "goroutine ")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

func isHarmless(stack string) bool {
	for _, name := range harmless {
		if strings.Contains(stack, name+"(") {
			return true
		}
	}
	return false
}
