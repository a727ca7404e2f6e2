package rig

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// readyWithin bounds how long a server may take from its start to its first
// answer, attempts on a taken port included.
const readyWithin = 30 * time.Second

// server is the process of a server of one test's own, whatever it serves: on a
// free loopback port, in a temporary directory.
//
// Kill, Stop, Start, Restart, Pause and Resume may be called from any
// goroutine; two of them at once are carried out one after the other.
type server struct {
	// Addr is host:port, the same after each start.
	Addr string
	// Port is the port in Addr.
	Port int
	// Dir is the server's working directory, removed at the end of the test.
	Dir string

	t    testing.TB
	name string // for logs and errors
	bin  string
	env  []string // besides this process's own

	// Set by the kind of server. argv is asked at each start; answers reports
	// whether this very process, and no other server that has taken the port,
	// serves by now; fresh, which may be nil, comes before each start.
	argv    func() []string
	answers func(end time.Time) bool
	fresh   func()

	life sync.Mutex // held through a start, a stop, a pause
	mu   sync.Mutex // guards proc
	proc *child     // the latest process, ended or not
}

// create makes the server's directory and sees to its end. The server's kind
// then puts there what it needs, and calls begin.
func (s *server) create(t testing.TB) {
	t.Helper()
	// Not t.TempDir: its path holds the test's name, and that of a Unix socket
	// may have only about 100 bytes.
	dir, err := os.MkdirTemp("", "rig-"+s.name+"-")
	if err != nil {
		t.Fatalf("rig: %v", err)
	}
	s.Dir, s.t = dir, t
	t.Cleanup(s.cleanup)
}

// begin starts the server for the first time, on a port that it finds. before,
// which may be nil, comes before each attempt.
func (s *server) begin(before func() error) {
	s.t.Helper()
	end := time.Now().Add(readyWithin)
	for {
		if before != nil {
			if err := before(); err != nil {
				s.t.Fatal(err)
			}
		}
		var err error
		if s.Port, err = freePort(); err != nil {
			s.t.Fatal(err)
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
		err = s.launch(end)
		if err == nil {
			return
		}
		// Between freePort and the server's bind another process may have
		// taken the port.
		if !errors.Is(err, errPortTaken) || time.Now().After(end) {
			s.t.Fatal(err)
		}
	}
}

func (s *server) cleanup() {
	if c := s.current(); c != nil {
		if err := c.kill(); err != nil {
			s.t.Error(err)
		}
	}
	if s.t.Failed() {
		s.t.Logf("rig: end of the log of %s at %s:\n%s", s.name, s.Addr, s.logTail(0))
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		s.t.Errorf("rig: %v", err)
	}
}

func (s *server) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// PID is the id of the latest process, which may have ended.
func (s *server) PID() int { return s.current().pid() }

// Kill ends the server at once, as by a crash, and returns when it has ended.
// It does nothing to one that has ended already.
func (s *server) Kill() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Stop ends the server in an orderly way and returns when it has ended. A
// paused server is resumed for it.
func (s *server) Stop() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.stopLocked()
}

func (s *server) stopLocked() {
	s.t.Helper()
	if err := s.current().stop(); err != nil {
		s.t.Fatal(err)
	}
}

// Start starts the server again, on the same port with the same arguments, and
// returns once it answers. Starting a server that runs fails the test.
func (s *server) Start() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.startLocked()
}

func (s *server) startLocked() {
	s.t.Helper()
	if !s.current().ended() {
		s.t.Fatalf("rig: %s at %s is to be started, but runs", s.name, s.Addr)
	}
	end := time.Now().Add(readyWithin)
	for {
		err := s.launch(end)
		if err == nil {
			return
		}
		if !errors.Is(err, errPortTaken) || time.Now().After(end) {
			s.t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Restart is Stop, then Start. For a crash and a new start call Kill and Start.
func (s *server) Restart() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.stopLocked()
	s.startLocked()
}

// Pause stops the process with SIGSTOP and returns when none of its threads
// runs any more. Its connections stay open; the kernel goes on accepting
// connections and bytes for it, and it executes them after Resume.
func (s *server) Pause() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().pause(); err != nil {
		s.t.Fatal(err)
	}
}

// Resume lets a paused process run on. It does nothing to one that runs.
func (s *server) Resume() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().resume(); err != nil {
		s.t.Fatal(err)
	}
}

var errPortTaken = errors.New("the port is taken")

func (s *server) socket() string { return filepath.Join(s.Dir, "rig.sock") }

func (s *server) logFile() string { return filepath.Join(s.Dir, "rig.log") }

// launch starts one process and waits until it answers.
func (s *server) launch(end time.Time) error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	defer log.Close()
	logStart, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	// A socket file that a killed server left behind must not be mistaken for
	// the new one's.
	if err := os.Remove(s.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rig: %w", err)
	}
	if s.fresh != nil {
		s.fresh()
	}
	cmd := exec.Command(s.bin, s.argv()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, log, log
	if len(s.env) > 0 {
		cmd.Env = append(os.Environ(), s.env...)
	}
	c, err := startChild(s.name, cmd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = c
	s.mu.Unlock()

	for !s.answers(end) {
		if c.ended() {
			text := s.logTail(logStart)
			if strings.Contains(text, "Address already in use") {
				return fmt.Errorf("rig: %s on port %d: %w", s.name, s.Port, errPortTaken)
			}
			return fmt.Errorf("rig: %s ended at its start (%v):\n%s", s.name, c.err, text)
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("rig: %s does not answer after its start:\n%s", s.name, s.logTail(logStart)), c.kill())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

func (s *server) logTail(from int64) string {
	data, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	data = data[min(from, int64(len(data))):]
	return string(data[max(0, len(data)-4096):])
}
