package tests_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// chainSeeds is as chaosSeeds.
const chainSeeds = "testdata/chain-seeds"

// Three processes work over a chain of Redis and MySQL while a schedule of faults goes
// on: in each process's link to each store, in both servers, which are stopped, killed
// and started again (Redis comes back empty), or fail over, and in the processes, which
// are stopped, and killed and replaced. Locks of an exclusive resource are never believed in by
// two, whatever happens; their fences rise, over both stores; what they protect loses
// no update; and when all is over nothing is left. To repeat a schedule:
//
//	go test -race -run 'TestChainChaos$' . -chaos.seed 7 -chaos.for 2m
func TestChainChaos(t *testing.T) {
	t.Parallel()
	runSeeds(t, chainSeeds, 2*time.Minute, chainChaos)
}

func chainChaos(t *testing.T, seed uint64, lasting time.Duration) {
	steps := chainSchedule(seed, lasting)
	sentinel, suspect := kindOf(seed)
	failover := slices.ContainsFunc(steps, failsOver)
	t.Logf("%d steps, Sentinel: %t, probes %v apart, failover of MySQL: %t; to repeat: go test -race -run 'TestChainChaos$' . -chaos.seed %d -chaos.for %v", len(steps), sentinel, suspect, failover, seed, lasting)
	begin := machineTime()
	need := lasting
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, s := range steps {
			t.Log(chainStep(s))
		}
		if err := keepSeed(chainSeeds, seed, need); err != nil {
			t.Logf("the seed could not be kept: %v", err)
		}
	})
	h, counts := chainChaosRun(t, steps, lasting, chainChaosConfig{Seed: seed})
	if at := chainReport(t, begin, h.violations()); at > 0 {
		need = at.Round(time.Second) + 3*time.Second
	}
	ends, moved, epoch := map[string]int{}, 0, 0
	for p, c := range counts { // there is none of a worker that was killed
		t.Logf("process %d: %d locks, %d moved, %v %v", p, c.Held, c.Moved, c.Ends, c.Writes)
		for _, what := range c.Outstanding {
			t.Errorf("process %d: %s", p, what)
		}
		for k, n := range c.Ends {
			ends[k] += n
		}
		moved, epoch = moved+c.Moved, max(epoch, c.Epoch)
	}
	tiers, nested, shared, writes := map[string]int{}, 0, h.shared(), map[string]int{}
	for _, l := range h.handles {
		tiers[l.Tier]++
		if l.Inner {
			nested++
		}
	}
	for _, w := range h.writes {
		writes[w.How]++
	}
	overlapping, fences := h.loose()
	t.Logf("%d switches; of best effort %d overlaps and %d fences that did not rise; %d updates lost where nothing keeps them",
		epoch-1, overlapping, fences, h.lost())
	t.Logf("locks %v, %d nested, %d of explicit holders together, writes %v", tiers, nested, shared, writes)
	// Else the faults have met nothing.
	working := lasting
	if failover { // what is exclusive is not given in the pause after it
		working = max(0, lasting-hardPause)
	}
	if seconds := int(lasting / time.Second); failover && seconds >= 60 && epoch < 17 {
		t.Errorf("the last epoch is %d: no failover of MySQL was noticed", epoch)
	}
	seconds := int(working / time.Second)
	if suspect > time.Second {
		tiers["mysql"]++ // a failover may be over before anybody calls Redis down
	}
	if len(h.handles) < 3*seconds || nested == 0 || shared == 0 || ends["x unlocked: ok"] == 0 || ends["x refused: unavailable"] == 0 || epoch < 2 ||
		tiers["redis"] == 0 || tiers["mysql"] == 0 || len(writes) != len(registers) {
		t.Errorf("too little has happened: locks %v, %d nested, %d together, %v, writes %v, epoch %d", tiers, nested, shared, ends, writes, epoch)
	}
	if seconds >= 60 && (moved == 0 || ends["x unlocked: lost"] == 0) {
		t.Errorf("no hold has moved, or none was lost: %d, %v", moved, ends)
	}
}

// chainReport fails the test for each violation, and returns when the first was.
func chainReport(t *testing.T, begin int64, found []violation) (first time.Duration) {
	for i, v := range found {
		at := time.Duration(v.at - begin)
		if i == 0 {
			first = at
		}
		if i == 5 {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Errorf("after %v: %s", at.Round(time.Millisecond), v.what)
	}
	return first
}

// chainChaosRun lets workers go through the steps, and checks that nothing is left.
func chainChaosRun(t *testing.T, steps []step, lasting time.Duration, cfg chainChaosConfig) (h chainHistory, counts []chainCounts) {
	var sentinel bool
	sentinel, cfg.Suspect = kindOf(cfg.Seed)
	failover := slices.ContainsFunc(steps, failsOver)
	s := newChainStage(t, sentinel, failover)
	if cfg.Dir, cfg.Patience = t.TempDir(), patience; failover {
		cfg.Patience += hardPause
	}
	var files []string
	start := func(process int) *rig.Process {
		cfg := cfg
		cfg.Proc, cfg.History = len(files), filepath.Join(t.TempDir(), "history")
		s.aim(&cfg, process)
		files = append(files, cfg.History)
		arg, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return rig.Spawn(t, "chain", string(arg))
	}
	var processes []*rig.Process
	for i := range chainProcesses {
		processes = append(processes, start(i))
	}
	for _, p := range processes {
		p.Expect("ready", patience)
	}
	t.Cleanup(func() { // while the processes live
		if t.Failed() {
			s.describe()
		}
	})
	begin := time.Now()
	for _, st := range steps {
		time.Sleep(time.Until(begin.Add(st.At)))
		switch {
		case s.do(st):
		case st.What == stopProcess:
			processes[st.Where].Pause()
		case st.What == goOn:
			processes[st.Where].Resume()
		case st.What == killProcess:
			processes[st.Where].Kill()
			processes[st.Where] = start(st.Where)
		default:
			t.Fatalf("unknown step %v", st)
		}
	}
	time.Sleep(time.Until(begin.Add(lasting)))
	s.heal()
	for _, p := range processes {
		p.Resume()
		p.Send("stop")
	}
	for _, p := range processes {
		p.Expect("worked", cfg.Patience+4*patience)
	}
	if cfg.Breaks == "" {
		s.leavesNothing()
	}
	for _, p := range processes {
		p.Send("close")
		var c chainCounts
		if err := json.Unmarshal([]byte(p.Expect("rest", 3*patience)), &c); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, c)
	}
	for _, file := range files {
		if err := h.read(file); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range s.all() {
		rig.Eventually(t, patience, "no connection from a worker is left", func() bool { return p.Conns() == 0 })
	}
	// Of those that were killed the rows stay until somebody has seen them silent for W.
	killed := len(files) - len(processes)
	if n := countSQL(t, s.db, "SELECT COUNT(*) FROM lock_permit"); n > killed {
		t.Errorf("%d members are listed after all have closed, %d were killed", n, killed)
	}
	for _, p := range processes {
		p.Send("end")
		if err := p.Wait(patience); err != nil {
			t.Error(err) // a data race, for one
		}
	}
	return h, counts
}
