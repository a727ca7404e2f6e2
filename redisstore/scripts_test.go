package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 71: a server that forgets its scripts in mid hold, before each kind
// of call.
func TestForgottenScripts(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		lease := newLease()
		req := ask("k", lease, 10*time.Second)
		req.Explicit = explicit
		srv.Do("SCRIPT", "FLUSH")
		mustAcquire(t, s, req)
		srv.Do("SCRIPT", "FLUSH")
		if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, Explicit: explicit, TTL: 30 * time.Second}}); res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Fatalf("renew: got %+v; wanted owned", res[0])
		}
		if ttl := srv.Int("PTTL", keyOf("k")); ttl < 20_000 {
			t.Errorf("%d ms left after the renewal; wanted about 30,000", ttl)
		}
		srv.Do("SCRIPT", "FLUSH")
		if rec, err := s.Inspect(t.Context(), name("k")); err != nil || rec.Token.Lease != lease {
			t.Fatalf("inspect: got %+v, %v; wanted the lease %s", rec, err, lease)
		}
		srv.Do("SCRIPT", "FLUSH")
		release := drop("k", lease)
		release.Explicit = explicit
		mustRelease(t, s, release, tierlock.LeaseOwned)
	}
}

// A batch in which some renewals meet a script that is not there: each is
// executed once, its result stands in its place.
func TestForgottenScriptsInABatch(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	const n = 50
	var reqs []tierlock.RenewRequest
	want := make([]tierlock.Ownership, n)
	for i := range n {
		key, lease := fmt.Sprint(i), newLease()
		req := ask(key, lease, 10*time.Second)
		req.Explicit = i%2 == 1
		switch i % 5 {
		case 0:
			want[i] = tierlock.LeaseGone
		case 1:
			req.Token.Lease = newLease() // another's
			want[i] = tierlock.LeaseTaken
			mustAcquire(t, s, req)
		default:
			want[i] = tierlock.LeaseOwned
			mustAcquire(t, s, req)
		}
		reqs = append(reqs, tierlock.RenewRequest{Name: name(key), Lease: lease, Explicit: req.Explicit, TTL: 20 * time.Second})
	}
	check := func(what string) {
		t.Helper()
		for i, res := range s.Renew(t.Context(), reqs) {
			if res.Err != nil || res.State != want[i] {
				t.Errorf("%s, renewal %d: got %+v; wanted %v", what, i, res, want[i])
			}
		}
	}
	srv.Do("SCRIPT", "FLUSH")
	check("no script known")
	check("all known")
	srv.Do("SCRIPT", "FLUSH")
	if res := renewOne(t, s, "2", reqs[2].Lease, time.Second); res.State != tierlock.LeaseOwned {
		t.Fatalf("got %+v", res)
	}
	check("one of two scripts known")
	if got := srv.CommandsOf("pexpire"); got == 0 {
		t.Error("nothing was prolonged: the test shows nothing")
	}
	bad := []tierlock.RenewRequest{reqs[2], {Name: name(""), Lease: "x", TTL: time.Second}, reqs[0]}
	res := s.Renew(t.Context(), bad)
	if res[0].State != tierlock.LeaseOwned || res[0].Err != nil || res[2].State != tierlock.LeaseGone || res[2].Err != nil {
		t.Errorf("around a bad request: got %+v", res)
	}
	wantClass(t, "a renewal without a key", res[1].Err, tierlock.ErrMisconfigured)
}

// Scenario 29: a restart without persistence in mid hold is told as a loss,
// and the store needs no help to go on.
func TestRestart(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	lease := newLease()
	mustAcquire(t, s, ask("k", lease, 30*time.Second))
	srv.Restart()
	if res := renewOne(t, s, "k", lease, 30*time.Second); res.Err != nil || res.State != tierlock.LeaseGone {
		t.Errorf("renew after a restart: got %+v; wanted gone", res)
	}
	mustRelease(t, s, drop("k", lease), tierlock.LeaseGone)
	mustAcquire(t, s, ask("k", newLease(), 30*time.Second))
}

// What is beside a lock that somebody deleted by hand must not free or prolong
// the lock that came after it.
func TestSetLeftBehindByADeletedLock(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, askAs("h", "k", "m1", 30*time.Second))
	srv.Do("DEL", keyOf("k"))
	lease := newLease()
	anonymous := ask("k", lease, 10*time.Second)
	anonymous.Token.Holder = "h" // the name alone opens nothing either
	mustAcquire(t, s, anonymous)
	res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: "m1", Explicit: true, TTL: time.Minute}})
	if res[0].Err != nil || res[0].State != tierlock.LeaseTaken {
		t.Errorf("renew: got %+v; wanted taken", res[0])
	}
	if ttl := srv.Int("PTTL", keyOf("k")); ttl > 10_000 {
		t.Errorf("%d ms left: the renewal of another's lease prolonged it", ttl)
	}
	if got, err := s.Acquire(t.Context(), askAs("h", "k", "m2", time.Second)); err != nil || got.Granted {
		t.Errorf("entering: got %+v, %v; wanted it refused", got, err)
	}
	release := drop("k", "m1")
	release.Explicit = true
	mustRelease(t, s, release, tierlock.LeaseTaken)
	mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)

	mustAcquire(t, s, askAs("other", "k", "m3", time.Second))
	if rec, err := s.Inspect(t.Context(), name("k")); err != nil || rec.Holds != 1 {
		t.Errorf("inspect: got %+v, %v; wanted one hold: the set is of an earlier lock", rec, err)
	}
	noEternalKeys(t, srv)
}
