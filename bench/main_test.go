//go:build unix

package main_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bench "github.com/tierlock/tierlock/bench"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m, load.Roles()) }

func TestParse(t *testing.T) {
	p, err := bench.Parse()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(p.Workloads(), " "), "distinct/1 distinct/64 distinct/512 contended/64 processes/4x16 held refused/64"; got != want {
		t.Errorf("workloads %q, want %q", got, want)
	}
	if got := p.Contestants("redis"); len(got) != 9 || got[0] != "tierlock" {
		t.Errorf("contestants %q", got)
	}
	if got := p.Contestants("mysql"); !slices.Equal(got, []string{"tierlock", "insert", "row", "getlock"}) {
		t.Errorf("contestants over MySQL %q", got)
	}
	p, err = bench.Parse("-quick", "-rounds", "9", "-workloads", "held,distinct", "-levels", "3", "-contestants", "floor,bare")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Workloads(); !slices.Equal(got, []string{"distinct/3", "held"}) {
		t.Errorf("workloads %q", got)
	}
	if got := p.Contestants("redis"); !slices.Equal(got, []string{"bare", "floor"}) || len(p.Contestants("mysql")) != 0 {
		t.Errorf("contestants %q and, over MySQL, %q", got, p.Contestants("mysql"))
	}
	if p, err = bench.Parse("-stores", "mysql"); err != nil || len(p.Contestants("mysql")) != 4 || len(p.Contestants("redis")) != 0 {
		t.Errorf("over MySQL %q, over Redis %q, %v", p.Contestants("mysql"), p.Contestants("redis"), err)
	}
	p, err = bench.Parse("-quick", "-rounds", "9", "-contestants", "tierlock,insert,floor")
	if got, my := p.Contestants("redis"), p.Contestants("mysql"); err != nil || !slices.Equal(got, []string{"tierlock", "floor"}) || !slices.Equal(my, []string{"tierlock", "insert"}) {
		t.Errorf("over Redis %q, over MySQL %q, %v", got, my, err)
	}
	if p.Rounds() != 9 || p.Held() != 2000 {
		t.Errorf("%d rounds of %d held locks, want what was given, 9, and what quick sets, 2000", p.Rounds(), p.Held())
	}
	for _, bad := range [][]string{
		{"-workloads", "distinct,other"}, {"-levels", "1,0"}, {"-levels", "x"}, {"-contestants", "other"},
		{"-rounds", "0"}, {"-duration", "0s"}, {"-held", "0"}, {"-held-rounds", "0"}, {"-held-ttl", "10ms"}, {"-flush-delay", "-1us"}, {"-poll", "-1s"}, {"more"},
		{"-stores", "redis,other"}, {"-stores", "redis,redis"}, {"-stores", "redis", "-contestants", "insert"}, {"-pool", "0"}, {"-flush-log", "3"}, {"-held-for", "-1s"},
	} {
		if _, err := bench.Parse(bad...); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// The whole of it, on a small scale.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	p, err := bench.Parse("-rounds", "1", "-duration", "50ms", "-levels", "1", "-held", "20", "-held-ttl", "3s", "-held-for", "1s", "-flush-log", "2", "-flush-delay", "20us", "-poll", "1ms",
		"-seed", "3", "-contestants", "tierlock,floor,insert", "-json", file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	broken, err := p.Run(t, &out)
	if err != nil || broken {
		t.Fatalf("broken: %v, error: %v", broken, err)
	}
	for _, want := range []string{
		"redis-server 7.", "seed 3, MaxFlushDelay 20µs.\n", "- **floor**: ", "\nmariadbd 1", ", innodb_flush_log_at_trx_commit=2, ",
		"\n## redis distinct/1\n", "\n## redis contended/64\n", "\n## redis processes/4x16\n", "\n## redis held\n", "\n## redis refused/64\n",
		"\n## mysql distinct/1\n", "\n## mysql contended/64\n", "\n## mysql processes/4x16\n", "\n## mysql held\n", "\n## mysql refused/64\n",
		"\n## Targets\n", "| redis distinct/1: pairs/s at least 0.95 of floor | ", "| mysql distinct/1: pairs/s at least 0.90 of insert | ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Seed    uint64
		Results []load.Result
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if want := 5*2 + 4*2 + 1; len(all.Results) != want || all.Seed != 3 {
		t.Errorf("%d results and seed %d, want %d and 3", len(all.Results), all.Seed, want)
	}
}
