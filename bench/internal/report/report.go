package report

import (
	"fmt"
	"io"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
)

// Results are those of all rounds.
type Results []load.Result

func (rs Results) of(workload, contestant string) Results {
	var some Results
	for _, r := range rs {
		if r.Workload == workload && r.Contestant == contestant {
			some = append(some, r)
		}
	}
	return some
}

func (rs Results) spread(f func(load.Result) float64) Spread {
	var values []float64
	for _, r := range rs {
		values = append(values, f(r))
	}
	return SpreadOf(values)
}

func (rs Results) byRound(f func(load.Result) float64) map[int]float64 {
	m := make(map[int]float64)
	for _, r := range rs {
		m[r.Round] = f(r)
	}
	return m
}

func perSecond(r load.Result) float64 { return r.PerSecond }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// Table writes one workload's medians in Markdown.
func (rs Results) Table(w io.Writer, workload load.Workload, contestants []contest.Contestant) {
	fmt.Fprintf(w, "\n### %s\n\n%s.\n\n", workload.Name, workload.About)
	fmt.Fprintln(w, "| contestant | pairs/s | tierlock/it (spread) | acquire p50 µs | p99 | max | pair p50 µs | p99 | max | allocs | bytes | commands | server µs | script µs | client µs | errors |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	subject := rs.of(workload.Name, contest.Subject)
	for _, c := range contestants {
		own := rs.of(workload.Name, c.Name)
		if len(own) == 0 {
			continue
		}
		ratio := "–"
		if c.Name != contest.Subject && len(subject) > 0 {
			s := Ratios(subject.byRound(perSecond), own.byRound(perSecond))
			ratio = fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
		}
		m := func(f func(load.Result) float64) float64 { return own.spread(f).Median }
		fmt.Fprintf(w, "| %s | %.0f | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f | %.0f | %.1f | %.1f | %.1f | %.1f | %.0f |\n",
			c.Name, m(perSecond), ratio,
			m(func(r load.Result) float64 { return micros(r.AcquireP50) }),
			m(func(r load.Result) float64 { return micros(r.AcquireP99) }),
			m(func(r load.Result) float64 { return micros(r.AcquireMax) }),
			m(func(r load.Result) float64 { return micros(r.PairP50) }),
			m(func(r load.Result) float64 { return micros(r.PairP99) }),
			m(func(r load.Result) float64 { return micros(r.PairMax) }),
			m(func(r load.Result) float64 { return r.Allocs }),
			m(func(r load.Result) float64 { return r.Bytes }),
			m(func(r load.Result) float64 { return r.Commands }),
			m(func(r load.Result) float64 { return micros(r.ServerCPU) }),
			m(func(r load.Result) float64 { return micros(r.ScriptTime) }),
			m(func(r load.Result) float64 { return micros(r.ClientCPU) }),
			own.spread(func(r load.Result) float64 { return float64(r.Errors) }).Max)
	}
}
