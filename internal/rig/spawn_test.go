package rig_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// echoRole tells its arguments, then sends back each line.
func echoRole(args []string) {
	fmt.Printf("args %q\n", args)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "quit" {
			return
		}
		fmt.Println("echo " + in.Text())
	}
}

// floodRole writes more than a pipe holds before it says that it is through.
func floodRole([]string) {
	for i := range 20000 {
		fmt.Printf("line %d\n", i)
		fmt.Fprintf(os.Stderr, "error %d\n", i)
	}
}

// heirRole leaves a child behind that has its output.
func heirRole([]string) {
	cmd := exec.Command("sh", "-c", "sleep 2; echo late")
	cmd.Stdout = os.Stdout
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// serverRole starts a server and waits to be killed.
func serverRole([]string) {
	fmt.Println("pid", rig.Redis(&recorder{}).PID())
	time.Sleep(time.Hour)
}

func TestSpawn(t *testing.T) {
	rig.NoLeak(t)
	p := rig.Spawn(t, "echo", "one", "two words", "-test.v")
	if got, want := p.Line(soon), `args ["one" "two words" "-test.v"]`; got != want {
		t.Errorf("first line %q, want %q", got, want)
	}
	if p.PID() == os.Getpid() {
		t.Error("the role runs in the test's own process")
	}
	p.Send("passed over")
	p.Send("a b ")
	if got := p.Expect("echo a", soon); got != "b" {
		t.Errorf("Expect returned %q, want %q", got, "b")
	}
	p.Send("quit")
	if err := p.Wait(soon); err != nil {
		t.Error(err)
	}
	if err := p.Wait(0); err != nil {
		t.Errorf("asked again: %v", err)
	}
}

func TestSpawnExitStatus(t *testing.T) {
	rig.NoLeak(t)
	if err := rig.Spawn(t, "nothing").Wait(soon); err != nil {
		t.Error(err)
	}
	err := rig.Spawn(t, "fail").Wait(soon)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("Wait returned %v, want exit status 3", err)
	}
	p := rig.Spawn(t, "deaf")
	p.Expect("ready", soon)
	if err := p.Wait(10 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Wait on a running process returned %v", err)
	}
	p.Kill()
	p.Kill()
	if err := p.Wait(soon); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("Wait on a killed process returned %v", err)
	}
}

// What a process wrote just before it ended, and without a line's end, is read,
// and so is what its own children write shortly after.
func TestSpawnLastWords(t *testing.T) {
	rig.NoLeak(t)
	p := rig.Spawn(t, "last-words", "a", "b")
	if err := p.Wait(soon); err != nil {
		t.Fatal(err)
	}
	if a, b := p.Line(soon), p.Line(soon); a != "a" || b != "b" {
		t.Errorf("read %q, %q", a, b)
	}
	p = rig.Spawn(t, "heir")
	if got := p.Line(soon); got != "late" {
		t.Errorf("read %q", got)
	}
	if err := p.Wait(soon); err != nil {
		t.Error(err)
	}
}

// Nobody takes the lines, and the process still gets to its end.
func TestSpawnNeverBlocksTheProcess(t *testing.T) {
	rig.NoLeak(t)
	r := &recorder{}
	p := rig.Spawn(r, "flood")
	if err := p.Wait(6 * soon); err != nil {
		t.Fatal(err)
	}
	p.Expect("line 19999", soon)
	r.cleanups[0]()
	if r.Failed() {
		t.Error(r.failure())
	}
}

func TestSpawnPause(t *testing.T) {
	p := rig.Spawn(t, "echo")
	p.Expect("args", soon)
	p.Pause()
	p.Send("x")
	time.Sleep(100 * time.Millisecond)
	p.Send("y")
	p.Resume()
	if got := p.Line(soon); got != "echo x" {
		t.Errorf("read %q", got)
	}
	p.Pause() // the cleanup has to end it all the same
}

func TestSpawnFailures(t *testing.T) {
	rig.NoLeak(t)
	wantFailure(t, `no role "unheard of"`, func(t testing.TB) { rig.Spawn(t, "unheard of") })
	wantFailure(t, "the process has ended (exit status 0): EOF", func(t testing.TB) { rig.Spawn(t, "nothing").Line(soon) })
	wantFailure(t, "the process has ended (exit status 0): EOF", func(t testing.TB) { rig.Spawn(t, "last-words", "a").Expect("b", soon) })
	wantFailure(t, "within 50ms: i/o timeout", func(t testing.TB) { rig.Spawn(t, "deaf").Expect("never", 50*time.Millisecond) })
	wantFailure(t, "broken pipe", func(t testing.TB) {
		p := rig.Spawn(t, "nothing")
		p.Wait(soon)
		p.Send("anybody?")
	})
	wantFailure(t, "process already finished", func(t testing.TB) {
		p := rig.Spawn(t, "nothing")
		p.Wait(soon)
		p.Pause()
	})
}

// A role's own children are ordinary processes, not roles again.
func TestSpawnRoleIsNotInherited(t *testing.T) {
	if got := rig.Spawn(t, "environment").Line(soon); got != "role:" {
		t.Errorf("the role sees %q in its environment", strings.TrimPrefix(got, "role:"))
	}
}
