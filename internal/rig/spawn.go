package rig

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// roleVariable names, in a child's environment, the role that it is to run.
const roleVariable = "TIERLOCK_RIG_ROLE"

// drainWithin bounds the wait for the output of a process that has ended, in
// case a process that it started keeps the pipe open.
const drainWithin = 5 * time.Second

// sendWithin bounds how long a line may wait for a process that does not read.
const sendWithin = 10 * time.Second

// Process is a helper process that talks in lines: its standard output is read
// by Line and Expect, its standard input is written by Send, and its standard
// error goes to the test's log. All of its output is read as it comes, so the
// process never waits for the test to read it.
//
// Kill, Pause, Resume and Wait may be called from any goroutine, the others by
// one at a time.
type Process struct {
	t       testing.TB
	name    string
	child   *child
	stdin   *os.File
	readers sync.WaitGroup
	drained chan struct{} // closed when the process has ended and its output was read

	mu    sync.Mutex
	lines []string      // read and not taken yet
	eof   bool          // no line will follow
	more  chan struct{} // closed and replaced when lines or eof change
}

// Spawn starts this test binary again in a role that the package's TestMain has
// given to [Main]; args are what the role's function gets. The process is killed
// when the test ends, if it has not ended before, paused or not.
func Spawn(t testing.TB, role string, args ...string) *Process {
	t.Helper()
	// Without Main in its TestMain the child would run all tests, and each of
	// them would spawn again.
	if !knownRole(role) {
		t.Fatalf("rig: no role %q: the package's TestMain has to call rig.Main with it", role)
	}
	bin, err := os.Executable()
	if err != nil {
		t.Fatalf("rig: %v", err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)

	var files [6]*os.File // a reading and a writing end each
	for i := 0; i < len(files); i += 2 {
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			closeAll(files[:])
			t.Fatalf("rig: %v", err)
		}
	}
	// Pipes of our own instead of cmd.StdoutPipe: cmd.Wait would close those
	// and lose the last lines.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[3], files[5]
	p := &Process{
		t: t, stdin: files[1], drained: make(chan struct{}), more: make(chan struct{}),
	}
	p.child, err = startChild(role, cmd)
	if err != nil {
		closeAll(files[:])
		t.Fatal(err)
	}
	closeAll([]*os.File{files[0], files[3], files[5]})
	p.name = fmt.Sprintf("%s (process %d)", role, p.child.pid())

	p.readers.Add(2)
	go p.read(files[2], p.take)
	go p.read(files[4], func(line string) { t.Logf("%s: %s", p.name, line) })
	go p.drain(files[2], files[4])
	t.Cleanup(p.cleanup)
	return p
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

func (p *Process) cleanup() {
	if err := p.child.kill(); err != nil {
		p.t.Error(err)
		return
	}
	<-p.drained // nothing may log once the test is over
	p.stdin.Close()
}

func (p *Process) read(from *os.File, line func(string)) {
	defer p.readers.Done()
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadString('\n')
		if text != "" {
			line(strings.TrimRight(text, "\r\n"))
		}
		if err != nil {
			return
		}
	}
}

// drain waits for the end of the process and then of its output.
func (p *Process) drain(stdout, stderr *os.File) {
	<-p.child.done
	end := time.Now().Add(drainWithin)
	stdout.SetReadDeadline(end)
	stderr.SetReadDeadline(end)
	p.readers.Wait()
	closeAll([]*os.File{stdout, stderr})
	p.mu.Lock()
	p.eof = true
	p.wakeLocked()
	p.mu.Unlock()
	close(p.drained)
}

func (p *Process) take(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	p.wakeLocked()
}

func (p *Process) wakeLocked() {
	close(p.more)
	p.more = make(chan struct{})
}

// PID is the process's id.
func (p *Process) PID() int { return p.child.pid() }

// Line takes the next line that the process has written to its standard output,
// without the line's end. The test fails if none comes within the time or the
// process has ended without one.
func (p *Process) Line(timeout time.Duration) string {
	p.t.Helper()
	line, err := p.next(time.Now().Add(timeout))
	if err != nil {
		p.t.Fatalf("rig: a line of %s within %v: %v", p.name, timeout, err)
	}
	return line
}

// Expect takes lines until one begins with prefix, and returns what follows the
// prefix, without blanks around it; the lines before it go to the test's log.
// The test fails if there is none within the time or before the process ends.
func (p *Process) Expect(prefix string, timeout time.Duration) string {
	p.t.Helper()
	for end := time.Now().Add(timeout); ; {
		line, err := p.next(end)
		if err != nil {
			p.t.Fatalf("rig: a line %q of %s within %v: %v", prefix, p.name, timeout, err)
		}
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
		p.t.Logf("%s, passed over: %s", p.name, line)
	}
}

func (p *Process) next(end time.Time) (string, error) {
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	for {
		p.mu.Lock()
		more, eof := p.more, p.eof
		if len(p.lines) > 0 {
			line := p.lines[0]
			p.lines = p.lines[1:]
			p.mu.Unlock()
			return line, nil
		}
		p.mu.Unlock()
		if eof {
			return "", fmt.Errorf("the process has ended (%v): %w", p.child.cmd.ProcessState, io.EOF)
		}
		select {
		case <-more:
		case <-timer.C:
			return "", os.ErrDeadlineExceeded
		}
	}
}

// Send writes one line to the process's standard input. The test fails if the
// process has ended or, once the pipe is full, does not read for 10 s.
func (p *Process) Send(line string) {
	p.t.Helper()
	err := p.stdin.SetWriteDeadline(time.Now().Add(sendWithin))
	if err == nil {
		_, err = io.WriteString(p.stdin, line+"\n")
	}
	if err != nil {
		p.t.Fatalf("rig: sending %q to %s: %v", line, p.name, err)
	}
}

// Kill ends the process at once, paused or not, and returns when it has ended.
// What it had written before can still be read.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.child.kill(); err != nil {
		p.t.Fatal(err)
	}
}

// Pause stops the process with SIGSTOP and returns when none of its threads
// runs any more.
func (p *Process) Pause() {
	p.t.Helper()
	if err := p.child.pause(); err != nil {
		p.t.Fatal(err)
	}
}

// Resume lets a paused process run on.
func (p *Process) Resume() {
	p.t.Helper()
	if err := p.child.resume(); err != nil {
		p.t.Fatal(err)
	}
}

// Wait returns when the process has ended and its output has been read: nil if
// its role returned, an [exec.ExitError] if it exited otherwise or was killed,
// and an error matching [os.ErrDeadlineExceeded] if it still runs after the
// timeout.
func (p *Process) Wait(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.drained:
	case <-timer.C:
		select {
		case <-p.drained: // both were ready
		default:
			return fmt.Errorf("rig: %s runs still after %v: %w", p.name, timeout, os.ErrDeadlineExceeded)
		}
	}
	if p.child.err != nil {
		return fmt.Errorf("rig: %s: %w", p.name, p.child.err)
	}
	return nil
}

// runRole runs the role that the environment names, if it does.
func runRole(roles map[string]func(args []string)) {
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	run := roles[role]
	if run == nil {
		fmt.Fprintf(os.Stderr, "rig: no role %q\n", role)
		os.Exit(2)
	}
	if err := os.Unsetenv(roleVariable); err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(errors.New("rig: the role's own children would take the role too"), err))
		os.Exit(2)
	}
	run(os.Args[1:])
	os.Exit(0)
}
