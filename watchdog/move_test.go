package watchdog_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// limit is a cap that a test moves.
type limit struct {
	from watchdog.Instant
	d    atomic.Int64
}

func newLimit(d time.Duration) *limit {
	l := &limit{from: watchdog.Now()}
	l.set(d)
	return l
}

func (l *limit) set(d time.Duration)   { l.d.Store(int64(d)) }
func (l *limit) cap() watchdog.Instant { return l.from.Add(time.Duration(l.d.Load())) }

// Belief ends at the cap, on time, however well renewals go; while the cap rises it
// goes on.
func TestCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := &store{}, newEnds()
		w := newDog(t, s)
		c := newLimit(20 * sec)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Cap: c.cap, OnEnd: e.add})
		if d := l.Left(); d != 20*sec {
			t.Errorf("left %v, want the cap's 20 s", d)
		}
		sleep(15 * sec)
		c.set(40 * sec)
		sleep(15 * sec)
		if d := l.Left(); d != 10*sec {
			t.Errorf("left %v, want 10 s", d)
		}
		sleep(10*sec - 1)
		if _, over := l.End(); over || e.len() != 0 {
			t.Error("it ended before its cap")
		}
		sleep(1)
		e.want(t, watchdog.Capped, 40*sec)
		if len(s.all()) == 0 {
			t.Error("a capped lease was not renewed")
		}
		c.set(90 * sec)
		if _, over := l.End(); !over || l.Left() != 0 {
			t.Error("a cap that rises revived it")
		}
	})
}

// A cap that falls ends belief as soon as anybody looks, and after Recheck without
// anybody's looking.
func TestCapFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newDog(t, &store{}), newEnds()
		c := newLimit(time.Hour)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Cap: c.cap, OnEnd: e.add})
		sleep(5 * sec)
		c.set(5100 * ms)
		l.Recheck()
		sleep(100 * ms)
		e.want(t, watchdog.Capped, 5100*ms)

		e = newEnds()
		l = w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Cap: c.cap, OnEnd: e.add})
		synctest.Wait()
		e.want(t, watchdog.Capped, 0) // over before it began
		if end, over := l.End(); !over || end.Reason != watchdog.Capped {
			t.Errorf("End: %+v %v", end, over)
		}

		e = newEnds()
		c.set(time.Hour)
		l = w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Cap: c.cap, OnEnd: e.add})
		sleep(2 * sec)
		c.set(-time.Hour)
		if l.Left() != 0 {
			t.Error("still believed after the cap fell")
		}
		if _, over := l.End(); !over {
			t.Error("no end after the cap fell")
		}
		synctest.Wait()
		e.want(t, watchdog.Capped, 2*sec) // and not an hour ago
	})
}

// After a Move belief and renewal go by the new place.
func TestMove(t *testing.T) {
	for _, tc := range []struct {
		name      string
		sent, ttl time.Duration // of the new place
		down      bool          // no renewal is answered
		renewed   time.Duration // when the next renewal is sent, if none is due at once
		end       time.Duration // when belief ends with the store down
	}{
		{name: "longer", sent: 9 * sec, ttl: 30 * sec, renewed: 19 * sec, end: 36 * sec},
		{name: "shorter", sent: -10 * sec, ttl: 30 * sec, renewed: 9500 * ms, end: 17 * sec},
		{name: "over", sent: -20 * sec, ttl: 29 * sec, renewed: 0, end: 9500 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, e := &store{}, newEnds()
				w := newDog(t, s)
				start := watchdog.Now()
				l := w.Watch(watchdog.Spec{Sent: start, TTL: 30 * sec, OnEnd: e.add})
				sleep(9500 * ms)
				s.answer = func(context.Context, sending) error { return errDown }
				l.Move(start.Add(tc.sent), tc.ttl)
				time.Sleep(time.Minute)
				synctest.Wait()
				if times := s.times(); tc.renewed == 0 && len(times) > 0 || tc.renewed > 0 && (len(times) == 0 || times[0] != tc.renewed) {
					t.Errorf("renewals at %v, want the first at %v", times, tc.renewed)
				}
				reason := watchdog.Unconfirmed
				if tc.renewed == 0 {
					reason = watchdog.Expired
				}
				if got := e.got[0]; got.Reason != reason || e.at[0] != tc.end {
					t.Errorf("ended at %v: %+v; want %v at %v", e.at[0], got, reason, tc.end)
				}
			})
		})
	}
}

// The answer of a renewal that was under way when the lease moved does not count:
// neither a yes nor a no is about the new place.
func TestMoveDuringRenewal(t *testing.T) {
	for _, answer := range []error{nil, errDown, watchdog.ErrNotHeld} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds()
			first := true
			s := &store{answer: func(ctx context.Context, _ sending) error {
				if first {
					first = false
					time.Sleep(400 * ms)
					return answer
				}
				return nil
			}}
			w := newDog(t, s)
			start := watchdog.Now()
			l := w.Watch(watchdog.Spec{Sent: start, TTL: 30 * sec, OnEnd: e.add})
			sleep(10*sec + 100*ms) // the renewal is under way
			l.Move(start.Add(2*sec), 30*sec)
			sleep(sec)
			if _, over := l.End(); over {
				t.Fatalf("answer %v: belief has ended", answer)
			}
			if got, want := l.Left(), 29*sec-11*sec-100*ms; got != want {
				t.Errorf("answer %v: left %v, want %v of the new place", answer, got, want)
			}
			sleep(sec)
			if got := s.times(); len(got) != 2 || got[1] != 12*sec {
				t.Errorf("answer %v: renewals at %v, want one of the new place at 12 s", answer, got)
			}
			if got, want := l.Left(), 27*sec-100*ms; got != want {
				t.Errorf("answer %v: left %v, want %v", answer, got, want)
			}
		})
	}
}

// A lease that is renewed no more is not made to last longer by a move, but by a
// shorter one less; and what has ended stays ended.
func TestMoveOfTheUnrenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDog(t, &store{})
		start := watchdog.Now()
		l := w.Watch(watchdog.Spec{Sent: start, TTL: 30 * sec})
		l.Pause()
		sleep(5 * sec)
		l.Move(start.Add(5*sec), 30*sec)
		if got := l.Left(); got != 22*sec {
			t.Errorf("left %v, want the 22 s it had", got)
		}
		l.Move(start.Add(5*sec), 10*sec)
		if got := l.Left(); got != 9*sec {
			t.Errorf("left %v, want 9 s", got)
		}
		sleep(9 * sec)
		l.Move(watchdog.Now(), 30*sec)
		if end, over := l.End(); !over || l.Left() != 0 || end.Reason != watchdog.Expired {
			t.Errorf("after its end: left %v, %+v", l.Left(), end)
		}
	})
}
