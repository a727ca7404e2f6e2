//go:build unix

package report

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
)

// target is what the subject is to reach on one store.
type target struct {
	// rivals are whom it is compared with at every level, and atLeast the share
	// of a rival's pairs a second.
	rivals  []string
	atLeast float64
	// p99Below is what the p99 of an acquire is to stay under, at p99Level; 0
	// is no target.
	p99Below time.Duration
	// times is how much faster than the rival it is to be on one key; 0 is no
	// target.
	times float64
	rival string
	// noDeadlock wants none, ever.
	noDeadlock bool
}

const (
	p99Level = "distinct/64"
	oneKey   = "contended/64"
)

var targets = map[string]target{
	contest.Redis: {
		rivals: []string{"floor", "rueidislock", "rueidislock-readme"}, atLeast: 0.95,
		p99Below: 5 * time.Millisecond,
	},
	contest.MySQL: {
		rivals: []string{"insert"}, atLeast: 0.9,
		times: 20, rival: "insert", noDeadlock: true,
	},
}

// Verdict is one target and whether it was reached.
type Verdict struct {
	Target, Measured string
	Pass             bool
}

// Verdicts judges what was measured; a target of which a side was not measured
// is left out.
func (rs Results) Verdicts() []Verdict {
	var all []Verdict
	for _, store := range contest.Stores {
		for _, v := range rs.over(store).verdicts(targets[store]) {
			v.Target = store + " " + v.Target
			all = append(all, v)
		}
	}
	return all
}

// verdicts are those of one store.
func (rs Results) verdicts(t target) []Verdict {
	var all []Verdict
	var workloads []string
	for _, r := range rs {
		if !slices.Contains(workloads, r.Workload) {
			workloads = append(workloads, r.Workload)
		}
	}
	for _, workload := range workloads {
		own := rs.of(workload, contest.Subject)
		compare := func(rival string, atLeast float64) {
			if s := Ratios(own.byRound(perSecond), rs.of(workload, rival).byRound(perSecond)); s.N > 0 {
				all = append(all, Verdict{
					Target:   fmt.Sprintf("%s: pairs/s at least %.2f of %s", workload, atLeast, rival),
					Measured: s.format("%.3f"), Pass: s.Median >= atLeast,
				})
			}
		}
		if load.IsDistinct(workload) {
			for _, rival := range t.rivals {
				compare(rival, t.atLeast)
			}
		}
		if workload == oneKey && t.times > 0 {
			compare(t.rival, t.times)
		}
		if len(own) == 0 {
			continue
		}
		if workload == p99Level && t.p99Below > 0 {
			s := own.spread(func(r load.Result) float64 { return r.AcquireP99.Seconds() * 1e3 })
			all = append(all, Verdict{
				Target:   fmt.Sprintf("%s: p99 of acquire under %v", workload, t.p99Below),
				Measured: s.String() + " ms", Pass: s.Median < t.p99Below.Seconds()*1e3,
			})
		}
		if own[0].Holding != nil {
			lost := 0
			for _, r := range own {
				lost += r.Holding.Lost
			}
			all = append(all, Verdict{Target: workload + ": no lock lost", Measured: fmt.Sprint(lost), Pass: lost == 0})
		}
		if t.noDeadlock {
			n := own.deadlocks()
			all = append(all, Verdict{Target: workload + ": no deadlock", Measured: fmt.Sprint(n), Pass: n == 0})
		}
	}
	return all
}

// Targets writes the verdicts.
func (rs Results) Targets(w io.Writer) {
	verdicts := rs.Verdicts()
	if len(verdicts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## Targets\n\n| target | measured | |\n|---|--:|---|\n")
	for _, v := range verdicts {
		word := "MISSED"
		if v.Pass {
			word = "pass"
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", v.Target, v.Measured, word)
	}
}
