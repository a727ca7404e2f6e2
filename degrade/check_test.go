package degrade_test

import (
	"flag"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

var large = flag.Bool("degrade.large", false, "search the larger scopes as well, an hour and more")

// tiny is one switch between two processes; other scopes say how they differ.
var tiny = scope{
	procs: 2, keys: 1, epochs: 2, grants: 1, lease: 2, term: 2,
}

var everyReply = kindsOf(degrade.Poll, degrade.Refresh, degrade.Ack, degrade.Adopt, degrade.Start, degrade.Open)

func with(s scope, change func(*scope)) scope {
	change(&s)
	return s
}

// scopes are searched to the end.
var scopes = []struct {
	name  string
	large bool
	scope scope
}{
	{"tiny", false, tiny},
	{"replies late", false, with(tiny, func(s *scope) { s.pending = everyReply; s.slowGrant = true })},
	{"requests late", false, with(tiny, func(s *scope) { s.late = kindsOf(degrade.Adopt, degrade.Ack); s.grants = 2 })},
	{"failover", false, with(tiny, func(s *scope) { s.toRedis = true; s.failover = true })},
	{"two switches", false, with(tiny, func(s *scope) { s.epochs = 3 })},
	{"three processes", false, with(tiny, func(s *scope) { s.procs = 3 })},
}

func TestExclusion(t *testing.T) {
	for _, c := range scopes {
		t.Run(c.name, func(t *testing.T) {
			if c.large && !*large {
				t.Skip("needs -degrade.large")
			}
			start := time.Now()
			q := search{scope: c.scope}
			q.run()
			if q.found != "" {
				t.Fatalf("%s, after %d states:\n%s", q.found, q.states, lines(q.trace))
			}
			if !q.complete || q.opens == 0 {
				t.Fatalf("the search is incomplete or saw no switch: %d states, %d opened", q.states, q.opens)
			}
			t.Logf("%d states, %d steps deep, %.1f s", q.states, q.depth, time.Since(start).Seconds())
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
