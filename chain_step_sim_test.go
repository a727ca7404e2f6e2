package tierlock_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/sim"
)

// TestChainSimulationWithShortSteps has one process hold a lock, be cut off from Redis,
// and the clock there stepped forward, once or twice, by up to 2 s. Another, with other
// ways, another TTL and perhaps a silence of up to a minute and a half behind it, asks
// for the lock until nobody believes in it any more. All that is up to the seed.
func TestChainSimulationWithShortSteps(t *testing.T) {
	const repeat = "go test -race -run 'TestChainSimulationWithShortSteps$' . -chainsim.seed"
	sim.RunSeeds(t, "testdata/chainsim-shortsteps-seeds", *chainSimSeed, *chainSimSeeds, repeat, func(t *testing.T, seed uint64) (wrong, before []string) {
		for n := range uint64(50) {
			wrong = append(wrong, shortSteps(t, seed, n, sim.Broken{})...)
		}
		return wrong, nil
	})
}

// Where as much of a step is believed as the call of the one who asks may take, it
// finds two who believe.
func TestChainSimulationFindsBelievedShortSteps(t *testing.T) {
	const most = 400
	for n := range uint64(most) {
		if wrong := shortSteps(t, 1, n, sim.Broken{SlackOfCall: true}); len(wrong) > 0 && strings.Contains(wrong[0], "is believed in") {
			t.Logf("%d: %s", n, wrong[0])
			return
		}
	}
	t.Errorf("%d runs have found nothing", most)
}

// shortSteps is the n-th run of a seed.
func shortSteps(t *testing.T, seed, n uint64, broken sim.Broken) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, n))
		between := func(least, most time.Duration) time.Duration {
			return least + time.Duration(rng.Int64N(int64(most-least)+1))
		}
		w := newChainWorld(t)
		w.redis = sim.NewRedis(sim.Options{Seed: seed, Broken: broken})
		// Nearly right: by a hundredth it would lose as much in a silence as is stepped.
		w.redis.SetClock(0, rng.Int64N(1001)-500)
		a, b, third := w.start(), w.start(), w.start()
		chainTakes(t, time.Minute, tierlock.Redis, a, b, third)
		ways := func() sim.Faults {
			return sim.Faults{Delay: between(0, 30*time.Millisecond), Jitter: between(0, 30*time.Millisecond)}
		}
		of := ways()
		a.rc.SetFaults(ways())
		b.rc.SetFaults(of)
		time.Sleep(between(0, 20*time.Second))
		silence := time.Duration(0)
		if rng.IntN(3) > 0 {
			silence = time.Duration(rng.Float64() * float64(between(0, 90*time.Second)))
			b.rc.SetFaults(cutOff)
		}
		time.Sleep(silence)
		ttl := tierlock.MinExclusiveTTL
		if rng.IntN(3) == 0 {
			ttl = between(ttl, 30*time.Second)
		}
		k, err := a.TryLock(bg, "x", "k", tierlock.TTL(ttl))
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("run %d: no lock to begin with: %v", n, err))
			return
		}
		time.Sleep(between(0, 2*time.Second)) // with a renewal, or without
		a.rc.SetFaults(cutOff)
		time.Sleep(between(0, 2*time.Second))
		step := between(100*time.Millisecond, 2*time.Second)
		w.redis.Step(step)
		if rng.IntN(3) == 0 {
			time.Sleep(between(0, 500*time.Millisecond))
			w.redis.Step(step / 2)
		}
		b.rc.SetFaults(of)
		for k.Err() == nil {
			other, err := b.TryLock(bg, "x", "k", tierlock.TTL(between(tierlock.MinExclusiveTTL, 30*time.Second)))
			if err == nil {
				if k.Err() == nil {
					wrong = append(wrong, fmt.Sprintf("run %d: %v is given while %v is believed in, after %v of silence and a step of %v", n, other.Token(), k.Token(), silence, step))
				}
				other.Unlock()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	return wrong
}
