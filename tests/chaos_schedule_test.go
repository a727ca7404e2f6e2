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

// A step is one thing that is done to the system under chaos.
type step struct {
	At    time.Duration // since the start
	What  deed
	Where int           // number of the proxy or process
	Dir   rig.Direction // of set, finish, reset
	Fault rig.Fault     // of set; the zero Fault ends one
}

type deed string

const (
	setFault deed = "set"
	finish   deed = "finish" // a FIN to one side
	reset    deed = "reset"  // a RST to one side, the other is half-open
	cut      deed = "cut"    // a RST to both
	refuse   deed = "refuse" // new connections, until accept
	accept   deed = "accept"

	stopProcess deed = "stop process" // SIGSTOP, until go on
	goOn        deed = "go on"

	pauseServer  deed = "pause server" // SIGSTOP, until resume
	resumeServer deed = "resume server"
	crashServer  deed = "crash server" // SIGKILL, until start
	closeServer  deed = "close server" // SIGTERM, until start
	startServer  deed = "start server"
)

func (s step) String() string {
	at := s.At.Round(time.Millisecond)
	switch s.What {
	case setFault:
		return fmt.Sprintf("%v proxy %d %s: %v", at, s.Where, s.Dir, s.Fault)
	case finish, reset:
		return fmt.Sprintf("%v proxy %d %s: %s", at, s.Where, s.Dir, s.What)
	case cut, refuse, accept:
		return fmt.Sprintf("%v proxy %d: %s", at, s.Where, s.What)
	case stopProcess, goOn:
		return fmt.Sprintf("%v %s %d", at, s.What, s.Where)
	}
	return fmt.Sprintf("%v %s", at, s.What)
}

// chaosProcesses is how many processes there are, each with a proxy of its own.
const chaosProcesses = 2

// scheduleOf is what a seed stands for. It depends on nothing else, and a longer
// schedule begins with the shorter one; so a fault once found can be looked for
// again, although how it meets the processes' work is left to chance.
//
// Each proxy, the processes and the server have a line of time of their own, so
// that faults meet in all combinations. A fault that outlasts the schedule has
// no end in it.
func scheduleOf(seed uint64, lasting time.Duration) []step {
	var steps []step
	for i := range chaosProcesses {
		steps = append(steps, proxyLine(rand.New(rand.NewPCG(seed, uint64(i))), i, lasting)...)
	}
	steps = append(steps, processLine(rand.New(rand.NewPCG(seed, 100)), lasting)...)
	steps = append(steps, serverLine(rand.New(rand.NewPCG(seed, 200)), lasting)...)
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.At >= lasting })
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// span is a random time of at least from and less than to.
func span(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

func proxyLine(r *rand.Rand, proxy int, lasting time.Duration) (steps []step) {
	for t := span(r, 200*time.Millisecond, time.Second); t < lasting; t += span(r, 100*time.Millisecond, 2*time.Second) {
		d := rig.Direction(r.IntN(2))
		length := span(r, 20*time.Millisecond, 600*time.Millisecond)
		if r.IntN(4) == 0 { // longer than the leases
			length = span(r, time.Second, 4*time.Second)
		}
		do := func(what deed, at time.Duration, d rig.Direction, f rig.Fault) {
			steps = append(steps, step{At: at, What: what, Where: proxy, Dir: d, Fault: f})
		}
		switch k := r.IntN(12); k {
		case 0, 1:
			do(finish, t, d, rig.Fault{})
		case 2, 3:
			do(reset, t, d, rig.Fault{})
		case 4:
			do(cut, t, 0, rig.Fault{})
		case 5:
			do(refuse, t, 0, rig.Fault{})
			if r.IntN(2) == 0 {
				do(cut, t, 0, rig.Fault{})
			}
			t += length
			do(accept, t, 0, rig.Fault{})
		default:
			// One direction or both; where both, each in its own way.
			both := r.IntN(2) == 0
			first, second := randomFault(r), randomFault(r)
			do(setFault, t, d, first)
			if both {
				do(setFault, t, 1-d, second)
			}
			if r.IntN(3) == 0 { // another fault on top, and the end of this one is its end
				t += length / 2
				do(setFault, t, d, randomFault(r))
			}
			t += length
			do(setFault, t, d, rig.Fault{})
			if both {
				do(setFault, t, 1-d, rig.Fault{})
			}
		}
	}
	return steps
}

func randomFault(r *rand.Rand) rig.Fault {
	f := rig.Fault{}
	switch r.IntN(6) {
	case 0, 1:
		f.Flow = rig.Hold
	case 2, 3:
		f.Flow = rig.Drop
	}
	if f.Flow == rig.Forward || r.IntN(2) == 0 {
		switch r.IntN(3) {
		case 0:
			f.Delay = span(r, time.Millisecond, 400*time.Millisecond)
		case 1:
			f.Rate = 300 << r.IntN(8)
		default:
			f.Delay, f.Rate = span(r, time.Millisecond, 100*time.Millisecond), 1000<<r.IntN(6)
		}
	}
	return f
}

func processLine(r *rand.Rand, lasting time.Duration) (steps []step) {
	for t := span(r, 1500*time.Millisecond, 3500*time.Millisecond); t < lasting; t += span(r, 2*time.Second, 6*time.Second) {
		p := r.IntN(chaosProcesses)
		steps = append(steps, step{At: t, What: stopProcess, Where: p})
		t += span(r, longestTTL*6/10, longestTTL*15/10) // of the shortest TTL always more than one
		steps = append(steps, step{At: t, What: goOn, Where: p})
	}
	return steps
}

func serverLine(r *rand.Rand, lasting time.Duration) (steps []step) {
	n := 0
	for t := span(r, 1500*time.Millisecond, 3*time.Second); t < lasting; t += span(r, 2*time.Second, 4*time.Second) {
		// First a pause and a crash, so that a short schedule has both.
		k := r.IntN(10)
		length := span(r, 50*time.Millisecond, 2*time.Second)
		switch {
		case n == 0 || n > 1 && k < 5:
			if n > 0 && r.IntN(2) == 0 {
				length += longestTTL
			}
			steps = append(steps, step{At: t, What: pauseServer})
			t += length
			steps = append(steps, step{At: t, What: resumeServer})
		case n == 1 || k < 8:
			steps = append(steps, step{At: t, What: crashServer})
			t += length / 2
			steps = append(steps, step{At: t, What: startServer})
		default:
			steps = append(steps, step{At: t, What: closeServer})
			t += length / 2
			steps = append(steps, step{At: t, What: startServer})
		}
		n++
	}
	return steps
}

func TestChaosSchedule(t *testing.T) {
	const short, long = 10 * time.Second, time.Minute
	seen := map[deed]int{}
	flows := map[rig.Flow]int{}
	for seed := range uint64(20) {
		a, b := scheduleOf(seed, long), scheduleOf(seed, long)
		if !slices.Equal(a, b) {
			t.Fatalf("seed %d gives two schedules", seed)
		}
		if slices.Equal(a, scheduleOf(seed+1, long)) {
			t.Errorf("seeds %d and %d give one schedule", seed, seed+1)
		}
		prefix := scheduleOf(seed, short)
		if !slices.Equal(prefix, a[:len(prefix)]) || a[len(prefix)].At < short {
			t.Errorf("seed %d: the short schedule is not the beginning of the long one", seed)
		}
		count := map[deed]int{}
		for i, s := range prefix {
			count[s.What]++
			if i > 0 && s.At < prefix[i-1].At {
				t.Errorf("seed %d: %v after %v", seed, s, prefix[i-1])
			}
		}
		if count[stopProcess] == 0 || count[pauseServer] == 0 || count[crashServer] == 0 || count[setFault] < 2 {
			t.Errorf("seed %d does too little in %v: %v", seed, short, count)
		}
		// No second stop before the first is over, of whatever kind.
		open := map[string]bool{}
		for _, s := range a {
			seen[s.What]++
			if s.What == setFault {
				flows[s.Fault.Flow]++
			}
			line, begins := "server", s.What == pauseServer || s.What == crashServer || s.What == closeServer
			switch s.What {
			case stopProcess, goOn:
				line, begins = "process", s.What == stopProcess
			case refuse, accept:
				line, begins = fmt.Sprint("proxy", s.Where), s.What == refuse
			case setFault, finish, reset, cut:
				continue
			}
			if open[line] == begins {
				t.Errorf("seed %d: %v at the wrong time", seed, s)
			}
			open[line] = begins
		}
	}
	for _, what := range []deed{setFault, finish, reset, cut, refuse, accept, stopProcess, goOn,
		pauseServer, resumeServer, crashServer, closeServer, startServer} {
		if seen[what] < 10 {
			t.Errorf("%q comes %d times in 20 minutes", what, seen[what])
		}
	}
	for _, f := range []rig.Flow{rig.Forward, rig.Hold, rig.Drop} {
		if flows[f] < 100 {
			t.Errorf("flow %v comes %d times in 20 minutes", f, flows[f])
		}
	}
}
