package watchdog_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Bounds of a hold (scenario 27): what is asked for and when, and how belief
// ends. The store keeps the lease to sent + ttl, so in all rows without a
// failure that is exactly Limit for the last grant.
func TestLimits(t *testing.T) {
	type ask struct{ at, ttl time.Duration }
	down := func(from, to time.Duration) func(context.Context, sending) error {
		return func(_ context.Context, s sending) error {
			if s.at >= from && s.at < to {
				return errDown
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name        string
		ttl, limit  time.Duration
		maxRenewals int
		answer      func(context.Context, sending) error
		asks        []ask
		reason      watchdog.Reason
		end         time.Duration
	}{
		{"limit below the TTL", 30 * sec, 2 * sec, 0, nil,
			nil, watchdog.Limit, 1800 * ms},
		{"limit is the TTL", 30 * sec, 30 * sec, 0, nil,
			nil, watchdog.Limit, 27 * sec},
		{"no room for a renewal", 30 * sec, 30*sec + 999*time.Microsecond, 0, nil,
			nil, watchdog.Limit, 27 * sec},
		{"a millisecond more", 30 * sec, 30*sec + ms, 0, nil,
			[]ask{{10 * sec, 20*sec + ms}}, watchdog.Limit, 28*sec + 900*time.Microsecond},
		// Margin of the clamped TTL: 35 − 2.5 s.
		{"one clamped renewal", 30 * sec, 35 * sec, 0, nil,
			[]ask{{10 * sec, 25 * sec}}, watchdog.Limit, 32500 * ms},
		{"full and clamped", 30 * sec, 45 * sec, 0, nil,
			[]ask{{10 * sec, 30 * sec}, {20 * sec, 25 * sec}}, watchdog.Limit, 42500 * ms},
		{"cut to milliseconds", 3 * sec, 4*sec + 1500*time.Microsecond, 0, nil,
			[]ask{{1 * sec, 3 * sec}, {2 * sec, 2001 * ms}}, watchdog.Limit, 4*sec + ms - 200100*time.Microsecond},
		{"one renewal", 30 * sec, 0, 1, nil,
			[]ask{{10 * sec, 30 * sec}}, watchdog.Limit, 37 * sec},
		{"three renewals", 30 * sec, 0, 3, nil,
			[]ask{{10 * sec, 30 * sec}, {20 * sec, 30 * sec}, {30 * sec, 30 * sec}}, watchdog.Limit, 57 * sec},
		{"renewals before limit", 30 * sec, 100 * sec, 1, nil,
			[]ask{{10 * sec, 30 * sec}}, watchdog.Limit, 37 * sec},
		{"limit before renewals", 30 * sec, 35 * sec, 9, nil,
			[]ask{{10 * sec, 25 * sec}}, watchdog.Limit, 32500 * ms},
		// A failed one is no renewal, and the next asks for less.
		{"last renewal fails once", 30 * sec, 35 * sec, 1, down(0, 10100*ms),
			[]ask{{10 * sec, 25 * sec}, {10500 * ms, 24500 * ms}}, watchdog.Limit, 32550 * ms},
		{"the bound is not reached", 3 * sec, 5 * sec, 0, down(1500*ms, 100*sec),
			[]ask{{1 * sec, 3 * sec}, {2 * sec, 3 * sec}, {2150 * ms, 2850 * ms}, {2300 * ms, 2700 * ms},
				{2450 * ms, 2550 * ms}, {3 * sec, 2 * sec}, {3150 * ms, 1850 * ms}, {3300 * ms, 1700 * ms},
				{3450 * ms, 1550 * ms}, {3500 * ms, 1500 * ms}, {3650 * ms, 1350 * ms}},
			watchdog.Unconfirmed, 3700 * ms},
		{"TTL cut to milliseconds", 3*sec + 999*time.Microsecond, 0, 1, nil,
			[]ask{{1 * sec, 3 * sec}}, watchdog.Limit, 3700 * ms},
		{"no TTL", 0, 0, 0, nil, nil, watchdog.Expired, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{answer: tc.answer}
				w := newDog(t, s)
				e := newEnds()
				w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: tc.ttl, Limit: tc.limit,
					MaxRenewals: tc.maxRenewals, OnEnd: e.add})
				time.Sleep(200 * sec)
				var asks []ask
				expires := min(tc.ttl, tc.limit) // by the store, with every renewal executed
				for _, x := range s.all() {
					asks = append(asks, ask{x.at, x.ttl})
					if tc.limit > 0 && x.at+x.ttl > tc.limit {
						t.Errorf("asked at %v for %v, beyond the limit", x.at, x.ttl)
					}
					if x.at+x.ttl < expires {
						t.Errorf("asked at %v for %v, less than what is left", x.at, x.ttl)
					}
					expires = x.at + x.ttl
				}
				if !slices.Equal(asks, tc.asks) {
					t.Errorf("asked %v\nwant  %v", asks, tc.asks)
				}
				e.want(t, tc.reason, tc.end)
			})
		})
	}
}

// A lost reply may have been executed: it neither counts as a renewal nor
// lengthens belief.
func TestLostRepliesDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := &store{answer: func(ctx context.Context, x sending) error {
			if n++; n <= 2 {
				return hang(ctx, x)
			}
			return nil
		}}
		w := newDog(t, s)
		e := newEnds()
		w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec, MaxRenewals: 1, OnEnd: e.add})
		time.Sleep(100 * sec)
		if got, want := s.times(), secs(10, 11, 12); !slices.Equal(got, want) {
			t.Errorf("attempts at %v, want %v", got, want)
		}
		e.want(t, watchdog.Limit, 39*sec)
	})
}
