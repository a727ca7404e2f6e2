package watchdog_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// slow answers after d, whatever ctx says.
func slow(d time.Duration) func(context.Context, sending) error {
	return func(context.Context, sending) error { time.Sleep(d); return nil }
}

// Stop waits for the renewal in flight, so that a release is not overtaken by
// it, and nothing is sent afterwards (scenario 23). It waits no longer than
// its ctx.
func TestStopWaitsForRenewal(t *testing.T) {
	for _, tc := range []struct {
		name     string
		at       time.Duration // of Stop
		patience time.Duration
		returns  time.Duration
	}{
		{"none in flight", 9 * sec, sec, 9 * sec},
		{"in flight", 10100 * ms, sec, 10300 * ms},
		{"impatient", 10100 * ms, 50 * ms, 10150 * ms},
		{"not at all", 10100 * ms, 0, 10100 * ms},
		{"between", 10400 * ms, sec, 10400 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: slow(300 * ms)}
				w := newDog(t, s)
				e := newEnds()
				renewed := 0
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add,
					OnRenewed: func(watchdog.Renewed) { renewed++ }})
				time.Sleep(tc.at)
				ctx, cancel := context.WithTimeout(t.Context(), tc.patience)
				defer cancel()
				var wg sync.WaitGroup
				for range 3 { // all of them wait
					wg.Go(func() {
						if end, ended := l.Stop(ctx); ended {
							t.Errorf("ended: %+v", end)
						}
						if at := time.Since(s.start); at != tc.returns {
							t.Errorf("Stop returned at %v, want %v", at, tc.returns)
						}
					})
				}
				wg.Wait()
				sent := len(s.all())
				sleep(100 * sec)
				if n := len(s.all()); n != sent {
					t.Errorf("%d renewals after Stop", n-sent)
				}
				if _, ended := l.End(); ended || e.len() != 0 {
					t.Errorf("ended after Stop: %+v", e.got)
				}
				if tc.at == 10100*ms && renewed != 0 {
					t.Error("OnRenewed after Stop")
				}
			})
		})
	}
}

// After Stop, Left still follows the lease: a renewal that was in flight and
// is confirmed prolongs it, one that finds it gone ends it. The verdict of
// Stop stays.
func TestLeftAfterStop(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer error
		left   time.Duration
	}{
		{"confirmed", nil, 26700 * ms},
		{"no answer", errDown, 16700 * ms},
		{"gone", watchdog.ErrNotHeld, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: func(context.Context, sending) error { time.Sleep(300 * ms); return tc.answer }}
				w := newDog(t, s)
				e := newEnds()
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
				time.Sleep(10100 * ms)
				l.Stop(t.Context())
				if left := l.Left(); left != tc.left {
					t.Errorf("left %v, want %v", left, tc.left)
				}
				time.Sleep(tc.left)
				if l.Left() != 0 || e.len() != 0 {
					t.Errorf("left %v, ends %v", l.Left(), e.got)
				}
			})
		})
	}
}

// A confirmation that comes when Left has already said 0 does not revive it,
// after Stop either.
func TestLateConfirmationAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(_ context.Context, x sending) error { time.Sleep(28*sec - x.at); return nil }}
		w := newDog(t, s)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		sleep(26 * sec)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Stop(ctx)
		sleep(1500 * ms)
		if l.Left() != 0 {
			t.Errorf("left %v after 27.5 s", l.Left())
		}
		sleep(sec)
		if l.Left() != 0 {
			t.Errorf("left %v: revived", l.Left())
		}
	})
}

// A Stop does not wait for batches that its lease is not in, even when all
// calls hang.
func TestStopBesideHungBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: hang}
		w := newDog(t, s)
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		time.Sleep(sec)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		sleep(9200 * ms) // the first one's renewal hangs since 0.2 s
		if _, flying, _ := s.counts(); flying != 1 {
			t.Fatalf("%d in flight, want 1", flying)
		}
		l.Stop(t.Context())
		if at := time.Since(s.start); at != 10200*ms {
			t.Errorf("Stop returned at %v", at)
		}
	})
}

// Either OnEnd is called or Stop came first, and Stop knows which, also at the
// very moment at which belief ends.
func TestStopOrEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: hang}
		w := newDog(t, s)
		both := map[bool]int{}
		for i := range 600 {
			e := newEnds()
			l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: sec, OnEnd: e.add})
			at := 900 * ms
			if i%3 == 0 {
				at-- // Stop comes first
			}
			if i%3 == 2 {
				l.Pause() // no renewal in flight to end at the same moment
			}
			time.Sleep(at)
			end, ended := l.Stop(t.Context())
			synctest.Wait()
			if ended != (i%3 != 0) || ended != (e.len() == 1) || e.len() > 1 {
				t.Fatalf("round %d: Stop says ended=%v, OnEnd %v", i, ended, e.got)
			}
			if ended && e.got[0] != end {
				t.Fatalf("round %d: Stop says %+v, OnEnd %+v", i, end, e.got[0])
			}
			if end2, ended2 := l.Stop(t.Context()); ended2 != ended || end2 != end {
				t.Fatalf("round %d: the second Stop says %+v, %v", i, end2, ended2)
			}
			both[ended]++
		}
		if both[true] != 400 || both[false] != 200 {
			t.Errorf("%v", both)
		}
	})
}

// The end that a caller sees first, by the clock, is the one that OnEnd gets,
// and what happens in between does not change it.
func TestEndBeforeScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		w := newDog(t, &store{answer: func(context.Context, sending) error { return errDown }})
		e := newEnds()
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		sleep(10100 * ms)
		gain(60 * sec)
		l.Pause() // too late to be the reason
		end, ended := l.Stop(t.Context())
		if !ended || end.Reason != watchdog.Unconfirmed || end.Err != errDown || w.Len() != 0 {
			t.Errorf("Stop: %+v, %v", end, ended)
		}
		synctest.Wait() // without time going on
		if e.len() != 1 || e.got[0] != end {
			t.Errorf("OnEnd: %+v, want %+v", e.got, end)
		}
	})
}

// Pause ends renewal, not belief, which then ends by itself.
func TestPause(t *testing.T) {
	for _, tc := range []struct {
		name   string
		at     time.Duration
		limit  time.Duration
		sent   int
		reason watchdog.Reason
		end    time.Duration
	}{
		{"before the first", 5 * sec, 0, 0, watchdog.Expired, 27 * sec},
		{"in flight", 10100 * ms, 0, 1, watchdog.Expired, 37 * sec},
		{"after", 11 * sec, 0, 1, watchdog.Expired, 37 * sec},
		{"while failing", 20600 * ms, 0, 3, watchdog.Expired, 37 * sec},
		{"bound reached before", 11 * sec, 35 * sec, 1, watchdog.Limit, 32500 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: func(_ context.Context, x sending) error {
					if x.at >= 20*sec {
						return errDown
					}
					time.Sleep(300 * ms)
					return nil
				}}
				w := newDog(t, s)
				e := newEnds()
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Limit: tc.limit, OnEnd: e.add})
				time.Sleep(tc.at)
				l.Pause()
				l.Pause()
				time.Sleep(100 * sec)
				end := e.want(t, tc.reason, tc.end)
				if (end.Err != nil) != (tc.name == "while failing") {
					t.Errorf("end error %v", end.Err)
				}
				if n := len(s.all()); n != tc.sent {
					t.Errorf("%d renewals, want %d", n, tc.sent)
				}
			})
		})
	}
}

// Callbacks may use their own lease, and watch others.
func TestCallbacksMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := &store{answer: func(context.Context, sending) error {
			if n++; n == 2 {
				return watchdog.ErrNotHeld
			}
			return nil
		}}
		w := newDog(t, s)
		var own atomic.Pointer[watchdog.Lease]
		var log []string
		again := newEnds()
		own.Store(w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Overdue: sec,
			OnOverdue: func() { log = append(log, "overdue"); own.Load().Left() },
			OnRenewed: func(watchdog.Renewed) { log = append(log, "renewed"); own.Load().End() },
			OnEnd: func(end watchdog.End) {
				got, ended := own.Load().Stop(context.Background())
				if !ended || got != end {
					t.Errorf("Stop in OnEnd: %+v, %v", got, ended)
				}
				own.Load().Pause()
				w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, MaxRenewals: 1, OnEnd: again.add})
			}}))
		sleep(100 * sec)
		if len(log) != 2 || again.len() != 1 || w.Len() != 0 {
			t.Errorf("callbacks %v, %d ends of the second lease, Len %d", log, again.len(), w.Len())
		}

		own.Store(w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnRenewed: func(watchdog.Renewed) {
			if _, ended := own.Load().Stop(context.Background()); ended {
				t.Error("Stop in OnRenewed: ended")
			}
		}}))
		sleep(100 * sec)
		if w.Len() != 0 {
			t.Errorf("Len %d", w.Len())
		}
	})
}

// Nothing runs between two looks, so that an idle Watchdog may be forgotten, and
// without a lease its timer ends; the next lease is watched as the first one was.
func TestIdleRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchdog.New(watchdog.Config{Renew: (&store{}).renew}) // never closed
		for i := range 3 {
			e := newEnds()
			l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: e.add, MaxRenewals: 2})
			sleep(sec)
			if n := goroutines(); n != 0 || !w.TimerSet() {
				t.Errorf("round %d: %d goroutines with a lease, timer set %v", i, n, w.TimerSet())
			}
			if i == 1 {
				time.Sleep(10 * sec)
				e.want(t, watchdog.Limit, 4700*ms)
			} else {
				l.Stop(t.Context())
			}
			synctest.Wait() // no time passes
			if n := goroutines(); n != 0 {
				t.Errorf("round %d: %d goroutines without a lease", i, n)
			}
			if i == 1 {
				sleep(sec)
				if w.TimerSet() {
					t.Error("the timer is set without a lease")
				}
			}
		}
	})
}

// Close cuts short what is in flight, waits for it, and no callback comes
// afterwards. Belief then still ends by the clock.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(ctx context.Context, x sending) error {
			if x.at == 10*sec {
				return errDown
			}
			<-ctx.Done()
			time.Sleep(20 * ms) // takes a while to notice
			return ctx.Err()
		}}
		w := newDog(t, s)
		e := newEnds()
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add, Overdue: 20 * sec,
			OnOverdue: func() { t.Error("OnOverdue after Close") }})
		time.Sleep(10600 * ms)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				w.Close()
				if at := time.Since(s.start); at != 10620*ms {
					t.Errorf("Close returned at %v", at)
				}
			})
		}
		wg.Wait()
		w.Close()
		synctest.Wait()
		if n := goroutines(); n != 0 {
			t.Errorf("%d goroutines after Close", n)
		}
		late := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: e.add})
		if n := w.Len(); n != 0 || late.Left() != 2700*ms {
			t.Errorf("after Close: Len %d, left %v", n, late.Left())
		}
		if err := late.Ensure(t.Context(), 2600*ms); err != nil {
			t.Errorf("Ensure of what is there: %v", err)
		}
		time.Sleep(sec)
		if err := late.Ensure(t.Context(), 2600*ms); err == nil {
			t.Error("Ensure renewed after Close")
		}
		time.Sleep(100 * sec)
		if end, ended := l.End(); !ended || end.Reason != watchdog.Expired || end.Err != errDown || end.Held != 27*sec {
			t.Errorf("End() = %+v, %v", end, ended)
		}
		if end, ended := late.Stop(t.Context()); !ended || end.Held != 2700*ms {
			t.Errorf("Stop() = %+v, %v", end, ended)
		}
		synctest.Wait()
		if e.len() != 0 || len(s.all()) != 2 {
			t.Errorf("after Close: OnEnd %v, %d renewals", e.got, len(s.all()))
		}
	})
}

// Close waits for a renewal that Ensure began.
func TestCloseWaitsForEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: slow(300 * ms)}
		w := newDog(t, s)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
		time.Sleep(sec)
		go l.Ensure(t.Context(), 26500*ms)
		time.Sleep(100 * ms)
		w.Close()
		if at := time.Since(s.start); at != 1300*ms {
			t.Errorf("Close returned at %v", at)
		}
		if _, flying, _ := s.counts(); flying != 0 {
			t.Errorf("%d in flight after Close", flying)
		}
	})
}
