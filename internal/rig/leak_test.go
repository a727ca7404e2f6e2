package rig_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestNoLeak(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	wantFailure(t, "rig_test.leakyWorker", func(t testing.TB) {
		rig.NoLeakWithin(t, 50*time.Millisecond)
		go leakyWorker(stop)
	})

	// What a later cleanup ends, or what ends by itself in time, is no leak.
	if got := failureOf(func(t testing.TB) {
		rig.NoLeak(t)
		own := make(chan struct{})
		t.Cleanup(func() { close(own) })
		go leakyWorker(own)
		go time.Sleep(200 * time.Millisecond)
	}); got != "" {
		t.Error(got)
	}
}

func leakyWorker(stop chan struct{}) { <-stop }

// leakRole runs Main's part with tests that leave something behind, in a process
// of its own so that nothing else is there.
func leakRole(args []string) {
	foreign := exec.Command("sleep", "60")
	within := time.Second
	if args[0] == "slow end" {
		within = soon
	}
	code := rig.MainCode(func() int {
		switch args[0] {
		case "goroutine":
			go leakyWorker(make(chan struct{}))
		case "goroutine after a failure":
			go leakyWorker(make(chan struct{}))
			return 7
		case "process":
			rig.Redis(&recorder{})
		case "foreign process":
			if err := foreign.Start(); err != nil {
				panic(err)
			}
		case "slow end":
			go time.Sleep(200 * time.Millisecond)
		}
		return 0
	}, nil, within, os.Stdout)
	if foreign.Process != nil {
		foreign.Process.Kill()
	}
	fmt.Println("code", code)
	os.Exit(code)
}

func TestMainChecksForLeaks(t *testing.T) {
	for _, c := range []struct {
		leave  string
		code   string
		report string
	}{
		{"nothing", "0", ""},
		{"slow end", "0", ""},
		{"goroutine", "1", "rig: the tests left 1 goroutines:"},
		{"goroutine after a failure", "7", ""},
		{"process", "1", "rig: the tests left a process: "},
		{"foreign process", "1", "(sleep)"},
	} {
		t.Run(c.leave, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir()) // the role's server is killed and cannot clean up
			p := rig.Spawn(t, "leak", c.leave)
			var lines []string
			for len(lines) == 0 || !strings.HasPrefix(lines[len(lines)-1], "code ") {
				lines = append(lines, p.Line(3*soon))
			}
			if got := lines[len(lines)-1]; got != "code "+c.code {
				t.Errorf("%s, want %s", got, c.code)
			}
			report := strings.Join(lines[:len(lines)-1], "\n")
			if c.report == "" && report != "" || !strings.Contains(report, c.report) {
				t.Errorf("reported %q, want %q", report, c.report)
			}
		})
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		rig.Eventually(t, time.Minute, "a second gone", func() bool { return time.Since(start) >= time.Second })
		if got := time.Since(start); got > time.Second+20*time.Millisecond {
			t.Errorf("noticed after %v, want within 20ms of the second", got)
		}
	})
	wantFailure(t, "rig: not within 30ms: the moon is blue", func(t testing.TB) {
		rig.Eventually(t, 30*time.Millisecond, "the moon is blue", func() bool { return false })
	})
	// True only once the time is up: still true.
	calls := 0
	if got := failureOf(func(t testing.TB) {
		rig.Eventually(t, 0, "the second call", func() bool { calls++; return calls > 0 })
	}); got != "" {
		t.Error(got)
	}
}
