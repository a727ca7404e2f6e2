package tierlock_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// Each line with its level, and those about a lock with its token.
func TestLogLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBook{}
		s := storetest.WithFaults(localstore.New(localstore.Options{}))
		cfg := goodConfig()
		cfg.Namespace, cfg.Stores, cfg.Logger = "ns", []tierlock.Store{s}, slog.New(log)
		cfg.Resources = []tierlock.Resource{
			{Name: "re", TTL: 3 * time.Second, Reentrant: true, MaxHolds: 1, Expect: 500 * time.Millisecond},
			{Name: "short", TTL: 3 * time.Second, MaxHold: time.Second}}
		cfg.Observer.Queued = func(tierlock.QueuedEvent) { panic("boom") }
		l, err := tierlock.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := func(level, message string, k *tierlock.Lock, parts ...string) {
			t.Helper()
			lines := log.lines("tierlock: " + message)
			if len(lines) != 1 {
				t.Errorf("%q: lines %q, want one", message, lines)
				return
			}
			if k != nil {
				parts = append(parts, "token=", "resource="+k.Token().Resource, "key="+k.Token().Key, "hold="+k.Token().ID, "lease="+k.Token().Lease)
			} else if strings.Contains(lines[0], "token=") {
				t.Errorf("%q: line %q, which is about no lock", message, lines[0])
			}
			for _, part := range append(parts, level+" ") {
				if !strings.Contains(lines[0], part) {
					t.Errorf("%q: line %q, want it with %q", message, lines[0], part)
				}
			}
			log.clear()
		}
		k := mustLock(t, l, "re", "1", tierlock.RequestID("q-7"))
		want("DEBUG", "locked", k, "request=q-7", "waited=0s")
		inner := mustLockCtx(t, k.Context(), l, "re", "1")
		want("DEBUG", "re-entered", k, "handles=2")
		mustUnlock(t, inner)
		k2 := mustLock(t, l, "re", "2", tierlock.Expect(time.Minute))
		log.drop("tierlock: locked")
		want("WARN", "more holds than expected", k2, "holds=2", "want=1")
		_, err = l.Lock(bg, "re", "1", tierlock.Wait(10*time.Millisecond))
		wantIs(t, "Lock", err, tierlock.ErrHeld)
		want("ERROR", "observer panicked", nil, "panic=boom")
		time.Sleep(2 * time.Second)
		want("WARN", "held longer than expected", k, "held=1.5s", "expect=500ms")
		mustUnlock(t, k)
		want("DEBUG", "unlocked", k, "held=2.01s", "err=<nil>")
		s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Refuse, Answer: tierlock.LeaseTaken, Times: 1})
		<-k2.Context().Done()
		want("WARN", "lock lost", k2, "reason=taken", "held=3s")
		wantLost(t, "Unlock", k2.Unlock(), "taken")
		want("DEBUG", "unlocked", k2, "err=tierlock: lock lost (taken)")

		short := mustLock(t, l, "short", "1")
		log.clear()
		<-short.Context().Done()
		want("WARN", "bound of the hold reached", short, "held=900ms")
		_ = short.Unlock()
		log.clear()

		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.After})
		for range 2 {
			_, err = l.TryLock(bg, "short", "2")
			wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
			idle(t, l)
			if lines := log.lines("tierlock: undone"); len(lines) != 1 || !strings.HasPrefix(lines[0], "DEBUG token=") || !strings.Contains(lines[0], "key=2") {
				t.Errorf("lines of an undo: %q", lines)
			}
			log.clear()
		}
		s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
		for range 3 {
			_, _ = l.TryLock(bg, "short", "2")
		}
		want("ERROR", "store does not answer", nil, "tier=local", "err=")
		s.ClearAll()
		idle(t, l)
		log.drop("tierlock: undone")
		want("INFO", "store answers again", nil, "tier=local")

		k = mustLock(t, l, "re", "1")
		ctx, cancel := context.WithCancel(bg)
		cancel()
		_ = l.Close(ctx)
		log.drop("tierlock: locked")
		want("WARN", "held at the end of the locker", k, "held=0s")
		mustUnlock(t, k)
		want("DEBUG", "unlocked", k)
	})
}

// A logger that panics, is slow or does not want a level costs no lock a thing.
func TestBadLogger(t *testing.T) {
	for what, h := range map[string]*badHandler{
		"panics": {handle: func() { panic("boom") }},
		"slow":   {handle: func() { time.Sleep(time.Hour) }},
		"off":    {off: true, handle: func() { t.Error("called for a level that it does not want") }},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLocker(t, newSpy(nil), func(c *tierlock.Config) { c.Logger = slog.New(h) })
			start := time.Now()
			for range 3 {
				mustUnlock(t, mustLock(t, l, "r", "1"))
			}
			if d := time.Since(start); d != 0 {
				t.Errorf("%s: took %v", what, d)
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			if n := h.calls; (n == 6) == h.off {
				t.Errorf("%s: %d lines", what, n)
			}
		})
	}
}

type badHandler struct {
	off    bool
	handle func()
	calls  int
}

func (h *badHandler) Enabled(context.Context, slog.Level) bool { return !h.off }
func (h *badHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *badHandler) WithGroup(string) slog.Handler            { return h }
func (h *badHandler) Handle(context.Context, slog.Record) error {
	h.calls++ // one at a time: the Locker has one goroutine for it
	h.handle()
	return nil
}

// Without a Logger the default one is told.
func TestDefaultLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBook{}
		before := slog.Default()
		defer slog.SetDefault(before)
		slog.SetDefault(slog.New(log))
		l := newLocker(t, newSpy(nil), func(c *tierlock.Config) { c.Logger = nil })
		mustUnlock(t, mustLock(t, l, "r", "1"))
		if n := len(log.lines("tierlock: locked")); n != 1 {
			t.Errorf("%d lines, want 1", n)
		}
	})
}
