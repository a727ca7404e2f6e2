package rig

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// leakWithin is how long goroutines and processes may take to end after the
// tests. A Cluster client keeps goroutines for 5 s after it has let go of a node.
const leakWithin = 10 * time.Second

var roles struct {
	sync.Mutex
	known map[string]bool
}

func knownRole(role string) bool {
	roles.Lock()
	defer roles.Unlock()
	return roles.known[role]
}

// Main runs a package's tests and exits; call it from TestMain. If the process
// was started by [Spawn] it runs the role instead, with the arguments given
// there, and exits with 0 when the role's function returns.
//
// When the tests have passed, goroutines and child processes that are still
// there after 10 s are listed, and the exit code is 1. Goroutines that ran before
// the tests began do not count. Child processes are, on Linux, all that this
// process has, whoever started them; elsewhere those started through this
// package.
func Main(m *testing.M, roles map[string]func(args []string)) {
	runRole(roles)
	os.Exit(mainCode(m.Run, roles, leakWithin, os.Stderr))
}

func learnRoles(given map[string]func(args []string)) {
	roles.Lock()
	defer roles.Unlock()
	if roles.known == nil {
		roles.known = make(map[string]bool)
	}
	for role, f := range given {
		roles.known[role] = f != nil
	}
}

func mainCode(run func() int, given map[string]func(args []string), within time.Duration, report io.Writer) int {
	learnRoles(given)
	before := goroutineIDs()
	if code := run(); code != 0 {
		return code // what failed may have left anything behind
	}
	var stacks, processes []string
	if poll(within, func() bool {
		stacks, processes = goroutinesBut(before), childProcesses()
		return len(stacks)+len(processes) == 0
	}) {
		return 0
	}
	for _, p := range processes {
		fmt.Fprintf(report, "rig: the tests left a process: %s\n", p)
	}
	if len(stacks) > 0 {
		fmt.Fprintf(report, "rig: the tests left %d goroutines:\n\n%s\n", len(stacks), strings.Join(stacks, "\n\n"))
	}
	return 1
}
