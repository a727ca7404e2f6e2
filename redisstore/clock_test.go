package redisstore_test

import (
	"testing"

	"github.com/tierlock/tierlock/redisstore"
)

const (
	ms     = int64(1000) // in µs, as the clock counts
	second = 1000 * ms
)

func wantOffset(t *testing.T, c *redisstore.Clock, now, want int64) {
	t.Helper()
	if got, ok := c.Offset(now); !ok || got != want {
		t.Fatalf("offset at %d ms: got %d, %v; wanted %d", now/ms, got, ok, want)
	}
}

func TestClockKeepsTheShortestRoundTrip(t *testing.T) {
	var c redisstore.Clock
	if got, ok := c.Offset(0); ok {
		t.Fatalf("offset without a sample: got %d; wanted none", got)
	}
	// The server is 1000 s ahead; each reply took a different way.
	const ahead = 1000 * second
	c.Learn(0, 10*ms, ahead+5*ms) // the middle, by luck
	wantOffset(t, &c, 10*ms, ahead)
	c.Learn(20*ms, 22*ms, ahead+22*ms) // read when received: the middle is 1 ms off
	wantOffset(t, &c, 22*ms, ahead+1*ms)
	c.Learn(30*ms, 90*ms, ahead+31*ms) // a slow reply tells less
	wantOffset(t, &c, 90*ms, ahead+1*ms)

	// The best is not kept for ever: clocks drift.
	for at := second; at <= 20*second; at += second {
		c.Learn(at, at+40*ms, ahead+at+30*ms)
	}
	wantOffset(t, &c, 20*second, ahead+10*ms)
}

func TestClockFollowsAStep(t *testing.T) {
	const ahead = 1000 * second
	for _, step := range []int64{-40 * second, -5 * ms, 5 * ms, 40 * second} {
		var c redisstore.Clock
		c.Learn(0, 1*ms, ahead)
		// A longer round trip, but nothing else explains it.
		c.Learn(2*ms, 6*ms, ahead+step+4*ms)
		wantOffset(t, &c, 6*ms, ahead+step)
	}
}

func TestClockForgets(t *testing.T) {
	var c redisstore.Clock
	c.Learn(0, 2*ms, 7*second)
	wantOffset(t, &c, 60*second, 7*second-1*ms)
	if got, ok := c.Offset(61 * second); ok {
		t.Errorf("offset a minute later: got %d; wanted none", got)
	}
	c.Learn(0, 2*ms, 7*second)
	c.Forget()
	if got, ok := c.Offset(3 * ms); ok {
		t.Errorf("offset after Forget: got %d; wanted none", got)
	}
	c.Learn(0, 2*ms, 7*second)
	c.Replace(10*ms, 20*ms, 7*second+15*ms) // within what the first allows, and longer
	wantOffset(t, &c, 20*ms, 7*second)
}
