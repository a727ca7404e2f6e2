package sim_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

// simTest runs a test in a bubble.
func simTest(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

var simName = tierlock.Name{Namespace: "n", Resource: "r", Key: "k"}

// simLock asks for a lease for a minute, within limit.
func simLock(s tierlock.Store, lease string, p tierlock.Place, limit time.Duration) (tierlock.AcquireResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.Acquire(ctx, tierlock.AcquireRequest{Name: simName, TTL: time.Minute, Budget: limit,
		Token: tierlock.Token{Lease: lease, TTL: time.Minute}, Place: p})
}

// simHolder is the lease that has the key.
func simHolder(t *testing.T, s tierlock.Store) string {
	t.Helper()
	rec, err := s.Inspect(t.Context(), simName)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Token.Lease
}

func simProbe(t *testing.T, s tierlock.Chained) string {
	t.Helper()
	res, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return res.Incarnation
}
