package rig_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestRedis(t *testing.T) {
	rig.NoLeak(t)
	s := rig.Redis(t)
	c := dial(t, s.Addr)
	c.send("PING\r\n")
	c.want("+PONG\r\n")

	if got := s.Text("SET", "k", "v"); got != "OK" {
		t.Errorf("SET answered %q", got)
	}
	if got := s.Text("GET", "k"); got != "v" {
		t.Errorf("GET answered %q", got)
	}
	if got := s.Text("GET", "absent"); got != "" {
		t.Errorf("GET of an absent key answered %q", got)
	}
	if got := s.Do("GET", "absent"); got != nil {
		t.Errorf("GET of an absent key answered %v", got)
	}
	if got := s.Int("INCRBY", "n", "41"); got != 41 {
		t.Errorf("INCRBY answered %d", got)
	}
	if got := s.Int("GET", "n"); got != 41 {
		t.Errorf("GET of a number answered %d", got)
	}
	if got := fmt.Sprint(s.Do("MGET", "k", "absent", "n")); got != "[v <nil> 41]" {
		t.Errorf("MGET answered %v", got)
	}
	if got, want := s.Do("CONFIG", "GET", "port"), fmt.Sprintf("[port %d]", s.Port); fmt.Sprint(got) != want {
		t.Errorf("CONFIG GET port answered %v, want %s", got, want)
	}
}

func TestRedisErrors(t *testing.T) {
	s := rig.Redis(t)
	s.Do("SET", "k", "v")
	if _, err := s.Try("HGET", "k", "f"); err == nil || !strings.HasPrefix(err.Error(), "rig: HGET: WRONGTYPE ") {
		t.Errorf("Try returned %v", err)
	}
	if _, err := s.Try(); err == nil {
		t.Error("Try of nothing succeeded")
	}
	if got := s.Do("EVAL", "return {1, {err='ODD one'}}", "0"); fmt.Sprint(got) != "[1 ODD one]" {
		t.Errorf("a nested error came as %v", got)
	}
}

func TestRedisArguments(t *testing.T) {
	s := rig.Redis(t, "--maxmemory", "7mb", "--requirepass", "sesame")
	if got := fmt.Sprint(s.Do("CONFIG", "GET", "maxmemory")); got != "[maxmemory 7340032]" {
		t.Errorf("CONFIG GET maxmemory answered %s", got)
	}
	c := dial(t, s.Addr)
	c.send("PING\r\n")
	c.want("-NOAUTH")
	c2 := dial(t, s.Addr)
	c2.send("AUTH sesame\r\nPING\r\n")
	c2.want("+OK\r\n+PONG\r\n")
	if got := s.Commands(); got != 2 {
		t.Errorf("%d commands counted, want AUTH and PING of the test", got)
	}
}

func TestRedisMisused(t *testing.T) {
	wantFailure(t, "redis-server ended at its start", func(t testing.TB) { rig.Redis(t, "--no-such-option", "1") })
	t.Run("missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		wantFailure(t, "`apt-get install redis-server` or `make deps`", func(t testing.TB) { rig.Redis(t) })
	})
	wantFailure(t, "rig: HGET: WRONGTYPE", func(t testing.TB) {
		s := rig.Redis(t)
		s.Do("SET", "k", "v")
		s.Do("HGET", "k", "f")
	})
	for name, f := range map[string]func(*rig.RedisServer){
		"which is no text":         func(s *rig.RedisServer) { s.Text("LRANGE", "list", "0", "-1") },
		"which is no number":       func(s *rig.RedisServer) { s.Int("GET", "absent") },
		"which is no whole number": func(s *rig.RedisServer) { s.Int("LPOP", "list") },
		"is to be started, but":    func(s *rig.RedisServer) { s.Start() },
		"process already finished": func(s *rig.RedisServer) { s.Kill(); s.Pause() },
	} {
		wantFailure(t, name, func(t testing.TB) {
			s := rig.Redis(t)
			s.Do("RPUSH", "list", "x")
			f(s)
		})
	}
}

func TestRedisKillAndStart(t *testing.T) {
	rig.NoLeak(t)
	s := rig.Redis(t)
	s.Do("SET", "k", "v")
	pid, addr := s.PID(), s.Addr
	c := dial(t, s.Addr)
	s.Kill()
	s.Kill()
	if err := c.ends(); err == nil {
		t.Error("the connection outlived the server")
	}
	if _, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a killed server gave %v, want it refused", err)
	}
	if _, err := s.Try("PING"); err == nil {
		t.Error("a killed server answers")
	}
	s.Start()
	if s.PID() == pid || s.Addr != addr {
		t.Errorf("process %d at %s, want another at %s", s.PID(), s.Addr, addr)
	}
	if got := s.Int("DBSIZE"); got != 0 {
		t.Errorf("%d keys survived without persistence", got)
	}
	c = dial(t, addr)
	c.send("PING\r\n")
	c.want("+PONG\r\n")
}

func TestRedisRestartWithPersistence(t *testing.T) {
	s := rig.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Do("SET", "k", "v")
	s.Restart()
	s.Kill()
	s.Start()
	if got := s.Text("GET", "k"); got != "v" {
		t.Errorf("after restarts GET answered %q", got)
	}
}

func TestRedisPause(t *testing.T) {
	s := rig.Redis(t)
	c := dial(t, s.Addr)
	s.Pause()
	c.send("SET k late\r\n")
	c.silent()
	late := dial(t, s.Addr) // the kernel accepts for it
	late.send("PING\r\n")
	late.silent()
	s.Resume()
	s.Resume()
	c.want("+OK\r\n")
	late.want("+PONG\r\n")
	if got := s.Text("GET", "k"); got != "late" {
		t.Errorf("GET answered %q", got)
	}
	// A paused server can be stopped, started, and killed by the cleanup.
	s.Pause()
	s.Stop()
	s.Start()
	s.Pause()
}

func TestRedisCommands(t *testing.T) {
	s := rig.Redis(t)
	c := dial(t, s.Addr)
	check := func(what string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d commands, want %d", what, got, want)
		}
	}
	check("at the start", s.Commands(), 0)
	check("asked again", s.Commands(), 0)
	c.send("SET k v\r\nGET k\r\nCLIENT ID\r\nCLIENT GETNAME\r\nPING\r\nINFO server\r\n")
	rig.Eventually(t, soon, "six commands", func() bool { return s.Commands() == 6 })
	check("SET", s.CommandsOf("SET"), 1)
	check("CLIENT", s.CommandsOf("client"), 2)
	check("CLIENT ID", s.CommandsOf("client|id"), 1)
	check("PING", s.CommandsOf("ping"), 1)
	check("INFO", s.CommandsOf("info"), 1)
	check("absent", s.CommandsOf("incr"), 0)

	// What the rig sends does not count, what scripts call does.
	s.Do("GET", "k")
	s.Do("CLIENT", "LIST")
	s.Do("PING")
	check("after commands of the rig's", s.Commands(), 6)
	check("GET", s.CommandsOf("get"), 1)
	s.Do("EVAL", "redis.call('GET', 'k'); return redis.call('INCR', 'n')", "0")
	check("after a script", s.Commands(), 8)
	c.send("EVAL \"return redis.call('INCR', 'n')\" 0\r\n")
	rig.Eventually(t, soon, "a script and its command", func() bool { return s.Commands() == 10 })

	// A command that the server refuses is not executed; one that fails is.
	if _, err := s.Try("NOSUCH"); err == nil {
		t.Error("NOSUCH succeeded")
	}
	check("after an unknown command", s.Commands(), 10)

	s.Do("CONFIG", "RESETSTAT")
	check("after CONFIG RESETSTAT", s.Commands(), 0)
	s.Restart()
	check("after a restart", s.Commands(), 0)
	check("PING after a restart", s.CommandsOf("ping"), 0)
}

func TestRedisConcurrentUse(t *testing.T) {
	rig.NoLeak(t)
	s := rig.Redis(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.Try("INCR", "n"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if got := s.Commands(); got != 0 {
			t.Errorf("%d of the rig's own commands counted", got)
		}
	}
	wg.Wait()
	if got := s.Int("GET", "n"); got != 400 {
		t.Errorf("n is %d, want 400", got)
	}
	// Two callers of Restart are carried out one after the other.
	for range 2 {
		wg.Go(s.Restart)
	}
	wg.Wait()
	s.Do("PING")
}

// Two servers never share a port, and nothing is left of one when its test ends.
func TestRedisCleanup(t *testing.T) {
	var addr, dir string
	if got := failureOf(func(t testing.TB) {
		a, b := rig.Redis(t), rig.Redis(t)
		a.Do("SET", "k", "a")
		if b.Do("GET", "k") != nil {
			t.Error("two servers share their data")
		}
		addr, dir = a.Addr, a.Dir
	}); got != "" {
		t.Error(got)
	}
	if _, err := net.DialTimeout("tcp", addr, soon); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling after the test gave %v, want it refused", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory is still there: %v", err)
	}
}

// What the proxy is for: the server has executed, the client does not know.
func TestRedisBehindAProxy(t *testing.T) {
	s := rig.Redis(t)
	p := rig.NewProxy(t, s.Addr)
	c := dial(t, p.Addr)
	release := p.HoldReply()
	c.send("SET k v\r\n")
	rig.Eventually(t, soon, "the reply held", waiting(p, 0, 5))
	if got := s.Text("GET", "k"); got != "v" {
		t.Errorf("GET answered %q while the reply was held", got)
	}
	c.silent()
	release()
	c.want("+OK\r\n")
	// The server goes and comes back on its port, behind the same proxy.
	s.Kill()
	if err := c.ends(); err == nil {
		t.Error("the connection outlived the server")
	}
	s.Start()
	c = dial(t, p.Addr)
	c.send("EXISTS k\r\n")
	c.want(":0\r\n")
}
