//go:build unix

// Package load has the workloads, and runs one contestant under one of them.
package load

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
)

// Env is where runs take place, and how long.
type Env struct {
	T        testing.TB
	Server   Server
	Settings contest.Settings
	// Duration is the measured time of a run, WarmUp the time before it.
	Duration, WarmUp time.Duration
	// Held is how many locks the workload of held locks holds, HeldTTL their
	// lease, and HeldFor how long they are measured.
	Held             int
	HeldTTL, HeldFor time.Duration
}

// Workload is one load.
type Workload struct {
	Name  string
	About string
	// Holding says that results have what a process of held locks costs, and
	// no pairs.
	Holding bool
	run     func(Env, contest.Contestant) (Result, error)
}

// Result is one contestant under one workload in one round.
type Result struct {
	Store      string
	Workload   string
	Contestant string
	Round      int

	// Pairs is how often a lock was taken and given up, or refused in the
	// workload of refusals, and PerSecond how often in the time set for it.
	Pairs     int
	PerSecond float64

	AcquireP50, AcquireP99, AcquireMax time.Duration
	PairP50, PairP99, PairMax          time.Duration

	// Least and Most are the pairs of the goroutines that got the fewest and
	// the most.
	Least, Most int

	// Per pair, of the whole run. Commands are those that the server executed,
	// inside scripts too; of MySQL they are statements.
	Allocs, Bytes                    float64
	Commands                         float64
	ServerCPU, ScriptTime, ClientCPU time.Duration

	// Deadlocks are those that the server found, in the whole run.
	Deadlocks int64
	// Broken is how often two were inside one lock, or a held key was granted.
	Broken int64
	Errors int
	First  string // of the errors

	// Holding is set by the workload of held locks only.
	Holding *Holding `json:",omitempty"`
}

// Run puts one contestant under a workload, on an empty server.
func Run(w Workload, env Env, c contest.Contestant, round int) (Result, error) {
	if err := env.Server.Empty(); err != nil {
		return Result{}, fmt.Errorf("%s, %s: %w", w.Name, c.Name, err)
	}
	r, err := w.run(env, c)
	if err != nil {
		return r, fmt.Errorf("%s, %s: %w", w.Name, c.Name, err)
	}
	r.Store, r.Workload, r.Contestant, r.Round = env.Server.Store(), w.Name, c.Name, round
	return r, nil
}

func (e Env) guardFile() string { return filepath.Join(e.Server.Dir(), "guard") }

// inProcess warms a drive up, measures it, and closes what it drives.
func (e Env) inProcess(d drive) (Result, error) {
	defer d.locker.Close()
	warm, err := d.run(e.WarmUp)
	if err != nil {
		return Result{}, err
	}
	runtime.GC() // what came before is not this contestant's to collect
	served, err := e.Server.Served()
	if err != nil {
		return Result{}, err
	}
	used := measure.ReadClient()
	t, err := d.run(e.Duration)
	if err != nil {
		return Result{}, err
	}
	used = measure.ReadClient().Sub(used)
	t.Broken += warm.Broken
	return e.result(t, used, served)
}

// result is that of a drive that has just ended; served is what the server's
// counters were before it.
func (e Env) result(t tally, used measure.Client, served measure.Server) (Result, error) {
	now, err := e.Server.Served()
	if err != nil {
		return Result{}, err
	}
	served = now.Sub(served)
	r := Result{
		Pairs: len(t.Pair), PerSecond: float64(t.InTime) / e.Duration.Seconds(),
		AcquireP50: t.Acquire.Quantile(0.5), AcquireP99: t.Acquire.Quantile(0.99), AcquireMax: t.Acquire.Quantile(1),
		PairP50: t.Pair.Quantile(0.5), PairP99: t.Pair.Quantile(0.99), PairMax: t.Pair.Quantile(1),
		Least: slices.Min(t.Each), Most: slices.Max(t.Each),
		Deadlocks: served.Deadlocks, Broken: t.Broken, Errors: t.Errors, First: t.First,
	}
	if r.Pairs > 0 {
		n := float64(r.Pairs)
		each := func(d time.Duration) time.Duration { return d / time.Duration(r.Pairs) }
		r.Allocs, r.Bytes = float64(used.Allocs)/n, float64(used.Bytes)/n
		r.Commands = float64(served.Total()) / n
		r.ServerCPU, r.ScriptTime, r.ClientCPU = each(served.CPU), each(served.Scripts), each(used.CPU)
	}
	return r, nil
}
