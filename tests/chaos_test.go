package tests_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

var (
	chaosFor  = flag.Duration("chaos.for", 0, "how long TestChaos and TestChainChaos go on (default 1m and 2m, 10s with -short)")
	chaosSeed = flag.Uint64("chaos.seed", 0, "the one seed for TestChaos and TestChainChaos (default: those kept, and one at random)")
)

// chaosSeeds holds a file for each seed that failed once: its name is the seed,
// its text how long the schedule has to be to show it. They run first.
const chaosSeeds = "testdata/chaos-seeds"

// Two processes work on 50 keys while a random schedule of faults goes on: in
// the links, each way of its own, in the processes and in the server. No key is
// ever believed in by two, fences rise, and when all is over nothing is left.
// What the work meets is up to chance, the faults are those of the seed. To
// repeat one:
//
//	go test -race -run 'TestChaos$' . -chaos.seed 7 -chaos.for 1m
func TestChaos(t *testing.T) {
	t.Parallel()
	runSeeds(t, chaosSeeds, time.Minute, chaos)
}

// runSeeds runs the one seed that was asked for, or those that are kept in dir and one
// at random, which goes on for as long as usual unless a flag says otherwise.
func runSeeds(t *testing.T, dir string, usual time.Duration, run func(t *testing.T, seed uint64, lasting time.Duration)) {
	lasting := *chaosFor
	if lasting == 0 && testing.Short() {
		lasting = 10 * time.Second
	} else if lasting == 0 {
		lasting = usual
	}
	seed := *chaosSeed
	if seed == 0 {
		known, err := readSeeds(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range known {
			t.Run(fmt.Sprint("known seed ", k.seed), func(t *testing.T) { run(t, k.seed, k.lasting) })
		}
		seed = rand.Uint64N(1_000_000_000) + 1
	}
	t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { run(t, seed, lasting) })
}

// chaos runs a schedule and checks all that has to hold.
func chaos(t *testing.T, seed uint64, lasting time.Duration) {
	steps := scheduleOf(seed, lasting)
	t.Logf("%d steps; to repeat: go test -race -run 'TestChaos$' . -chaos.seed %d -chaos.for %v", len(steps), seed, lasting)
	begin := machineTime()
	need := lasting
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, s := range steps {
			t.Log(s)
		}
		if err := keepSeed(chaosSeeds, seed, need); err != nil {
			t.Logf("the seed could not be kept: %v", err)
		}
	})

	// Every write is in the file before it is answered, so a crash loses none.
	srv := rig.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	h, counts := chaosRun(t, srv, steps, lasting, chaosConfig{Seed: seed})

	found := h.violations()
	for i, v := range found {
		if i == 0 {
			need = time.Duration(v.at-begin).Round(time.Second) + 3*time.Second
		}
		if i == 5 {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Errorf("after %v: %s", time.Duration(v.at-begin).Round(time.Millisecond), v.what)
	}
	t.Logf("the server was looked at %d times", len(h.seen))
	if len(h.seen) < 5*int(lasting/time.Second) {
		t.Errorf("the server was looked at %d times only", len(h.seen))
	}
	ends, locks, nested := map[string]int{}, 0, 0
	for p, c := range counts {
		t.Logf("process %d: %d locks, %d nested, %d stalls, %v", p, c.Held, c.Nested, c.Stalls, c.Ends)
		for _, what := range c.Outstanding {
			t.Errorf("process %d: %s", p, what)
		}
		if c.Held == 0 {
			t.Errorf("process %d did nothing: %+v", p, c)
		}
		for end, n := range c.Ends {
			ends[end] += n
		}
		locks += c.Held
		nested += c.Nested
	}
	// Else the faults have met nothing. Of both together: some schedules leave one
	// of them hardly a second in ten.
	if locks < 6*int(lasting/time.Second) || nested == 0 || ends["unlocked: ok"] == 0 || ends["refused: held"] == 0 {
		t.Errorf("the processes did too little: %d locks, %d nested, %v", locks, nested, ends)
	}
	if lasting >= 10*time.Second && (ends["unlocked: lost"] == 0 || ends["refused: unavailable"] == 0) {
		t.Errorf("the faults did too little: %v", ends)
	}
}

// chaosRun lets the processes work through the steps, and checks that nothing is
// left behind: no key, no connection, no subscription, no goroutine.
func chaosRun(t *testing.T, srv *rig.RedisServer, steps []step, lasting time.Duration, cfg chaosConfig) (h history, counts []chaosCounts) {
	clients := func() int { return strings.Count(srv.Text("CLIENT", "LIST"), "\n") }
	before := clients()
	var proxies []*rig.Proxy
	var processes []*rig.Process
	var files []string
	for i := range chaosProcesses {
		cfg.Proc = i
		cfg.History = filepath.Join(t.TempDir(), "history")
		proxies = append(proxies, rig.NewProxy(t, srv.Addr))
		cfg.Addr = proxies[i].Addr
		arg, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, rig.Spawn(t, "chaos", string(arg)))
		files = append(files, cfg.History)
	}
	for _, p := range processes {
		p.Expect("ready", patience)
	}
	t.Cleanup(func() { // while the processes live
		if t.Failed() {
			for _, p := range proxies {
				t.Log(p.Describe())
			}
		}
	})
	eyes := observe(srv)
	begin := time.Now()
	down := false
	for _, s := range steps {
		time.Sleep(time.Until(begin.Add(s.At)))
		switch s.What {
		case setFault:
			proxies[s.Where].Set(s.Dir, s.Fault)
		case finish:
			proxies[s.Where].Finish(s.Dir)
		case reset:
			proxies[s.Where].Reset(s.Dir)
		case cut:
			proxies[s.Where].Cut()
		case refuse:
			proxies[s.Where].Refuse()
		case accept:
			proxies[s.Where].Accept()
		case stopProcess:
			processes[s.Where].Pause()
		case goOn:
			processes[s.Where].Resume()
		case pauseServer:
			srv.Pause()
		case resumeServer:
			srv.Resume()
		case crashServer:
			srv.Kill()
			down = true
		case closeServer:
			srv.Stop()
			down = true
		case startServer:
			srv.Start()
			down = false
		default:
			t.Fatalf("unknown step %v", s)
		}
	}
	time.Sleep(time.Until(begin.Add(lasting)))
	// All faults end, but half-open connections: those are for the library to
	// find out about.
	if down {
		srv.Start()
	}
	srv.Resume()
	for i := range chaosProcesses {
		proxies[i].Set(rig.ToServer, rig.Fault{})
		proxies[i].Set(rig.ToClient, rig.Fault{})
		proxies[i].Accept()
		processes[i].Resume()
		processes[i].Send("stop")
	}
	for _, p := range processes {
		p.Expect("worked", 3*patience)
	}
	h.seen = eyes.end(t)
	// Whatever was locked is free at once, or one TTL later.
	worked := time.Now()
	if !cfg.Broken {
		rig.Eventually(t, time.Until(worked.Add(longestTTL+slack)), "only fence records are left", func() bool {
			for _, key := range srv.Do("KEYS", "*").([]any) {
				if !strings.HasSuffix(key.(string), ":fence") {
					return false
				}
			}
			return true
		})
		records := srv.Do("KEYS", "*").([]any)
		if len(records) == 0 {
			t.Error("there are no fence records")
		}
		for _, key := range records {
			if ms := srv.Int("PTTL", key.(string)); ms == -1 || ms > 62_000 {
				t.Errorf("key %s has a TTL of %d ms, want about a minute at most", key, ms)
			}
		}
	}
	rig.Eventually(t, patience, "nobody is subscribed", func() bool {
		return len(srv.Do("PUBSUB", "CHANNELS").([]any))+len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) == 0
	})
	for i, p := range processes {
		p.Send("close")
		var c chaosCounts
		if err := json.Unmarshal([]byte(p.Expect("rest", 3*patience)), &c); err != nil {
			t.Fatal(err)
		}
		counts = append(counts, c)
		if err := h.read(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range proxies {
		rig.Eventually(t, patience, "no connection from a process is left", func() bool { return p.Conns() == 0 })
		p.Cut() // what is half-open at the server's side
	}
	rig.Eventually(t, patience, "the server has as many connections as before", func() bool { return clients() <= before })
	for _, p := range processes {
		p.Send("end")
		if err := p.Wait(patience); err != nil {
			t.Error(err) // a data race, for one
		}
	}
	return h, counts
}

type knownSeed struct {
	seed    uint64
	lasting time.Duration
}

func readSeeds(dir string) (known []knownSeed, err error) {
	files, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	for _, f := range files {
		seed, err := strconv.ParseUint(f.Name(), 10, 64)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		lasting, err := time.ParseDuration(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, err
		}
		known = append(known, knownSeed{seed, lasting})
	}
	slices.SortFunc(known, func(a, b knownSeed) int { return cmp.Compare(a.seed, b.seed) })
	return known, err
}

func keepSeed(dir string, seed uint64, lasting time.Duration) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strconv.FormatUint(seed, 10)), []byte(lasting.String()+"\n"), 0o666)
}
