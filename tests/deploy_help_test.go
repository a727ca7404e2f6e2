package tests_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// openAs opens a store with client options that a test has changed.
func openAs(t testing.TB, addr string, change func(*rueidis.ClientOption)) *redisstore.Store {
	t.Helper()
	opt := redisstore.RecommendedOptions(addr)
	change(&opt)
	s, err := redisstore.OpenWith(opt, redisstore.Options{CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// patientLocker is for calls of which the answer is the point, on a machine that
// may stand still for a while: long limits, and a lease that bounds no call.
func patientLocker(t testing.TB, addr string, change func(*rueidis.ClientOption)) *tierlock.Locker {
	t.Helper()
	opt := redisstore.RecommendedOptions(addr)
	opt.Dialer.Timeout = 2 * time.Second
	change(&opt)
	s, err := redisstore.OpenWith(opt, redisstore.Options{CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cfg := config(s, tierlock.Resource{Name: "job", TTL: time.Minute, Reentrant: true})
	cfg.CallTimeout = 2 * time.Second
	return lockerOf(t, cfg)
}

func asUser(name, password string) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) { o.Username, o.Password = name, password }
}

// wantClass checks that err is of one of the classes unavailable,
// misconfigured and held, and of no other, and says all the parts.
func wantClass(t testing.TB, what string, err, class error, says ...string) {
	t.Helper()
	for _, c := range []error{tierlock.ErrUnavailable, tierlock.ErrMisconfigured, tierlock.ErrHeld, tierlock.ErrLost} {
		if errors.Is(err, c) != (c == class) {
			t.Errorf("%s: got %v; want it to match %q alone", what, err, class)
			return
		}
	}
	wantSays(t, what, err, says...)
}

func contains(err error, part string) bool { return err != nil && strings.Contains(err.Error(), part) }

func wantSays(t testing.TB, what string, err error, says ...string) {
	t.Helper()
	for _, part := range says {
		if !contains(err, part) {
			t.Errorf("%s: got %v; want it to say %q", what, err, part)
		}
	}
}

// freeAt is when the key of a hold ends, if it is renewed no more.
func freeAt(t testing.TB, srv *rig.RedisServer, k *tierlock.Lock) time.Time {
	t.Helper()
	ms := srv.Int("PEXPIRETIME", keyOf(k.Token().Resource, k.Token().Key))
	if ms < 0 {
		t.Fatalf("the key of %v is gone already", k.Token())
	}
	return time.UnixMilli(ms)
}

// endsInTime waits until a hold is lost because no renewal succeeded, and
// checks that belief was over before the key is free for others. locked is when
// the lock was given.
func endsInTime(t testing.TB, free time.Time, k *tierlock.Lock, locked time.Time, says ...string) {
	t.Helper()
	waitEnd(t, k)
	err := context.Cause(k.Context())
	wantLost(t, "cause", err, "unconfirmed")
	wantSays(t, "cause", err, says...)
	var lost *tierlock.LostError
	if errors.As(err, &lost) {
		// Held counts from before the request was sent, so this is too late, if
		// anything.
		if end := locked.Add(lost.Held); !end.Before(free) {
			t.Errorf("believed in until %v, but free at %v", end, free)
		}
	}
	wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
}

// outlives checks that a hold goes on for a time, longer than its TTL.
func outlives(t testing.TB, k *tierlock.Lock, d time.Duration) {
	t.Helper()
	select {
	case <-k.Context().Done():
		t.Errorf("lost: %v", context.Cause(k.Context()))
	case <-time.After(d):
	}
}

// locksAgain waits until a lock can be taken, and gives it back.
func locksAgain(t testing.TB, l *tierlock.Locker, resource, key string) (tok tierlock.Token) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var k *tierlock.Lock
		if k, err = l.TryLock(bg, resource, key); err == nil {
			mustUnlock(t, k)
			return k.Token()
		}
	}
	t.Errorf("%s/%s is not to be had again: %v", resource, key, err)
	return tok
}

// logBook is a handler that keeps what is logged at Info and above.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBook) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler           { return b }
func (b *logBook) WithGroup(string) slog.Handler                { return b }
func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	b.lines = append(b.lines, line)
	return nil
}

func newLogger(b *logBook) *slog.Logger { return slog.New(b) }

func (b *logBook) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.lines...)
}
