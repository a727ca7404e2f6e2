package rig

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RedisServer is a redis-server process of this test's own: on a free loopback
// port, in a temporary directory, without persistence unless the arguments ask
// for it. So it is empty after a Start unless they do.
//
// Kill, Stop, Start, Restart, Pause and Resume may be called from any
// goroutine; two of them at once are carried out one after the other. Do and
// its kin may run at any time, from several goroutines.
type RedisServer struct {
	server

	conf     string // a configuration file that the server rewrites, or ""
	args     []string
	tls      bool   // the port speaks TLS, and only that
	password string // of the default user; guarded by mu

	own ownCalls
}

// newRedis is a server that has yet to be started; name is redis-server or
// redis-sentinel.
func newRedis(name string, args ...string) *RedisServer {
	return &RedisServer{server: server{name: name}, args: args}
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
	return startRedis(t, newRedis("redis-server", args...), nil)
}

// startRedis starts a server of newRedis. Where args is not nil, it makes s.args
// anew for each attempt, when s.Dir is known.
func startRedis(t testing.TB, s *RedisServer, args func(*RedisServer) ([]string, error)) *RedisServer {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("rig: redis-server is not installed; install it with `apt-get install redis-server` or `make deps` (%v)", err)
	}
	s.bin, s.argv, s.answers, s.fresh = bin, s.arguments, s.ready, s.own.reset
	s.create(t)
	s.begin(func() error {
		if args != nil {
			var err error
			if s.args, err = args(s); err != nil {
				return err
			}
		}
		s.password = passwordOf(s.args)
		return nil
	})
	return s
}

func passwordOf(args []string) string {
	for i, a := range args[:max(0, len(args)-1)] {
		if a == "--requirepass" {
			return args[i+1]
		}
	}
	return ""
}

func (s *RedisServer) arguments() []string {
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

// ready reports whether the server has started: any answer will do but that it
// is still loading its data. One question waits as long as there is time, since
// one given up would be executed and counted later.
//
// The question goes to the Unix socket in our own directory, not to the port: an
// answer from there can only be this server's, and it opens its port first.
func (s *RedisServer) ready(end time.Time) bool {
	_, err := s.roundTrip(max(time.Second, time.Until(end)), "PING")
	if err == nil {
		s.own.add("ping")
		return true
	}
	var refused replyError
	return errors.As(err, &refused) && !strings.HasPrefix(string(refused), "LOADING")
}
