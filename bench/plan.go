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
	stores      []string
	contestants map[string][]contest.Contestant // by store
	workloads   []load.Workload
	rounds      int
	duration    time.Duration
	held        int
	heldRounds  int
	heldTTL     time.Duration
	heldFor     time.Duration
	pool        int
	flushLog    int
	flushDelay  time.Duration
	poll        time.Duration
	seed        uint64
	json        string
}

// parse reads the command line.
func parse(args []string) (plan, error) {
	var p plan
	var stores, names, workloads, levels string
	var quick bool
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.StringVar(&stores, "stores", strings.Join(contest.Stores, ","), "what the locks are kept in")
	f.IntVar(&p.rounds, "rounds", 5, "rounds; each runs every contestant once")
	f.DurationVar(&p.duration, "duration", time.Second, "measured time of one run, after a warm-up of a quarter of it")
	f.StringVar(&workloads, "workloads", "distinct,contended,processes,held,refused", "what to run")
	f.StringVar(&levels, "levels", "1,64,512", "numbers of goroutines of the workload distinct")
	f.StringVar(&names, "contestants", "", "who takes part, names with commas between them; empty for all: "+allNames())
	f.IntVar(&p.held, "held", 20000, "locks of the workload held")
	f.IntVar(&p.heldRounds, "held-rounds", 2, "rounds of the workload held at most, since each takes long")
	f.DurationVar(&p.heldTTL, "held-ttl", 6*time.Second, "their lease")
	f.DurationVar(&p.heldFor, "held-for", 0, "how long they are measured; 0 is two thirds of the lease on Redis, and five leases on MySQL")
	f.IntVar(&p.pool, "pool", 64, "connections of every contestant over MySQL")
	f.IntVar(&p.flushLog, "flush-log", 1, "innodb_flush_log_at_trx_commit: 1, the default of servers, waits for the disk with each commit; 2 or 0 do not")
	f.DurationVar(&p.flushDelay, "flush-delay", 0, "MaxFlushDelay of every contestant over rueidis")
	f.DurationVar(&p.poll, "poll", 0, "pause of every contestant whose waiters poll, instead of its own default")
	f.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "of the order of contestants in each round")
	f.StringVar(&p.json, "json", "", "file to write all results to")
	f.BoolVar(&quick, "quick", false, "below two minutes: sets rounds, duration, held, held-rounds, held-ttl and held-for where they are not given")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if quick {
		given := make(map[string]bool)
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"rounds": "1", "duration": "300ms", "held": "2000", "held-rounds": "1", "held-ttl": "3s", "held-for": "2s"} {
			if given[name] {
				continue
			}
			if err := f.Set(name, value); err != nil {
				return p, err
			}
		}
	}
	if p.rounds < 1 || p.heldRounds < 1 || p.duration <= 0 || p.held < 1 || p.heldTTL < time.Second || p.heldFor < 0 || p.pool < 1 ||
		p.flushLog < 0 || p.flushLog > 2 || p.flushDelay < 0 || p.poll < 0 {
		return p, fmt.Errorf("rounds, held-rounds, duration, held and pool have to be positive, held-ttl at least 1s, flush-log 0, 1 or 2, held-for, flush-delay and poll not negative")
	}
	var err error
	if err = p.choose(strings.Split(stores, ","), names); err != nil {
		return p, err
	}
	p.workloads, err = pick(workloads, levels)
	return p, err
}

// choose sets stores and contestants. A name has to be known over one of the
// stores, and a store where none is takes no part.
func (p *plan) choose(stores []string, names string) error {
	p.contestants = make(map[string][]contest.Contestant)
	unknown := make(map[string]bool)
	if names != "" {
		for _, name := range strings.Split(names, ",") {
			unknown[name] = true
		}
	}
	for _, store := range contest.Stores { // in their order
		i := slices.Index(stores, store)
		if i < 0 {
			continue
		}
		stores = slices.Delete(stores, i, i+1)
		var some []contest.Contestant
		for _, c := range contest.All(store) {
			if _, named := unknown[c.Name]; names == "" || named {
				some = append(some, c)
				unknown[c.Name] = false
			}
		}
		if some != nil {
			p.stores = append(p.stores, store)
			p.contestants[store] = some
		}
	}
	if len(stores) > 0 {
		return fmt.Errorf("no store %q", stores[0])
	}
	for name, is := range unknown {
		if is {
			return fmt.Errorf("no contestant %q", name)
		}
	}
	return nil
}

func allNames() string {
	var all []string
	for _, store := range contest.Stores {
		var names []string
		for _, c := range contest.All(store) {
			names = append(names, c.Name)
		}
		all = append(all, strings.Join(names, ",")+" over "+store)
	}
	return strings.Join(all, "; ")
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
