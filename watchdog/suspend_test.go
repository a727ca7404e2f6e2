package watchdog_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// suspends replaces the suspend reading by one that the returned function
// lets grow: to this process a suspend is nothing else, for its own clock and
// timers stand still meanwhile.
func suspends(t *testing.T) (gain func(time.Duration)) {
	var total atomic.Int64
	t.Cleanup(watchdog.SetSuspended(func() time.Duration { return time.Duration(total.Load()) }))
	return func(d time.Duration) { total.Add(int64(d)) }
}

// A suspend that outlasts belief ends it: at once for who asks, within 250 ms
// for OnEnd, and nothing is sent any more.
func TestSuspendEndsBelief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		s := &store{}
		w := newDog(t, s)
		e := newEnds()
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		other := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 60 * sec})
		time.Sleep(12100 * ms) // renewed at 10 s
		gain(26 * sec)         // belief reached to 37 s
		if l.Left() != 0 {
			t.Errorf("left %v", l.Left())
		}
		end, ended := l.End()
		if !ended || end.Reason != watchdog.Expired || end.Err != nil || end.Held != 37*sec {
			t.Errorf("End() = %+v, %v", end, ended)
		}
		// By the wall clock, which went on, it was 1.1 s ago.
		if ago := time.Since(end.At); ago != 1100*ms {
			t.Errorf("ended %v ago, want 1.1s", ago)
		}
		time.Sleep(250 * ms)
		synctest.Wait()
		if e.len() != 1 || e.got[0] != end {
			t.Errorf("OnEnd: %+v, want %+v", e.got, end)
		}
		// The other one had 54 s, of which 38 are gone: it is renewed at once.
		if left := other.Left(); left != 54*sec-250*ms {
			t.Errorf("the longer lease has %v left", left)
		}
		for _, x := range s.all()[1:] {
			if x.ttl != 60*sec {
				t.Errorf("renewed the one that ended: %+v", x)
			}
		}
	})
}

// A look notices by itself.
func TestSuspendIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		w := newDog(t, &store{})
		e := newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 60 * sec, OnEnd: e.add})
		time.Sleep(100 * ms)
		gain(sec * 55)
		time.Sleep(250 * ms)
		synctest.Wait()
		if e.len() != 1 || e.at[0] > 350*ms {
			t.Errorf("OnEnd: %+v at %v", e.got, e.at)
		}
	})
}

// A renewal whose batch was made before the suspend and that would be sent
// after belief has ended is not sent: the loss may have been reported by then.
func TestSuspendBeforeSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var total atomic.Int64
		t.Cleanup(watchdog.SetSuspended(func() time.Duration {
			// The machine is suspended just before the last look at the clock.
			if total.Load() == 0 && calledBy("callRenew") {
				total.Store(int64(40 * sec))
			}
			return time.Duration(total.Load())
		}))
		s := &store{}
		w := newDog(t, s)
		e := newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnEnd: e.add})
		sleep(11 * sec)
		if total.Load() == 0 {
			t.Fatal("no suspend: the function that sends has another name now")
		}
		if len(s.all()) != 0 || e.len() != 1 {
			t.Errorf("sent %+v, ends %+v; want none and one", s.all(), e.got)
		}
	})
}

// calledBy says whether a method of that name is on the stack.
func calledBy(method string) bool {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "."+method) {
			return true
		}
		if !more {
			return false
		}
	}
}

// After a wake-up that comes late for many leases at once, each is renewed
// once, the most urgent first (scenario 16 at this level).
func TestLateWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		s := &store{answer: func(ctx context.Context, _ sending) error { return nil }}
		w := newDog(t, s)
		e := newEnds()
		const n = 1000
		for i := range n {
			// Of different ages: the later ones have less left.
			ttl := time.Duration(60000-20*i) * ms
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: ttl, Value: i, OnEnd: e.add})
		}
		time.Sleep(100 * ms)
		gain(35 * sec) // all are due, the shortest has 0.9 × 40 − 35.1 s left
		time.Sleep(250 * ms)
		synctest.Wait()
		got := s.all()
		if len(got) != n || e.len() != 0 {
			t.Fatalf("%d renewals, %d ends, want %d and none", len(got), e.len(), n)
		}
		seen := map[any]bool{}
		least := map[int]int{} // of the values in a call
		for _, x := range got {
			if seen[x.value] {
				t.Errorf("lease %v renewed twice", x.value)
			}
			seen[x.value] = true
			if v, ok := least[x.call]; !ok || x.value.(int) < v {
				least[x.call] = x.value.(int)
			}
			if x.batch > 256 {
				t.Errorf("a batch of %d", x.batch)
			}
		}
		if len(least) > 8 {
			t.Errorf("%d calls for %d leases", len(least), n)
		}
		// The most urgent ones stand together: in one batch, in order.
		for i, x := range got {
			if i > 0 && x.call == got[i-1].call && x.value.(int) > got[i-1].value.(int) {
				t.Errorf("lease %v before %v in one batch", got[i-1].value, x.value)
				break
			}
		}
	})
}

// Who is asked to renew is told from when belief will count, so that nobody has to
// read the clock again: after the answer a suspend during the call would be missing.
func TestRenewalSaysWhenItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		started := watchdog.Now()
		var sent, after watchdog.Instant
		w := watchdog.New(watchdog.Config{CallTimeout: 500 * ms, Renew: func(_ context.Context, batch []watchdog.Renewal) []error {
			gain(3 * sec)
			sent, after = batch[0].Sent, watchdog.Now()
			return make([]error, len(batch))
		}})
		defer w.Close()
		w.Watch(watchdog.Spec{Sent: started, TTL: 30 * sec})
		time.Sleep(10*sec + 300*ms)
		synctest.Wait()
		if d := sent.Sub(started); d < 10*sec || d > 10*sec+300*ms {
			t.Errorf("sent %v after the grant, want 10 s", d)
		}
		if d := after.Sub(sent); d != 3*sec {
			t.Errorf("the suspend of 3 s counts for %v", d)
		}
	})
}
