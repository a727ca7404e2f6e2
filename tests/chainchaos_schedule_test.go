package tests_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// Deeds besides those of TestChaos. Where a step of a chain names a proxy it is
// that of a process and a store, chainLink; and the servers' names tell the store.
const (
	killProcess deed = "kill process" // SIGKILL; another one starts
	pauseMySQL  deed = "pause MySQL"
	resumeMySQL deed = "resume MySQL"
	crashMySQL  deed = "crash MySQL"
	closeMySQL  deed = "close MySQL"
	startMySQL  deed = "start MySQL"
	// failOverMySQL: the primary is no more, its replica takes its place. Once at most.
	failOverMySQL deed = "fail over MySQL"
)

// chainProcesses is how many workers there are, each with a proxy to each store.
const chainProcesses = 3

// chainLink is the number of the proxy of a process to a store: 0 Redis, 1 MySQL.
func chainLink(process, store int) int { return 2*process + store }

// chainSchedule is what a seed stands for, as scheduleOf is.
func chainSchedule(seed uint64, lasting time.Duration) []step {
	var steps []step
	line := func(n int, f func(r *rand.Rand) []step) {
		steps = append(steps, f(rand.New(rand.NewPCG(seed, uint64(n))))...)
	}
	for i := range 2 * chainProcesses {
		line(i, func(r *rand.Rand) []step { return chainLinkLine(r, i, lasting) })
	}
	line(100, func(r *rand.Rand) []step { return chainRedisLine(r, lasting) })
	line(200, func(r *rand.Rand) []step { return chainMySQLLine(r, lasting) })
	line(300, func(r *rand.Rand) []step { return chainProcessLine(r, lasting) })
	if seed/4%2 == 1 {
		line(400, func(r *rand.Rand) []step {
			return []step{{At: span(r, 15*time.Second, 40*time.Second), What: failOverMySQL}}
		})
	}
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.At >= lasting })
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// chainLinkLine: a process is cut off from one store for a moment, or for longer than
// a lease; its answers are late; its connections are cut.
func chainLinkLine(r *rand.Rand, proxy int, lasting time.Duration) (steps []step) {
	do := func(what deed, at time.Duration, d rig.Direction, f rig.Fault) {
		steps = append(steps, step{At: at, What: what, Where: proxy, Dir: d, Fault: f})
	}
	for t := span(r, time.Second, 6*time.Second); t < lasting; t += span(r, 2*time.Second, 9*time.Second) {
		d := rig.Direction(r.IntN(2))
		length := span(r, 50*time.Millisecond, time.Second)
		if r.IntN(3) == 0 {
			length = span(r, 2*time.Second, 8*time.Second)
		}
		switch r.IntN(7) {
		case 0:
			do(cut, t, 0, rig.Fault{})
		case 1:
			do(reset, t, d, rig.Fault{})
		case 2, 3:
			do(refuse, t, 0, rig.Fault{})
			do(cut, t, 0, rig.Fault{})
			t += length
			do(accept, t, 0, rig.Fault{})
		default:
			both := r.IntN(2) == 0
			do(setFault, t, d, randomFault(r))
			if both {
				do(setFault, t, 1-d, randomFault(r))
			}
			t += length
			do(setFault, t, d, rig.Fault{})
			do(setFault, t, 1-d, rig.Fault{})
		}
	}
	return steps
}

// chainRedisLine: Redis is gone, for a moment and for long, or flaps. It comes back
// empty. A short schedule has one outage that is long enough for a switch, and time
// for the return.
func chainRedisLine(r *rand.Rand, lasting time.Duration) (steps []step) {
	n := 0
	for t := span(r, time.Second, 2*time.Second); t < lasting; t += span(r, 3*time.Second, 8*time.Second) {
		do := func(what deed) { steps = append(steps, step{At: t, What: what}) }
		length := span(r, 100*time.Millisecond, time.Second)
		if n == 0 || r.IntN(2) == 0 {
			length = span(r, 2*time.Second, 5*time.Second)
		}
		switch k := r.IntN(10); {
		case n > 0 && k < 3:
			do(pauseServer)
			t += length
			do(resumeServer)
		case n > 0 && k < 5:
			for range 2 + r.IntN(4) {
				do(crashServer)
				t += span(r, 50*time.Millisecond, 700*time.Millisecond)
				do(startServer)
				t += span(r, 100*time.Millisecond, 900*time.Millisecond)
			}
		default:
			do(crashServer)
			t += length
			do(startServer)
		}
		n++
	}
	return steps
}

// chainMySQLLine: the arbiter is silent, for less than a permit and for more, or
// starts again.
func chainMySQLLine(r *rand.Rand, lasting time.Duration) (steps []step) {
	for t := span(r, 5*time.Second, 9*time.Second); t < lasting; t += span(r, 5*time.Second, 15*time.Second) {
		do := func(what deed) { steps = append(steps, step{At: t, What: what}) }
		length := span(r, 100*time.Millisecond, 2*time.Second)
		if r.IntN(4) == 0 {
			length += switchTimes.Permit
		}
		switch r.IntN(3) {
		case 0:
			do(pauseMySQL)
			t += length
			do(resumeMySQL)
		case 1:
			do(crashMySQL)
			t += length / 2
			do(startMySQL)
		default:
			do(closeMySQL)
			t += length / 2
			do(startMySQL)
		}
	}
	return steps
}

// chainProcessLine: a process is stopped, for less than a permit and for more, or
// killed.
func chainProcessLine(r *rand.Rand, lasting time.Duration) (steps []step) {
	for t := span(r, 2*time.Second, 4*time.Second); t < lasting; t += span(r, 2*time.Second, 8*time.Second) {
		p := r.IntN(chainProcesses)
		do := func(what deed) { steps = append(steps, step{At: t, What: what, Where: p}) }
		if r.IntN(3) == 0 {
			do(killProcess)
			continue
		}
		do(stopProcess)
		t += span(r, 500*time.Millisecond, switchTimes.Permit*3/2)
		do(goOn)
	}
	return steps
}

// chainStep tells what a step of such a schedule is.
func chainStep(s step) string {
	at := s.At.Round(time.Millisecond)
	switch s.What {
	case setFault, finish, reset, cut, refuse, accept:
		return fmt.Sprintf("%v process %d to %s: %s", at, s.Where/2, []string{"Redis", "MySQL"}[s.Where%2], s)
	case killProcess:
		return fmt.Sprintf("%v %s %d", at, s.What, s.Where)
	}
	return s.String()
}

func TestChainChaosSchedule(t *testing.T) {
	const short, long = 10 * time.Second, time.Minute
	seen := map[deed]int{}
	for seed := range uint64(20) {
		a := chainSchedule(seed, long)
		if !slices.Equal(a, chainSchedule(seed, long)) {
			t.Fatalf("seed %d gives two schedules", seed)
		}
		prefix := chainSchedule(seed, short)
		if !slices.Equal(prefix, a[:len(prefix)]) || a[len(prefix)].At < short {
			t.Errorf("seed %d: the short schedule is not the beginning of the long one", seed)
		}
		count := map[deed]int{}
		for _, s := range prefix {
			count[s.What]++
		}
		if count[crashServer] == 0 || count[stopProcess]+count[killProcess] == 0 || len(prefix) < 10 {
			t.Errorf("seed %d does too little in %v: %v", seed, short, count)
		}
		open := map[string]bool{} // no second fault of a kind before the first is over
		for _, s := range a {
			seen[s.What]++
			line, begins := "", false
			switch s.What {
			case pauseServer, crashServer, resumeServer, startServer:
				line, begins = "redis", s.What == pauseServer || s.What == crashServer
			case pauseMySQL, crashMySQL, closeMySQL, resumeMySQL, startMySQL:
				line, begins = "mysql", s.What != resumeMySQL && s.What != startMySQL
			case stopProcess, goOn:
				line, begins = "process", s.What == stopProcess
			case refuse, accept:
				line, begins = fmt.Sprint("proxy", s.Where), s.What == refuse
			case killProcess:
				if open["process"] {
					t.Errorf("seed %d: %v while one is stopped", seed, chainStep(s))
				}
				continue
			default:
				continue
			}
			if open[line] == begins {
				t.Errorf("seed %d: %v at the wrong time", seed, chainStep(s))
			}
			open[line] = begins
		}
	}
	if n := seen[failOverMySQL]; n < 5 || n > 15 {
		t.Errorf("MySQL fails over in %d of 20 schedules", n)
	}
	for _, what := range []deed{setFault, reset, cut, refuse, accept, stopProcess, goOn, killProcess, pauseServer, resumeServer,
		crashServer, startServer, pauseMySQL, resumeMySQL, crashMySQL, closeMySQL, startMySQL} {
		if seen[what] < 10 {
			t.Errorf("%q comes %d times in 20 minutes", what, seen[what])
		}
	}
}
