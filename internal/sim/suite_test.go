package sim_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/sim"
	"github.com/tierlock/tierlock/storetest"
)

// ways are a network that takes no time, and one that takes some.
var ways = map[string]sim.Faults{
	"at once": {},
	"delayed": {Delay: 200 * time.Microsecond, Jitter: 2 * time.Millisecond},
}

func redisHarness(f sim.Faults, b sim.Broken) func(*testing.T) storetest.Harness {
	return func(*testing.T) storetest.Harness {
		r, n := sim.NewRedis(sim.Options{Broken: b}), uint64(0)
		return storetest.Harness{Lose: r.Flush, Open: func(t *testing.T) tierlock.Store {
			n++
			s := r.Client(sim.ClientOptions{Seed: n, Faults: f, Limit: 10 * time.Second})
			t.Cleanup(s.Close)
			return s
		}}
	}
}

func mysqlHarness(f sim.Faults, b sim.Broken) func(*testing.T) storetest.Harness {
	return func(*testing.T) storetest.Harness {
		m, n := sim.NewMySQL(sim.Options{Broken: b}), uint64(0)
		return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
			n++
			s := m.Client(sim.ClientOptions{Seed: n, Faults: f, Limit: 10 * time.Second})
			t.Cleanup(s.Close)
			return s
		}}
	}
}

func TestSuites(t *testing.T) {
	for way, f := range ways {
		for name, h := range map[string]func(*testing.T) storetest.Harness{
			"redis": redisHarness(f, sim.Broken{}), "mysql": mysqlHarness(f, sim.Broken{}),
		} {
			t.Run(name+" "+way, func(t *testing.T) {
				storetest.RunInBubble(t, h)
				storetest.RunChainInBubble(t, h)
				if name == "mysql" {
					storetest.RunArbiterInBubble(t, h)
				}
			})
		}
	}
}
