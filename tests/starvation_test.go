package tests_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

const (
	swarmHolds = 1000
	swarmTTL   = 3 * time.Second
)

// swarmReport is what a starved process says at the end.
type swarmReport struct {
	Took    time.Duration // to get all locks
	Kept    int
	Renewed []int         // how often, by hold
	Longest time.Duration // between two confirmed renewals of one hold
	Errors  []string
}

// Scenario 16: a thousand holds in a process that has one processor and keeps it
// busy. For twenty TTLs none is lost and none is left out, and renewals that come
// late are not caught up with in bursts.
func TestStarvedProcessKeepsItsHolds(t *testing.T) {
	t.Parallel()
	lasting := time.Minute
	if testing.Short() {
		lasting = 15 * time.Second
	}
	srv := rig.Redis(t)
	p := rig.Spawn(t, "swarm", srv.Addr, lasting.String())
	p.Expect("swarming", 2*time.Minute)

	// How many renewals the server executes in each tenth of a second.
	const slot = 100 * time.Millisecond
	var slots []int64
	before := srv.CommandsOf("evalsha")
	for start := time.Now(); time.Since(start) < lasting-time.Second; {
		time.Sleep(time.Until(start.Add(time.Duration(len(slots)+1) * slot)))
		now := srv.CommandsOf("evalsha")
		slots = append(slots, now-before)
		before = now
	}
	var report swarmReport
	if err := json.Unmarshal([]byte(p.Expect("swarm:", lasting+2*time.Minute)), &report); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(patience); err != nil {
		t.Error(err)
	}
	// Half a period between two renewals of one hold: in that time no more than
	// one each.
	const half = int(swarmTTL / 3 / 2 / slot)
	var total, burst int64
	for i, n := range slots {
		total += n
		var sum int64
		for _, m := range slots[i:min(i+half, len(slots))] {
			sum += m
		}
		burst = max(burst, sum)
	}
	if burst > swarmHolds*11/10 {
		t.Errorf("%d renewals in %v: more than one a hold", burst, time.Duration(half)*slot)
	}
	least, most := slices.Min(report.Renewed), slices.Max(report.Renewed)
	t.Logf("locked in %v; %d to %d renewals a hold, at most %v apart; %d in all, at most %d in %v and %d in %v",
		report.Took, least, most, report.Longest, total, slices.Max(slots), slot, burst, time.Duration(half)*slot)
	for _, e := range report.Errors {
		t.Error(e)
	}
	if report.Kept != swarmHolds {
		t.Errorf("%d of %d holds were kept", report.Kept, swarmHolds)
	}
	// A renewal each second and hold: late ones, but none twice as often and
	// none left out for long.
	rounds := int(lasting / (swarmTTL / 3))
	if least < rounds/2 || most > rounds*3/2 {
		t.Errorf("%d to %d renewals a hold, want about %d", least, most, rounds)
	}
	if report.Longest > swarmTTL*9/10 {
		t.Errorf("%v between two renewals of one hold", report.Longest)
	}
}

// The same in a database: its renewals go in batches, each a commit. (How many
// are executed when is not asked of the server, but how each hold fared.)
func TestStarvedProcessKeepsItsHoldsInADatabase(t *testing.T) {
	t.Parallel()
	lasting := time.Minute
	if testing.Short() {
		lasting = 10 * time.Second
	}
	srv := migratedServer(t)
	p := rig.Spawn(t, "swarm", srv.DSN(mysqlParams), lasting.String())
	p.Expect("swarming", 2*time.Minute)
	var report swarmReport
	if err := json.Unmarshal([]byte(p.Expect("swarm:", lasting+2*time.Minute)), &report); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(patience); err != nil {
		t.Error(err)
	}
	for _, e := range report.Errors {
		t.Error(e)
	}
	least, most := slices.Min(report.Renewed), slices.Max(report.Renewed)
	t.Logf("locked in %v; %d to %d renewals a hold, at most %v apart", report.Took, least, most, report.Longest)
	rounds := int(lasting / (swarmTTL / 3))
	if report.Kept != swarmHolds || least < rounds/2 || most > rounds*3/2 || report.Longest > swarmTTL*9/10 {
		t.Errorf("%d of %d holds kept, %d to %d renewals a hold, %v between two; want all, about %d, and less than the lease",
			report.Kept, swarmHolds, least, most, report.Longest, rounds)
	}
}

// swarmStore is over Redis or a database, by the form of the address.
func swarmStore(addr string) (tierlock.Store, error) {
	if !strings.Contains(addr, "@tcp(") {
		return openStore(addr)
	}
	db, err := sqlx.Open("mysql", addr)
	if err != nil {
		return nil, err
	}
	return mysqlstore.New(db, mysqlstore.Options{}), nil
}

// takers is how many goroutines take the locks. A thousand at once would starve
// each other before there is anything to keep.
const takers = 50

// runSwarm holds many keys on one busy processor, and tells how it went.
func runSwarm(args []string) {
	runtime.GOMAXPROCS(1)
	lasting, err := time.ParseDuration(args[1])
	if err != nil {
		die(err)
	}
	store, err := swarmStore(args[0])
	if err != nil {
		die(err)
	}
	var mu sync.Mutex // guards what follows
	report := swarmReport{Renewed: make([]int, swarmHolds)}
	last := make([]time.Time, swarmHolds)
	cfg := config(store, tierlock.Resource{Name: "job", TTL: swarmTTL, Wait: patience})
	cfg.Observer.Renewed = func(e tierlock.RenewedEvent) {
		i, err := strconv.Atoi(e.Token.Key)
		if err != nil {
			die(err)
		}
		mu.Lock()
		defer mu.Unlock()
		report.Renewed[i]++
		if !last[i].IsZero() {
			report.Longest = max(report.Longest, e.At.Sub(last[i]))
		}
		last[i] = e.At
	}
	l, err := tierlock.New(cfg)
	if err != nil {
		die(err)
	}
	start := time.Now()
	locks := make([]*tierlock.Lock, swarmHolds)
	var wg sync.WaitGroup
	for w := range takers {
		wg.Go(func() {
			for i := w; i < len(locks); i += takers {
				k, err := l.Lock(bg, "job", strconv.Itoa(i), tierlock.UntilDone())
				if err != nil {
					die(err)
				}
				locks[i] = k
			}
		})
	}
	wg.Wait()
	report.Took = time.Since(start)
	go func() {
		for x := 0; ; x++ {
			if x < 0 {
				panic(x) // so that the loop is not removed
			}
		}
	}()
	fmt.Println("swarming")
	time.Sleep(lasting)
	mu.Lock()
	defer mu.Unlock()
	for _, k := range locks {
		switch err := errors.Join(k.Err(), k.Context().Err()); {
		case err == nil:
			report.Kept++
		case len(report.Errors) < 5:
			report.Errors = append(report.Errors, err.Error())
		}
	}
	if n := l.Status().DroppedEvents; n > 0 {
		report.Errors = append(report.Errors, fmt.Sprintf("%d events were dropped", n))
	}
	line, err := json.Marshal(report)
	if err != nil {
		die(err)
	}
	fmt.Fprintln(os.Stdout, "swarm:", string(line))
}
