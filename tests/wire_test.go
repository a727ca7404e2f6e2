package tests_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// monitored is one command that the server executed.
type monitored struct {
	script bool // called by a script
	args   []string
}

var quoted = regexp.MustCompile(`"(?:\\.|[^"\\])*"`)

// monitor begins to note every command that the server executes, and returns a
// func that ends it and gives them.
func monitor(t *testing.T, srv *rig.RedisServer) (end func() []monitored) {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	if ok, err := lines.ReadString('\n'); err != nil || ok != "+OK\r\n" {
		t.Fatalf("MONITOR: %q, %v", ok, err)
	}
	got := make(chan []monitored, 1)
	go func() {
		var all []monitored
		defer func() { got <- all }()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			m := monitored{script: strings.Contains(line, " lua] ")}
			for _, q := range quoted.FindAllString(line, -1) {
				s, err := strconv.Unquote(q)
				if err != nil {
					s = q
				}
				m.args = append(m.args, s)
			}
			all = append(all, m)
		}
	}()
	return func() []monitored {
		// What was executed before this is told before its answer.
		srv.Do("ECHO", "end of the monitor")
		time.Sleep(100 * time.Millisecond)
		conn.Close()
		return <-got
	}
}

// epochLike finds numbers that are a time of these days in seconds, milli-,
// micro- or nanoseconds.
func epochLike(s string) (found []string) {
	for _, n := range regexp.MustCompile(`\b\d{10,19}\b`).FindAllString(s, -1) {
		v, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			continue
		}
		now := time.Now()
		for _, unit := range []int64{now.Unix(), now.UnixMilli(), now.UnixMicro(), now.UnixNano()} {
			if d := v - unit; d > -unit/1000 && d < unit/1000 { // some 20 days
				found = append(found, n)
			}
		}
	}
	return found
}

// Scenario 74: the client's clock decides nothing. Leases are durations; the one
// time that goes to the server is the bound on lateness, and that is the
// server's own clock, as the client knows it from its answers.
func TestNoClientTimeOnTheWire(t *testing.T) {
	t.Parallel()
	const (
		late, ttl, timeout = 300 * time.Millisecond, 12 * time.Second, 2 * time.Second
		// What the client adds to its idea of the server's clock: half a margin.
		budget = ttl / 20
	)
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	cfg := config(open(t, proxy.Addr, redisstore.Options{CallTimeout: timeout}),
		tierlock.Resource{Name: "job", TTL: ttl},
		tierlock.Resource{Name: "short", TTL: 4 * time.Second, Reentrant: true},
		tierlock.Resource{Name: "shared", TTL: ttl, Reentrant: true},
		tierlock.Resource{Name: "cron", TTL: ttl, MinHold: time.Second})
	cfg.CallTimeout = timeout
	l := lockerOf(t, cfg)
	mustUnlock(t, mustLock(t, l, "job", "first"))

	end := monitor(t, srv)
	short := []*tierlock.Lock{mustLock(t, l, "short", "k"), mustLock(t, l, "short", "h", tierlock.Holder("h"))}
	time.Sleep(1500 * time.Millisecond) // for a renewal of each
	for _, k := range short {
		mustUnlock(t, k)
	}
	// Answers that are late for a while make the client think that the server's
	// clock is behind, and the bound with it. The connection is new, so that
	// nothing is known from before.
	proxy.Delay(0, late)
	proxy.Cut()
	for _, resource := range []string{"job", "shared", "cron"} {
		k := mustLock(t, l, resource, "k", tierlock.Wait(patience))
		wantHeld(t, "TryLock", l, resource, "k")
		if _, err := l.Inspect(bg, resource, "k"); err != nil {
			t.Error(err)
		}
		mustUnlock(t, k)
	}
	first := mustLock(t, l, "shared", "h", tierlock.Holder("h"))
	second := mustLock(t, l, "shared", "h", tierlock.Holder("h"))
	mustUnlock(t, first)
	mustUnlock(t, second)
	commands := end()

	clientTime := regexp.MustCompile(`"clientTime":(\d+)`)
	bounds, byName := 0, map[string]int{}
	for _, c := range commands {
		name := strings.ToLower(c.args[0])
		byName[name]++
		for _, a := range c.args {
			switch strings.ToUpper(a) {
			case "PXAT", "EXAT", "EXPIREAT", "PEXPIREAT":
				t.Errorf("an absolute expiry: %q", c.args)
			}
		}
		if c.script || name == "echo" {
			continue // scripts have the server's clock
		}
		for i, a := range c.args {
			// The token tells people when it was asked for; that is not read.
			rest := clientTime.ReplaceAllString(a, "")
			times := epochLike(rest)
			if len(times) == 0 {
				continue
			}
			keys := 0
			if name == "evalsha" || name == "eval" {
				keys, _ = strconv.Atoi(c.args[2])
			}
			if keys < 2 || i != 3+keys+1 || rest != times[0] {
				t.Errorf("a time in argument %d of %q", i, c.args)
				continue
			}
			// The bound of an acquire. When was it sent?
			m := clientTime.FindStringSubmatch(strings.Join(c.args, " "))
			if m == nil {
				t.Fatalf("no clientTime in %q", c.args)
			}
			bound, err1 := strconv.ParseInt(rest, 10, 64)
			sent, err2 := strconv.ParseInt(m[1], 10, 64)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			bounds++
			ahead := time.Duration(bound-sent) * time.Microsecond
			if !strings.Contains(c.args[3], "{short/") && (ahead > budget-late+5*time.Millisecond || ahead < -slack) {
				t.Errorf("the bound is %v after the client's clock, want %v at most: is it the client's time? %q",
					ahead, budget-late, c.args)
			}
		}
	}
	if bounds < 6 {
		t.Errorf("%d acquires with a bound, want 6 or more, in %v", bounds, byName)
	}
	for _, name := range []string{"evalsha", "set", "pexpire", "del", "pttl", "zadd", "zscore"} {
		if byName[name] == 0 {
			t.Errorf("the monitor saw no %s: %v", name, byName)
		}
	}
}

func TestEpochLike(t *testing.T) {
	now := time.Now()
	yes := []string{strconv.FormatInt(now.Unix(), 10), strconv.FormatInt(now.UnixMilli()+3000, 10),
		strconv.FormatInt(now.UnixMicro(), 10), strconv.FormatInt(now.UnixNano(), 10)}
	for _, s := range yes {
		if got := epochLike(`{"x":` + s + `,"y":1}`); !slices.Equal(got, []string{s}) {
			t.Errorf("%s: %v", s, got)
		}
	}
	for _, s := range []string{"30000", "593148558362838", "0123456789abcdef", "1000000000000"} {
		if got := epochLike(s); len(got) != 0 {
			t.Errorf("%s: %v", s, got)
		}
	}
}
