//go:build unix

// Command bench compares tierlock with other lock libraries, and with the least
// that a lock over Redis can cost, on a redis-server of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/bench/internal/report"
	"github.com/tierlock/tierlock/internal/rig"
)

func main() {
	rounds := flag.Int("rounds", 5, "rounds; each runs every contestant once")
	duration := flag.Duration("duration", time.Second, "measured time of one run")
	names := flag.String("contestants", "", "names with commas between them; empty for all")
	flush := flag.Duration("flush-delay", 0, "MaxFlushDelay of all contestants over rueidis")
	seed := flag.Uint64("seed", 1, "of the order of contestants")
	flag.Parse()
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	err := rig.Program(stop, nil, func(t testing.TB) {
		contestants, err := contest.Named(*names)
		if err != nil {
			t.Fatal(err)
		}
		srv := rig.Redis(t)
		env := load.Env{
			Server: srv, Duration: *duration, WarmUp: *duration / 4,
			Settings: contest.Settings{Addr: srv.Addr, TTL: 10 * time.Second, FlushDelay: *flush},
		}
		rng := rand.New(rand.NewPCG(*seed, 0))
		for _, w := range []load.Workload{load.Distinct(1), load.Distinct(64), load.Distinct(512)} {
			var all report.Results
			for round := range *rounds {
				for _, i := range rng.Perm(len(contestants)) {
					r, err := load.Run(w, env, contestants[i], round)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, r)
				}
			}
			all.Table(os.Stdout, w, contestants)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
