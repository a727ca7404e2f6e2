package tests_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainSeeds is as chaosSeeds.
const chainSeeds = "testdata/chain-seeds"

// Three processes work over a chain of Redis and MySQL while a schedule of faults goes
// on: in each process's link to each store, in both servers, which are stopped, killed
// and started again (Redis comes back empty), and in the processes, which are stopped,
// and killed and replaced. Locks of an exclusive resource are never believed in by
// two, whatever happens; their fences rise, over both stores; what they protect loses
// no update; and when all is over nothing is left. To repeat a schedule:
//
//	go test -race -run 'TestChainChaos$' . -chaos.seed 7 -chaos.for 1m
func TestChainChaos(t *testing.T) {
	t.Parallel()
	lasting := *chaosFor
	if lasting == 0 && testing.Short() {
		lasting = 10 * time.Second
	} else if lasting == 0 {
		lasting = time.Minute
	}
	seed := *chaosSeed
	if seed == 0 {
		known, err := readSeeds(chainSeeds)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range known {
			t.Run(fmt.Sprint("known seed ", k.seed), func(t *testing.T) { chainChaos(t, k.seed, k.lasting) })
		}
		seed = rand.Uint64N(1_000_000_000) + 1
	}
	t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { chainChaos(t, seed, lasting) })
}

func chainChaos(t *testing.T, seed uint64, lasting time.Duration) {
	steps := chainSchedule(seed, lasting)
	t.Logf("%d steps; to repeat: go test -race -run 'TestChainChaos$' . -chaos.seed %d -chaos.for %v", len(steps), seed, lasting)
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
	ends, tiers, locks, nested, moved, writes, epoch := map[string]int{}, map[string]int{}, 0, 0, 0, map[string]int{}, 0
	for p, c := range counts {
		t.Logf("process %d: %d locks, %d nested, %d moved, %v %v %v", p, c.Held, c.Nested, c.Moved, c.Ends, c.Tiers, c.Writes)
		for _, what := range c.Outstanding {
			t.Errorf("process %d: %s", p, what)
		}
		for k, n := range c.Ends {
			ends[k] += n
		}
		for k, n := range c.Tiers {
			tiers[k] += n
		}
		for k, n := range c.Writes {
			writes[k] += n
		}
		locks, nested, moved, epoch = locks+c.Held, nested+c.Nested, moved+c.Moved, max(epoch, c.Epoch)
	}
	t.Logf("%d switches, %d updates lost where nothing keeps them", epoch-1, h.lost())
	// Else the faults have met nothing. (Of a worker that was killed there is no count.)
	seconds := int(lasting / time.Second)
	if locks < 3*seconds || nested == 0 || ends["x unlocked: ok"] == 0 || ends["x refused: unavailable"] == 0 || epoch < 2 ||
		tiers["redis"] == 0 || tiers["mysql"] == 0 || writes["plain: written"] == 0 || writes["fenced: written"] == 0 || writes["guarded: written"] == 0 {
		t.Errorf("too little has happened: %d locks, %d nested, %v, %v, %v, epoch %d", locks, nested, ends, tiers, writes, epoch)
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
	s := startTwoStores(t)
	db := mysqlPool(t, s.mysql.DSN("")).DB
	execSQL(t, db, registerSchema)
	execSQL(t, db, mysqlstore.GuardSchema())
	for i, res := range chainChaosResources {
		for _, key := range chainKeys(i) {
			for how := range registers {
				execSQL(t, db, "INSERT INTO register VALUES (?,0,0)", res.Name+"-"+key+"-"+how)
			}
		}
	}
	cfg.Dir, cfg.Direct = t.TempDir(), s.mysql.DSN("timeout=500ms&readTimeout=1s&writeTimeout=1s&clientFoundRows=true")
	var proxies []*rig.Proxy
	for range chainProcesses {
		proxies = append(proxies, rig.NewProxy(t, s.redis.Addr), rig.NewProxy(t, mysqlAddr(s.mysql)))
	}
	var files []string
	start := func(process int) *rig.Process {
		cfg := cfg
		cfg.Proc = len(files)
		cfg.Redis, cfg.MySQL = proxies[chainLink(process, 0)].Addr, s.mysql.DSNVia(proxies[chainLink(process, 1)].Addr, mysqlParams)
		cfg.History = filepath.Join(t.TempDir(), "history")
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
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range proxies {
				t.Log(p.Describe())
			}
		}
	})
	begin := time.Now()
	redisDown, mysqlDown := false, false
	for _, st := range steps {
		time.Sleep(time.Until(begin.Add(st.At)))
		switch st.What {
		case setFault:
			proxies[st.Where].Set(st.Dir, st.Fault)
		case reset:
			proxies[st.Where].Reset(st.Dir)
		case cut:
			proxies[st.Where].Cut()
		case refuse:
			proxies[st.Where].Refuse()
		case accept:
			proxies[st.Where].Accept()
		case stopProcess:
			processes[st.Where].Pause()
		case goOn:
			processes[st.Where].Resume()
		case killProcess:
			processes[st.Where].Kill()
			processes[st.Where] = start(st.Where)
		case pauseServer:
			s.redis.Pause()
		case resumeServer:
			s.redis.Resume()
		case crashServer:
			s.redis.Kill()
			redisDown = true
		case startServer:
			s.redis.Start()
			redisDown = false
		case pauseMySQL:
			s.mysql.Pause()
		case resumeMySQL:
			s.mysql.Resume()
		case crashMySQL:
			s.mysql.Kill()
			mysqlDown = true
		case closeMySQL:
			s.mysql.Stop()
			mysqlDown = true
		case startMySQL:
			s.mysql.Start()
			mysqlDown = false
		default:
			t.Fatalf("unknown step %v", st)
		}
	}
	time.Sleep(time.Until(begin.Add(lasting)))
	// All faults end.
	if redisDown {
		s.redis.Start()
	}
	if mysqlDown {
		s.mysql.Start()
	}
	s.redis.Resume()
	s.mysql.Resume()
	for _, p := range proxies {
		p.Set(rig.ToServer, rig.Fault{})
		p.Set(rig.ToClient, rig.Fault{})
		p.Accept()
	}
	for _, p := range processes {
		p.Resume()
		p.Send("stop")
	}
	for _, p := range processes {
		p.Expect("worked", 5*patience)
	}
	if cfg.Breaks == "" {
		chainLeavesNothing(t, s)
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
	for i, p := range proxies {
		rig.Eventually(t, patience, fmt.Sprintf("no connection over proxy %d is left", i), func() bool { return p.Conns() == 0 })
	}
	// Of those that were killed the rows stay until somebody has seen them silent for W.
	killed := len(files) - len(processes)
	if n := countSQL(t, db, "SELECT COUNT(*) FROM lock_permit"); n > killed {
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

// chainLeavesNothing checks that no lock is held in either store, but for what those
// that were killed have left, which ends on time.
func chainLeavesNothing(t *testing.T, s *twoStores) {
	t.Helper()
	db := mysqlPool(t, s.mysql.DSN("")).DB
	rig.Eventually(t, 4*time.Second+patience, "no lock is left in Redis", func() bool {
		for _, key := range s.redis.Do("KEYS", "lock:*}").([]any) {
			// Fence records live for a minute.
			if k := key.(string); strings.HasPrefix(k, "lock:"+namespace+":{") && !strings.HasSuffix(k, ":fence") {
				return false
			}
		}
		return true
	})
	for _, key := range s.redis.Do("KEYS", "*").([]any) {
		if ms := s.redis.Int("PTTL", key.(string)); ms == -1 {
			t.Errorf("key %s has no TTL", key)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			logRows(t, db)
		}
	})
	rig.Eventually(t, 4*time.Second+patience, "no lock is left in MySQL", func() bool {
		return countSQL(t, db, "SELECT COUNT(*) FROM lock_record WHERE namespace=? AND expire_at > UTC_TIMESTAMP(6)", namespace) == 0
	})
}

// logRows logs the locks that are held in MySQL, the mode and the members.
func logRows(t testing.TB, db *sql.DB) {
	for _, query := range []string{
		"SELECT CONCAT_WS(' ','now',UTC_TIMESTAMP(6),'held',business_id,lease_id,expire_at,create_time,fence,epoch,token) FROM lock_record WHERE namespace='" + namespace + "' AND expire_at > UTC_TIMESTAMP(6)",
		"SELECT CONCAT_WS(' ','mode',epoch,phase,tier,incarnation) FROM lock_mode",
		"SELECT CONCAT_WS(' ','member',member,pid,epoch,acked_epoch,beat) FROM lock_permit",
	} {
		rows, err := db.Query(query)
		if err != nil {
			t.Logf("%s: %v", query, err)
			continue
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Log(err)
			}
			t.Log(line)
		}
		rows.Close()
	}
}
