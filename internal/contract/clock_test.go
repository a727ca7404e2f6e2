package contract_test

import (
	"testing"

	"github.com/tierlock/tierlock/internal/contract"
)

const (
	ms     = int64(1000) // in µs, as the clock counts
	second = 1000 * ms
)

func wantOffset(t *testing.T, c *contract.Clock, now, want int64) {
	t.Helper()
	if got, ok := c.Offset(now, 1); !ok || got != want {
		t.Fatalf("offset at %d ms: got %d, %v; wanted %d", now/ms, got, ok, want)
	}
}

// The offset is never more than the server is ahead, however the round trip
// is made up of its two ways.
func TestClockKeepsTheHighestLowerLimit(t *testing.T) {
	var c contract.Clock
	if got, ok := c.Offset(0, 1); ok {
		t.Fatalf("offset without a sample: got %d; wanted none", got)
	}
	// The server is 1000 s ahead; each reply took a different way.
	const ahead = 1000 * second
	c.Learn(0, 10*ms, ahead+5*ms, 1) // 5 ms there, 5 ms back
	wantOffset(t, &c, 10*ms, ahead-5*ms)
	c.Learn(20*ms, 120*ms, ahead+118*ms, 1) // 98 ms there, 2 ms back
	wantOffset(t, &c, 120*ms, ahead-2*ms)
	c.Learn(130*ms, 136*ms, ahead+130*ms, 1) // nothing there, 6 ms back
	wantOffset(t, &c, 136*ms, ahead-2*ms)

	// The best is not kept for ever: clocks drift.
	for at := second; at <= 20*second; at += second {
		c.Learn(at, at+40*ms, ahead+at+30*ms, 1)
	}
	wantOffset(t, &c, 20*second, ahead-10*ms)
}

func TestClockFollowsAStep(t *testing.T) {
	const ahead = 1000 * second
	for _, step := range []int64{-40 * second, -5 * ms, 5 * ms, 40 * second} {
		var c contract.Clock
		c.Learn(0, 1*ms, ahead+1*ms, 1)
		wantOffset(t, &c, 1*ms, ahead)
		// A longer way back, but nothing else explains it.
		c.Learn(2*ms, 5*ms, ahead+step+3*ms, 1)
		wantOffset(t, &c, 5*ms, ahead+step-2*ms)
	}
}

func TestClockForgets(t *testing.T) {
	var c contract.Clock
	c.Learn(0, 2*ms, 7*second, 1)
	wantOffset(t, &c, 60*second, 7*second-2*ms)
	if got, ok := c.Offset(61*second, 1); ok {
		t.Errorf("offset a minute later: got %d; wanted none", got)
	}
}

// What was learned over one connection is not used over the next, in whatever
// order the answers come.
func TestClockEras(t *testing.T) {
	var c contract.Clock
	c.Learn(0, 2*ms, 7*second, 1)
	if got, ok := c.Offset(3*ms, 2); ok {
		t.Errorf("offset after a new connection: got %d; wanted none", got)
	}
	c.Learn(0, 20*ms, 5*second, 2) // within what the first allows, or not
	if got, ok := c.Offset(20*ms, 2); !ok || got != 5*second-20*ms {
		t.Errorf("offset of the new connection: got %d, %v; wanted %d", got, ok, 5*second-20*ms)
	}
	c.Learn(0, 21*ms, 7*second, 1) // an answer of the old one, late
	if got, ok := c.Offset(21*ms, 2); !ok || got != 5*second-20*ms {
		t.Errorf("offset after a late answer: got %d, %v; wanted %d", got, ok, 5*second-20*ms)
	}
}

// What a clock can show does not follow a step forward for a minute, follows
// one back at once, and knows nothing after a long silence.
func TestClockExplains(t *testing.T) {
	var c contract.Clock
	if _, ok := c.Explained(0); ok {
		t.Error("explained without a sample")
	}
	want := func(now, ahead int64) {
		t.Helper()
		if got, ok := c.Explained(now); !ok || got != now+ahead {
			t.Errorf("at %d s: got %d, %v; wanted %d", now/second, got, ok, now+ahead)
		}
	}
	now := int64(100 * second)
	learn := func(ahead int64) { c.Learn(now-2*ms, now, now+ahead, 1) } // the limits are ahead and ahead+2 ms
	learn(1000 * second)
	want(now, 1000*second+2*ms)
	for range 59 { // a step forward, and a second a sample
		now += second
		learn(1040 * second)
		want(now, 1000*second+2*ms)
	}
	for range 120 {
		now += second
		learn(1040 * second)
	}
	want(now, 1040*second+2*ms) // believed by now
	now += second
	learn(1030 * second)
	want(now, 1030*second+2*ms)
	if _, ok := c.Explained(now + 130*second); ok {
		t.Error("explained after two minutes of silence")
	}
}
