//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/bench/internal/report"
	"github.com/tierlock/tierlock/internal/rig"
)

// run measures and writes the report. It reports whether exclusion was broken.
func (p plan) run(t testing.TB, w io.Writer) (broken bool, err error) {
	srv := rig.Redis(t)
	env := load.Env{
		T: t, Server: srv, Duration: p.duration, WarmUp: p.duration / 4,
		Settings: contest.Settings{Addr: srv.Addr, TTL: ttl, Poll: p.poll, FlushDelay: p.flushDelay},
		Held:     p.held, HeldTTL: p.heldTTL,
	}
	about := surroundings(srv)
	fmt.Fprintf(w, "# Benchmark\n\n%s. Rounds: %d of %v, seed %d", about, p.rounds, p.duration, p.seed)
	if p.flushDelay > 0 {
		fmt.Fprintf(w, ", MaxFlushDelay %v", p.flushDelay)
	}
	fmt.Fprintf(w, ".\n\n")
	for _, c := range p.contestants {
		fmt.Fprintf(w, "- **%s**: %s\n", c.Name, c.About)
	}
	rng := rand.New(rand.NewPCG(p.seed, 0))
	var all report.Results
	for _, workload := range p.workloads {
		rounds := p.rounds
		if workload.Rounds > 0 {
			rounds = min(rounds, workload.Rounds)
		}
		for round := range rounds {
			progress("%s, round %d of %d", workload.Name, round+1, rounds)
			for _, i := range rng.Perm(len(p.contestants)) {
				r, err := load.Run(workload, env, p.contestants[i], round)
				if err != nil {
					return false, err
				}
				all = append(all, r)
			}
		}
		all.Workload(w, workload, p.contestants)
	}
	all.Targets(w)
	fmt.Fprintf(w, "\nLoad of the machine at the end: %s.\n", loadAverage())
	broken = all.Broken(w)
	if p.json == "" {
		return broken, nil
	}
	text, err := json.MarshalIndent(struct {
		Surroundings string
		At           time.Time
		Seed         uint64
		Duration     time.Duration
		Results      report.Results
	}{about, time.Now(), p.seed, p.duration, all}, "", "\t")
	if err != nil {
		return broken, err
	}
	return broken, os.WriteFile(p.json, append(text, '\n'), 0o644)
}

// surroundings says what the figures depend on.
func surroundings(srv *rig.RedisServer) string {
	version := "of unknown version"
	for line := range strings.Lines(srv.Text("INFO", "server")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			version = rest
		}
	}
	return fmt.Sprintf("redis-server %s on the same machine over loopback, %s %s/%s, %d CPUs, GOMAXPROCS %d, load of the machine at the start: %s",
		version, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0), loadAverage())
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
