package rig_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

func say(t *testing.T, c net.Conn, lines string) string {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, lines); err != nil {
		return err.Error()
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

// The port speaks TLS, wants a certificate of the same authority on both
// sides, and nothing else.
func TestRedisTLS(t *testing.T) {
	ours, theirs := rig.NewAuthority(t), rig.NewAuthority(t)
	srv := rig.RedisTLS(t, ours)
	ping := "*1\r\n$4\r\nPING\r\n"
	for _, c := range []struct {
		what string
		cfg  *tls.Config
		ok   bool
	}{
		{"both certificates are right", &tls.Config{RootCAs: ours.Pool, Certificates: []tls.Certificate{ours.Client}}, true},
		{"the server is not trusted", &tls.Config{RootCAs: theirs.Pool, Certificates: []tls.Certificate{ours.Client}}, false},
		{"the client is not trusted", &tls.Config{RootCAs: ours.Pool, Certificates: []tls.Certificate{theirs.Client}}, false},
		{"the client shows none", &tls.Config{RootCAs: ours.Pool}, false},
	} {
		got := "no connection"
		conn, err := tls.Dial("tcp", srv.Addr, c.cfg)
		if err == nil {
			got = say(t, conn, ping)
			conn.Close()
		}
		if (got == "+PONG") != c.ok {
			t.Errorf("%s: got %s (%v)", c.what, got, err)
		}
	}
	plain, err := net.Dial("tcp", srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if got := say(t, plain, ping); got == "+PONG" {
		t.Error("the port answers without TLS")
	}
	if got := srv.Text("PING"); got != "PONG" {
		t.Errorf("PING of the rig's own: %s", got)
	}
}

// Keys expire by the stepped clock, and TIME tells it, in scripts too.
func TestRedisWithClock(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	near := func(want time.Duration) {
		t.Helper()
		before := time.Now()
		micros := srv.Int("EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0")
		at, after := time.UnixMicro(micros), time.Now()
		if least, most := at.Sub(after), at.Sub(before); least > want+time.Second || most < want-time.Second {
			t.Errorf("the server is between %v and %v ahead, want %v", least, most, want)
		}
	}
	near(0)
	srv.Do("SET", "k", "v", "PX", "30000")
	clock.Step(40 * time.Second)
	near(40 * time.Second)
	if v := srv.Text("GET", "k"); v != "" {
		t.Error("a key of 30 s is there after a step of 40")
	}
	srv.Do("SET", "k", "v", "PX", "30000")
	clock.Step(-100 * time.Second)
	near(-60 * time.Second)
	if left := srv.Int("PTTL", "k"); left < 100_000 {
		t.Errorf("%d ms left after a step back", left)
	}
	srv.Restart() // the new process has the same clock
	near(-60 * time.Second)
}

func TestCommandProxy(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewCommandProxy(t, srv.Addr, "Subscribe")
	conn, err := net.Dial("tcp", proxy.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	// All at once: the answers keep their order.
	for _, cmd := range []string{"HELLO 3", "SET k a\nb", "SUBSCRIBE c", "MGET k none", "PING", "EVAL x 0", "PING"} {
		words := strings.SplitN(cmd, " ", 3)
		fmt.Fprintf(conn, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	want := "-ERR unknown command 'HELLO'\r\n+OK\r\n-ERR unknown command 'SUBSCRIBE'\r\n*2\r\n$3\r\na\nb\r\n$-1\r\n+PONG\r\n"
	got, err := io.ReadAll(r) // until the proxy closes
	if err != nil && !errors.Is(err, syscall.ECONNRESET) || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if n := proxy.Refused("subscribe"); n != 1 || srv.CommandsOf("subscribe") != 0 {
		t.Errorf("refused %d times; the server executed %d", n, srv.CommandsOf("subscribe"))
	}
}
