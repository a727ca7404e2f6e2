package watchdog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Belief counts from before the acquire was sent, less a margin, and a healthy
// lease is renewed every third of its TTL for as long as it is watched
// (scenario 28 at this level).
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, sending) error { time.Sleep(20 * ms); return nil }}
		w := newDog(t, s)
		e := newEnds()
		var renewed []watchdog.Renewed
		sent := watchdog.Now()
		time.Sleep(100 * ms) // the acquire's round trip
		l := w.Watch(watchdog.Spec{Sent: sent, TTL: 30 * sec, Value: "v", OnEnd: e.add,
			OnRenewed: func(r watchdog.Renewed) { renewed = append(renewed, r) }})
		if left := l.Left(); left != 26900*ms {
			t.Errorf("left %v after the grant, want 26.9s", left)
		}
		if w.Len() != 1 || l.Value() != "v" {
			t.Errorf("Len %d, Value %v", w.Len(), l.Value())
		}
		sleep(60 * sec) // renewals at 10, 20, …, 60
		if got, want := s.times(), []time.Duration{10 * sec, 20 * sec, 30 * sec, 40 * sec, 50 * sec, 60 * sec}; !slices.Equal(got, want) {
			t.Errorf("renewals at %v, want %v", got, want)
		}
		if left := l.Left(); left != 26900*ms { // counted from the sending at 60 s
			t.Errorf("left %v, want 26.9s", left)
		}
		if end, ended := l.End(); ended {
			t.Errorf("ended: %+v", end)
		}
		if end, ended := l.Stop(t.Context()); ended || e.len() != 0 {
			t.Errorf("ended: %+v", end)
		}
		want := watchdog.Renewed{TTL: 30 * sec, Latency: 20 * ms, Count: 6}
		if len(renewed) != 6 || renewed[5] != want {
			t.Errorf("OnRenewed: %+v, want six, the last %+v", renewed, want)
		}
		if w.Len() != 0 {
			t.Errorf("Len %d after Stop", w.Len())
		}
	})
}

// A holder that is cut off without a reset loses belief a margin before the
// store lets anybody else in, is told exactly once (scenarios 14, 21), and
// sends nothing afterwards (scenario 23). No call outlives belief
// (scenario 17), and no count of failures ends it early (scenario 18).
func TestBlackHole(t *testing.T) {
	for _, ttl := range []time.Duration{100 * ms, sec, 3 * sec, 30 * sec, 60 * sec} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: hang}
				w := newDog(t, s)
				e := newEnds()
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: ttl, OnEnd: e.add})
				until := ttl - watchdog.Margin(ttl)
				time.Sleep(until - time.Nanosecond)
				synctest.Wait()
				if _, ended := l.End(); ended || l.Left() != 1 || e.len() != 0 {
					t.Fatalf("1ns before its end: ended %v, left %v", ended, l.Left())
				}
				time.Sleep(3 * ttl)
				end := e.want(t, watchdog.Unconfirmed, until)
				if end.Err == nil {
					t.Error("Unconfirmed without an error")
				}
				if got, ended := l.End(); !ended || got != end || l.Left() != 0 {
					t.Errorf("End() = %+v, %v; left %v", got, ended, l.Left())
				}
				// Calls of 500 ms leave no room for a second one in a TTL of 100 ms.
				if n := len(s.all()); n == 0 || ttl >= sec && n < 2 {
					t.Errorf("only %d attempts", n)
				}
				for _, x := range s.all() {
					if x.at >= until {
						t.Errorf("renewal sent at %v, after belief ended", x.at)
					}
					if want := min(x.at+500*ms, until); x.deadline != want {
						t.Errorf("renewal of %v has its deadline at %v, want %v", x.at, x.deadline, want)
					}
				}
				if w.Len() != 0 {
					t.Errorf("Len %d", w.Len())
				}
			})
		})
	}
}

// The loss tells what the store said last, and not that the last call was given
// up because belief was about to end.
func TestLossTellsWhatTheStoreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := 0
		s := &store{answer: func(ctx context.Context, x sending) error {
			if x.deadline-x.at == 500*ms {
				return errDown
			}
			cut++
			time.Sleep(x.deadline - x.at - ms) // before a look notices the end
			return fmt.Errorf("no answer: %w", context.DeadlineExceeded)
		}}
		w := newDog(t, s)
		e := newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: e.add})
		sleep(3 * sec)
		if end := e.want(t, watchdog.Unconfirmed, 2700*ms); !errors.Is(end.Err, errDown) || cut == 0 {
			t.Errorf("the end says %v after %d calls that were cut short; want %v", end.Err, cut, errDown)
		}
	})
}

// When attempts are made, by what the store answers to them in turn.
func TestRetryPattern(t *testing.T) {
	for _, tc := range []struct {
		name    string
		ttl     time.Duration
		answers string          // x fails, any other confirms, the last one for ever
		want    []time.Duration // until 40 s or the end
		end     time.Duration
	}{
		{"none fails", 30 * sec, ".", secs(10, 20, 30, 40), 0},
		// Scenario 19: one transient error costs a moment.
		{"one fails", 30 * sec, "x.", secs(10, 10.5, 20.5, 30.5), 0},
		{"three fail", 30 * sec, "xxx.", secs(10, 10.5, 11, 11.5, 21.5, 31.5), 0},
		// Scenario 18: it is not the fourth failure that decides.
		{"a round fails", 30 * sec, "xxxx.", secs(10, 10.5, 11, 11.5, 20, 30, 40), 0},
		{"two rounds fail", 30 * sec, "xxxxxxxx.", secs(10, 10.5, 11, 11.5, 20, 20.5, 21, 21.5, 25, 35), 0},
		{"the last attempt wins", 30 * sec, "xxxxxxxxxxx.",
			secs(10, 10.5, 11, 11.5, 20, 20.5, 21, 21.5, 25, 25.5, 26, 26.5, 36.5), 0},
		{"each time anew", 30 * sec, "xx.xxx.",
			secs(10, 10.5, 11, 21, 21.5, 22, 22.5, 32.5), 0},
		{"all fail", 30 * sec, "x",
			secs(10, 10.5, 11, 11.5, 20, 20.5, 21, 21.5, 25, 25.5, 26, 26.5), 27 * sec},
		{"short", 3 * sec, "x", secs(1, 1.15, 1.3, 1.45, 2, 2.15, 2.3, 2.45, 2.5, 2.65), 2700 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				s := &store{answer: func(context.Context, sending) error {
					if i := min(int(n.Add(1)), len(tc.answers)); tc.answers[i-1] == 'x' {
						return errDown
					}
					return nil
				}}
				w := newDog(t, s)
				e := newEnds()
				w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: tc.ttl, OnEnd: e.add})
				time.Sleep(40 * sec)
				synctest.Wait()
				if got := s.times(); !slices.Equal(got, tc.want) {
					t.Errorf("attempts at %v\nwant %v", got, tc.want)
				}
				if tc.end == 0 {
					if e.len() != 0 {
						t.Errorf("ended: %+v", e.got)
					}
				} else if end := e.want(t, watchdog.Unconfirmed, tc.end); !errors.Is(end.Err, errDown) {
					t.Errorf("end error %v", end.Err)
				}
			})
		})
	}
}

func secs(ss ...float64) (ds []time.Duration) {
	for _, s := range ss {
		ds = append(ds, time.Duration(s*float64(sec)))
	}
	return ds
}

// A definite answer ends belief at once, and nothing is sent after it.
func TestNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notYours := fmt.Errorf("fake: key gone: %w", watchdog.ErrNotHeld)
		s := &store{answer: func(context.Context, sending) error { time.Sleep(5 * ms); return notYours }}
		w := newDog(t, s)
		e := newEnds()
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		time.Sleep(100 * sec)
		if end := e.want(t, watchdog.NotHeld, 10*sec+5*ms); end.Err != notYours {
			t.Errorf("end error %v", end.Err)
		}
		if n := len(s.all()); n != 1 || l.Left() != 0 || w.Len() != 0 {
			t.Errorf("%d renewals, left %v, Len %d", n, l.Left(), w.Len())
		}
	})
}

// A store that executes the renewal and answers after belief has ended, even
// beyond the deadline that it was given, revives nothing; the end stays what
// it was.
func TestLateConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(_ context.Context, x sending) error {
			time.Sleep(max(0, 28*sec-x.at)) // ignores ctx
			return nil
		}}
		w := newDog(t, s)
		e := newEnds()
		renewed := 0
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add,
			OnRenewed: func(watchdog.Renewed) { renewed++ }})
		sleep(60 * sec)
		end := e.want(t, watchdog.Unconfirmed, 27*sec)
		if end.Err == nil {
			t.Error("Unconfirmed without an error")
		}
		if got, ended := l.End(); !ended || got != end || l.Left() != 0 || renewed != 0 || len(s.all()) != 1 {
			t.Errorf("End() = %+v, %v; left %v, %d confirmed, %d sent", got, ended, l.Left(), renewed, len(s.all()))
		}
	})
}

// The same where nobody has noticed the end before the reply is there: the
// clock decides, not who comes first.
func TestLateConfirmationUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		s := &store{answer: func(context.Context, sending) error {
			time.Sleep(10 * ms)
			gain(20 * sec) // the reply is read at the resume, before any timer
			return nil
		}}
		w := newDog(t, s)
		e := newEnds()
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		time.Sleep(10*sec + 10*ms)
		synctest.Wait()
		if e.len() != 1 || e.got[0].Reason != watchdog.Unconfirmed || l.Left() != 0 {
			t.Errorf("ends %+v, left %v; want Unconfirmed and 0", e.got, l.Left())
		}
	})
}

// A confirmed renewal counts from when it was sent, not from its reply.
func TestSlowConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(_ context.Context, x sending) error {
			if x.at > 10*sec {
				return errDown
			}
			time.Sleep(400 * ms)
			return nil
		}}
		w := newDog(t, s)
		e := newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		sleep(60 * sec)
		e.want(t, watchdog.Unconfirmed, 37*sec)
	})
}

// A grant whose reply came after its belief was over ends like any other.
func TestWatchTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := newDog(t, s)
		e := newEnds()
		sent := watchdog.Now()
		time.Sleep(27 * sec)
		l := w.Watch(watchdog.Spec{Sent: sent, TTL: 30 * sec, OnEnd: e.add})
		if l.Left() != 0 {
			t.Errorf("left %v", l.Left())
		}
		synctest.Wait()
		e.want(t, watchdog.Expired, 27*sec)
		if len(s.all()) != 0 {
			t.Errorf("renewed: %v", s.all())
		}
	})
}

// A Renew that breaks its contract confirms nothing.
func TestWrongNumberOfResults(t *testing.T) {
	for _, n := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			w := watchdog.New(watchdog.Config{Renew: func(context.Context, []watchdog.Renewal) []error {
				return make([]error, n)
			}})
			defer w.Close()
			e := newEnds()
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: e.add})
			time.Sleep(10 * sec)
			e.want(t, watchdog.Unconfirmed, 2700*ms)
		})
	}
}

// OnOverdue comes once, on time, unless the lease is stopped or over by then.
func TestOverdue(t *testing.T) {
	for _, tc := range []struct {
		name    string
		down    bool
		stop    time.Duration
		overdue time.Duration
		want    []time.Duration
	}{
		{"held", false, 100 * sec, 45 * sec, secs(45)},
		{"before the first renewal", false, 100 * sec, 2 * sec, secs(2)},
		{"stopped", false, 44 * sec, 45 * sec, nil},
		{"lost", true, 100 * sec, 45 * sec, nil},
		{"lost at that moment", true, 100 * sec, 27 * sec, nil},
		{"off", false, 100 * sec, 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: func(context.Context, sending) error {
					if tc.down {
						return errDown
					}
					return nil
				}}
				w := newDog(t, s)
				var got []time.Duration
				start := time.Now()
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Overdue: tc.overdue,
					OnOverdue: func() { got = append(got, time.Since(start)) }})
				time.Sleep(tc.stop)
				l.Stop(t.Context())
				sleep(100 * sec)
				if !slices.Equal(got, tc.want) {
					t.Errorf("OnOverdue at %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// Neither OnOverdue nor anything else that comes up while a renewal is in
// flight makes a second one.
func TestOneInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: slow(400 * ms)}
		w := newDog(t, s)
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Overdue: 10200 * ms, OnOverdue: func() {}})
		sleep(15 * sec)
		if got := s.times(); len(got) != 1 {
			t.Errorf("renewals at %v, want one at 10s", got)
		}
	})
}

// A worker that was held up between making its batch and filling it does not
// set belief back to the time of its batch; the renewal is sent anew.
func TestLateBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := newDog(t, s)
		sent := watchdog.Now()
		l := w.Watch(watchdog.Spec{Sent: sent, TTL: 30 * sec})
		sleep(5 * sec)
		if err := l.Ensure(t.Context(), 27*sec); err != nil {
			t.Fatal(err)
		}
		if l.BeginLate(sent) {
			t.Error("a batch of 0s takes in a lease that was renewed at 5s")
		}
		sleep(10 * sec)
		if got := s.times(); len(got) != 2 || got[1] != 15*sec || l.Left() != 27*sec {
			t.Errorf("renewals at %v, left %v; want 5s and 15s", got, l.Left())
		}
	})
}

// A batch of short leases, of which one gets no answer until the call ends (its
// part of the store is silent): the others are not lost with it, since the call
// ends while their confirmation is still worth something.
func TestSilentOneBesideShortLeases(t *testing.T) {
	for _, ttl := range []time.Duration{100 * ms, 600 * ms, 885 * ms, sec, 1200 * ms, 3 * sec} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{answer: func(ctx context.Context, x sending) error {
				if x.value == "silent" {
					<-ctx.Done()
					return errDown
				}
				return nil
			}}
			w := newDog(t, s)
			now := watchdog.Now()
			ended := make(map[string]watchdog.End)
			var others []*watchdog.Lease
			for _, value := range []string{"a", "silent", "b"} {
				others = append(others, w.Watch(watchdog.Spec{Sent: now, TTL: ttl, Value: value,
					OnEnd: func(e watchdog.End) { ended[value] = e }}))
			}
			sleep(3 * ttl)
			if len(ended) != 1 || ended["silent"].Reason != watchdog.Unconfirmed {
				t.Errorf("TTL %v: ended %v, want the silent one alone", ttl, ended)
			}
			for _, l := range others {
				l.Stop(context.Background())
			}
		})
	}
}
