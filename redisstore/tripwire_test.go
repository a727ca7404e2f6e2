package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// wantTripped checks the refusal of an exclusive acquire after a step forward.
func wantTripped(t testing.TB, what string, s *redisstore.Store, req tierlock.AcquireRequest) {
	t.Helper()
	res, err := s.Acquire(t.Context(), req)
	if res.Granted {
		t.Fatalf("%s: granted", what)
	}
	wantClass(t, what, err, tierlock.ErrLate)
	if !strings.Contains(err.Error(), "clock of the server was stepped forward, by ") {
		t.Errorf("%s: %v; wanted what is wrong with the clock", what, err)
	}
}

// The clock is stepped forward past a lease. Nobody who has known it gets the lock,
// and nothing is written, however often he asks and over whatever connection, until
// the step is some time ago; then it is granted. All that is not exclusive goes on,
// and who has known nothing follows the step.
func TestSteppedForwardGrantsNothingExclusive(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	a, warm, probing := open(t, srv.Addr), open(t, srv.Addr), open(t, srv.Addr)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, probing)
	mustAcquire(t, warm, askIn(place, ask("warm", newLease(), time.Second)))
	held := mustAcquire(t, a, askIn(place, ask("k", "a", 30*time.Second)))
	heldAs := askAs("h", "e", "ea", 30*time.Second)
	mustAcquire(t, a, askIn(place, heldAs))
	clock.Step(40 * time.Second)
	rig.Eventually(t, 5*time.Second, "the keys are gone", func() bool { return srv.Int("EXISTS", keyOf("k"), keyOf("e")) == 0 })
	for what, s := range map[string]*redisstore.Store{"known by an acquire": warm, "known by a probe": probing} {
		keys := srv.Int("DBSIZE")
		executed := srv.CommandsOf("evalsha")
		for _, req := range []tierlock.AcquireRequest{
			ask("k", "b", 30*time.Second), ask("fresh", newLease(), 30*time.Second),
			askAs("h", "e", "eb", 30*time.Second), ask("k", "b", 30*time.Second),
		} {
			wantTripped(t, what, s, askIn(place, req))
		}
		if n := srv.CommandsOf("evalsha") - executed; n != 4 {
			t.Errorf("%s: %d scripts for 4 calls: a refusal is not to be repeated", what, n)
		}
		s.ForgetClock()
		wantTripped(t, what+", over another connection", s, askIn(place, ask("k", "b", 30*time.Second)))
		mustProbe(t, s)
		wantTripped(t, what+", after a probe", s, askIn(place, ask("k", "b", 30*time.Second)))
		if n := srv.Int("DBSIZE"); n > keys+1 { // what a probe writes
			t.Errorf("%s: %d keys have become %d", what, keys, n)
		}
	}
	// Best effort goes by the server's clock.
	bestEffort := place
	bestEffort.Exclusive = false
	for _, p := range []tierlock.Place{bestEffort, shared(2)} {
		mustAcquire(t, warm, askIn(p, ask("be", "b", 30*time.Second)))
		mustRelease(t, warm, dropIn(p, "be", "b", false), tierlock.LeaseOwned)
	}
	// The holder is told.
	for _, c := range []struct {
		key, lease string
		explicit   bool
	}{{"k", "a", false}, {"e", "ea", true}} {
		if res := renewIn(t, a, place, c.key, c.lease, c.explicit, 30*time.Second); res.Err != nil || res.State != tierlock.LeaseGone {
			t.Errorf("renewal of %q: got %+v; wanted gone", c.key, res)
		}
	}
	// Time passes, for both, and probes go on.
	pass := func(d time.Duration) {
		clock.Step(d)
		warm.Later(d)
		mustProbe(t, warm)
	}
	for passed := 5 * time.Second; passed < redisstore.TripMost-10*time.Second; passed += 5 * time.Second {
		pass(5 * time.Second)
		wantTripped(t, "after "+passed.String(), warm, askIn(place, ask("k", "b", 30*time.Second)))
	}
	pass(15 * time.Second)
	next := mustAcquire(t, warm, askIn(place, ask("k", "b", 30*time.Second)))
	if next.Fence <= held.Fence {
		t.Errorf("fence %d after %d", next.Fence, held.Fence)
	}
	// A limit: there is nobody to tell it.
	mustAcquire(t, open(t, srv.Addr), askIn(place, ask("follows", newLease(), 30*time.Second)))
	noEternalKeys(t, srv)
}

// Steps that harm nobody refuse nothing: back, by however much, and forward by less
// than half the margin of the shortest lease.
func TestHarmlessStepsTripNothing(t *testing.T) {
	srv, clock := rig.RedisWithClock(t)
	s := open(t, srv.Addr)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, s)
	take := func(what string) {
		t.Helper()
		req := askIn(place, ask("k", newLease(), 30*time.Second))
		req.Budget = 1500 * time.Millisecond // as the library's, for a lease of 30 s
		mustAcquire(t, s, req)
		srv.Do("DEL", keyOf("k"))
	}
	take("at first")
	for _, step := range []time.Duration{100 * time.Millisecond, -40 * time.Second, 100 * time.Millisecond, -time.Hour, 100 * time.Millisecond} {
		clock.Step(step)
		take("after " + step.String())
	}
	// More is refused, however much time the call has left, and back again nothing.
	for _, step := range []time.Duration{310 * time.Millisecond, 600 * time.Millisecond, 40 * time.Second} {
		clock.Step(step)
		req := askIn(place, ask("k", newLease(), 30*time.Second))
		req.Budget = 1500 * time.Millisecond
		wantTripped(t, "forward by "+step.String(), s, req)
		clock.Step(-step)
		take("back by " + step.String())
	}
}

// overWay opens a store whose way may be made seconds long, and which knows the clock.
func overWay(t testing.TB) (srv *rig.RedisServer, way *rig.Proxy, s *redisstore.Store, place tierlock.Place) {
	t.Helper()
	srv = rig.Redis(t)
	way = rig.NewProxy(t, srv.Addr)
	opt := patient(way.Addr)
	opt.ConnWriteTimeout = 20 * time.Second
	s = openWith(t, opt, redisstore.Options{CallTimeout: 20 * time.Second})
	place = exclusive(2)
	place.Incarnation = mustProbe(t, s)
	mustAcquire(t, s, askIn(place, ask("warm", newLease(), time.Second)))
	return srv, way, s, place
}

// A request that was long on its way is no step, and is sent again where its call has
// time left for that.
func TestSlowWayIsNoStep(t *testing.T) {
	srv, way, s, place := overWay(t)
	executed := srv.CommandsOf("evalsha")
	way.Delay(2*time.Second, 0)
	go func() {
		time.Sleep(200 * time.Millisecond)
		way.Delay(0, 0)
	}()
	req := askIn(place, ask("k", newLease(), 60*time.Second))
	req.Budget = 15 * time.Second
	mustAcquire(t, s, req)
	if n := srv.CommandsOf("evalsha") - executed; n < 2 {
		t.Errorf("%d scripts; wanted a second one after that which was late", n)
	}
}

// Where the way there has become slower for good, calls are late, and say so: the server
// answers, so none of them may look as if it did not. Nor is one sent again and again,
// which a server with too much to do would be slower for.
func TestSlowerWayIsLateAndNoOutage(t *testing.T) {
	srv, way, s, place := overWay(t)
	way.Delay(2*time.Second, 0)
	for _, c := range []struct {
		budget  time.Duration
		scripts int64
	}{{3900 * time.Millisecond, 1}, {12 * time.Second, 2}} {
		executed := srv.CommandsOf("evalsha")
		ctx, cancel := context.WithTimeout(t.Context(), c.budget)
		req := askIn(place, ask("k", newLease(), 60*time.Second))
		req.Budget = c.budget
		_, err := s.Acquire(ctx, req)
		cancel()
		wantClass(t, "slower by 2 s, within "+c.budget.String(), err, tierlock.ErrLate)
		if n := srv.CommandsOf("evalsha") - executed; n > c.scripts || !strings.Contains(err.Error(), "longer on its way") {
			t.Errorf("%d scripts within %v, %v; wanted %d at most, and what is wrong with the way", n, c.budget, err, c.scripts)
		}
	}
}

// Other data is another server, or one that nobody has a hold on any more: its clock
// is not bounded by the former one's.
func TestOtherDataHasAnotherClock(t *testing.T) {
	srv, clock := rig.RedisWithClock(t, "--enable-debug-command", "yes")
	s := open(t, srv.Addr)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, s)
	mustAcquire(t, s, askIn(place, ask("k", newLease(), 30*time.Second)))
	clock.Step(40 * time.Second)
	srv.Do("DEBUG", "CHANGE-REPL-ID")
	_, err := s.Acquire(t.Context(), askIn(place, ask("k", newLease(), 30*time.Second)))
	wantEpochError(t, "acquire for the former data", err)
	former := place
	place.Epoch, place.Incarnation = 3, mustProbe(t, s)
	if place.Incarnation == former.Incarnation {
		t.Fatal("the replication id is the same")
	}
	mustAcquire(t, s, askIn(place, ask("k", newLease(), 30*time.Second)))
	clock.Step(40 * time.Second)
	wantTripped(t, "after another step", s, askIn(place, ask("k", newLease(), 30*time.Second)))
}

// A request that is late for its way is late as ever: no clock is to blame.
func TestLateExclusiveAcquire(t *testing.T) {
	_, way, s, place := overWay(t)
	way.Delay(200*time.Millisecond, 0)
	req := askIn(place, ask("k", newLease(), 30*time.Second))
	req.Budget = 50 * time.Millisecond
	_, err := s.Acquire(t.Context(), req)
	wantClass(t, "a budget of 50 ms for a way of 200 ms", err, tierlock.ErrLate)
	if errors.Is(err, tierlock.ErrEpoch) || strings.Contains(err.Error(), "stepped") {
		t.Errorf("%v; wanted nothing about the clock", err)
	}
	way.Delay(0, 0)
	mustAcquire(t, s, askIn(place, ask("k", newLease(), 30*time.Second)))
}

// One probe tells the clock of each master of a Cluster, each by itself.
func TestProbeKnowsTheClocksOfACluster(t *testing.T) {
	t.Parallel()
	c := rig.StartCluster(t, false)
	s := openCluster(t, c)
	place := exclusive(2)
	place.Incarnation = mustProbe(t, s)
	for _, key := range keysOn(t, c, c.Nodes[0], c.Nodes[1], c.Nodes[2]) {
		if !s.Guards(place, name(key)) {
			t.Errorf("the clock of the master of %q is not known", key)
		}
	}
	if n := s.Guarded(); n != 3 {
		t.Errorf("the clocks of %d servers are known; wanted 3", n)
	}
	place.Incarnation = "other"
	if s.Guards(place, name("k")) {
		t.Error("the clock of other data is known")
	}
}

// Data that nobody has told the time of is not remembered for ever.
func TestUnknownClocksAreForgotten(t *testing.T) {
	s := open(t, rig.Redis(t).Addr)
	place := exclusive(2)
	for i := range 100 {
		place.Incarnation = fmt.Sprint("gone-", i)
		_, err := s.Acquire(t.Context(), askIn(place, ask("k", newLease(), 30*time.Second)))
		wantEpochError(t, "acquire for other data", err)
	}
	if n := s.Guarded(); n > 2 {
		t.Errorf("%d servers are remembered", n)
	}
}
