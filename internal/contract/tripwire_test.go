package contract_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// ahead is by how much more than the local clock a tripwire's server can show.
func ahead(t *testing.T, w *contract.Tripwire, now int64) int64 {
	t.Helper()
	server, ok := w.Explained(now)
	if !ok {
		t.Fatalf("at %d s: nothing is known", now/second)
	}
	return server - now
}

const tripMost, tripMemory = int64(contract.TripMost / time.Microsecond), int64(contract.TripMemory / time.Microsecond)

// A step forward is not believed for TripMemory at least after the first sample
// that shows it, and for TripMost at most, wherever in a turn that falls, however
// often samples come after it and however long there was none before it.
func TestTripwireOutlastsAStep(t *testing.T) {
	for _, silent := range []int64{ms, 4 * second, 70 * second, 80 * second, 600 * second, 3600 * second} {
		for _, every := range []int64{second / 2, 3 * second, 21 * second} {
			for start := int64(100 * second); start < 106*second; start += second / 3 {
				var w contract.Tripwire
				if _, ok := w.Explained(start); ok {
					t.Fatal("something is known without a sample")
				}
				for before := start - 90*second; before <= start; before += every {
					w.Learn(before, before+1000*second)
				}
				stepped := start + silent
				believed := int64(0)
				for now := stepped; believed == 0; now += every {
					w.Learn(now, now+1040*second)
					if got := ahead(t, &w, now); got > 1010*second {
						believed = now - stepped
					}
				}
				if believed < tripMemory || believed > tripMost+every {
					t.Fatalf("samples every %d ms, %d ms after the last before: the step was believed after %d ms; wanted %v to %v", every/ms, silent/ms, believed/ms, contract.TripMemory, contract.TripMost)
				}
			}
		}
	}
}

// What was stepped back is known at once, and coming back from there is a step
// forward.
func TestTripwireFollowsBack(t *testing.T) {
	var w contract.Tripwire
	now := 50 * second
	w.Learn(now, now+1000*second)
	w.Learn(now+ms, now+ms+900*second)
	for _, back := range []int64{900, 1000} {
		w.Learn(now+2*ms, now+2*ms+back*second)
		if got := ahead(t, &w, now+3*ms); got < 900*second || got > 900*second+ms {
			t.Errorf("%d ms ahead; wanted 900 s", got/ms)
		}
	}
}

// A clock that is fast by no more than it may be shows no time that it cannot
// show, however rarely it is looked at; one that is right bounds ever more
// closely what it can show.
func TestTripwireAllowsForDrift(t *testing.T) {
	for _, c := range []struct{ every, gains int64 }{{ms, 100}, {second, 100}, {10 * second, 100}, {40 * second, 2000}, {1000 * second, 2000}} {
		var w contract.Tripwire
		server := func(now int64) int64 { return 1000*second + now + now/c.gains }
		for now := c.every; now < 300*c.every; now += c.every {
			w.Learn(now, server(now))
			if most, _ := w.Explained(now + c.every); most < server(now+c.every)-2 {
				t.Fatalf("every %d ms: at %d ms the clock shows %d µs more than it can", c.every/ms, now/ms, server(now+c.every)-most)
			}
		}
	}
	var w contract.Tripwire
	for now := second; now < 300*second; now += second {
		w.Learn(now, now+1000*second)
		if got := ahead(t, &w, now); got > 1000*second {
			t.Fatalf("at %d s: %d µs more than it shows", now/second, got-1000*second)
		}
	}
}

// A silence explains little more than two probes do, during it and when the next
// sample has ended it.
func TestTripwireInASilence(t *testing.T) {
	for _, silent := range []int64{second, 9 * second, 11 * second, 60 * second, 150 * second, 1200 * second} {
		var w contract.Tripwire
		start := 50 * second
		for now := start - 20*second; now <= start; now += second {
			w.Learn(now, now+1000*second)
		}
		want := 1000*second + min(silent, 10*second)/100 + max(0, silent-10*second)/2000
		end := start + silent
		if got := ahead(t, &w, end); got < want-2 || got > want+2 {
			t.Errorf("after %d s: %d µs ahead; wanted %d", silent/second, got-1000*second, want-1000*second)
		}
		w.Learn(end, end+1010*second)
		if got := ahead(t, &w, end+second); got > want+2+second/100 {
			t.Errorf("after %d s and a sample: %d µs ahead; wanted %d at the most", silent/second, got-1000*second, want-1000*second)
		}
	}
}

// The slowest sample is the least that counts: a fast one bounds it.
func TestTripwireTakesTheBestSample(t *testing.T) {
	var w contract.Tripwire
	now := 20 * second
	w.Learn(now, now+1000*second+400*ms) // 400 ms there
	w.Learn(now+second, now+second+1000*second+2*ms)
	w.Learn(now+2*second, now+2*second+1000*second+300*ms)
	if got := ahead(t, &w, now+2*second); got < 1000*second+2*ms || got > 1000*second+12*ms {
		t.Errorf("%d ms ahead; wanted 1000 s and 2 ms, and a hundredth of a second", got/ms)
	}
	// An answer that comes after those to later questions bounds it as well.
	w.Learn(now+60*second, now+60*second+1000*second+2*ms)
	w.Learn(now+second, now+second+999*second)
	if got := ahead(t, &w, now+60*second); got < 999*second || got > 1000*second {
		t.Errorf("%d ms ahead; wanted 999 s, and a hundredth of the time since", got/ms)
	}
	if got := w.Silent(now + 90*second); got != 30*time.Second {
		t.Errorf("silent for %v; wanted 30 s", got)
	}
}
