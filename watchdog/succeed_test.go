package watchdog_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// yielded is a lease of 3 s that was yielded after a while.
func yielded(t *testing.T, w *watchdog.Watchdog, spec watchdog.Spec, after time.Duration) *watchdog.Lease {
	t.Helper()
	spec.Sent, spec.TTL = watchdog.Now(), 3*sec
	l := w.Watch(spec)
	sleep(after)
	if !l.Yield(0) {
		t.Fatal("Yield: got false, want true")
	}
	return l
}

// Belief, and with it the next renewal, goes on from where it was; the rest begins
// anew.
func TestSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := newDog(t, s)
		none := newEnds()
		l := yielded(t, w, watchdog.Spec{Value: "former", MaxRenewals: 2, Overdue: 4 * sec, OnEnd: none.add,
			OnOverdue: func() { t.Error("the former one is overdue") }}, 2500*ms)
		if got := l.Left(); got != 2200*ms {
			t.Errorf("left of the yielded: got %v, want 2.2s", got)
		}
		if n := w.Len(); n != 0 {
			t.Errorf("%d watched, want none", n)
		}
		sleep(100 * ms)
		overdue := time.Duration(0)
		begun := time.Now()
		ends := newEnds()
		var counts []int
		next := l.Succeed(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, MaxRenewals: 2, Value: "next", Overdue: 2 * sec,
			OnOverdue: func() { overdue = time.Since(begun) }, OnEnd: ends.add, OnRenewed: func(r watchdog.Renewed) { counts = append(counts, r.Count) }})
		if got := next.Left(); got != 2100*ms {
			t.Errorf("left of the next: got %v, want 2.1s", got)
		}
		sleep(10 * sec)
		var values []any
		for _, x := range s.all() {
			values = append(values, x.value)
		}
		if got := s.times(); len(got) != 4 || got[2] != 3*sec || got[3] != 4*sec || values[1] != "former" || values[2] != "next" {
			t.Errorf("renewals at %v of %v, want every second, 2 of each", got, values)
		}
		if overdue != 2*sec || len(counts) != 2 || counts[0] != 1 {
			t.Errorf("overdue after %v, counts %v", overdue, counts)
		}
		ends.want(t, watchdog.Limit, 4*sec+2700*ms-2600*ms)
		if none.len() != 0 {
			t.Error("the former one has ended")
		}
		if err := l.Ensure(t.Context(), ms); !errors.Is(err, watchdog.ErrEnded) {
			t.Errorf("Ensure of the former one: got %v, want ErrEnded", err)
		}
	})
}

// The last grant reaches beyond no bound of the next, and renewals stay within it.
func TestSucceedWithLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := newDog(t, s)
		l := yielded(t, w, watchdog.Spec{}, 500*ms)
		ends := newEnds()
		l.Succeed(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, Limit: 3200 * ms, OnEnd: ends.add})
		sleep(10 * sec)
		all := s.all()
		last := all[len(all)-1]
		if end := last.at + last.ttl; end != 500*ms+3200*ms {
			t.Errorf("the last renewal, at %v for %v, ends at %v, want at the bound", last.at, last.ttl, end)
		}
		if got := ends.len(); got != 1 || ends.got[0].Reason != watchdog.Limit {
			t.Errorf("ends %v, want one at the bound", ends.got)
		}
	})
}

func TestYieldRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		answer func(context.Context, sending) error
		after  time.Duration
		least  time.Duration
		before func(l *watchdog.Lease)
	}{
		"an ended lease":          {answer: func(context.Context, sending) error { return errDown }, after: 2700 * ms},
		"less than was asked for": {after: 500 * ms, least: 2201 * ms},
		"a renewal in flight":     {answer: func(context.Context, sending) error { time.Sleep(100 * ms); return nil }, after: 1050 * ms},
		"a stopped one":           {before: func(l *watchdog.Lease) { l.Stop(t.Context()) }},
		"a yielded one":           {before: func(l *watchdog.Lease) { l.Yield(0) }},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDog(t, &store{answer: c.answer})
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec})
				sleep(c.after)
				if c.before != nil {
					c.before(l)
				}
				if l.Yield(c.least) {
					t.Error("Yield: got true, want false")
				}
			})
		})
	}
}

// A successor that comes too late finds belief over, and is told.
func TestSucceedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDog(t, &store{})
		l := yielded(t, w, watchdog.Spec{}, 500*ms)
		sleep(5 * sec)
		ends := newEnds()
		next := l.Succeed(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: ends.add})
		sleep(ms)
		if end, over := next.End(); !over || end.Held != 0 || ends.len() != 1 {
			t.Errorf("got %+v, over %v, told %d times; want it over, held for no time", end, over, ends.len())
		}
	})
}

func TestSucceedWithoutYield(t *testing.T) {
	w := newDog(t, &store{})
	l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec})
	defer l.Stop(t.Context())
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	l.Succeed(watchdog.Spec{TTL: 3 * sec})
}

// What the last renewal said goes along: the next hold's end tells of it.
func TestSucceedKeepsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, sending) error { return errDown }}
		w := newDog(t, s)
		l := yielded(t, w, watchdog.Spec{}, 2600*ms)
		ends := newEnds()
		l.Succeed(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: ends.add})
		sleep(sec)
		if ends.len() != 1 || ends.got[0].Reason != watchdog.Unconfirmed || !errors.Is(ends.got[0].Err, errDown) {
			t.Errorf("ends %+v, want one, unconfirmed by the error of before", ends.got)
		}
	})
}
