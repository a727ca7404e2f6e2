package tests_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// switchTimes are short, so that a switch takes a second or two, and still long
// enough for a busy machine: a process that is not scheduled for a second is not
// to lose its permit for it.
var switchTimes = tierlock.Degrade{Permit: 6 * time.Second, Refresh: time.Second, Poll: 100 * time.Millisecond,
	Probe: 300 * time.Millisecond, Suspect: 150 * time.Millisecond, Up: time.Second, Dwell: time.Second}

// switchWait is W for these times, and a bit: so long a switch waits for a member
// that has died.
var switchWait = switchTimes.Permit*101/99 + 100*time.Millisecond

// twoStores are a Redis and a MariaDB for chains.
type twoStores struct {
	redis *rig.RedisServer
	mysql *rig.MariaDBServer
}

func startTwoStores(t testing.TB) *twoStores {
	t.Helper()
	return &twoStores{redis: rig.Redis(t), mysql: migratedServer(t)}
}

// chained is one process's part in a chain, with its own ways to both stores. All
// are in the test's own process where nothing else is said: what makes a process
// one, for others, is its Locker.
type chained struct {
	*tierlock.Locker
	toRedis, toMySQL *rig.Proxy
	log              *logBook

	mu    sync.Mutex
	tiers []tierlock.Tier         // those that came into force
	moved []tierlock.AdoptedEvent // holds
}

// chainedResources are one that is exclusive and two that are not: with a floor of
// MySQL, and with none.
var chainedResources = []tierlock.Resource{
	{Name: "x", Floor: tierlock.MySQL, Exclusive: true, Reentrant: true},
	{Name: "be", Floor: tierlock.MySQL},
	{Name: "first"},
}

// join starts a process. The proxies pass everything at first.
func (s *twoStores) join(t testing.TB, change ...func(*tierlock.Config)) *chained {
	t.Helper()
	return s.joinVia(t, rig.NewProxy(t, s.redis.Addr), rig.NewProxy(t, mysqlAddr(s.mysql)), change...)
}

func (s *twoStores) joinVia(t testing.TB, toRedis, toMySQL *rig.Proxy, change ...func(*tierlock.Config)) *chained {
	t.Helper()
	c := &chained{toRedis: toRedis, toMySQL: toMySQL, log: &logBook{}}
	cfg := tierlock.Config{
		App: "test", Namespace: namespace, Degrade: switchTimes, Resources: slices.Clone(chainedResources),
		Stores: []tierlock.Store{open(t, toRedis.Addr), openMySQL(t, s.mysql.DSNVia(toMySQL.Addr, mysqlParams), mysqlstore.Options{Logger: discard, Durable: true})},
		Logger: newLogger(c.log), Observer: tierlock.Observer{
			TierChanged: func(e tierlock.ChainEvent) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.tiers = append(c.tiers, e.Tier)
			},
			Adopted: func(e tierlock.AdoptedEvent) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.moved = append(c.moved, e)
			},
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := tierlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Locker = l
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if t.Failed() {
			for _, line := range c.log.all() {
				t.Log(line)
			}
		}
	})
	return c
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// mysqlAddr is the host:port of a server.
func mysqlAddr(s *rig.MariaDBServer) string {
	dsn := s.DSN("")
	at := slices.Index([]byte(dsn), '(')
	end := slices.Index([]byte(dsn), ')')
	return dsn[at+1 : end]
}

func (c *chained) came() []tierlock.Tier {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tiers)
}

func (c *chained) adopted() []tierlock.AdoptedEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.moved)
}

// takesFrom waits until each process gives exclusive locks from a tier, and returns
// how long that took.
func takesFrom(t testing.TB, within time.Duration, tier tierlock.Tier, procs ...*chained) time.Duration {
	t.Helper()
	start := time.Now()
	for i, p := range procs {
		var got tierlock.Tier
		var err error
		var k *tierlock.Lock
		for end := start.Add(within); ; time.Sleep(5 * time.Millisecond) {
			if k, err = p.TryLock(bg, "x", "probe"); err == nil {
				got = k.Token().Tier
				if err := k.Unlock(); err != nil { // in the middle of a switch, or on a busy machine
					wantIs(t, "Unlock of a probe", err, tierlock.ErrUnavailable)
				}
				if got == tier {
					break
				}
			}
			if time.Now().After(end) {
				t.Fatalf("after %v process %d takes locks from %v (%v), want %v; %+v", within, i, got, err, tier, p.Status().Chain)
			}
		}
	}
	return time.Since(start)
}
