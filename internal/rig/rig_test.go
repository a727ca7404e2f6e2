package rig_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// soon bounds what should take milliseconds, on a busy machine.
const soon = 10 * time.Second

func TestMain(m *testing.M) {
	rig.Main(m, map[string]func([]string){
		"echo":        echoRole,
		"nothing":     func([]string) {},
		"fail":        func([]string) { fmt.Fprintln(os.Stderr, "about to fail"); os.Exit(3) },
		"last-words":  func(args []string) { fmt.Print(strings.Join(args, "\n")) },
		"heir":        heirRole,
		"flood":       floodRole,
		"deaf":        func([]string) { fmt.Println("ready"); time.Sleep(time.Hour) },
		"server":      serverRole,
		"leak":        leakRole,
		"program":     programRole,
		"inner":       innerRole,
		"environment": func([]string) { fmt.Println("role:" + os.Getenv("TIERLOCK_RIG_ROLE")) },
	})
}

// recorder is a testing.TB that notes failures instead of passing them on, to
// test what the rig calls a failure.
type recorder struct {
	testing.TB // panics for what is not overridden

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Cleanup(f func())    { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any)   { r.note(fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any)   { r.Error(args...); runtime.Goexit() }
func (r *recorder) Failed() bool        { return r.failure() != "" }

func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, s)
}

func (r *recorder) failure() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.failures, "\n")
}

// failureOf runs f and its cleanups as a test would and returns how it failed.
func failureOf(f func(t testing.TB)) string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
	return r.failure()
}

func wantFailure(t *testing.T, want string, f func(t testing.TB)) {
	t.Helper()
	if got := failureOf(f); !strings.Contains(got, want) {
		t.Errorf("failed with %q, want a failure that says %q", got, want)
	}
}

// echoServer sends back every byte, and is the server behind a proxy. received
// tells what came, whether or not the answer arrived.
type echoServer struct {
	addr string

	mu       sync.Mutex
	received []byte
	conns    int
	open     map[net.Conn]bool
}

func newEchoServer(t *testing.T) *echoServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &echoServer{addr: ln.Addr().String(), open: make(map[net.Conn]bool)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			s.open[c] = true
			s.mu.Unlock()
			wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *echoServer) serve(c net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		c.Close()
	}()
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		s.mu.Lock()
		s.received = append(s.received, buf[:n]...)
		s.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (s *echoServer) got() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.received)
}

// accepted is how many connections have come, closed ones included.
func (s *echoServer) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// present is how many connections are open.
func (s *echoServer) present() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// client is a connection with a test's shorthand.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, soon)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t: t, Conn: c, r: bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// want reads exactly s.
func (c *client) want(s string) {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	got := make([]byte, len(s))
	n, err := io.ReadFull(c.r, got)
	if err != nil || string(got) != s {
		c.t.Fatalf("read %q, %v; want %q", got[:n], err, s)
	}
}

// silent checks that nothing comes for a while.
func (c *client) silent() {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	b, err := c.r.ReadByte()
	if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
		c.t.Fatalf("read %q, %v; want silence", b, err)
	}
}

// ends reads until the connection ends and returns how.
func (c *client) ends() error {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	_, err := io.Copy(io.Discard, c.r)
	if err == nil {
		return io.EOF
	}
	return err
}
