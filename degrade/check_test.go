package degrade_test

import (
	"flag"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

var limit = 3_000_000

var large = flag.Bool("degrade.large", false, "search the larger scopes as well, an hour and more")

var everyReply = kindsOf(degrade.Poll, degrade.Refresh, degrade.Ack, degrade.Adopt, degrade.Start, degrade.Open)

func with(s scope, change func(*scope)) scope {
	change(&s)
	return s
}

// Small worlds. Each has what its name says; together they are what is checked in
// every run.
var (
	tiny         = scope{procs: 2, keys: 1, epochs: 2, grants: 1, lease: 2, term: 2}
	twoGrants    = with(tiny, func(s *scope) { s.grants = 2 })
	slowReplies  = with(tiny, func(s *scope) { s.pending, s.slowGrant = everyReply, true })
	slowPermits  = with(tiny, func(s *scope) { s.pending = kindsOf(degrade.Refresh, degrade.Ack) })
	slowGrants   = with(tiny, func(s *scope) { s.slowGrant = true })
	lateCalls    = with(tiny, func(s *scope) { s.late, s.grants = kindsOf(degrade.Adopt, degrade.Ack), 2 })
	failover     = with(tiny, func(s *scope) { s.toRedis, s.failover = true, true })
	twoSwitches  = with(tiny, func(s *scope) { s.epochs = 3 })
	three        = with(tiny, func(s *scope) { s.procs = 3 })
	longPermit   = with(tiny, func(s *scope) { s.term, s.grants = 4, 1 })
	batch        = with(tiny, func(s *scope) { s.keys = 2 })
	drifting     = with(tiny, func(s *scope) { s.slow, s.slack, s.drift = 1, 1, 200 })
	starter      = with(tiny, func(s *scope) { s.starter = true })
	stalePolls   = with(tiny, func(s *scope) { s.stale = true })
	arbiterLoss  = with(tiny, func(s *scope) { s.loss, s.grace = true, 1 })
	rewind       = with(arbiterLoss, func(s *scope) { s.rewind = true })
	removal      = with(tiny, func(s *scope) { s.remove, s.lease = true, 1 })
	removalTwice = with(removal, func(s *scope) { s.epochs, s.term = 3, 1 })
	removalLong  = with(removal, func(s *scope) { s.lease = 2 })
	leaving      = with(tiny, func(s *scope) { s.leave = true })
	quickTwice   = with(twoSwitches, func(s *scope) { s.lease, s.term = 1, 1 })
	staleTwice   = with(quickTwice, func(s *scope) { s.stale = true })
	lateOpens    = with(quickTwice, func(s *scope) { s.late = kindsOf(degrade.Open) })
	lateAcks     = with(quickTwice, func(s *scope) { s.late = kindsOf(degrade.Ack, degrade.Refresh) })
	lateAcksLong = with(twoSwitches, func(s *scope) { s.late = kindsOf(degrade.Ack, degrade.Refresh) })
	again        = with(tiny, func(s *scope) { s.pending, s.dup = kindsOf(degrade.Refresh, degrade.Ack, degrade.Adopt), 1 })
	lateSwitches = with(tiny, func(s *scope) { s.late, s.toRedis, s.grants = kindsOf(degrade.Start, degrade.Open), true, 2 })
)

// scopes are searched to the end.
var scopes = []struct {
	name  string
	large bool
	scope scope
}{
	{"tiny", false, tiny},
	{"two grants", false, twoGrants},
	{"slow replies", false, slowReplies},
	{"late calls", false, lateCalls},
	{"failover", false, failover},
	{"two switches", false, twoSwitches},
	{"three processes", false, three},
	{"long permit", false, longPermit},
	{"batch", false, batch},
	{"drifting clocks", false, drifting},
	{"starter", false, starter},
	{"stale polls", false, stalePolls},
	{"arbiter rewind", false, rewind},
	{"arbiter loss", true, arbiterLoss},
	{"removal", false, removal},
	{"removal, longer leases", true, removalLong},
	{"leaving", false, leaving},
	{"late acks", false, lateAcks},
	{"late acks, longer leases", true, lateAcksLong},
	{"late opens", false, lateOpens},
	{"stale polls, two switches", false, staleTwice},
	{"replies that come again", false, again},
	{"removal, two switches", true, removalTwice},
	{"late switches", false, lateSwitches},
}

func TestExclusion(t *testing.T) {
	for _, c := range scopes {
		t.Run(c.name, func(t *testing.T) {
			if c.large && !*large {
				t.Skip("needs -degrade.large")
			}
			start := cpu()
			q := search{scope: c.scope, limit: limit}
			q.run()
			if q.found != "" {
				t.Fatalf("%s, after %d states:\n%s", q.found, q.states, lines(q.trace))
			}
			if !q.complete || q.opens == 0 {
				t.Fatalf("the search is incomplete or saw no switch: %d states, %d opened", q.states, q.opens)
			}
			t.Logf("%d states, %d steps deep, %.1f s", q.states, q.depth, (cpu() - start).Seconds())
		})
	}
}

func lines(trace []string) string {
	s := ""
	for _, l := range trace {
		s += "    " + l + "\n"
	}
	return s
}

// cpu is the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
