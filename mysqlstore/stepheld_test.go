package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// The database's clock is stepped forward past the ends of leases that nobody has
// taken since. For whoever has known the clock they go on: their holders renew and
// release them, of either kind, and what is released is free for everybody.
func TestHoldsGoOnAfterAStepForward(t *testing.T) {
	t.Parallel()
	srv, clock := steppable(t)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	const ttl = 5 * time.Minute
	mustAcquire(t, s, ask("renewed", "l", ttl))
	mustAcquire(t, s, ask("released", "l", ttl))
	mustAcquire(t, s, askAs("h", "explicit", "e", ttl))
	mustAcquire(t, s, askAs("h", "entered", "e", ttl))
	mustAcquire(t, s, askAs("h", "given up", "e", ttl))
	short := time.Now()
	mustInspect(t, other, "renewed")
	clock.Step(time.Hour)

	if rec := mustInspect(t, other, "renewed"); !rec.Held || rec.Left > ttl {
		t.Errorf("another reads %+v; wanted held for %v at most", rec, ttl)
	}
	if res := soonAcquire(t, other, askAs("h", "entered", "f", ttl)); !res.Granted || !res.Reentered {
		t.Errorf("entering: got %+v; wanted the hold entered", res)
	}
	reqs := []tierlock.RenewRequest{
		{Name: name("renewed"), Lease: "l", TTL: time.Minute},
		{Name: name("explicit"), Lease: "e", Explicit: true, TTL: time.Minute},
	}
	for i, res := range s.Renew(t.Context(), reqs) {
		if res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("renewal of %s: got %+v; wanted owned", reqs[i].Name, res)
		}
	}
	for _, req := range []tierlock.ReleaseRequest{drop("released", "l"), dropAs("given up", "e")} {
		if state, err := s.Release(t.Context(), req); err != nil || state != tierlock.LeaseOwned {
			t.Errorf("release of %s: got %v, %v; wanted owned", req.Name, state, err)
		}
		if res := soonAcquire(t, other, ask(req.Name.Key, "next", ttl)); !res.Granted {
			t.Errorf("%s, after its release: got %+v; wanted a grant", req.Name, res)
		}
	}
	if took := time.Since(short); took > ttl {
		t.Fatalf("the test took %v, longer than the leases; this machine is too slow for it", took)
	}
	fresh := open(t, srv.DSN(""), calm) // who does not know better follows the server
	for _, key := range []string{"renewed", "explicit"} {
		if rec := mustInspect(t, fresh, key); !rec.Held || rec.Left < 30*time.Second {
			t.Errorf("%s: %+v; wanted renewed", key, rec)
		}
	}
}
