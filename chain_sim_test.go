package tierlock_test

import (
	"errors"
	"flag"
	"fmt"
	"strings"
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
	chainSimSeed  = flag.Uint64("chainsim.seed", 0, "the one seed for TestChainSimulation (default: those kept, and some at random)")
	chainSimSeeds = flag.Int("chainsim.seeds", 2, "how many seeds at random")
	chainSimProcs = flag.Int("chainsim.procs", 20, "processes in the simulation")
	chainSimFor   = flag.Duration("chainsim.for", 4*time.Minute, "simulated time with faults")
)

// chainSimKept is where seeds are kept that failed once: see sim.RunSeeds.
const chainSimKept = "testdata/chainsim-seeds"

const simLockerTTL = 10 * time.Second

// simLockers is one simulation: processes, and the two servers that they share.
type simLockers struct {
	redis   *sim.Redis
	mysql   *sim.MySQL
	swarm   *sim.Swarm
	history *sim.History
	degrade tierlock.Degrade
	procs   []*simLocker
	n       int
	stalls  float64       // the share of steps before which a process stops
	longest time.Duration // of a hold
	keys    int
	calmed  atomic.Bool
	kept    atomic.Int64
}

func (w *simLockers) lingers() time.Duration {
	if w.stalls == 0 || w.calmed.Load() {
		return 0
	}
	return simLongestStall
}

// TestChainSimulation runs many processes over one Redis and one MySQL, in fake
// time, through mixtures of faults that a seed makes. No two of them may believe at
// once to have an Exclusive lock, fences rise in the order of belief, no belief
// comes back, all is well soon after the faults, and nothing is left at the end.
//
// What happens at one instant happens in the scheduler's order, so that a seed
// repeats the faults and not the whole run.
func TestChainSimulation(t *testing.T) {
	repeat := fmt.Sprintf("go test -race -run 'TestChainSimulation$' . -chainsim.procs %d -chainsim.for %v -chainsim.seed", *chainSimProcs, *chainSimFor)
	sim.RunSeeds(t, chainSimKept, *chainSimSeed, *chainSimSeeds, repeat, func(t *testing.T, seed uint64) (wrong, before []string) {
		return chainSimulate(t, seed, *chainSimProcs, sim.Broken{}, 0)
	})
}

// chainSimulate runs one seed with so many processes, with servers that may be broken
// and with the kinds of faults given (0: all), and says what was wrong, and what came
// before it.
func chainSimulate(t *testing.T, seed uint64, procs int, broken sim.Broken, kinds sim.FaultKinds) (wrong, before []string) {
	synctest.Test(t, func(t *testing.T) {
		w := &simLockers{
			redis: sim.NewRedis(sim.Options{Seed: seed, Broken: broken}), history: sim.NewHistory(), keys: 1 + procs/3,
			mysql: sim.NewMySQL(sim.Options{Seed: seed, Broken: broken, Guarantee: tierlock.Exclusive}),
			degrade: tierlock.Degrade{Permit: 20 * time.Second, Refresh: 3 * time.Second, Probe: 2 * time.Second,
				Up: 5 * time.Second, Dwell: 20 * time.Second},
		}
		w.swarm = &sim.Swarm{Redis: w.redis, MySQL: w.mysql, Longest: time.Minute, Kinds: kinds, Logf: w.history.Logf,
			Usual: sim.Faults{Delay: 200 * time.Microsecond, Jitter: 2 * time.Millisecond}}
		w.swarm.Start(seed)
		w.stalls = max(0, 0.01*w.swarm.Random()-0.003)
		w.longest = time.Duration((1 + w.swarm.Random()*w.swarm.Random()*60) * float64(time.Second))
		if w.swarm.Random() < 0.25 { // many stops and long holds: what finds the most
			w.stalls, w.longest = 0.02, 90*time.Second
		}
		for range procs {
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

// faults lets processes come and go while the swarm is about.
func (w *simLockers) faults() {
	for start := time.Now(); time.Since(start) < *chainSimFor; {
		time.Sleep(time.Duration(w.swarm.Random() * float64(time.Minute)))
		w.history.Look()
		if w.swarm.Random() < 0.5 && w.swarm.Kinds&sim.RedisStep == 0 {
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

// calm checks that everybody gets locks again soon: the longest that may be is a
// drain after a failover of the arbiter, and then one to a Redis that has failed
// over.
func (w *simLockers) calm() {
	over := time.Now()
	d := w.degrade
	limit := d.Permit + time.Minute + d.Permit*1010/990 + simLockerTTL + 15*time.Second
	get := func(p *simLocker, within time.Duration) error {
		var err error
		for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			k, e := p.TryLock(bg, "x", "own of "+p.name)
			if err = e; err == nil {
				return k.Unlock()
			}
			if !errors.Is(err, tierlock.ErrUnavailable) || time.Since(start) > within {
				return err
			}
		}
	}
	for _, p := range w.procs {
		if err := get(p, limit-time.Since(over)); err != nil {
			w.history.Wrong("%s gets no lock %v after the faults: %v; the mode is %+v", p.name, limit, err, w.mysql.Mode("sim"))
			return
		}
	}
	w.history.Logf("all get locks %v after the faults", time.Since(over))
	// Those who were still stopped go on by then.
	time.Sleep(simLongestStall)
	for range 6 {
		time.Sleep(10 * time.Second)
		for _, p := range w.procs {
			if err := get(p, 5*time.Second); err != nil { // a return may come now
				w.history.Wrong("%s gets no lock, with all well: %v; the mode is %+v", p.name, err, w.mysql.Mode("sim"))
			}
		}
	}
}

// end checks that nothing is left, and that there were not too many returns.
func (w *simLockers) end() {
	var all sync.WaitGroup
	for _, p := range w.procs {
		all.Go(func() { p.end(false) })
	}
	all.Wait()
	w.history.Look()
	if m := w.mysql.Members("sim"); len(m) != 0 {
		w.history.Wrong("member rows are left: %v", m)
	}
	time.Sleep(2 * simLockerTTL)
	if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 {
		w.history.Wrong("keys are left: %v on Redis, %v on MySQL", r, m)
	}
	modes := w.mysql.Modes("sim")
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
	if most := 1 + int(modes[len(modes)-1].At.Sub(modes[0].At)/w.degrade.Dwell); returns > most {
		w.history.Wrong("%d returns to Redis, want %d at most", returns, most)
	}
}

// steps are a Redis whose clock is stepped forward, and what keeps processes from
// hearing of it.
const steps = sim.RedisStep | sim.RedisCut | sim.RedisPause | sim.RedisOutage | sim.MySQLCut

// So it is where the clock of Redis is stepped forward, for processes that were
// there before. Where they believe the steps, it finds two who believe.
func TestChainSimulationWithSteps(t *testing.T) {
	const repeat = "go test -race -run 'TestChainSimulationWithSteps$' . -chainsim.seed"
	sim.RunSeeds(t, "testdata/chainsim-steps-seeds", *chainSimSeed, *chainSimSeeds, repeat, func(t *testing.T, seed uint64) (wrong, before []string) {
		return chainSimulate(t, seed, 6, sim.Broken{}, steps)
	})
}

func TestChainSimulationFindsBelievedSteps(t *testing.T) {
	const most = 40
	for seed := uint64(1); seed <= most; seed++ {
		wrong, _ := chainSimulate(t, seed, 6, sim.Broken{StepsBelieved: true}, steps)
		if len(wrong) > 0 && strings.Contains(wrong[0], "is believed") {
			t.Logf("seed %d: %s", seed, wrong[0])
			return
		}
	}
	t.Errorf("%d seeds have found nothing", most)
}

// The simulation is of use: with a Redis that does not look at what data it has,
// it finds two who believe. (That it finds rules of the machine missing is shown by
// degrade's own simulation.)
func TestChainSimulationFinds(t *testing.T) {
	const most = 40
	for seed := uint64(1); seed <= most; seed++ {
		wrong, _ := chainSimulate(t, seed, 6, sim.Broken{AnyIncarnation: true}, sim.RedisFailover|sim.MySQLCut|sim.RedisCut)
		if len(wrong) > 0 && strings.Contains(wrong[0], "is believed") {
			t.Logf("seed %d: %s", seed, wrong[0])
			return
		}
	}
	t.Errorf("%d seeds have found nothing", most)
}
