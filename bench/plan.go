//go:build unix

package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
)

// ttl is the lease of all locks but the many that are held.
const ttl = 10 * time.Second

// plan is what one call of the program is to do.
type plan struct {
	contestants []contest.Contestant
	workloads   []load.Workload
	rounds      int
	duration    time.Duration
	held        int
	heldTTL     time.Duration
	flushDelay  time.Duration
	poll        time.Duration
	seed        uint64
	json        string
}

// parse reads the command line.
func parse(args []string) (plan, error) {
	var p plan
	var names, workloads, levels string
	var quick bool
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.IntVar(&p.rounds, "rounds", 5, "rounds; each runs every contestant once")
	f.DurationVar(&p.duration, "duration", time.Second, "measured time of one run, after a warm-up of a quarter of it")
	f.StringVar(&workloads, "workloads", "distinct,contended,processes,held,refused", "what to run")
	f.StringVar(&levels, "levels", "1,64,512", "numbers of goroutines of the workload distinct")
	f.StringVar(&names, "contestants", "", "who takes part, names with commas between them; empty for all of "+strings.Join(allNames(), ","))
	f.IntVar(&p.held, "held", 20000, "locks of the workload held")
	f.DurationVar(&p.heldTTL, "held-ttl", 6*time.Second, "their lease; they are measured for two thirds of it")
	f.DurationVar(&p.flushDelay, "flush-delay", 0, "MaxFlushDelay of every contestant over rueidis")
	f.DurationVar(&p.poll, "poll", 0, "pause of every contestant whose waiters poll, instead of its own default")
	f.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "of the order of contestants in each round")
	f.StringVar(&p.json, "json", "", "file to write all results to")
	f.BoolVar(&quick, "quick", false, "about a minute: sets rounds, duration, held and held-ttl where they are not given")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if quick {
		given := make(map[string]bool)
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"rounds": "2", "duration": "300ms", "held": "5000", "held-ttl": "3s"} {
			if given[name] {
				continue
			}
			if err := f.Set(name, value); err != nil {
				return p, err
			}
		}
	}
	if p.rounds < 1 || p.duration <= 0 || p.held < 1 || p.heldTTL < time.Second || p.flushDelay < 0 || p.poll < 0 {
		return p, fmt.Errorf("rounds, duration and held have to be positive, held-ttl at least 1s, flush-delay and poll not negative")
	}
	var err error
	if p.contestants, err = contest.Named(names); err != nil {
		return p, err
	}
	p.workloads, err = pick(workloads, levels)
	return p, err
}

func allNames() []string {
	var names []string
	for _, c := range contest.All() {
		names = append(names, c.Name)
	}
	return names
}

// pick makes the workloads of the names given.
func pick(names, levels string) ([]load.Workload, error) {
	var all []load.Workload
	wanted := strings.Split(names, ",")
	for _, kind := range []struct {
		name string
		make func() ([]load.Workload, error)
	}{
		{"distinct", func() ([]load.Workload, error) {
			var all []load.Workload
			for _, text := range strings.Split(levels, ",") {
				n, err := strconv.Atoi(text)
				if err != nil || n < 1 {
					return nil, fmt.Errorf("level %q is no number of goroutines", text)
				}
				all = append(all, load.Distinct(n))
			}
			return all, nil
		}},
		{"contended", func() ([]load.Workload, error) { return []load.Workload{load.Contended(64)}, nil }},
		{"processes", func() ([]load.Workload, error) { return []load.Workload{load.Processes(4, 16)}, nil }},
		{"held", func() ([]load.Workload, error) { return []load.Workload{load.Held()}, nil }},
		{"refused", func() ([]load.Workload, error) { return []load.Workload{load.Refused(64)}, nil }},
	} {
		i := slices.Index(wanted, kind.name)
		if i < 0 {
			continue
		}
		wanted = slices.Delete(wanted, i, i+1)
		some, err := kind.make()
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no workload %q", wanted[0])
	}
	return all, nil
}

// progress is for who waits.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
