package redisstore_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Scenario 66: the server behind a fixed address (a name, a proxy) is demoted,
// and keeps its connections. It counts as unavailable, and the store finds the
// new one by itself.
func TestDemotedBehindAFixedAddress(t *testing.T) {
	t.Parallel()
	a, b := rig.Redis(t), rig.Redis(t)
	var target atomic.Pointer[string]
	target.Store(&a.Addr)
	var dials atomic.Int64
	opt := patient(a.Addr)
	opt.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		dials.Add(1)
		return d.DialContext(ctx, "tcp", *target.Load())
	}
	s := openWith(t, opt, calm)
	w := watch(t, s, "k")
	works(t, s)

	a.Do("REPLICAOF", "127.0.0.1", "1") // nobody
	before, began := dials.Load(), time.Now()
	// Calls and watches get a new connection each, twice at least.
	for dials.Load()-before < 4 || time.Since(began) < 2500*time.Millisecond {
		time.Sleep(2 * time.Millisecond)
		if time.Since(began) > time.Minute {
			t.Fatalf("%d connections were made in a minute of refusals; wanted more", dials.Load()-before)
		}
		_, err := s.Acquire(background, ask("k", newLease(), time.Second))
		wantClass(t, "acquire at a replica", err, tierlock.ErrUnavailable)
	}
	// Once a second, however many calls are refused.
	if n, most := dials.Load()-before, 2*int64(time.Since(began)/time.Second)+4; n > most {
		t.Errorf("%d connections were made in %v of refusals; wanted %d at most", n, time.Since(began), most)
	}
	target.Store(&b.Addr)
	works(t, s)
	wantPush(t, s, w, "k")
	if a.Int("DBSIZE") != 0 && b.Int("DBSIZE") == 0 {
		t.Error("the store still writes to the former server")
	}
}

// deafened is a connection on which the sentinels' news of a new primary does
// not come through.
type deafened struct{ net.Conn }

func (c deafened) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte("+switch-master"), []byte("+nothing-of-it")))
	return n, err
}

// Scenario 66: a Sentinel client that was never told, and does not ask by
// itself, finds the new primary because the old one refuses.
func TestDemotedAndTheMessageIsLost(t *testing.T) {
	t.Parallel()
	d := rig.StartSentinel(t)
	opt := sentinelOptions(d)
	opt.Sentinel.TopologyRefreshInterval = 0
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return deafened{conn}, nil
	}
	s := openWith(t, opt, calm)
	works(t, s)
	old := d.Primary()
	d.Sentinels[0].Do("SENTINEL", "FAILOVER", d.Master)
	d.NewPrimary(old)
	rig.Eventually(t, time.Minute, "the former primary is a replica", func() bool {
		_, err := old.Try("SET", "lock:x", "1", "PX", "1")
		return err != nil
	})
	began := time.Now()
	works(t, s)
	t.Logf("works %v after the demotion", time.Since(began))
}

func sentinelOptions(d *rig.Sentinel) rueidis.ClientOption {
	opt := redisstore.RecommendedOptions(d.Addrs()...)
	opt.Sentinel.MasterSet = d.Master
	opt.Dialer.Timeout = 2 * time.Second
	opt.Sentinel.Dialer.Timeout = 2 * time.Second
	return opt
}

// steadySentinel is a deployment whose primary nobody takes for dead.
func steadySentinel(t testing.TB) (*rig.Sentinel, rueidis.ClientOption) {
	t.Helper()
	d := rig.StartSentinel(t)
	d.Steady()
	d.Healthy()
	opt := patient(d.Addrs()...)
	opt.Sentinel.MasterSet = d.Master
	return d, opt
}

// The same where the server says so as 6.2 does, which puts the line in front,
// twice.
func TestDemotedInOldWords(t *testing.T) {
	t.Parallel()
	addr := answering(t, func(cmd []string) string {
		switch strings.ToUpper(cmd[0]) {
		case "EVALSHA", "EVAL":
			return "-ERR Error running script (call to f_abc): @user_script:12: @user_script: 12: -READONLY You can't write against a read only replica.\r\n"
		case "HELLO":
			return "*4\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n$5\r\nproto\r\n:2\r\n"
		}
		return "+OK\r\n"
	})
	opt := patient(addr)
	opt.AlwaysRESP2 = true
	var dials atomic.Int64
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		dials.Add(1)
		return d.DialContext(ctx, "tcp", addr)
	}
	s := openWith(t, opt, calm)
	before := dials.Load()
	rig.Eventually(t, patience, "the connection is made anew", func() bool {
		_, err := s.Release(background, drop("k", newLease()))
		wantClass(t, "release at a replica", err, tierlock.ErrUnavailable)
		return dials.Load() > before
	})
}

// The calls that are under way when the connections of a read-only server are
// closed fail for the reason that led to it.
func TestRedialTellsWhy(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	works(t, s)
	srv.Do("REPLICAOF", "127.0.0.1", "1") // nobody
	var calls sync.WaitGroup
	for i := range 16 {
		calls.Go(func() {
			for end := time.Now().Add(3500 * time.Millisecond); time.Now().Before(end); {
				_, err := s.Acquire(background, ask(strconv.Itoa(i), newLease(), time.Second))
				if err == nil || !errors.Is(err, tierlock.ErrUnavailable) || !strings.Contains(err.Error(), "READONLY ") {
					t.Errorf("acquire at a replica: %v", err)
					return
				}
			}
		})
	}
	calls.Wait()
}
