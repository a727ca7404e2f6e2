package watchdog_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

const (
	sec = time.Second
	ms  = time.Millisecond
)

var errDown = errors.New("store down")

// sending is one renewal as the fake store saw it; times count from the start
// of the test.
type sending struct {
	value    any
	at, ttl  time.Duration
	deadline time.Duration
	batch    int // size of its batch
	call     int // number of its call
}

// store is a fake behind Config.Renew: it records what was sent and answers as
// told.
type store struct {
	// answer gives the answer to one renewal; nil confirms. It is called once
	// per batch and lease, and may sleep (then all of the batch waits) or wait
	// for ctx.
	answer func(ctx context.Context, s sending) error

	mu    sync.Mutex
	start time.Time
	sent  []sending
	calls int
	// in flight now, and the most there ever were
	flying, most int
}

func (s *store) renew(ctx context.Context, batch []watchdog.Renewal) []error {
	deadline, _ := ctx.Deadline()
	s.mu.Lock()
	s.calls++
	call := s.calls
	s.flying++
	s.most = max(s.most, s.flying)
	mine := make([]sending, len(batch))
	for i, r := range batch {
		mine[i] = sending{value: r.Lease.Value(), at: time.Since(s.start), ttl: r.TTL,
			deadline: deadline.Sub(s.start), batch: len(batch), call: call}
	}
	s.sent = append(s.sent, mine...)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.flying--
		s.mu.Unlock()
	}()
	errs := make([]error, len(batch))
	for i := range mine {
		if s.answer != nil {
			errs[i] = s.answer(ctx, mine[i])
		}
	}
	return errs
}

// all gives what was sent so far.
func (s *store) all() []sending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sending(nil), s.sent...)
}

// counts gives the calls so far, those in flight, and the most there ever were
// at a time.
func (s *store) counts() (calls, flying, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.flying, s.most
}

// times gives when renewals were sent so far.
func (s *store) times() []time.Duration {
	var ts []time.Duration
	for _, x := range s.all() {
		ts = append(ts, x.at)
	}
	return ts
}

// newDog is a Watchdog over s, closed at the end of the test.
func newDog(t *testing.T, s *store) *watchdog.Watchdog {
	t.Helper()
	s.start = time.Now()
	w := watchdog.New(watchdog.Config{Renew: s.renew})
	t.Cleanup(w.Close)
	return w
}

// ends collects OnEnd calls.
type ends struct {
	mu    sync.Mutex
	start time.Time
	got   []watchdog.End
	at    []time.Duration // when OnEnd was called
}

func newEnds() *ends { return &ends{start: time.Now()} }

func (e *ends) add(end watchdog.End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, end)
	e.at = append(e.at, time.Since(e.start))
}

func (e *ends) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got)
}

// want checks that exactly one OnEnd came, at that time and for that reason.
func (e *ends) want(t *testing.T, reason watchdog.Reason, at time.Duration) watchdog.End {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.got) != 1 {
		t.Fatalf("OnEnd was called %d times (%v), want once, %v", len(e.got), e.got, reason)
	}
	end := e.got[0]
	if end.Reason != reason || e.at[0] != at || end.Held != at || !end.At.Equal(e.start.Add(at)) {
		t.Fatalf("OnEnd at %v with %v, held %v, at +%v; want %v at %v",
			e.at[0], end.Reason, end.Held, end.At.Sub(e.start), reason, at)
	}
	return end
}

// sleep lets d pass and everything that is due by then happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// goroutines is the number of those that Watchdogs have started. What the test
// framework runs comes and goes, so runtime.NumGoroutine is no measure.
func goroutines() int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return strings.Count(string(buf), "created by github.com/tierlock/tierlock/watchdog.(*")
}

// hang waits until the call is given up.
func hang(ctx context.Context, _ sending) error {
	<-ctx.Done()
	return ctx.Err()
}
