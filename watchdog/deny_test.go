package watchdog_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// A lease that is denied ends at once, also with a renewal in flight, whose
// confirmation revives nothing; one that was stopped has nothing to end.
func TestDeny(t *testing.T) {
	errGone := fmt.Errorf("gone: %w", watchdog.ErrNotHeld)
	for what, c := range map[string]struct {
		after time.Duration
		stop  bool
		ends  int
	}{
		"quiet":                {after: 500 * ms, ends: 1},
		"a renewal in flight":  {after: 1050 * ms, ends: 1},
		"stopped":              {after: 500 * ms, stop: true},
		"ended before by time": {after: 5 * sec, ends: 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: func(ctx context.Context, _ sending) error { time.Sleep(100 * ms); return nil }}
				w := newDog(t, s)
				ends := newEnds()
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: ends.add})
				if c.after > 3*sec {
					l.Pause()
				}
				sleep(c.after)
				if c.stop {
					l.Stop(t.Context())
				}
				l.Deny(errGone)
				_, over := l.End()
				if over == c.stop || !c.stop && l.Left() != 0 {
					t.Errorf("over %v, %v left", over, l.Left())
				}
				synctest.Wait()
				if ends.len() != c.ends {
					t.Fatalf("told %d times, want %d", ends.len(), c.ends)
				}
				if end, _ := l.End(); c.after < 3*sec && c.ends == 1 && (end.Reason != watchdog.NotHeld || end.Err != errGone || end.Held != c.after) {
					t.Errorf("ended as %+v, want not held, after %v", end, c.after)
				}
				before := len(s.all())
				sleep(5 * sec)
				if ends.len() != c.ends || len(s.all()) != before || w.Len() != 0 {
					t.Errorf("told %d times, %d further renewals, %d watched", ends.len(), len(s.all())-before, w.Len())
				}
			})
		})
	}
}
