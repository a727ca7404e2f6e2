package tests_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"go.uber.org/goleak"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainChaosConfig is what a worker is told.
type chainChaosConfig struct {
	Proc int // its number, another one for each start
	Seed uint64
	// Redis is host:port of its proxy, or those of the sentinels of Master, whose
	// servers are reached Via others.
	Redis   []string
	Master  string
	Via     map[string]string
	Suspect time.Duration
	MySQL   string // DSN over its proxy
	Direct  string // DSN past it, for the registers
	Dir     string // of the plain registers
	History string // file, written as it goes
	Breaks  string // the rule that its stores break, see breakers
	// Patience is how long each key may take at the end, when all faults are over.
	Patience time.Duration
}

// exclusiveResource is the one whose locks exclude; best effort is the other.
const exclusiveResource = "x"

const (
	chainWorkers, chainCampers = 10, 3 // campers are among them
	chainTeams                 = 2     // keys that are taken by explicit holders
	longestChainTTL            = 4 * time.Second
)

var chainChaosResources = []struct {
	tierlock.Resource
	keys int
}{
	{tierlock.Resource{Name: exclusiveResource, TTL: longestChainTTL, Floor: tierlock.MySQL, Exclusive: true, Reentrant: true}, 9},
	{tierlock.Resource{Name: "be", TTL: 3 * time.Second, Floor: tierlock.MySQL}, 3},
}

// chainCamp is what camper i of each process wants: at every moment somebody waits
// for the first to lose it.
func chainCamp(i int) string { return fmt.Sprint("camp", i) }

// chainTeam is what explicit holders want, and enter where it is theirs: three ids, which
// all processes use.
func chainTeam(i int) string { return fmt.Sprint("team", i) }

// chainKeys are all keys of a resource.
func chainKeys(resource int) (keys []string) {
	for i := range chainChaosResources[resource].keys {
		keys = append(keys, fmt.Sprint(i))
	}
	if resource == 0 {
		for i := range chainCampers {
			keys = append(keys, chainCamp(i))
		}
		for i := range chainTeams {
			keys = append(keys, chainTeam(i))
		}
	}
	return keys
}

// chainCounts is what a worker has met.
type chainCounts struct {
	Held, Moved int
	Ends        map[string]int // results of Lock, Do and Unlock
	Writes      map[string]int // results of writes to registers
	Epoch       int            // the last
	Outstanding []string
}

// runChainChaos is a worker. It writes to its standard output, as runChaos does:
//
//	ready      work has begun
//	worked     no lock is held any more; it waits for a line
//	rest       with the counts: all was closed
//
// and ends at one more line. Its history it writes as it goes.
func runChainChaos(args []string) {
	var cfg chainChaosConfig
	if err := json.Unmarshal([]byte(args[0]), &cfg); err != nil {
		die(err)
	}
	// The driver says of each bad connection that it met one.
	if err := driver.SetLogger(&driver.NopLogger{}); err != nil {
		die(err)
	}
	before := goleak.IgnoreCurrent()
	out, err := os.Create(cfg.History)
	if err != nil {
		die(err)
	}
	c := &chainSide{cfg: cfg, stop: make(chan struct{}), out: out,
		counts: chainCounts{Ends: map[string]int{}, Writes: map[string]int{}}}
	quiet := c.watchStalls()
	redis, err := openVia(cfg)
	if err != nil {
		die(err)
	}
	pool, err := sqlx.Open("mysql", cfg.MySQL)
	if err != nil {
		die(err)
	}
	pool.SetMaxIdleConns(32)
	direct, err := sql.Open("mysql", cfg.Direct)
	if err != nil {
		die(err)
	}
	c.tools = registerTools{cfg.Dir, direct}
	mysql := mysqlstore.New(pool, mysqlstore.Options{Logger: discard, Durable: true})
	lc := config(nil)
	lc.Stores, lc.Degrade = []tierlock.Store{redis, mysql}, switchTimes
	lc.Degrade.Suspect = cfg.Suspect
	if breaker := breakers[cfg.Breaks]; breaker != nil {
		lc.Stores = breaker(redis, mysql)
	}
	for _, r := range chainChaosResources {
		lc.Resources = append(lc.Resources, r.Resource)
	}
	lc.Observer.Adopted = func(tierlock.AdoptedEvent) { c.count(func(n *chainCounts) { n.Moved++ }) }
	if c.locker, err = tierlock.New(lc); err != nil {
		die(err)
	}
	var wg sync.WaitGroup
	for i := range chainWorkers {
		r := rand.New(rand.NewPCG(cfg.Seed, uint64(1000*(cfg.Proc+1)+i)))
		wg.Go(func() {
			for !c.stopping() {
				c.round(r, i)
			}
		})
	}
	fmt.Println("ready")
	orders := bufio.NewScanner(os.Stdin)
	orders.Scan()
	close(c.stop)
	wg.Wait()
	if cfg.Breaks == "" {
		c.lockAll()
	}
	fmt.Println("worked")
	orders.Scan()

	c.counts.Epoch = int(c.locker.Status().Chain.Epoch)
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := c.locker.Close(ctx); err != nil && cfg.Breaks == "" {
		c.outstanding("Close: %v", err)
	}
	redis.Close()
	mysql.Close()
	pool.Close()
	direct.Close()
	close(quiet)
	err = goleak.Find(before)
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(before)
	}
	if err != nil {
		c.outstanding("%v", err)
	}
	c.mu.Lock()
	line, err := json.Marshal(c.counts)
	c.mu.Unlock()
	if err != nil {
		die(err)
	}
	fmt.Println("rest", string(line))
	orders.Scan()
}

type chainSide struct {
	cfg    chainChaosConfig
	locker *tierlock.Locker
	stop   chan struct{}
	tools  registerTools

	mu      sync.Mutex // guards what follows
	out     *os.File
	handles int
	counts  chainCounts
}

func (c *chainSide) stopping() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// note writes a line. It is in the file before note returns, whatever becomes of the
// process.
func (c *chainSide) note(e chainLine) {
	text, err := json.Marshal(e)
	if err != nil {
		die(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.out.Write(append(text, '\n')); err != nil {
		die(err)
	}
}

func (c *chainSide) complain(format string, args ...any) {
	c.note(chainLine{Fault: fmt.Sprintf("process %d: ", c.cfg.Proc) + fmt.Sprintf(format, args...), At: machineTime()})
}

func (c *chainSide) count(f func(*chainCounts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.counts)
}

func (c *chainSide) outstanding(format string, args ...any) {
	c.count(func(n *chainCounts) { n.Outstanding = append(n.Outstanding, fmt.Sprintf(format, args...)) })
}

// watchStalls notes when the process does not run, until the channel is closed.
func (c *chainSide) watchStalls() chan struct{} {
	const beat, limit = 5 * time.Millisecond, 25 * time.Millisecond
	stop := make(chan struct{})
	go func() {
		for last := machineTime(); ; {
			select {
			case <-stop:
				return
			case <-time.After(beat):
			}
			now := machineTime()
			if now-last > int64(limit) {
				c.note(chainLine{Stall: &stall{c.cfg.Proc, last, now}})
			}
			last = now
		}
	}()
	return stop
}

// round takes one lock, works under it, and gives it back.
func (c *chainSide) round(r *rand.Rand, worker int) {
	res := chainChaosResources[0]
	if r.IntN(4) == 0 && worker >= chainCampers {
		res = chainChaosResources[1]
	}
	h := c.handle(r, res.Resource, fmt.Sprint(min(r.IntN(res.keys), r.IntN(res.keys))))
	h.work = workTime(r)
	wait := tierlock.Wait(span(r, 5*time.Millisecond, 2*time.Second))
	if worker < chainCampers {
		h.Key, h.work, wait = chainCamp(worker), span(r, time.Second, 12*time.Second), tierlock.Wait(10*time.Second)
	}
	opts := []tierlock.Option{wait}
	if worker >= chainCampers && res.Exclusive && r.IntN(4) == 0 {
		h.Key, h.Holder = chainTeam(r.IntN(chainTeams)), fmt.Sprint("h", r.IntN(3))
		opts = append(opts, tierlock.Holder(h.Holder))
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	if r.IntN(6) == 0 { // in the wait, or in the hold
		stop := time.AfterFunc(span(r, 0, 700*time.Millisecond), cancel)
		defer stop.Stop()
	}
	h.Called = machineTime()
	switch r.IntN(5) {
	case 0:
		h.locked(c.locker.TryLock(ctx, h.Resource, h.Key, opts[1:]...))
	case 1:
		h.do(ctx, opts...)
	default:
		h.locked(c.locker.Lock(ctx, h.Resource, h.Key, opts...))
	}
}

func (c *chainSide) handle(r *rand.Rand, res tierlock.Resource, key string) *chainWork {
	h := &chainWork{c: c, r: r, res: res}
	h.Proc, h.Resource, h.Key = c.cfg.Proc, res.Name, key
	c.count(func(*chainCounts) { c.handles++; h.N = c.handles })
	return h
}

// lockAll takes every key once, when all faults are over.
func (c *chainSide) lockAll() {
	var wg sync.WaitGroup
	for i, res := range chainChaosResources {
		for _, key := range chainKeys(i) {
			wg.Go(func() {
				if err := c.lockOnce(res.Name, key); err != nil {
					c.outstanding("%s/%s at the end: %v; %+v", res.Name, key, err, c.locker.Status().Chain)
				}
			})
		}
	}
	wg.Wait()
	for end := time.Now().Add(c.cfg.Patience + patience); ; time.Sleep(10 * time.Millisecond) {
		st := c.locker.Status()
		if st.Holds+st.Waiters+st.Undos == 0 {
			return
		}
		if time.Now().After(end) {
			c.outstanding("at rest there are %d holds, %d waiters, %d undos", st.Holds, st.Waiters, st.Undos)
			return
		}
	}
}

// lockOnce takes and frees a key, over switches that may be under way still.
func (c *chainSide) lockOnce(resource, key string) error {
	ctx, cancel := context.WithTimeout(bg, c.cfg.Patience)
	defer cancel()
	for {
		k, err := c.locker.Lock(ctx, resource, key, tierlock.UntilDone())
		if err != nil {
			return err
		}
		err = k.Unlock()
		if !errors.Is(err, tierlock.ErrUnavailable) && !errors.Is(err, tierlock.ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}
