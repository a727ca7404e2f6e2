package load

import (
	"fmt"
	"runtime"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
	"github.com/tierlock/tierlock/internal/rig"
)

// Result is one contestant under one workload in one round.
type Result struct {
	Workload   string
	Contestant string
	Round      int

	Pairs     int           // locked and unlocked; refused in the workload of refusals
	Elapsed   time.Duration // from the first call to the last answer
	PerSecond float64

	AcquireP50, AcquireP99, AcquireMax time.Duration
	PairP50, PairP99, PairMax          time.Duration

	// Of the measured time, per pair.
	Allocs, Bytes float64
	Commands      float64 // of Redis, those inside scripts included
	ServerCPU     time.Duration
	ScriptTime    time.Duration
	ClientCPU     time.Duration

	Errors     int
	FirstError string
}

// Env is where runs take place.
type Env struct {
	Server   *rig.RedisServer
	Settings contest.Settings
	Duration time.Duration
	WarmUp   time.Duration
}

// Workload is one load.
type Workload struct {
	Name  string
	About string
	Run   func(Env, contest.Contestant) (Result, error)
}

// Run puts one contestant under the workload, on an empty server.
func Run(w Workload, env Env, c contest.Contestant, round int) (Result, error) {
	env.Server.Do("FLUSHALL")
	r, err := w.Run(env, c)
	if err != nil {
		return r, fmt.Errorf("%s under %s: %w", c.Name, w.Name, err)
	}
	r.Workload, r.Contestant, r.Round = w.Name, c.Name, round
	return r, nil
}

// server reads the server's counters.
func (e Env) server() (measure.Server, error) {
	return measure.ParseServer(e.Server.Text("INFO", "commandstats") + e.Server.Text("INFO", "cpu"))
}

// measured runs f and puts what it cost into a result.
func (e Env) measured(f func() (tally, error)) (Result, error) {
	runtime.GC() // what the last contestant left is not this one's to collect
	server, err := e.server()
	if err != nil {
		return Result{}, err
	}
	client := measure.ReadClient()
	t, err := f()
	if err != nil {
		return Result{}, err
	}
	used := measure.ReadClient().Sub(client)
	after, err := e.server()
	if err != nil {
		return Result{}, err
	}
	served := after.Sub(server)
	n := len(t.Pair)
	r := Result{
		Pairs: n, Elapsed: t.Elapsed, PerSecond: float64(n) / t.Elapsed.Seconds(),
		AcquireP50: t.Acquire.Quantile(0.5), AcquireP99: t.Acquire.Quantile(0.99), AcquireMax: t.Acquire.Quantile(1),
		PairP50: t.Pair.Quantile(0.5), PairP99: t.Pair.Quantile(0.99), PairMax: t.Pair.Quantile(1),
		Errors: t.Errors, FirstError: t.FirstError,
	}
	if n > 0 {
		each := func(d time.Duration) time.Duration { return d / time.Duration(n) }
		r.Allocs, r.Bytes = float64(used.Allocs)/float64(n), float64(used.Bytes)/float64(n)
		r.Commands = float64(served.Total()) / float64(n)
		r.ServerCPU, r.ScriptTime, r.ClientCPU = each(served.CPU), each(served.Scripts), each(used.CPU)
	}
	return r, nil
}
