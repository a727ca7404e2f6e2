package watchdog_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Twenty thousand leases, taken within ten seconds: a handful of goroutines,
// every lease renewed in time (scenario 16 at this level), batches that fill
// by themselves.
func TestManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		most := 0
		s := &store{answer: func(_ context.Context, x sending) error {
			time.Sleep(20 * ms / time.Duration(x.batch)) // a call takes 20 ms
			return nil
		}}
		w := newDog(t, s)
		const n, groups = 20000, 1000
		var lost, renewals atomic.Int64
		leases := make([]*watchdog.Lease, 0, n)
		for range groups {
			for range n / groups {
				leases = append(leases, w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec,
					OnEnd:     func(watchdog.End) { lost.Add(1) },
					OnRenewed: func(watchdog.Renewed) { renewals.Add(1) }}))
			}
			time.Sleep(10 * ms)
		}
		for range 190 { // to 30 s: the first have been renewed thrice, the last twice
			sleep(100*ms + 5*ms) // in the middle of calls
			most = max(most, goroutines())
		}
		if w.Len() != n || lost.Load() != 0 {
			t.Errorf("Len %d, %d lost", w.Len(), lost.Load())
		}
		if got := renewals.Load(); got < 2*n-n/100 || got > 3*n {
			t.Errorf("%d renewals of %d leases", got, n)
		}
		// 17 s is what one has whose renewal is due.
		for i, l := range leases {
			if left := l.Left(); left < 16900*ms {
				t.Errorf("lease %d has %v left", i, left)
				break
			}
		}
		if most > 1+8 {
			t.Errorf("%d goroutines", most)
		}
		calls, _, mostCalls := s.counts()
		if mostCalls > 8 {
			t.Errorf("%d calls in flight", mostCalls)
		}
		for _, x := range s.all() {
			if x.batch > 256 {
				t.Errorf("a batch of %d", x.batch)
				break
			}
		}
		// 20 leases come due every 10 ms; one call each time would be 4,000.
		if calls > 1500 {
			t.Errorf("%d calls for %d renewals", calls, renewals.Load())
		}
	})
}

// With a store that answers nothing, all calls hang and most leases never get
// one. Yet each belief ends on time, and each end is told at that moment.
func TestManyEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: hang}
		w := newDog(t, s)
		const n = 20000
		var told, wrong atomic.Int64
		for range n {
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, OnEnd: func(end watchdog.End) {
				told.Add(1)
				if end.Reason != watchdog.Unconfirmed || end.Err == nil || time.Since(s.start) != 2700*ms {
					wrong.Add(1)
				}
			}})
		}
		sleep(2700*ms - 1)
		if told.Load() != 0 {
			t.Errorf("%d ends told early", told.Load())
		}
		sleep(1)
		if told.Load() != n || wrong.Load() != 0 || w.Len() != 0 {
			t.Errorf("%d of %d ends told, %d of them wrong; Len %d", told.Load(), n, wrong.Load(), w.Len())
		}
		sleep(10 * sec)
		if _, _, most := s.counts(); most > 8 {
			t.Errorf("%d calls in flight", most)
		}
		for _, x := range s.all() {
			if x.at >= 2700*ms {
				t.Errorf("renewal at %v", x.at)
				break
			}
		}
	})
}

// A Renew that does not even return at its deadline delays no end of belief.
func TestRenewThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &store{answer: func(context.Context, sending) error { <-release; return nil }}
		w := newDog(t, s)
		first, second := newEnds(), newEnds()
		for range 20 { // one by one, so that every call in flight is taken
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: sec, OnEnd: first.add})
			sleep(20 * ms)
		}
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: sec, OnEnd: second.add})
		sleep(2 * sec)
		if second.len() != 1 || second.at[0] != 1300*ms || first.len() != 20 {
			t.Errorf("ends %v and %v", second.at, first.at)
		}
		if _, flying, _ := s.counts(); flying != 8 {
			t.Errorf("%d in flight, want 8", flying)
		}
		close(release)
		synctest.Wait()
		if first.len()+second.len() != 21 || len(s.all()) != 8 {
			t.Errorf("%d ends, %d renewals", first.len()+second.len(), len(s.all()))
		}
	})
}

// A lease with little belief left does not shorten the call of others, nor do
// they wait for it.
func TestShortOnesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: hang}
		w := newDog(t, s)
		watch := func(name string, ttl time.Duration) {
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: ttl, Value: name})
		}
		// All are due at 1 s.
		watch("long 1", 3*sec)
		watch("long 2", 3*sec)
		sleep(470 * ms)
		watch("long 3", 1590*ms)
		sleep(334 * ms)
		watch("short", 588*ms)
		watch("short too", 588*ms)
		sleep(196 * ms)
		deadlines := map[any]time.Duration{}
		calls := map[any]int{}
		for _, x := range s.all() {
			if _, ok := calls[x.value]; !ok {
				deadlines[x.value], calls[x.value] = x.deadline-x.at, x.call
			}
		}
		for name, want := range map[string]time.Duration{
			"long 1": 500 * ms, "long 2": 500 * ms, "long 3": 500 * ms,
			// Three quarters of what belief allows, as they are together.
			"short": (588*ms*9/10 - 196*ms) * 3 / 4, "short too": (588*ms*9/10 - 196*ms) * 3 / 4,
		} {
			if deadlines[name] != want {
				t.Errorf("%s had %v to answer, want %v", name, deadlines[name], want)
			}
		}
		if calls["long 1"] != calls["long 2"] || calls["short"] != calls["short too"] {
			t.Errorf("leases alike sent apart: %v", calls)
		}
		if calls["long 1"] == calls["short"] {
			t.Errorf("sent together: %v", calls)
		}
	})
}

// Among those with little belief left, one joins another only if that costs it
// no more than a fifth of the time to answer, of which those that are not alone
// have three quarters.
func TestShortOnesByUrgency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gain := suspends(t)
		s := &store{answer: hang}
		w := newDog(t, s)
		left := map[any]time.Duration{}
		// After 10 s all are due, with so much belief left.
		for _, ms := range []int{100, 110, 124, 130, 300, 370, 440, 499, 500, 560, 700} {
			d := time.Duration(ms) * time.Millisecond
			left[ms] = d
			// until = sent + 0.9 ttl; sent is moved so that it fits.
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: (10*sec + d) / 9 * 10, Value: ms})
		}
		time.Sleep(50 * ms)
		gain(9800 * ms)
		sleep(150 * ms)
		sleep(50 * ms)
		got := s.all()
		if len(got) < len(left) {
			t.Fatalf("%d sent", len(got))
		}
		seen := map[any]bool{}
		for _, x := range got {
			if seen[x.value] {
				continue
			}
			seen[x.value] = true
			full := min(500*ms, left[x.value]+10*sec-(x.at+9800*ms))
			given, least := x.deadline-x.at, full*4/5-ms
			if x.batch > 1 {
				least = least * 3 / 4
			}
			if given > full || given < least || full == 500*ms && given < full*3/4 {
				t.Errorf("%v: %v to answer in a batch of %d, belief allows %v", x.value, given, x.batch, full)
			}
		}
	})
}

// While one batch hangs, others are sent and confirmed on time.
func TestHungBatchBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(ctx context.Context, x sending) error {
			if x.value == "hangs" {
				return hang(ctx, x)
			}
			return nil
		}}
		w := newDog(t, s)
		bad, good := newEnds(), newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, Value: "hangs", OnEnd: bad.add})
		time.Sleep(100 * ms)
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, Value: "answers", OnEnd: good.add})
		sleep(1100 * ms)
		if left := l.Left(); left != 2600*ms {
			t.Errorf("left %v, want 2.6s from the renewal at 1.1s", left)
		}
		sleep(60 * sec)
		bad.want(t, watchdog.Unconfirmed, 2700*ms)
		if good.len() != 0 {
			t.Errorf("ended: %+v", good.got)
		}
	})
}

// Renewals that are due almost together go together.
func TestGathering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := newDog(t, s)
		for i := range 10 {
			w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Value: i})
			time.Sleep(10 * ms)
		}
		sleep(12 * sec)
		calls := map[int]time.Duration{}
		for _, x := range s.all() {
			calls[x.call] = x.at
			due := 10*sec + time.Duration(x.value.(int))*10*ms
			if x.at > due || x.at < due-50*ms {
				t.Errorf("lease %v renewed at %v, due at %v", x.value, x.at, due)
			}
		}
		if len(s.all()) != 10 || len(calls) != 2 {
			t.Errorf("%d renewals in %d calls (%v), want 10 in 2", len(s.all()), len(calls), calls)
		}
	})
}

// A lease that is alone is renewed to the point, and one that was taken along
// early is retried like the others.
func TestGatheringTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, sending) error { return errDown }}
		w := newDog(t, s)
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 60 * sec, Value: "other"})
		time.Sleep(20 * ms)
		// Due at 1.02 s, while the clocks are looked at at 1 s.
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 3 * sec, Value: "alone"})
		sleep(1100 * ms)
		l.Stop(t.Context())
		if got := s.times(); len(got) != 1 || got[0] != 1020*ms {
			t.Errorf("sent at %v, want 1.02s", got)
		}
		time.Sleep(3880 * ms) // 5 s
		first := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Value: "first"})
		time.Sleep(30 * ms)
		early := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, Value: "early"})
		sleep(12 * sec)
		first.Stop(t.Context())
		early.Stop(t.Context())
		at := map[any][]time.Duration{}
		for _, x := range s.all() {
			at[x.value] = append(at[x.value], x.at)
		}
		if want := secs(15, 15.5, 16, 16.5); !slices.Equal(at["early"], want) || !slices.Equal(at["first"], want) {
			t.Errorf("first at %v, early at %v, want %v for both", at["first"], at["early"], want)
		}
	})
}

// A Stop waits for the answer, not for other leases' callbacks.
func TestStopBesideSlowCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: slow(100 * ms)} // each
		w := newDog(t, s)
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnRenewed: func(watchdog.Renewed) { time.Sleep(5 * sec) }})
		l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, OnRenewed: func(watchdog.Renewed) { time.Sleep(5 * sec) }})
		sleep(10050 * ms)
		l.Stop(t.Context())
		if at := time.Since(s.start); at != 10200*ms {
			t.Errorf("Stop returned at %v, want 10.2s", at)
		}
		if calls, _, _ := s.counts(); calls != 1 {
			t.Errorf("%d calls for two leases of one age", calls)
		}
		sleep(10 * sec)
	})
}
