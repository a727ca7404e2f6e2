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

const (
	// atLeast is the share of a rival's pairs a second that the subject is to
	// reach.
	atLeast = 0.95
	// p99Below is what the p99 of an acquire is to stay under, at p99Level.
	p99Below = 5 * time.Millisecond
	p99Level = "distinct/64"
)

// rivals are whom the subject is compared with at every level.
var rivals = []string{"floor", "rueidislock", "rueidislock-readme"}

// Verdict is one target and whether it was reached.
type Verdict struct {
	Target, Measured string
	Pass             bool
}

// Verdicts judges what was measured; a target of which a side was not measured
// is left out.
func (rs Results) Verdicts() []Verdict {
	var all []Verdict
	var levels []string
	for _, r := range rs {
		if load.IsDistinct(r.Workload) && !slices.Contains(levels, r.Workload) {
			levels = append(levels, r.Workload)
		}
	}
	for _, level := range levels {
		own := rs.of(level, contest.Subject)
		for _, rival := range rivals {
			if s := Ratios(own.byRound(perSecond), rs.of(level, rival).byRound(perSecond)); s.N > 0 {
				all = append(all, Verdict{
					Target:   fmt.Sprintf("%s: pairs/s at least %.2f of %s", level, atLeast, rival),
					Measured: s.format("%.3f"), Pass: s.Median >= atLeast,
				})
			}
		}
		if level == p99Level && len(own) > 0 {
			s := own.spread(func(r load.Result) float64 { return r.AcquireP99.Seconds() * 1e3 })
			all = append(all, Verdict{
				Target:   fmt.Sprintf("%s: p99 of acquire under %v", level, p99Below),
				Measured: s.String() + " ms", Pass: s.Median < p99Below.Seconds()*1e3,
			})
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
		word := "MISS"
		if v.Pass {
			word = "pass"
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", v.Target, v.Measured, word)
	}
}
