//go:build unix

package report_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/bench/internal/report"
)

func results(workload, contestant string, perSecond ...float64) report.Results {
	var rs report.Results
	for round, v := range perSecond {
		rs = append(rs, load.Result{
			Store: contest.Redis, Workload: workload, Contestant: contestant, Round: round, Pairs: 1, PerSecond: v,
			AcquireP50: 10 * time.Microsecond, AcquireP99: 4 * time.Millisecond, Most: 3, Least: 1,
			ServerCPU: 2 * time.Microsecond, ClientCPU: 4 * time.Microsecond,
		})
	}
	return rs
}

func TestVerdicts(t *testing.T) {
	var all report.Results
	all = append(all, results("distinct/1", "tierlock", 95, 190, 10)...)
	all = append(all, results("distinct/1", "floor", 100, 200, 1)...)           // 0.95, 0.95, 10
	all = append(all, results("distinct/1", "rueidislock", 101, 200, 100)...)   // 0.94, 0.95, 0.1
	all = append(all, results("distinct/64", "tierlock", 100)...)               // p99 4 ms
	all = append(all, results("distinct/64", "rueidislock-readme", 100)...)     // 1
	all = append(all, results("contended/64", "tierlock", 1)...)                // no target
	all = append(all, results("contended/64", "floor", 100)...)                 //
	all = append(all, results("distinct/512", "bare", 100)...)                  // no target
	all = append(all, results("distinct/512", "tierlock", 100, 100, 100, 1)...) // nobody to compare with
	want := []report.Verdict{
		{Target: "redis distinct/1: pairs/s at least 0.95 of floor", Measured: "0.950 (0.950–10.000)", Pass: true},
		{Target: "redis distinct/1: pairs/s at least 0.95 of rueidislock", Measured: "0.941 (0.100–0.950)", Pass: false},
		{Target: "redis distinct/64: pairs/s at least 0.95 of rueidislock-readme", Measured: "1.000 (1.000–1.000)", Pass: true},
		{Target: "redis distinct/64: p99 of acquire under 5ms", Measured: "4.00 (4.00–4.00) ms", Pass: true},
	}
	check := func() {
		t.Helper()
		got := all.Verdicts()
		if len(got) != len(want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("got %+v, want %+v", got[i], want[i])
			}
		}
	}
	check()
	for i := range all {
		if all[i].Workload == "distinct/64" {
			all[i].AcquireP99 = 5 * time.Millisecond
		}
	}
	want[3] = report.Verdict{Target: want[3].Target, Measured: "5.00 (5.00–5.00) ms", Pass: false}
	check()

	var out bytes.Buffer
	all.Targets(&out)
	for i, want := range []string{
		"| redis distinct/1: pairs/s at least 0.95 of floor | 0.950 (0.950–10.000) | pass |\n",
		"| redis distinct/1: pairs/s at least 0.95 of rueidislock | 0.941 (0.100–0.950) | MISSED |\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("line %d: no %q in\n%s", i, want, out.String())
		}
	}
}

func TestMySQLVerdicts(t *testing.T) {
	var all report.Results
	all = append(all, results("distinct/1", "tierlock", 90)...)
	all = append(all, results("distinct/1", "insert", 100)...)
	all = append(all, results("distinct/1", "getlock", 1000)...) // no target
	all = append(all, results("distinct/64", "tierlock", 89)...)
	all = append(all, results("distinct/64", "insert", 100)...)
	all = append(all, results("contended/64", "tierlock", 1990)...)
	all = append(all, results("contended/64", "insert", 100)...)
	all = append(all, results("held", "tierlock", 0)...)
	for i := range all {
		all[i].Store = contest.MySQL
		if all[i].Workload == "contended/64" {
			all[i].Deadlocks = 3 // of both
		}
	}
	all[len(all)-1].Holding = &load.Holding{Lost: 2}
	// Another store's, which must not be mixed up with these.
	all = append(all, results("distinct/1", "tierlock", 1)...)
	want := []report.Verdict{
		{Target: "mysql distinct/1: pairs/s at least 0.90 of insert", Measured: "0.900 (0.900–0.900)", Pass: true},
		{Target: "mysql distinct/1: no deadlock", Measured: "0", Pass: true},
		{Target: "mysql distinct/64: pairs/s at least 0.90 of insert", Measured: "0.890 (0.890–0.890)", Pass: false},
		{Target: "mysql distinct/64: no deadlock", Measured: "0", Pass: true},
		{Target: "mysql contended/64: pairs/s at least 20.00 of insert", Measured: "19.900 (19.900–19.900)", Pass: false},
		{Target: "mysql contended/64: no deadlock", Measured: "3", Pass: false},
		{Target: "mysql held: no lock lost", Measured: "2", Pass: false},
		{Target: "mysql held: no deadlock", Measured: "0", Pass: true},
	}
	if got := all.Verdicts(); !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}

	var out bytes.Buffer
	all.Workload(&out, contest.MySQL, load.Contended(64), contest.All(contest.MySQL))
	for _, want := range []string{"## mysql contended/64\n", " | statements | server CPU µs | deadlocks | ", "| tierlock | 0.0 | 0 | 0.0 | 2.0 | 3 | 4.0 | – |\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestTables(t *testing.T) {
	w := load.Distinct(64)
	all := append(results(w.Name, "tierlock", 100, 10, 30), results(w.Name, "bare", 200, 40, 30)...)
	all[1].Errors, all[1].First = 2, "no luck"
	for i := range all[3:] {
		all[3+i].ServerCPU = 10 * time.Microsecond
	}
	var out bytes.Buffer
	all.Workload(&out, contest.Redis, w, contest.All(contest.Redis))
	for _, want := range []string{
		"## redis distinct/64\n",
		"| tierlock | 30 (10–100) | – | 10 | 4000 | 0 | 0 | 0 | 0 | 3 | 1 | 2 |\n",
		"| bare | 40 (30–200) | 0.50 (0.25–1.00) | 10 | 4000 | 0 | 0 | 0 | 0 | 3 | 1 | 0 |\n",
		"| bare | 0.0 | 0 | 0.0 | 10.0 | 0.0 | 4.0 | 0.43 (0.43–0.43) |\n",
		"tierlock, round 2: 2 errors, the first: no luck\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, not := range []string{"floor", "NaN", "Inf"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("%q in\n%s", not, out.String())
		}
	}

	held := report.Results{{Store: contest.Redis, Workload: "held", Contestant: "bare", Holding: &load.Holding{
		Locks: 5, Lost: 1, ServerShare: 0.5, ClientShare: 0.25, RSS: 3_000_000, Heap: 1_500_000, Goroutines: 8, Taken: 9, Freed: 10, Commands: 11, Allocs: 12,
	}}}
	out.Reset()
	held.Workload(&out, contest.Redis, load.Held(), contest.All(contest.Redis))
	if want := "| bare | 5 | 1 | 11 | 50.0 | 25.0 | 12 | 8 | 3 | 1.5 | 9 | 10 |\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
}

func TestBrokenIsWritten(t *testing.T) {
	rs := results("contended/64", "bare", 1, 1)
	var out bytes.Buffer
	if rs.Broken(&out) || out.Len() > 0 {
		t.Errorf("broken, and %q, where nothing was", out.String())
	}
	rs[1].Broken = 7
	if !rs.Broken(&out) || out.String() != "EXCLUSION BROKEN: redis contended/64, bare, round 2: 7 times\n" {
		t.Errorf("wrote %q", out.String())
	}
}
