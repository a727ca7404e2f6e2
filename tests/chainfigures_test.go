package tests_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

var (
	figures       = flag.Bool("chain.figures", false, "measure what a chain costs, and its switches, and print it")
	figuresRounds = flag.Int("chain.rounds", 5, "rounds of -chain.figures")
)

const (
	figureHolds   = 200 // of all processes together
	figureWorkers = 4   // of each process, that lock and unlock all the time
)

// A figure process is one under load: it holds locks, and some goroutines lock and
// unlock keys of their own, with the default wait of a second. Orders are lines:
// "mark" tells what has happened since "begin".
type figureConfig struct {
	Redis, MySQL string
	Holds, Proc  int
	Degrade      tierlock.Degrade
}

type figureMark struct {
	Given, Failed int
	Pause         time.Duration // the longest time without a grant
	Lost          int           // holds
	Tier          string        // of the last grant
}

func runFigures(args []string) {
	var cfg figureConfig
	if err := json.Unmarshal([]byte(args[0]), &cfg); err != nil {
		die(err)
	}
	redis, err := openStore(cfg.Redis)
	if err != nil {
		die(err)
	}
	pool, err := sqlx.Open("mysql", cfg.MySQL)
	if err != nil {
		die(err)
	}
	pool.SetMaxIdleConns(32)
	lc := config(nil, tierlock.Resource{Name: "x", Floor: tierlock.MySQL, Exclusive: true})
	lc.Stores, lc.Degrade = []tierlock.Store{redis, mysqlstore.New(pool, mysqlstore.Options{Logger: discard, Durable: true})}, cfg.Degrade
	l, err := tierlock.New(lc)
	if err != nil {
		die(err)
	}
	var holds []*tierlock.Lock
	for i := range cfg.Holds {
		k, err := l.Lock(bg, "x", fmt.Sprintf("hold-%d-%d", cfg.Proc, i), tierlock.UntilDone())
		if err != nil {
			die(err)
		}
		holds = append(holds, k)
	}
	var mu sync.Mutex
	var m figureMark
	var last int64
	begin := func() { m, last = figureMark{}, machineTime() }
	begin()
	for w := range figureWorkers {
		go func() {
			for i := 0; ; i++ {
				k, err := l.Lock(bg, "x", fmt.Sprintf("load-%d-%d-%d", cfg.Proc, w, i%16))
				now := machineTime()
				mu.Lock()
				if err != nil {
					m.Failed++
				} else {
					m.Given++
					m.Tier = k.Token().Tier.String()
					m.Pause = max(m.Pause, time.Duration(now-last))
					last = now
				}
				mu.Unlock()
				if err == nil {
					_ = k.Unlock()
				}
				time.Sleep(2 * time.Millisecond)
			}
		}()
	}
	fmt.Println("ready")
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		mu.Lock()
		if orders.Text() == "begin" {
			begin()
		}
		m.Pause = max(m.Pause, time.Duration(machineTime()-last))
		m.Lost = 0
		for _, k := range holds {
			if k.Err() != nil {
				m.Lost++
			}
		}
		line, err := json.Marshal(m)
		mu.Unlock()
		if err != nil {
			die(err)
		}
		fmt.Println("mark", string(line))
	}
}

func figureMarkOf(t testing.TB, p *rig.Process, order string) (m figureMark) {
	t.Helper()
	p.Send(order)
	if err := json.Unmarshal([]byte(p.Expect("mark", patience)), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestChainFigures prints how long new grants pause when Redis is killed and when it
// is back, what is lost and what fails meanwhile, with the default periods and three
// processes under load; and what the chain costs while nothing happens. It takes some
// minutes a round, and checks only what a switch has to keep.
//
//	go test -timeout 30m -v -run 'TestChainFigures$' . -chain.figures
func TestChainFigures(t *testing.T) {
	if !*figures {
		return // nothing is measured, and so nothing is claimed
	}
	// The default periods, but for those that a return waits for by intent.
	periods := tierlock.Degrade{Up: 2 * time.Second, Dwell: 2 * time.Second}
	short := periods
	short.Permit = 15 * time.Second
	for _, c := range []struct {
		what    string
		periods tierlock.Degrade
		dead    bool
	}{
		{"all members answer", periods, false},
		{"one member is killed with Redis", periods, true},
		{"one member is killed with Redis, and permits of 15 s", short, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			var away, back, failed, lost []float64
			for range *figuresRounds {
				a, b, f, n := figureRound(t, c.periods, c.dead)
				away, back = append(away, a.Seconds()), append(back, b.Seconds())
				failed, lost = append(failed, float64(f)), append(lost, float64(n))
			}
			t.Logf("no grant for %s s when Redis is killed, %s s at the return; calls failed: %s; of %d held locks lost: %s",
				medianWorst(away), medianWorst(back), medianWorst(failed), figureHolds, medianWorst(lost))
		})
	}
	t.Run("cost", figureCost)
}

func medianWorst(v []float64) string {
	slices.Sort(v)
	return fmt.Sprintf("median %.2f, worst %.2f", v[len(v)/2], v[len(v)-1])
}

// figureRound is one outage and one return.
func figureRound(t *testing.T, periods tierlock.Degrade, dead bool) (away, back time.Duration, failed, lost int) {
	s := startTwoStores(t)
	defer s.redis.Stop()
	defer s.mysql.Stop()
	var procs []*rig.Process
	for i := range 3 {
		cfg := figureConfig{Redis: s.redis.Addr, MySQL: s.mysql.DSN(mysqlParams), Proc: i, Holds: figureHolds / 3, Degrade: periods}
		if i == 0 {
			cfg.Holds += figureHolds % 3
		}
		arg, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		procs = append(procs, rig.Spawn(t, "figures", string(arg)))
	}
	for _, p := range procs {
		p.Expect("ready", patience)
		defer p.Kill()
	}
	time.Sleep(3 * time.Second)
	if dead {
		procs[2].Kill()
		procs = procs[:2]
	}
	settle := func(tier string, change func()) (pause time.Duration) {
		for _, p := range procs {
			figureMarkOf(t, p, "begin")
		}
		change()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
			there, fails := 0, 0
			pause, lost = 0, 0
			for _, p := range procs {
				m := figureMarkOf(t, p, "mark")
				pause, fails, lost = max(pause, m.Pause), fails+m.Failed, lost+m.Lost
				if m.Tier == tier {
					there++
				}
			}
			if there == len(procs) {
				failed += fails
				return pause
			}
			if time.Now().After(end) {
				t.Fatalf("no grant from %s within two minutes", tier)
			}
		}
	}
	away = settle("mysql", s.redis.Kill)
	back = settle("redis", s.redis.Start)
	if !dead && lost > 0 {
		t.Errorf("%d of %d holds were lost though all members answered", lost, figureHolds)
	}
	return away, back, failed, lost
}

// figureCost measures one process in normal mode: what it asks of MySQL, and the time
// of a lock and its release over Redis, against a Locker with Redis alone.
func figureCost(t *testing.T) {
	s := startTwoStores(t)
	one := func(name string, stores func() []tierlock.Store, r tierlock.Resource) *tierlock.Locker {
		cfg := config(nil, r)
		cfg.Namespace, cfg.Stores = "cost-"+name, stores()
		return lockerOf(t, cfg)
	}
	redis := func() tierlock.Store { return open(t, s.redis.Addr) }
	mysql := func() tierlock.Store {
		return openMySQL(t, s.mysql.DSN(mysqlParams), mysqlstore.Options{Logger: discard})
	}
	both := func() []tierlock.Store { return []tierlock.Store{redis(), mysql()} }
	ways := []string{"alone", "best effort", "exclusive"}
	lockers := []*tierlock.Locker{
		one("alone", func() []tierlock.Store { return []tierlock.Store{redis()} }, tierlock.Resource{Name: "x"}),
		one("be", both, tierlock.Resource{Name: "x", Floor: tierlock.MySQL}),
		one("exclusive", both, tierlock.Resource{Name: "x", Floor: tierlock.MySQL, Exclusive: true}),
	}
	for _, l := range lockers {
		mustUnlock(t, mustLock(t, l, "x", "first", tierlock.Wait(patience)))
	}
	// The server's own time for a script is steadier than that of a round trip.
	var scripts []float64
	for _, l := range lockers {
		s.redis.Do("CONFIG", "RESETSTAT")
		figureOfPairs(t, l, 1)
		scripts = append(scripts, figureOfScripts(t, s.redis))
	}
	t.Logf("a script in Redis: %.1f µs with Redis alone, %.1f best effort, %.1f exclusive", scripts[0], scripts[1], scripts[2])
	for _, goroutines := range []int{1, 64} {
		took := make([][]float64, len(ways))
		for range 15 {
			for w, l := range lockers {
				took[w] = append(took[w], figureOfPairs(t, l, goroutines))
			}
		}
		var medians []float64
		for w := range ways {
			slices.Sort(took[w])
			medians = append(medians, took[w][len(took[w])/2])
		}
		t.Logf("%d goroutines, a lock and its release over Redis: %.1f µs with Redis alone, best effort %.2f times that, exclusive %.2f times",
			goroutines, medians[0], medians[1]/medians[0], medians[2]/medians[0])
	}
	db := mysqlPool(t, s.mysql.DSN("")).DB
	count := func() (n int) {
		return countSQL(t, db, "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN ('COM_SELECT','COM_INSERT','COM_UPDATE','COM_DELETE','COM_INSERT_SELECT')")
	}
	const minute = 30 * time.Second
	before := count()
	time.Sleep(minute)
	// Two of the processes are in a chain, and one counting is among it.
	t.Logf("in normal mode a process makes %.2f statements a second in MySQL", float64(count()-before-1)/minute.Seconds()/2)
}

// figureOfPairs is the median time of a lock and its release, in microseconds.
func figureOfPairs(t *testing.T, l *tierlock.Locker, goroutines int) float64 {
	var mu sync.Mutex
	var all []float64
	var wg sync.WaitGroup
	runtime.GC()
	for g := range goroutines {
		wg.Go(func() {
			var own []float64
			for i := range 2000 / goroutines {
				begin := time.Now()
				k, err := l.Lock(bg, "x", fmt.Sprint(g, "-", i%16))
				if err != nil {
					t.Error(err)
					return
				}
				if err := k.Unlock(); err != nil {
					t.Error(err)
				}
				own = append(own, float64(time.Since(begin).Microseconds()))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all[len(all)/2]
}

// figureOfScripts is how long Redis took for a script since its statistics were reset,
// in microseconds.
func figureOfScripts(t *testing.T, redis *rig.RedisServer) float64 {
	var calls, usec float64
	for _, line := range strings.Split(redis.Text("INFO", "commandstats"), "\r\n") {
		var n, u float64
		if _, stats, ok := strings.Cut(line, "cmdstat_evalsha:"); ok {
			if _, err := fmt.Sscanf(stats, "calls=%f,usec=%f", &n, &u); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			calls, usec = calls+n, usec+u
		}
	}
	return usec / calls
}
