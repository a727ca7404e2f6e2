package redisstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Where the server is out of memory nothing is adopted, and nothing left behind;
// what was adopted before is prolonged.
func TestAdoptionOutOfMemory(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		for _, place := range []tierlock.Place{shared(3), exclusive(3)} {
			srv.Do("CONFIG", "SET", "maxmemory", "0")
			srv.Do("FLUSHALL")
			req := ask("k", newLease(), 10*time.Second)
			req.Explicit = explicit
			held := adoptIn(place, req, 2, 1000)
			mustAdopt(t, s, held)
			srv.Do("CONFIG", "SET", "maxmemory", "1")
			other := ask("other", newLease(), 10*time.Second)
			other.Explicit = explicit
			res := adoptOne(t, s, adoptIn(place, other, 2, 1000))
			wantClass(t, "adoption", res.Err, tierlock.ErrUnavailable)
			if !strings.Contains(res.Err.Error(), "OOM") {
				t.Errorf("%v does not say OOM", res.Err)
			}
			if keys := srv.Do("KEYS", "*{order:settle/other}*").([]any); len(keys) > 0 {
				t.Errorf("explicit %v: the refused adoption left %v", explicit, keys)
			}
			held.TTL = time.Minute
			mustAdopt(t, s, held)
		}
	}
}

// What a server executes long after its caller gave up: no grant, and of the rest
// what is the lease's own. An adoption that is late may keep a free key, until the
// release that follows it.
func TestLateCallsOfAPlace(t *testing.T) {
	srv := rig.Redis(t)
	warm, s := open(t, srv.Addr), openImpatient(t, srv.Addr)
	place := exclusive(3)
	place.Incarnation = mustProbe(t, warm)
	mustAcquire(t, warm, askIn(place, ask("held", "held", time.Minute)))
	// The server has to know the scripts, else none is executed late.
	mustAcquire(t, warm, askIn(shared(3), askAs("h", "warm", "warm", 30*time.Second)))
	mustAdopt(t, warm, adoptIn(place, ask("warm2", "warm2", 30*time.Second), 2, 1))
	if res := renewIn(t, warm, place, "held", "held", false, 30*time.Second); res.State != tierlock.LeaseOwned {
		t.Fatalf("renew: got %+v", res)
	}
	mustRelease(t, warm, dropIn(place, "warm2", "warm2", false), tierlock.LeaseOwned)
	before := srv.CommandsOf("evalsha") + srv.CommandsOf("eval")
	srv.Pause()
	calls := []func() error{
		func() error {
			_, err := s.Acquire(background, askIn(place, ask("a", newLease(), 30*time.Second)))
			return err
		},
		func() error {
			_, err := s.Acquire(background, askIn(shared(3), askAs("h", "b", newLease(), 30*time.Second)))
			return err
		},
		func() error {
			return s.Adopt(background, []tierlock.AdoptRequest{adoptIn(place, ask("c", "adopted", 30*time.Second), 2, 1)})[0].Err
		},
		func() error {
			return s.Renew(background, []tierlock.RenewRequest{{Name: name("held"), Lease: "held", TTL: 2 * time.Minute, Place: exclusive(2)}})[0].Err
		},
		func() error { _, err := s.Release(background, dropIn(exclusive(2), "held", "held", false)); return err },
		func() error { _, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"}); return err },
	}
	errs := make(chan error, len(calls))
	for _, call := range calls {
		go func() {
			began := time.Now()
			err := call()
			if took := time.Since(began); took > patience {
				err = errors.Join(err, fmt.Errorf("it took %v", took))
			}
			errs <- err
		}()
	}
	for range calls {
		if err := <-errs; !errors.Is(err, tierlock.ErrUnavailable) || strings.Contains(err.Error(), "it took") {
			t.Errorf("at a stopped server: %v; wanted %v in half a second", err, tierlock.ErrUnavailable)
		}
	}
	srv.Resume()
	rig.Eventually(t, 5*time.Second, "what was sent is executed", func() bool {
		return srv.CommandsOf("evalsha")+srv.CommandsOf("eval") >= before+int64(len(calls))
	})
	if n := srv.Int("EXISTS", keyOf("a"), keyOf("b")); n != 0 {
		t.Error("a late acquire was granted")
	}
	if left := srv.Int("PTTL", keyOf("held")); left < 1 || left > 60_000 {
		t.Errorf("a late call of an earlier epoch left %d ms of a lease", left)
	}
	if got := tokenOf(t, srv, "c").Lease; got != "adopted" {
		t.Errorf("the key holds %q; wanted the late adoption: the test shows nothing", got)
	}
	rig.Eventually(t, 5*time.Second, "the late adoption is released", func() bool {
		state, err := s.Release(background, dropIn(place, "c", "adopted", false))
		return err == nil && state == tierlock.LeaseOwned
	})
	noEternalKeys(t, srv)
}

// The words of one refusal say which epochs met.
func TestRefusalNamesTheEpochs(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, askIn(shared(12), ask("k", "a", time.Minute)))
	var said []string
	_, err := s.Acquire(background, askIn(exclusive(3), ask("k", "b", time.Minute)))
	said = append(said, fmt.Sprint(err))
	srv.Do("DEL", redisstore.FenceKey(name("k")))
	_, err = s.Acquire(background, askIn(exclusive(3), ask("k", "b", time.Minute)))
	said = append(said, fmt.Sprint(err))
	for i, want := range []string{"fence record is of epoch 12, the call of 3", "key is of epoch 12, the call of 3"} {
		if !strings.Contains(said[i], want) || !strings.HasPrefix(said[i], "redisstore: acquire ") {
			t.Errorf("got %q; wanted %q in it", said[i], want)
		}
	}
	if slices.Contains(said, "<nil>") {
		t.Error("no error")
	}
}
