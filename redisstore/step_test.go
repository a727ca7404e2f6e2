package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The server's clock is stepped. A small step costs nothing; a large one
// forward costs one refusal and one repetition, within the same call; none
// refuses for ever. After a step back the guard against late requests is as
// strict as before, from the next answer on.
func TestSteppedServerClock(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := open(t, proxy.Addr)
	n := 0
	take := func(budget time.Duration) error {
		n++
		req := ask(fmt.Sprint("k", n), newLease(), 30*time.Second)
		req.Budget = budget
		res, err := s.Acquire(t.Context(), req)
		if err == nil && !res.Granted {
			t.Errorf("a fresh key is held: %+v", res)
		}
		return err
	}
	if err := take(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step  time.Duration
		tries int64
	}{
		{0, 1}, {200 * time.Millisecond, 1}, {-200 * time.Millisecond, 1},
		{40 * time.Second, 2}, {0, 1}, {-40 * time.Second, 1}, {40 * time.Second, 2},
		{time.Hour, 2}, {-time.Hour, 1}, {-24 * time.Hour, 1}, {24 * time.Hour, 2},
	} {
		clock.Step(c.step)
		before := srv.CommandsOf("evalsha")
		if err := take(5 * time.Second); err != nil {
			t.Errorf("after a step of %v: %v", c.step, err)
		}
		if tries := srv.CommandsOf("evalsha") - before; tries != c.tries {
			t.Errorf("after a step of %v: %d tries, want %d", c.step, tries, c.tries)
		}
		// Both ways are slower than the budget.
		proxy.Delay(400*time.Millisecond, 0)
		wantClass(t, fmt.Sprintf("late, after a step of %v", c.step), take(200*time.Millisecond), tierlock.ErrLate)
		proxy.Delay(0, 0)
	}
	noEternalKeys(t, srv)
}

// A step during a call: the request is under way when the clock jumps.
func TestSteppedWhileUnderWay(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := open(t, proxy.Addr)
	mustAcquire(t, s, ask("warm", newLease(), time.Second))
	for i, step := range []time.Duration{40 * time.Second, -40 * time.Second, time.Hour, -time.Hour} {
		proxy.Delay(100*time.Millisecond, 100*time.Millisecond)
		stepped := make(chan struct{})
		go func() {
			defer close(stepped)
			time.Sleep(50 * time.Millisecond)
			clock.Step(step)
		}()
		mustAcquire(t, s, ask(fmt.Sprint("k", i), newLease(), 30*time.Second))
		<-stepped
		proxy.Delay(0, 0)
		mustAcquire(t, s, ask(fmt.Sprint("next", i), newLease(), 30*time.Second))
	}
}

// Scenario 76: fences rise over every step of the clock within a minute after
// the last grant, as long as the data is kept. (Later they may fall behind what
// was granted while the clock was ahead: the record of it is gone by then.)
func TestFenceRisesOverSteps(t *testing.T) {
	for _, explicit := range []bool{false, true} {
		srv, clock := rig.RedisWithClock(t)
		s := open(t, srv.Addr)
		var last tierlock.Token
		for i, steps := range [][]time.Duration{
			{0}, {-40 * time.Second}, {0}, {40 * time.Second}, {-time.Hour}, {time.Hour}, {time.Hour, -time.Hour},
			{24 * time.Hour}, {-24 * time.Hour}, {0},
			{58 * time.Second, -time.Hour}, // a minute, nearly, and back
			{-time.Hour}, {2 * time.Hour}, {-time.Millisecond},
		} {
			for _, d := range steps {
				clock.Step(d)
			}
			req := ask("k", newLease(), 30*time.Second)
			req.Explicit = explicit
			// The key may have been held when the clock was stepped back.
			tok := mustAcquire(t, s, req)
			if tok.Fence <= last.Fence {
				t.Errorf("explicit %v, steps %d %v: fence %d after %d", explicit, i, steps, tok.Fence, last.Fence)
			}
			last = tok
			rel := drop("k", req.Token.Lease)
			rel.Explicit = explicit
			mustRelease(t, s, rel, tierlock.LeaseOwned)
			noEternalKeys(t, srv)
		}
	}
}

// A clock that was never set would count below nought: no fence can be had of it,
// and the server's answer says so. Who holds a lock is not concerned.
func TestClockBeforeTheOrigin(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	s := openWith(t, patient(srv.Addr), calm)
	held := newLease()
	mustAcquire(t, s, ask("held", held, time.Hour))
	clock.Step(-3 * 365 * 24 * time.Hour)
	_, err := s.Acquire(t.Context(), ask("new", newLease(), time.Minute))
	wantClass(t, "acquire", err, tierlock.ErrMisconfigured)
	if !strings.Contains(err.Error(), "2025") {
		t.Errorf("%v; wanted what is wrong with the clock", err)
	}
	req := ask("explicit", newLease(), time.Minute)
	req.Explicit = true
	_, err = s.Acquire(t.Context(), req)
	wantClass(t, "acquire by an explicit holder", err, tierlock.ErrMisconfigured)
	if n := srv.Int("EXISTS", keyOf("new"), keyOf("explicit")); n != 0 {
		t.Errorf("%d locks were taken", n)
	}
	if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("held"), Lease: held, TTL: time.Hour}}); res[0].State != tierlock.LeaseOwned {
		t.Errorf("renewal: got %+v; wanted owned", res[0])
	}
	mustRelease(t, s, drop("held", held), tierlock.LeaseOwned)
	clock.Step(3 * 365 * 24 * time.Hour)
	mustAcquire(t, s, ask("new", newLease(), time.Minute))
}
