package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// A process that has known the server for a while does not believe a step of its
// clock: it leaves a lease of another alone until the time has passed in fact.
func TestClockSteppedForwardEndsNoLease(t *testing.T) {
	t.Parallel()
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	a, b := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	const ttl = 6 * time.Second
	began := time.Now() // before it is sent: the lease begins when the server executes it
	first := mustAcquire(t, a, ask("k", "a", ttl))
	taken := time.Now()
	mustAcquire(t, b, ask("warm", "w", time.Second))
	unsure := time.Since(taken) // of b, how far the clock was
	clock.Step(time.Hour)
	for n := 0; ; n++ {
		asked := time.Now()
		res, err := b.Acquire(t.Context(), ask("k", "b", ttl))
		if err != nil {
			t.Fatal(err)
		}
		if res.Granted {
			if lived := time.Since(began); lived < ttl-100*time.Millisecond {
				// The time that b explains is late by what its requests were on
				// their way, at the best; beliefs end a tenth sooner.
				t.Errorf("granted to another after %v; wanted not before %v, whatever the clock shows", lived, ttl)
			}
			if res.Token.Fence <= first.Fence {
				t.Errorf("fence %d after %d", res.Token.Fence, first.Fence)
			}
			if n == 0 {
				t.Error("granted at once")
			}
			break
		}
		if res.Left <= 0 || asked.Add(res.Left).After(taken.Add(ttl+unsure+2*time.Second)) {
			t.Fatalf("after %v: %v left; wanted what is left of %v", time.Since(began), res.Left, ttl)
		}
		time.Sleep(min(res.Left, 500*time.Millisecond))
	}
	// What was released is taken at once.
	if own, err := b.Release(t.Context(), tierlock.ReleaseRequest{Name: name("k"), Lease: "b"}); own != tierlock.LeaseOwned {
		t.Fatal(own, err)
	}
	mustAcquire(t, a, ask("k", "c", ttl))
}
