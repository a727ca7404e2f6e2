package degrade_test

import (
	"strings"
	"testing"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// The simulation is of use: without a rule it finds two who believe, or a belief
// that comes back. (Rules that only a rare coincidence needs are for the exhaustive
// search, see TestMutations.)
func TestSimulationFinds(t *testing.T) {
	for name, rules := range map[string]degrade.Rules{
		"a drain is opened at once":          {OpenAtOnce: true},
		"an adoption counts when it is sent": {AdoptedWhenSent: true},
		"a silent member is removed at once": {RemoveAtOnce: true},
		"a late reply renews what had ended": {LateRevives: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := simOptions{rules: rules, hard: true, kinds: sim.RedisOutage | sim.RedisCut | sim.MySQLCut | sim.RedisFailover}
			const most = 40
			for seed := uint64(1); seed <= most; seed++ {
				if wrong, _ := simulate(t, seed, o); len(wrong) > 0 && strings.Contains(wrong[0], "believed") {
					t.Logf("seed %d: %s", seed, wrong[0])
					return
				}
			}
			t.Errorf("%d seeds have found nothing", most)
		})
	}
}
