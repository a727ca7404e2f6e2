package rig_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// state is the process's state as /proc gives it; 0 if there is none. One whose
// parent never asks for it stays as Z.
func state(pid string) byte {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	return bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])[0][0]
}

// A paused process is really paused when Pause returns, by the kernel's word.
func TestSpawnPauseIsComplete(t *testing.T) {
	p := rig.Spawn(t, "deaf")
	p.Expect("ready", soon)
	for range 50 {
		p.Pause()
		if got := state(fmt.Sprint(p.PID())); got != 'T' {
			t.Fatalf("after Pause the state is %c", got)
		}
		p.Resume()
		rig.Eventually(t, soon, "the process resumed", func() bool { return state(fmt.Sprint(p.PID())) != 'T' })
	}
}

// A helper that is killed takes the servers that it started with it.
func TestChildrenDieWithTheirParent(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // the server is killed and cannot clean up
	p := rig.Spawn(t, "server")
	pid := p.Expect("pid", 3*soon)
	if got := state(pid); got == 0 || got == 'Z' {
		t.Fatalf("the server is not there (state %c)", got)
	}
	p.Kill()
	rig.Eventually(t, soon, "the server gone", func() bool {
		got := state(pid)
		return got == 0 || got == 'Z' || got == 'X'
	})
}

// The kernel ties a child's life to the thread that started it. The end of a
// thread of the test's must not kill the server.
func TestChildrenOutliveTheThreadThatAskedForThem(t *testing.T) {
	servers := make(chan *rig.RedisServer, 1)
	go func() {
		defer close(servers)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		servers <- rig.Redis(t)
	}()
	s := <-servers
	if s == nil {
		t.Fatal("no server")
	}
	<-servers
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got := state(fmt.Sprint(s.PID())); got == 0 || got == 'Z' {
			t.Fatal("the server died with the thread")
		}
	}
}
