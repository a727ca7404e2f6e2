//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/bench/internal/report"
)

// run measures and writes the report. It reports whether exclusion was broken.
func (p plan) run(t testing.TB, w io.Writer) (broken bool, err error) {
	about := surroundings()
	fmt.Fprintf(w, "# Benchmark\n\n%s. Rounds: %d of %v, seed %d", about, p.rounds, p.duration, p.seed)
	if p.flushDelay > 0 {
		fmt.Fprintf(w, ", MaxFlushDelay %v", p.flushDelay)
	}
	fmt.Fprintf(w, ".\n")
	rng := rand.New(rand.NewPCG(p.seed, 0))
	var all report.Results
	var servers []string
	for _, store := range p.stores {
		// Each server is started when it is its turn, so that it does not
		// disturb the one before, which has nothing to do any more.
		server := load.Redis
		if store == contest.MySQL {
			server = func(t testing.TB) load.Server { return load.MySQL(t, p.flushLog) }
		}
		srv := server(t)
		servers = append(servers, srv.About())
		fmt.Fprintf(w, "\n# %s\n\n%s on the same machine over loopback.\n\n", store, srv.About())
		for _, c := range p.contestants[store] {
			fmt.Fprintf(w, "- **%s**: %s\n", c.Name, c.About)
		}
		for _, workload := range p.workloads {
			some, err := p.measure(t, srv, workload, rng)
			if err != nil {
				return false, err
			}
			all = append(all, some...)
			all.Workload(w, store, workload, p.contestants[store])
		}
	}
	all.Targets(w)
	fmt.Fprintf(w, "\nLoad of the machine at the end: %s.\n", loadAverage())
	broken = all.Broken(w)
	if p.json == "" {
		return broken, nil
	}
	text, err := json.MarshalIndent(struct {
		Surroundings string
		Servers      []string
		At           time.Time
		Seed         uint64
		Duration     time.Duration
		Results      report.Results
	}{about, servers, time.Now(), p.seed, p.duration, all}, "", "\t")
	if err != nil {
		return broken, err
	}
	return broken, os.WriteFile(p.json, append(text, '\n'), 0o644)
}

// measure runs the rounds of one workload.
func (p plan) measure(t testing.TB, srv load.Server, workload load.Workload, rng *rand.Rand) (report.Results, error) {
	env := load.Env{
		T: t, Server: srv, Duration: p.duration, WarmUp: p.duration / 4,
		Settings: contest.Settings{Addr: srv.Addr(), TTL: ttl, Poll: p.poll, FlushDelay: p.flushDelay, Pool: p.pool},
		Held:     p.held, HeldTTL: p.heldTTL, HeldFor: p.heldFor,
	}
	if env.HeldFor == 0 {
		// Two renewals of each; and on MySQL long enough for what each process
		// does from time to time.
		env.HeldFor = env.HeldTTL * 2 / 3
		if srv.Store() == contest.MySQL {
			env.HeldFor = env.HeldTTL * 5
		}
	}
	rounds := p.rounds
	contestants := slices.Clone(p.contestants[srv.Store()])
	if workload.Holding {
		rounds = min(rounds, p.heldRounds)
		contestants = slices.DeleteFunc(contestants, func(c contest.Contestant) bool { return c.Endless })
	}
	var all report.Results
	for round := range rounds {
		progress("%s %s, round %d of %d", srv.Store(), workload.Name, round+1, rounds)
		for _, i := range rng.Perm(len(contestants)) {
			r, err := load.Run(workload, env, contestants[i], round)
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// surroundings says what the figures depend on.
func surroundings() string {
	return fmt.Sprintf("%s %s/%s, %d CPUs, GOMAXPROCS %d, load of the machine at the start: %s",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0), loadAverage())
}

// loadAverage is the kernel's, where it tells: what else runs is in every
// figure.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
