package tests_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

var bg = context.Background()

const (
	namespace = "scen"
	// patience is for what has to happen, soon, but on a busy machine.
	patience = 20 * time.Second
	// slack is what a busy machine may add to a stated bound: it may stand still for
	// seconds.
	slack = 4 * time.Second
)

// open opens a store over the server or proxy at addr, closed at the end of the
// test.
func open(t testing.TB, addr string, opts ...redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := openStore(addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func openStore(addr string, opts ...redisstore.Options) (*redisstore.Store, error) {
	if len(opts) == 0 {
		return redisstore.Open(redisstore.RecommendedOptions(addr))
	}
	return redisstore.OpenWith(redisstore.RecommendedOptions(addr), opts[0])
}

func config(s tierlock.Store, rs ...tierlock.Resource) tierlock.Config {
	return tierlock.Config{
		App: "test", Namespace: namespace, Stores: []tierlock.Store{s}, Resources: rs,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// newLocker makes a Locker over s. At the end of the test it must close without
// complaint: whatever was wrong before is to be mended by then.
func newLocker(t testing.TB, s tierlock.Store, rs ...tierlock.Resource) *tierlock.Locker {
	t.Helper()
	return lockerOf(t, config(s, rs...))
}

// unhurried is how long a call to the server may take where a test makes thousands,
// none of which is to fail: one of them comes late on a busy machine.
const unhurried = 4 * tierlock.DefaultCallTimeout

// unhurriedLocker is a Locker over a store that was opened with that limit.
func unhurriedLocker(t testing.TB, s tierlock.Store, rs ...tierlock.Resource) *tierlock.Locker {
	t.Helper()
	cfg := config(s, rs...)
	cfg.CallTimeout = unhurried
	return lockerOf(t, cfg)
}

func lockerOf(t testing.TB, cfg tierlock.Config) *tierlock.Locker {
	t.Helper()
	l, err := tierlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// keyOf is the Redis key of a lock.
func keyOf(resource, key string) string {
	return "lock:" + namespace + ":{" + resource + "/" + key + "}"
}

// mustLock takes a lock that nobody holds for longer than the call waits. A store
// that gives no answer, on a busy machine, is asked again.
func mustLock(t testing.TB, l *tierlock.Locker, resource, key string, opts ...tierlock.Option) *tierlock.Lock {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		k, err := l.Lock(bg, resource, key, opts...)
		if err == nil {
			return k
		}
		if !errors.Is(err, tierlock.ErrUnavailable) || errors.Is(err, tierlock.ErrHeld) || time.Now().After(end) {
			t.Fatalf("Lock %s/%s: %v", resource, key, err)
		}
	}
}

// wantHeld checks that a caller who does not wait is told that a lock is held. A call
// that gets no answer, on a busy machine, is made again.
func wantHeld(t testing.TB, what string, l *tierlock.Locker, resource, key string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		k, err := l.TryLock(bg, resource, key)
		if errors.Is(err, tierlock.ErrHeld) {
			return
		}
		if !errors.Is(err, tierlock.ErrUnavailable) || time.Now().After(end) {
			t.Errorf("%s: got %v, %v, want it to be held by another", what, k.Token(), err)
			return
		}
	}
}

func mustUnlock(t testing.TB, k *tierlock.Lock) {
	t.Helper()
	if err := k.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// waitEnd waits until a lock's context ends, and returns when that was.
func waitEnd(t testing.TB, k *tierlock.Lock) time.Time {
	t.Helper()
	select {
	case <-k.Context().Done():
	case <-time.After(patience):
		t.Fatalf("the context of %v has not ended after %v", k.Token(), patience)
	}
	return time.Now()
}

// wantIs checks that err matches all of the sentinels.
func wantIs(t testing.TB, what string, err error, sentinels ...error) {
	t.Helper()
	for _, s := range sentinels {
		if !errors.Is(err, s) {
			t.Errorf("%s: got %v, want it to match %q", what, err, s)
		}
	}
}

func wantNotIs(t testing.TB, what string, err error, sentinels ...error) {
	t.Helper()
	for _, s := range sentinels {
		if errors.Is(err, s) {
			t.Errorf("%s: got %v, which must not match %q", what, err, s)
		}
	}
}

// wantLost checks that err is a loss for one of the reasons: expired, taken,
// unconfirmed, gone.
func wantLost(t testing.TB, what string, err error, reasons ...string) {
	t.Helper()
	var lost *tierlock.LostError
	if !errors.As(err, &lost) || !errors.Is(err, tierlock.ErrLost) {
		t.Errorf("%s: got %v, want a *LostError", what, err)
		return
	}
	for _, r := range reasons {
		if lost.Reason.String() == r {
			return
		}
	}
	t.Errorf("%s: lost because %v (%v), want one of %v", what, lost.Reason, err, reasons)
}

// between checks that a measured time lies within bounds.
func between(t testing.TB, what string, d, from, to time.Duration) {
	t.Helper()
	if d < from || d > to {
		t.Errorf("%s: %v, want %v to %v", what, d, from, to)
	}
}

// wantGone checks that a key is absent from the server now.
func wantGone(t testing.TB, srv *rig.RedisServer, resource, key string) {
	t.Helper()
	if v := srv.Text("GET", keyOf(resource, key)); v != "" {
		t.Errorf("key %s/%s is there: %s", resource, key, v)
	}
}

// goneWithin waits until a key is absent.
func goneWithin(t testing.TB, srv *rig.RedisServer, within time.Duration, resource, key string) {
	t.Helper()
	rig.Eventually(t, within, "key "+resource+"/"+key+" is absent", func() bool {
		return srv.Int("EXISTS", keyOf(resource, key)) == 0
	})
}

// idle waits until nothing goes on in the background of the Locker.
func idle(t testing.TB, l *tierlock.Locker) {
	t.Helper()
	rig.Eventually(t, patience, "no hold, waiter or undo is left", func() bool {
		st := l.Status()
		return st.Holds == 0 && st.Waiters == 0 && st.Undos == 0
	})
}

// noLeak fails the test if goroutines that it started are there at its end.
// Called first, so that it looks after all other cleanups. It is not for tests
// that run in parallel.
func noLeak(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		err := goleak.Find(before) // which waits a while itself
		for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
			err = goleak.Find(before)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// spy is a store that notes when each lease was asked to be renewed, how often a
// lock was asked for, and who was told that it is held.
type spy struct {
	tierlock.Store

	mu       sync.Mutex
	renewals map[string][]time.Time // by lease; when the call began
	acquires []time.Time
	held     map[string]int // answers of others' holds, by key
}

func newSpy(s tierlock.Store) *spy {
	return &spy{Store: s, renewals: make(map[string][]time.Time), held: make(map[string]int)}
}

func (s *spy) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	now := time.Now()
	s.mu.Lock()
	for _, r := range reqs {
		s.renewals[r.Lease] = append(s.renewals[r.Lease], now)
	}
	s.mu.Unlock()
	return s.Store.Renew(ctx, reqs)
}

func (s *spy) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	s.mu.Lock()
	s.acquires = append(s.acquires, time.Now())
	s.mu.Unlock()
	res, err := s.Store.Acquire(ctx, req)
	if err == nil && !res.Granted {
		s.mu.Lock()
		s.held[req.Name.Key]++
		s.mu.Unlock()
	}
	return res, err
}

// toldHeld is how often an acquire of the key was answered that it is held.
func (s *spy) toldHeld(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[key]
}

// Watch is the store's, or what is as good as its having none.
func (s *spy) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	if w, ok := s.Store.(tierlock.Watcher); ok {
		return w.Watch(ctx, name)
	}
	return nil, fmt.Errorf("%w: no push", tierlock.ErrUnavailable)
}

// Linger likewise.
func (s *spy) Linger() time.Duration {
	if l, ok := s.Store.(tierlock.Lingering); ok {
		return l.Linger()
	}
	return 0
}

// renewedAfter is how many renewals of a lease began after at.
func (s *spy) renewedAfter(lease string, at time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, began := range s.renewals[lease] {
		if began.After(at) {
			n++
		}
	}
	return n
}

func (s *spy) renewed(lease string) int { return s.renewedAfter(lease, time.Time{}) }

// asked is how many acquires began after at.
func (s *spy) asked(at time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, began := range s.acquires {
		if began.After(at) {
			n++
		}
	}
	return n
}

var (
	_ tierlock.Store     = (*spy)(nil)
	_ tierlock.Watcher   = (*spy)(nil)
	_ tierlock.Lingering = (*spy)(nil)
)
