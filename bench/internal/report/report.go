//go:build unix

package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
)

// Results are those of all rounds.
type Results []load.Result

// over are those of one store.
func (rs Results) over(store string) Results {
	var some Results
	for _, r := range rs {
		if r.Store == store {
			some = append(some, r)
		}
	}
	return some
}

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

// column is one column of a table: a cell is made of all results of one
// contestant under one workload.
type column struct {
	head string
	cell func(own, subject Results) string
}

func median(head, format string, f func(load.Result) float64) column {
	return column{head, func(own, _ Results) string { return fmt.Sprintf(format, own.spread(f).Median) }}
}

func micros(head string, f func(load.Result) time.Duration) column {
	return median(head, "%.0f", func(r load.Result) float64 { return float64(f(r)) / 1e3 })
}

func perSecond(r load.Result) float64 { return r.PerSecond }

// cpu is of both sides. What else runs on the machine moves it less than the
// rate.
func cpu(r load.Result) float64 { return float64(r.ServerCPU + r.ClientCPU) }

// against is the subject's figure divided by the contestant's, round by round.
func against(what string, f func(load.Result) float64) column {
	return column{what + contest.Subject + " / it", func(own, subject Results) string {
		if len(subject) == 0 || own[0].Contestant == contest.Subject {
			return "–"
		}
		return Ratios(subject.byRound(f), own.byRound(f)).String()
	}}
}

var errorsColumn = column{"errors", func(own, _ Results) string {
	n := 0
	for _, r := range own {
		n += r.Errors
	}
	return fmt.Sprint(n)
}}

var speed = []column{
	{"pairs/s", func(own, _ Results) string { return own.spread(perSecond).whole() }},
	against("", perSecond),
	micros("acquire p50 µs", func(r load.Result) time.Duration { return r.AcquireP50 }),
	micros("p99", func(r load.Result) time.Duration { return r.AcquireP99 }),
	micros("max", func(r load.Result) time.Duration { return r.AcquireMax }),
	micros("pair p50 µs", func(r load.Result) time.Duration { return r.PairP50 }),
	micros("p99", func(r load.Result) time.Duration { return r.PairP99 }),
	micros("max", func(r load.Result) time.Duration { return r.PairMax }),
	median("most", "%.0f", func(r load.Result) float64 { return float64(r.Most) }),
	median("least", "%.0f", func(r load.Result) float64 { return float64(r.Least) }),
	errorsColumn,
}

// costs are the columns of what a pair costs. One kind of server has what
// another has not.
func costs(store string) []column {
	columns := []column{
		median("allocs", "%.1f", func(r load.Result) float64 { return r.Allocs }),
		median("bytes", "%.0f", func(r load.Result) float64 { return r.Bytes }),
		median(commands[store], "%.1f", func(r load.Result) float64 { return r.Commands }),
		median("server CPU µs", "%.1f", func(r load.Result) float64 { return float64(r.ServerCPU) / 1e3 }),
	}
	if store == contest.MySQL {
		columns = append(columns, deadlocksColumn)
	} else {
		columns = append(columns, median("in scripts µs", "%.1f", func(r load.Result) float64 { return float64(r.ScriptTime) / 1e3 }))
	}
	return append(columns,
		median("client CPU µs", "%.1f", func(r load.Result) float64 { return float64(r.ClientCPU) / 1e3 }),
		against("CPU of both, ", cpu))
}

// commands is what a store's server executes.
var commands = map[string]string{contest.Redis: "commands", contest.MySQL: "statements"}

// deadlocksColumn is of all rounds together.
var deadlocksColumn = column{"deadlocks", func(own, _ Results) string { return fmt.Sprint(own.deadlocks()) }}

func (rs Results) deadlocks() (n int64) {
	for _, r := range rs {
		n += r.Deadlocks
	}
	return n
}

func holding(store string) []column {
	return append([]column{
		median("locks", "%.0f", func(r load.Result) float64 { return float64(r.Holding.Locks) }),
		median("lost", "%.0f", func(r load.Result) float64 { return float64(r.Holding.Lost) }),
		median(commands[store]+"/s", "%.0f", func(r load.Result) float64 { return r.Holding.Commands }),
	}, held...)
}

var held = []column{
	median("server CPU %", "%.1f", func(r load.Result) float64 { return 100 * r.Holding.ServerShare }),
	median("client CPU %", "%.1f", func(r load.Result) float64 { return 100 * r.Holding.ClientShare }),
	median("allocs/s", "%.0f", func(r load.Result) float64 { return r.Holding.Allocs }),
	median("goroutines", "%.0f", func(r load.Result) float64 { return float64(r.Holding.Goroutines) }),
	median("RSS MB", "%.0f", func(r load.Result) float64 { return float64(r.Holding.RSS) / 1e6 }),
	median("live heap MB", "%.1f", func(r load.Result) float64 { return float64(r.Holding.Heap) / 1e6 }),
	median("taken/s", "%.0f", func(r load.Result) float64 { return r.Holding.Taken }),
	median("freed/s", "%.0f", func(r load.Result) float64 { return r.Holding.Freed }),
}

// Workload writes the tables of one workload on one store.
func (rs Results) Workload(w io.Writer, store string, workload load.Workload, contestants []contest.Contestant) {
	rs = rs.over(store)
	fmt.Fprintf(w, "\n## %s %s\n\n%s\n\n", store, workload.Name, workload.About)
	if workload.Holding {
		rs.table(w, workload, contestants, holding(store))
		return
	}
	rs.table(w, workload, contestants, speed)
	fmt.Fprintf(w, "\nCost of a pair:\n\n")
	rs.table(w, workload, contestants, costs(store))
	for _, r := range rs {
		if r.Workload == workload.Name && r.Errors > 0 {
			fmt.Fprintf(w, "\n%s, round %d: %d errors, the first: %s\n", r.Contestant, r.Round+1, r.Errors, r.First)
		}
	}
}

func (rs Results) table(w io.Writer, workload load.Workload, contestants []contest.Contestant, columns []column) {
	heads := []string{"contestant"}
	for _, c := range columns {
		heads = append(heads, c.head)
	}
	fmt.Fprintf(w, "| %s |\n|---|%s\n", strings.Join(heads, " | "), strings.Repeat("--:|", len(columns)))
	subject := rs.of(workload.Name, contest.Subject)
	for _, c := range contestants {
		own := rs.of(workload.Name, c.Name)
		if len(own) == 0 {
			continue
		}
		cells := []string{c.Name}
		for _, col := range columns {
			cells = append(cells, col.cell(own, subject))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
}

// Broken writes where exclusion was broken, and reports whether it was.
func (rs Results) Broken(w io.Writer) bool {
	broken := false
	for _, r := range rs {
		if r.Broken > 0 {
			broken = true
			fmt.Fprintf(w, "EXCLUSION BROKEN: %s %s, %s, round %d: %d times\n", r.Store, r.Workload, r.Contestant, r.Round+1, r.Broken)
		}
	}
	return broken
}
