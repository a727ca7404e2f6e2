package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

func TestMain(m *testing.M) { rig.Main(m, nil) }

func name(key string) tierlock.Name {
	return tierlock.Name{Namespace: "test", Resource: "order:settle", Key: key}
}

// keyOf is the documented key of name(key).
func keyOf(key string) string { return "lock:test:{order:settle/" + key + "}" }

var leases atomic.Int64

// newLease is shaped like the library's: 32 digits of a member, then its own.
func newLease() string {
	return fmt.Sprintf("%032x%012x", 0xabcdef, leases.Add(1))
}

// ask is a request that nothing is special about.
func ask(key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	return tierlock.AcquireRequest{
		Name: name(key), TTL: ttl, Budget: 5 * time.Second,
		Token: tierlock.Token{
			Lease: lease, ID: "hold-" + lease, Resource: "order:settle", Key: key, Holder: "app@host/1",
			App: "app", Host: "host", PID: 1, Tier: tierlock.Redis, TTL: ttl,
			ClientTime: time.Now(), RequestID: "req \"1\" <&>\n",
		},
	}
}

// askAs is ask for an explicit holder.
func askAs(holder, key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	req := ask(key, lease, ttl)
	req.Explicit, req.Token.Holder = true, holder
	return req
}

func drop(key, lease string) tierlock.ReleaseRequest {
	return tierlock.ReleaseRequest{Name: name(key), Lease: lease}
}

// patience bounds what should take milliseconds. A test process or a server on a busy
// machine may stand still for seconds.
const patience = 20 * time.Second

// calm and patient are for tests that are not about time limits; brisk is for those with
// servers that are silent, and calls that are to be given up; unhurried is for those
// whose calls are to be refused at once: who waits is told from who does not.
var (
	calm      = redisstore.Options{CallTimeout: 10 * time.Second}
	brisk     = redisstore.Options{CallTimeout: 2 * time.Second}
	unhurried = redisstore.Options{CallTimeout: 30 * time.Second} // more than patience
)

func patient(addrs ...string) rueidis.ClientOption {
	opt := redisstore.RecommendedOptions(addrs...)
	opt.Dialer.Timeout, opt.Sentinel.Dialer.Timeout = 10*time.Second, 10*time.Second
	opt.ConnWriteTimeout = 10 * time.Second // after which the client cuts a silent connection
	return opt
}

// open is a calm store that is connected, which Open does not wait for very long.
func open(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	return connected(t, openWith(t, patient(addr), calm))
}

func connected(t testing.TB, s *redisstore.Store) *redisstore.Store {
	t.Helper()
	rig.Eventually(t, patience, "the store is connected", func() bool {
		_, err := s.Inspect(background, name("opened"))
		return err == nil
	})
	return s
}

// openRefused opens a store that cannot work. Open waits for two seconds: where this
// machine stood still for so long, that tells nothing.
func openRefused(opt rueidis.ClientOption, o redisstore.Options) (s *redisstore.Store, err error) {
	for range 5 {
		began := time.Now()
		s, err = redisstore.OpenWith(opt, o)
		if s == nil || time.Since(began) < 2*time.Second {
			break
		}
		s.Close()
	}
	return s, err
}

func openWith(t testing.TB, opt rueidis.ClientOption, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.OpenWith(opt, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// mustAcquire takes a free lock.
func mustAcquire(t testing.TB, s tierlock.Store, req tierlock.AcquireRequest) tierlock.Token {
	t.Helper()
	res, err := s.Acquire(t.Context(), req)
	if err != nil || !res.Granted {
		t.Fatalf("acquire %s: got %+v, %v; wanted a grant", req.Name, res, err)
	}
	return res.Token
}

func mustRelease(t testing.TB, s tierlock.Store, req tierlock.ReleaseRequest, want tierlock.Ownership) {
	t.Helper()
	got, err := s.Release(t.Context(), req)
	if err != nil || got != want {
		t.Fatalf("release %s: got %v, %v; wanted %v", req.Name, got, err, want)
	}
}

func renewOne(t testing.TB, s tierlock.Store, key, lease string, ttl time.Duration) tierlock.RenewResult {
	t.Helper()
	res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: lease, TTL: ttl}})
	if len(res) != 1 {
		t.Fatalf("renew: got %d results for one request", len(res))
	}
	return res[0]
}

// wantClass checks that err is of one class, and of no other.
func wantClass(t testing.TB, what string, err, class error) {
	t.Helper()
	for _, c := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured} {
		if got, want := errors.Is(err, c), errors.Is(class, c); got != want {
			t.Fatalf("%s: got error %v; is it %q: %v, wanted %v", what, err, c, got, want)
		}
	}
}

// within fails the test if f takes longer than d, and returns how long it took.
func within(t testing.TB, d time.Duration, what string, f func()) time.Duration {
	t.Helper()
	began := time.Now()
	f()
	took := time.Since(began)
	if took > d {
		t.Fatalf("%s took %v; wanted at most %v", what, took, d)
	}
	return took
}

// noEternalKeys checks every key of the server for a TTL.
func noEternalKeys(t testing.TB, srv *rig.RedisServer) {
	t.Helper()
	for _, k := range srv.Do("KEYS", "*").([]any) {
		if ttl := srv.Int("PTTL", k.(string)); ttl == -1 {
			t.Errorf("key %q has no TTL", k)
		}
	}
}

var background = context.Background()
