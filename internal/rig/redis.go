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

// RedisServer is a redis-server process of this test's own: on a free loopback
// port, in a temporary directory, without persistence unless the arguments ask
// for it.
//
// Kill, Stop, Start, Restart, Pause and Resume may be called from any
// goroutine; two of them at once are carried out one after the other. Do and
// its kin may run at any time, from several goroutines.
type RedisServer struct {
	// Addr is host:port, the same after each start.
	Addr string
	// Port is the port in Addr.
	Port int
	// Dir is the server's working directory, removed at the end of the test.
	Dir string

	t        testing.TB
	name     string // for logs and errors
	bin      string
	conf     string // a configuration file that the server rewrites, or ""
	args     []string
	env      []string // besides this process's own
	tls      bool     // the port speaks TLS, and only that
	password string   // of the default user

	life sync.Mutex // held through a start, a stop, a pause
	mu   sync.Mutex // guards proc and password
	proc *child     // the latest process, ended or not

	own ownCalls
}

// Redis starts a redis-server and returns once it answers; it is ended when the
// test ends. args are appended to the rig's own and so win over them, e.g.
// "--maxmemory", "2mb". They must not set port, bind, dir, unixsocket or
// daemonize. Where "--requirepass" is among them, the rig uses that password.
//
// The test fails, with the command that installs it, where redis-server is
// missing.
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return startRedis(t, &RedisServer{name: "redis-server", args: args}, nil)
}

// startRedis starts a server whose name, args, env and tls are set. Where args is
// not nil, it makes s.args anew for each attempt, when s.Dir is known.
func startRedis(t testing.TB, s *RedisServer, args func(*RedisServer) ([]string, error)) *RedisServer {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("rig: redis-server is not installed; install it with `apt-get install redis-server` or `make deps` (%v)", err)
	}
	// Not t.TempDir: its path holds the test's name, and that of a Unix socket
	// may have only about 100 bytes.
	dir, err := os.MkdirTemp("", "rig-redis-")
	if err != nil {
		t.Fatalf("rig: %v", err)
	}
	s.Dir, s.t, s.bin = dir, t, bin
	t.Cleanup(s.cleanup)

	end := time.Now().Add(readyWithin)
	for {
		if args != nil {
			if s.args, err = args(s); err != nil {
				t.Fatal(err)
			}
		}
		s.password = passwordOf(s.args)
		s.Port, err = freePort()
		if err != nil {
			t.Fatal(err)
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
		err = s.launch(end)
		if err == nil {
			return s
		}
		// Between freePort and the server's bind another process may have
		// taken the port.
		if !errors.Is(err, errPortTaken) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func passwordOf(args []string) string {
	for i, a := range args[:max(0, len(args)-1)] {
		if a == "--requirepass" {
			return args[i+1]
		}
	}
	return ""
}

func (s *RedisServer) cleanup() {
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

func (s *RedisServer) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// PID is the id of the latest process, which may have ended.
func (s *RedisServer) PID() int { return s.current().pid() }

// Kill ends the server at once, as by a crash, and returns when it has ended.
// It does nothing to one that has ended already.
func (s *RedisServer) Kill() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Stop ends the server in an orderly way and returns when it has ended. A
// paused server is resumed for it.
func (s *RedisServer) Stop() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.stopLocked()
}

func (s *RedisServer) stopLocked() {
	s.t.Helper()
	if err := s.current().stop(); err != nil {
		s.t.Fatal(err)
	}
}

// Start starts the server again, on the same port with the same arguments, and
// returns once it answers. It is empty unless the arguments ask for
// persistence. Starting a server that runs fails the test.
func (s *RedisServer) Start() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.startLocked()
}

func (s *RedisServer) startLocked() {
	s.t.Helper()
	if !s.current().ended() {
		s.t.Fatalf("rig: redis-server at %s is to be started, but runs", s.Addr)
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
func (s *RedisServer) Restart() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	s.stopLocked()
	s.startLocked()
}

// Pause stops the process with SIGSTOP and returns when none of its threads
// runs any more. Its connections stay open; the kernel goes on accepting
// connections and bytes for it, and it executes them after Resume.
func (s *RedisServer) Pause() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().pause(); err != nil {
		s.t.Fatal(err)
	}
}

// Resume lets a paused process run on. It does nothing to one that runs.
func (s *RedisServer) Resume() {
	s.t.Helper()
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.current().resume(); err != nil {
		s.t.Fatal(err)
	}
}

var errPortTaken = errors.New("the port is taken")

func (s *RedisServer) socket() string { return filepath.Join(s.Dir, "rig.sock") }

func (s *RedisServer) logFile() string { return filepath.Join(s.Dir, "rig.log") }

func (s *RedisServer) argv() []string {
	var args []string
	if s.conf != "" {
		args = append(args, s.conf)
	}
	if s.tls {
		args = append(args, "--port", "0", "--tls-port", strconv.Itoa(s.Port))
	} else {
		args = append(args, "--port", strconv.Itoa(s.Port))
	}
	return append(append(args,
		"--bind", "127.0.0.1", "--dir", s.Dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--protected-mode", "no",
		"--unixsocket", s.socket(), "--unixsocketperm", "700",
	), s.args...)
}

// launch starts one process and waits until it answers.
func (s *RedisServer) launch(end time.Time) error {
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
	s.own.reset()
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

	// The question goes to the Unix socket in our own directory, not to the
	// port: an answer from there can only be this server's, and it opens its
	// port first.
	for !s.answers(end) {
		if c.ended() {
			text := s.logTail(logStart)
			if strings.Contains(text, "Address already in use") {
				return fmt.Errorf("rig: redis-server on port %d: %w", s.Port, errPortTaken)
			}
			return fmt.Errorf("rig: redis-server ended at its start (%v):\n%s", c.err, text)
		}
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("rig: redis-server does not answer after its start:\n%s", s.logTail(logStart)), c.kill())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// answers reports whether the server has started: any answer will do but that
// it is still loading its data. One question waits as long as there is time,
// since one given up would be executed and counted later.
func (s *RedisServer) answers(end time.Time) bool {
	_, err := s.roundTrip(max(time.Second, time.Until(end)), "PING")
	if err == nil {
		s.own.add("ping")
		return true
	}
	var refused replyError
	return errors.As(err, &refused) && !strings.HasPrefix(string(refused), "LOADING")
}

func (s *RedisServer) logTail(from int64) string {
	data, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	data = data[min(from, int64(len(data))):]
	return string(data[max(0, len(data)-4096):])
}
