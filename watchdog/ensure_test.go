package watchdog_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

func TestEnsure(t *testing.T) {
	type spec = watchdog.Spec
	ok := slow(100 * ms)
	fail := func(context.Context, sending) error { time.Sleep(100 * ms); return errDown }
	gone := func(context.Context, sending) error { time.Sleep(100 * ms); return watchdog.ErrNotHeld }
	for _, tc := range []struct {
		name    string
		spec    spec // TTL 30 s
		answer  func(context.Context, sending) error
		at      time.Duration // when it is called; see prepare
		prepare func(*watchdog.Lease)
		ctx     time.Duration // 0: none
		least   time.Duration
		want    error
		takes   time.Duration
		sent    int
		left    time.Duration
		ended   bool
	}{
		{name: "there", answer: ok, at: 5 * sec, least: 22 * sec, left: 22 * sec},
		{name: "nothing asked", answer: ok, at: 5 * sec, least: -1, left: 22 * sec},
		{name: "renews", answer: ok, at: 5 * sec, least: 26 * sec, takes: 100 * ms, sent: 1, left: 26900 * ms},
		{name: "the very most", answer: slow(0), at: 5 * sec, least: 27 * sec, sent: 1, left: 27 * sec},
		{name: "round trip too long", answer: ok, at: 5 * sec, least: 27 * sec, want: watchdog.ErrBound,
			takes: 100 * ms, sent: 1, left: 26900 * ms},
		{name: "more than TTL less margin", answer: ok, at: 5 * sec, least: 27*sec + 1, want: watchdog.ErrBound, left: 22 * sec},
		{name: "limit leaves it", spec: spec{Limit: 33 * sec}, answer: slow(0), at: 5 * sec, least: 25200 * ms,
			sent: 1, left: 25200 * ms},
		{name: "limit leaves less", spec: spec{Limit: 33 * sec}, answer: ok, at: 5 * sec, least: 25200*ms + 1,
			want: watchdog.ErrBound, left: 22 * sec},
		{name: "limit reached", spec: spec{Limit: 30 * sec}, answer: ok, at: 5 * sec, least: 23 * sec,
			want: watchdog.ErrBound, left: 22 * sec},
		{name: "renewals used up", spec: spec{MaxRenewals: 1}, answer: slow(0), at: 12 * sec, least: 26 * sec,
			want: watchdog.ErrBound, sent: 1, left: 25 * sec},
		{name: "paused", answer: ok, at: 5 * sec, prepare: (*watchdog.Lease).Pause, least: 26 * sec,
			want: watchdog.ErrBound, left: 22 * sec},
		{name: "stopped", answer: ok, at: 5 * sec, least: 2 * sec, want: watchdog.ErrEnded, left: 22 * sec,
			prepare: func(l *watchdog.Lease) { l.Stop(context.Background()) }},
		{name: "no answer", answer: fail, at: 5 * sec, least: 26 * sec, want: errDown,
			takes: 100 * ms, sent: 1, left: 21900 * ms},
		{name: "not held", answer: gone, at: 5 * sec, least: 26 * sec, want: watchdog.ErrNotHeld,
			takes: 100 * ms, sent: 1, ended: true},
		{name: "not held before", answer: gone, at: 12 * sec, least: sec, want: watchdog.ErrEnded, sent: 1, ended: true},
		{name: "hangs", answer: hang, at: 5 * sec, least: 26 * sec, want: context.DeadlineExceeded,
			takes: 500 * ms, sent: 1, left: 21500 * ms},
		{name: "impatient", answer: ok, at: 5 * sec, ctx: 50 * ms, least: 26 * sec, want: context.DeadlineExceeded,
			takes: 50 * ms, sent: 1, left: 21950 * ms},
		{name: "ctx over but there", answer: ok, at: 5 * sec, ctx: -1, least: 20 * sec, left: 22 * sec},
		{name: "ctx over", answer: ok, at: 5 * sec, ctx: -1, least: 26 * sec, want: context.DeadlineExceeded, left: 22 * sec},
		// The regular renewal of 10 s is in flight until 10.1 s.
		{name: "joins", answer: ok, at: 10050 * ms, least: 26900 * ms, takes: 50 * ms, sent: 1, left: 26900 * ms},
		{name: "joins, then its own", answer: ok, at: 10050 * ms, least: 26900*ms + 1, want: watchdog.ErrBound,
			takes: 150 * ms, sent: 2, left: 26900 * ms},
		{name: "joins one that fails, then its own", answer: fail, at: 10050 * ms, least: 26 * sec, want: errDown,
			takes: 150 * ms, sent: 2, left: 16800 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: tc.answer}
				w := newDog(t, s)
				e := newEnds()
				tc.spec.Sent, tc.spec.TTL, tc.spec.OnEnd = watchdog.Now(), 30*sec, e.add
				l := w.Watch(tc.spec)
				time.Sleep(tc.at)
				synctest.Wait()
				if tc.prepare != nil {
					tc.prepare(l)
				}
				ctx := t.Context()
				if tc.ctx != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.ctx)
					defer cancel()
				}
				err := l.Ensure(ctx, tc.least)
				if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("Ensure: %v, want %v", err, tc.want)
				}
				if took := time.Since(s.start) - tc.at; took != tc.takes {
					t.Errorf("took %v, want %v", took, tc.takes)
				}
				synctest.Wait()
				if n := len(s.all()); n != tc.sent {
					t.Errorf("%d renewals, want %d", n, tc.sent)
				}
				if left := l.Left(); left != tc.left {
					t.Errorf("left %v, want %v", left, tc.left)
				}
				if _, ended := l.End(); ended != tc.ended || (e.len() == 1) != tc.ended {
					t.Errorf("ended %v, OnEnd %v, want %v", ended, e.got, tc.ended)
				}
			})
		})
	}
}

// The cause of the caller's ctx is reported beside its error.
func TestEnsureCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDog(t, &store{})
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		time.Sleep(sec)
		ctx, cancel := context.WithCancelCause(t.Context())
		shutdown := errors.New("shutting down")
		cancel(shutdown)
		if err := l.Ensure(ctx, 26500*ms); !errors.Is(err, context.Canceled) || !errors.Is(err, shutdown) {
			t.Errorf("Ensure: %v", err)
		}
		l.Stop(ctx)
	})
}

// Many callers share one renewal, and one who goes away does not break it for
// the others.
func TestEnsureJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: slow(100 * ms)}
		w := newDog(t, s)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		time.Sleep(5 * sec)
		first, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Ensure(first, 26*sec); !errors.Is(err, context.Canceled) {
				t.Errorf("the first: %v", err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if err := l.Ensure(t.Context(), 26*sec); err != nil {
					t.Errorf("joined: %v", err)
				}
			})
		}
		time.Sleep(50 * ms)
		cancel()
		wg.Wait()
		if n := len(s.all()); n != 1 {
			t.Errorf("%d renewals for 51 callers", n)
		}
		// It counts as any other: the next one is a period later.
		time.Sleep(9800 * ms)
		if n := len(s.all()); n != 1 {
			t.Errorf("renewed at %v", s.times())
		}
		time.Sleep(200 * ms)
		if n := len(s.all()); n != 2 {
			t.Errorf("renewed at %v, want 5s and 15s", s.times())
		}
	})
}

// Failures of Ensure out of turn do not use up the attempts of the regular
// renewal.
func TestEnsureFailuresKeepThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(_ context.Context, x sending) error {
			if x.at < 10*sec {
				return errDown
			}
			return nil
		}}
		w := newDog(t, s)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		for range 9 {
			time.Sleep(sec)
			if err := l.Ensure(t.Context(), 26500*ms); !errors.Is(err, errDown) {
				t.Fatalf("Ensure: %v", err)
			}
		}
		time.Sleep(sec)
		synctest.Wait()
		if got := s.times(); len(got) != 10 || got[9] != 10*sec || l.Left() != 27*sec {
			t.Errorf("sent at %v, left %v; want the tenth at 10s", got, l.Left())
		}
	})
}

// A call that Ensure makes ends with belief at the latest (scenario 17).
func TestEnsureDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(ctx context.Context, x sending) error {
			if x.at < 26550*ms {
				return errDown
			}
			return hang(ctx, x)
		}}
		w := newDog(t, s)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		sleep(26700 * ms)
		err := l.Ensure(t.Context(), 10*sec)
		if at := time.Since(s.start); !errors.Is(err, watchdog.ErrEnded) || at != 27*sec {
			t.Errorf("Ensure: %v at %v, want ErrEnded at 27s", err, at)
		}
		all := s.all()
		if last := all[len(all)-1]; last.at != 26700*ms || last.deadline != 27*sec {
			t.Errorf("the last call: %+v", last)
		}
	})
}

// A renewal that waits for a free call is replaced by Ensure's, not sent in
// addition.
func TestEnsureInsteadOfQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &store{answer: func(_ context.Context, x sending) error {
			if x.value == nil {
				<-release
			}
			return nil
		}}
		w := newDog(t, s)
		for range 8 { // take all calls
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec})
			sleep(40 * ms)
		}
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, Value: "queued"})
		sleep(1100 * ms)
		if _, flying, _ := s.counts(); flying != 8 || len(s.all()) != 8 {
			t.Fatalf("%d in flight, %d sent", flying, len(s.all()))
		}
		if err := l.Ensure(t.Context(), 2700*ms); err != nil {
			t.Fatal(err)
		}
		close(release)
		sleep(500 * ms)
		if n := len(s.all()); n != 9 || l.Left() != 2200*ms {
			t.Errorf("%d renewals, left %v", n, l.Left())
		}
	})
}
