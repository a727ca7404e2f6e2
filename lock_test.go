package tierlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

var bg = context.Background()

// newLocker makes a Locker over s that is closed, and found clean, at the end
// of the test. In a synctest bubble it has to be made inside it.
func newLocker(t *testing.T, s tierlock.Store, change ...func(*tierlock.Config)) *tierlock.Locker {
	t.Helper()
	cfg := tierlock.Config{
		App: "test", Namespace: "ns", Stores: []tierlock.Store{s},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Resources: []tierlock.Resource{
			{Name: "r", TTL: 3 * time.Second},
			{Name: "re", TTL: 3 * time.Second, Reentrant: true},
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := tierlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Bounded, so that a test that failed and left a lock ends, too.
		ctx, cancel := context.WithTimeout(bg, 10*time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func withResources(rs ...tierlock.Resource) func(*tierlock.Config) {
	return func(c *tierlock.Config) { c.Resources = rs }
}

func TestLockUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, localstore.New(localstore.Options{}))
		k, err := l.Lock(bg, "r", "42", tierlock.RequestID("req-7"))
		if err != nil {
			t.Fatal(err)
		}
		tok := k.Token()
		if tok.Resource != "r" || tok.Key != "42" || tok.App != "test" || tok.RequestID != "req-7" ||
			tok.Tier != tierlock.Local || tok.TTL != 3*time.Second || len(tok.Lease) != 44 || tok.ID == "" || tok.Holder == "" {
			t.Errorf("token = %+v", tok)
		}
		if got := tierlock.TokenFrom(k.Context()); got != tok {
			t.Errorf("TokenFrom = %v, want %v", got, tok)
		}
		if k.Guarantee() != tierlock.ProcessLocal || k.Err() != nil {
			t.Errorf("guarantee %v, err %v", k.Guarantee(), k.Err())
		}
		_, err = l.TryLock(bg, "r", "42")
		var held *tierlock.HeldError
		if !errors.Is(err, tierlock.ErrHeld) || !errors.As(err, &held) || held.Holder != tok {
			t.Errorf("second TryLock: %v", err)
		}
		time.Sleep(10 * time.Second) // more than three leases: it is renewed
		if k.Err() != nil || k.Context().Err() != nil {
			t.Errorf("after 10 s: %v, %v", k.Err(), k.Context().Err())
		}
		if err := k.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if err := k.Unlock(); err != nil {
			t.Errorf("second Unlock: %v", err)
		}
		if !errors.Is(context.Cause(k.Context()), tierlock.ErrReleased) || !errors.Is(k.Err(), tierlock.ErrReleased) {
			t.Errorf("cause %v, err %v", context.Cause(k.Context()), k.Err())
		}
		k, err = l.TryLock(bg, "r", "42")
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := localstore.NewSpace()
		a := newLocker(t, localstore.New(localstore.Options{Space: s}))
		b := newLocker(t, localstore.New(localstore.Options{Space: s}))
		k, err := a.Lock(bg, "r", "1")
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]*tierlock.Locker{"same": a, "other": b} {
			start := time.Now()
			_, err = l.Lock(bg, "r", "1", tierlock.Wait(700*time.Millisecond))
			if !errors.Is(err, tierlock.ErrHeld) || errors.Is(err, tierlock.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
			if d := time.Since(start); d != 700*time.Millisecond {
				t.Errorf("%s: waited %v", name, d)
			}
		}
		done := make(chan time.Time)
		for _, l := range []*tierlock.Locker{a, b} {
			go func() {
				k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
				if err != nil {
					t.Error(err)
				}
				done <- time.Now()
				if err := k.Unlock(); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(20 * time.Second)
		start := time.Now()
		if err := k.Unlock(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if d := (<-done).Sub(start); d > 10*time.Millisecond {
				t.Errorf("woken %v after the release", d)
			}
		}
	})
}
