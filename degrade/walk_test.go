package degrade_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

var walkSeed = flag.Uint64("degrade.walk", 1, "seed of the random walks")

// everything has three processes, two keys and all faults at once: far too large
// to be searched to the end.
var everything = scope{
	procs: 3, keys: 2, epochs: 5, grants: 3, lease: 3, slack: 2, term: 4, drift: 200, slow: 2, grace: 2,
	failover: true, toRedis: true, pending: everyReply, slowGrant: true, dup: 2, stale: true, loss: true, remove: true, leave: true,
	late: everyReply | kindsOf(degrade.Remove, degrade.Takeover, degrade.Leave),
}

// walk goes through a scope at random until something is wrong, for as long as
// asked. It gives the way there, and how many steps it made in all.
func walk(s scope, seed uint64, length int, long time.Duration) (wrong string, trace []string, made, opens int) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	end := cpu() + long
	st := &steps{scope: &s}
	for cpu() < end {
		w := s.world()
		var way []int
		for range length {
			st.all(&w)
			made++
			n := st.pick(rnd)
			if st.violation != "" {
				n = st.wrong
			}
			way = append(way, n)
			if st.violation != "" {
				return st.violation, words(s, way), made, opens
			}
			if m := st.next[n].db.mode; !m.Drain && w.db.mode.Drain {
				opens++
			}
			w = st.next[n]
		}
	}
	return "", nil, made, opens
}

// pick chooses a step: seldom a tick or a fault, else of any process.
func (s *steps) pick(rnd *rand.Rand) int {
	from, to := 0, s.marks[0]
	if x := rnd.IntN(40); x == 0 {
		to = s.marks[1]
	} else if x > 3 {
		i := rnd.IntN(s.procs)
		from, to = s.marks[i+1], len(s.next)
		if i+1 < s.procs {
			to = s.marks[i+2]
		}
	}
	if from == to {
		return 0
	}
	return from + rnd.IntN(to-from)
}

// words tells a walk.
func words(s scope, way []int) (trace []string) {
	st := &steps{scope: &s, tracing: true}
	w := s.world()
	for _, n := range way {
		st.all(&w)
		trace = append(trace, st.names[n])
		w = st.next[n]
	}
	return trace
}

// What is too large to be searched is walked through at random.
func TestRandomWalks(t *testing.T) {
	long := 5 * time.Second
	if raceOn || testing.Short() {
		long = 3 * time.Second
	}
	if *large {
		long = 10 * time.Minute
	}
	wrong, trace, made, opens := walk(everything, *walkSeed, 150, long)
	if wrong != "" {
		t.Fatalf("seed %d: %s, after:\n%s", *walkSeed, wrong, lines(trace))
	}
	if opens < made/1000 {
		t.Fatalf("%d steps saw only %d openings", made, opens)
	}
	t.Logf("%d steps, %d openings", made, opens)
}

// Such walks are able to find something, if much less than a search: rules whose
// absence takes a rare order of events are beyond them.
func TestRandomWalksFind(t *testing.T) {
	for _, c := range []struct {
		name string
		size size
		off  func(*scope)
	}{
		{"grants need no permit", small, func(s *scope) { s.rules.GrantAnyPermit = true }},
		{"a drain is opened at once", full, func(s *scope) { s.rules.OpenAtOnce = true }},
	} {
		if !c.size.wanted() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := everything
			c.off(&s)
			wrong, trace, made, _ := walk(s, *walkSeed, 150, time.Minute)
			if wrong == "" {
				t.Fatalf("nothing was found in %d steps", made)
			}
			t.Logf("after %d steps: %s, in a walk of %d", made, wrong, len(trace))
		})
	}
}
