package degrade_test

import (
	"flag"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

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
	batch        = with(tiny, func(s *scope) { s.keys, s.lease = 2, 1 })
	drifting     = with(tiny, func(s *scope) { s.slow, s.slack, s.drift = 1, 1, 200 })
	starter      = with(tiny, func(s *scope) { s.starter = true })
	stalePolls   = with(tiny, func(s *scope) { s.stale = true })
	arbiterLoss  = with(tiny, func(s *scope) { s.loss, s.grace = true, 1 })
	rewind       = with(arbiterLoss, func(s *scope) { s.rewind = true })
	removal      = with(tiny, func(s *scope) { s.remove, s.lease = true, 1 })
	removalTwice = with(removal, func(s *scope) { s.epochs, s.term = 3, 1 })
	leaving      = with(tiny, func(s *scope) { s.leave = true })
	quickTwice   = with(twoSwitches, func(s *scope) { s.lease, s.term = 1, 1 })
	staleTwice   = with(quickTwice, func(s *scope) { s.stale = true })
	lateOpens    = with(quickTwice, func(s *scope) { s.late = kindsOf(degrade.Open) })
	lateAcks     = with(quickTwice, func(s *scope) { s.late = kindsOf(degrade.Ack, degrade.Refresh) })
	again        = with(tiny, func(s *scope) { s.pending, s.dup = kindsOf(degrade.Refresh, degrade.Ack, degrade.Adopt), 1 })
	lateStarts   = with(tiny, func(s *scope) { s.late, s.toRedis = kindsOf(degrade.Start), true })
)

// size says when a scope is searched.
type size int

const (
	small  size = iota // always
	full               // without -race and -short
	larger             // with -degrade.large
)

// wanted tells whether this run has the time for it. A run names what it leaves
// out, see TestWhatIsSearched.
func (z size) wanted() bool {
	switch z {
	case larger:
		return *large
	case full:
		return !raceOn && !testing.Short()
	}
	return true
}

// scopes are searched to the end.
var scopes = []struct {
	name  string
	size  size
	scope scope
}{
	{"tiny", small, tiny},

	{"two grants", full, twoGrants},
	{"starter", full, starter},
	{"two quick switches", full, quickTwice},
	{"slow replies", full, slowReplies},
	{"replies that come again", full, again},
	{"late calls", full, lateCalls},
	{"late acks", full, lateAcks},
	{"late opens", full, lateOpens},
	{"late starts", full, lateStarts},
	{"failover", full, failover},
	{"three processes", full, three},
	{"long permit", full, longPermit},
	{"batch", full, batch},
	{"drifting clocks", full, drifting},
	{"stale polls", full, stalePolls},
	{"arbiter rewind", full, rewind},
	{"removal", full, removal},
	{"leaving", full, leaving},

	{"two switches", larger, twoSwitches},
	{"stale polls, two switches", larger, staleTwice},
	{"late acks, longer leases", larger, with(twoSwitches, func(s *scope) { s.late = lateAcks.late })},
	{"late calls and a failover", larger, with(lateCalls, func(s *scope) { s.toRedis, s.failover = true, true })},
	{"late calls, slow replies", larger, with(lateCalls, func(s *scope) { s.pending, s.slowGrant = everyReply, true })},
	{"late calls, long permit", larger, with(lateCalls, func(s *scope) { s.term = 4 })},
	{"three processes, two grants", larger, with(three, func(s *scope) { s.grants = 2 })},
	{"arbiter loss", larger, arbiterLoss},
	{"removal, longer leases", larger, with(removal, func(s *scope) { s.lease = 2 })},
	{"removal, two switches", larger, removalTwice},
	{"drifting clocks, two switches", larger, with(drifting, func(s *scope) { s.epochs = 3 })},
}

func TestExclusion(t *testing.T) {
	for _, c := range scopes {
		if !c.size.wanted() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			start := cpu()
			q := search{scope: c.scope}
			q.run()
			if q.found != "" {
				t.Fatalf("%s, after %d states:\n%s", q.found, q.states, lines(q.trace))
			}
			if q.opens == 0 {
				t.Fatal("the search saw no switch")
			}
			t.Logf("%d states, %d steps deep, %.1f s", q.states, q.depth, (cpu() - start).Seconds())
		})
	}
}

// Every run searches something, and names what it leaves out.
func TestWhatIsSearched(t *testing.T) {
	var made, left []string
	for _, c := range scopes {
		if c.size.wanted() {
			made = append(made, c.name)
		} else {
			left = append(left, c.name)
		}
	}
	if len(made) == 0 {
		t.Error("nothing is searched")
	}
	t.Logf("searched: %s", strings.Join(made, ", "))
	t.Logf("left to a run without -race and -short, or with -degrade.large: %s", strings.Join(left, ", "))
}

// Every field of a machine and of a hold is in Canon or cannot matter for
// exclusion. A new one has to be put on one of the two sides, here and there.
func TestCanonIsComplete(t *testing.T) {
	known := strings.Fields(`
		Machine: mode permit permitEpoch openAt clear ackSent acked holds peers joined closing stray
		never changed: cfg rules
		policy only: watch policy events
		hold: until exclusive place adopted newUntil
		the same for all in a search: lease
		what is freed, not who holds: touched
		policy only: sending tried`)
	machine := reflect.TypeFor[degrade.Machine]()
	holds, _ := machine.FieldByName("holds")
	for _, typ := range []reflect.Type{machine, holds.Type.Elem()} {
		for i := range typ.NumField() {
			if name := typ.Field(i).Name; !slices.Contains(known, name) {
				t.Errorf("the field %s of %s is new: is it in Canon?", name, typ.Name())
			}
		}
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
