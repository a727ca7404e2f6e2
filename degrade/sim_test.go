package degrade_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "the one seed for TestSimulation (default: those kept, and some at random)")
	simSeeds = flag.Int("sim.seeds", 3, "how many seeds at random")
	simProcs = flag.Int("sim.procs", 6, "processes in the simulation")
	simFor   = flag.Duration("sim.for", 5*time.Minute, "simulated time with faults")
)

// simKept is where seeds are kept that failed once: see sim.RunSeeds.
const simKept = "testdata/sim-seeds"

// simWorld is one simulation.
type simWorld struct {
	redis   *sim.Redis
	mysql   *sim.MySQL
	swarm   *sim.Swarm
	history *sim.History
	config  degrade.Config
	rules   degrade.Rules
	stalls  float64       // the share of steps before which a process stops
	longest time.Duration // of a hold
	calmed  atomic.Bool   // no more stalls
	keys    int
	kept    atomic.Int64

	mu      sync.Mutex
	procs   []*simProc
	granted map[*simProc]time.Time
	n       int
}

// simOptions is what a simulation may lack: rules of the machine or of the servers.
type simOptions struct {
	rules  degrade.Rules
	broken sim.Broken
	kinds  sim.FaultKinds
	hard   bool // more stops, and longer holds: what finds the most, and is slow
}

// TestSimulation runs whole processes, by their own policy, over simulated servers
// and through mixtures of faults, each by a seed.
func TestSimulation(t *testing.T) {
	repeat := fmt.Sprintf("go test -race -run 'TestSimulation$' ./degrade -sim.procs %d -sim.for %v -sim.seed", *simProcs, *simFor)
	sim.RunSeeds(t, simKept, *simSeed, *simSeeds, repeat, func(t *testing.T, seed uint64) (wrong, before []string) {
		t.Parallel()
		return simulate(t, seed, simOptions{})
	})
}

// simulate runs one seed and says what was wrong.
func simulate(t *testing.T, seed uint64, o simOptions) (wrong, before []string) {
	synctest.Test(t, func(t *testing.T) {
		w := &simWorld{
			redis: sim.NewRedis(sim.Options{Seed: seed, Broken: o.broken}), mysql: sim.NewMySQL(sim.Options{Seed: seed, Broken: o.broken}),
			history: sim.NewHistory(), rules: o.rules, keys: 3, granted: map[*simProc]time.Time{},
			config: degrade.Config{Term: 20 * time.Second, Grace: 20 * time.Second, Refresh: 3 * time.Second,
				Up: 5 * time.Second, Dwell: 20 * time.Second, Probe: 2 * time.Second},
		}
		w.swarm = &sim.Swarm{Redis: w.redis, MySQL: w.mysql, Longest: 60 * time.Second, Kinds: o.kinds, Logf: w.history.Logf,
			Usual: sim.Faults{Delay: 200 * time.Microsecond, Jitter: 2 * time.Millisecond}}
		w.swarm.Start(seed)
		w.stalls = max(0, 0.01*w.swarm.Random()-0.003)
		w.longest = time.Duration((1 + 60*w.swarm.Random()*w.swarm.Random()) * float64(time.Second))
		if o.hard || w.swarm.Random() < 0.25 {
			w.stalls, w.longest = 0.02, 90*time.Second
		}
		for range *simProcs {
			w.join()
		}
		w.faults()
		w.calm()
		w.end()
		wrong, before = w.history.Violations()
		t.Logf("%d beliefs, %d kept to the end, %d modes", w.history.Begun(), w.kept.Load(), len(w.mysql.Modes("sim")))
	})
	return wrong, before
}

// join starts a process.
func (w *simWorld) join() {
	w.mu.Lock()
	w.n++
	n := uint64(w.n)
	w.mu.Unlock()
	p := &simProc{w: w, name: fmt.Sprint("p", n), start: time.Now(), holds: map[degrade.HoldID]tierlock.AdoptRequest{}}
	p.rng = rand.New(rand.NewPCG(uint64(w.swarm.Random()*1e9), n))
	p.ppm = int64(p.rng.IntN(20_001)) - 10_000
	p.redis = w.redis.Client(sim.ClientOptions{Seed: n, Limit: 2 * time.Second})
	p.mysql = w.mysql.Client(sim.ClientOptions{Seed: n, Limit: 2 * time.Second})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.swarm.Join(p.redis, p.mysql)
	c := w.config
	c.Member = fmt.Sprintf("%032x", n)
	p.run = degrade.NewRunnerWith(degrade.RunnerConfig{
		Machine: c, Self: degrade.Self{Namespace: "sim"}, Arbiter: p, Probe: p.probe, Adopt: p.adopt, Now: p.now,
		CallTimeout: simCall,
		OnEvent: func(e degrade.Event) {
			w.history.Logf("%s: event %d %s %s reason %d", p.name, e.Kind, short(e.Mode), e.Hold, e.Reason)
		},
	}, w.rules)
	for range 2 {
		p.work.Go(p.worker)
	}
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
}

// grants notes that a process was granted a lock.
func (w *simWorld) grants(p *simProc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted[p] = time.Now()
}

// faults lets processes come and go while the swarm is about.
func (w *simWorld) faults() {
	for start := time.Now(); time.Since(start) < *simFor; {
		time.Sleep(time.Duration(w.swarm.Random() * float64(2*time.Minute)))
		w.history.Look()
		if w.swarm.Random() < 0.3 {
			i := int(w.swarm.Random() * float64(len(w.procs)))
			p, kill := w.procs[i], w.swarm.Random() < 0.5
			w.procs = append(w.procs[:i:i], w.procs[i+1:]...)
			w.history.Logf("%s ends, killed: %v", p.name, kill)
			p.end(kill)
			w.join()
		}
	}
	w.calmed.Store(true)
	w.swarm.Stop()
}

// calm checks that everybody grants again soon: the longest there may be is a drain
// after a failover of the arbiter, and then one to a Redis that has failed over.
func (w *simWorld) calm() {
	over := time.Now()
	c := w.config
	limit := (c.Term + c.Grace) + c.Term*1010/990 + simTTL + 15*time.Second
	for _, p := range w.procs {
		for {
			if _, ok := p.run.MayGrant(); ok {
				break
			}
			if time.Since(over) > limit {
				w.history.Wrong("%s does not grant %v after the faults: %+v, the mode is %+v", p.name, limit, p.run.State(), w.mysql.Mode("sim"))
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	w.history.Logf("all grant %v after the faults", time.Since(over))
	// Those who were still stopped go on by then, and everybody gets locks.
	time.Sleep(100 * time.Second)
	from := time.Now()
	time.Sleep(2 * time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if w.granted[p].Before(from) {
			w.history.Wrong("%s has got no lock for 2 minutes without faults", p.name)
		}
	}
}

// end checks that nothing is left, and that there were not too many returns.
func (w *simWorld) end() {
	var all sync.WaitGroup
	for _, p := range w.procs {
		all.Go(func() { p.end(false) })
	}
	all.Wait()
	w.history.Look()
	if m := w.mysql.Members("sim"); len(m) != 0 {
		w.history.Wrong("member rows are left: %v", m)
	}
	time.Sleep(2 * simTTL)
	if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 {
		w.history.Wrong("keys are left: %v on Redis, %v on MySQL", r, m)
	}
	modes := w.mysql.Modes("sim")
	if len(modes) == 0 {
		w.history.Wrong("there never was a mode")
		return
	}
	tier, returns := degrade.NoTier, 0
	for _, m := range modes {
		if m.Drain {
			continue
		}
		if m.Tier == degrade.Redis && tier == degrade.MySQL {
			returns++
		}
		tier = m.Tier
	}
	if most := 1 + int(modes[len(modes)-1].At.Sub(modes[0].At)/w.config.Dwell); returns > most {
		w.history.Wrong("%d returns to Redis, want %d at most", returns, most)
	}
}
