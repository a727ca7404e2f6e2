package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Calls that hang, here for rows that somebody's open transaction has locked, are
// as many as there are places, and more wait behind them. Renewals of other locks
// are done all the same, also through a pool of few connections.
func TestHangingCallsLeaveRoomForRenewals(t *testing.T) {
	t.Parallel()
	for connections, hanging := range map[int]int64{0: 24, 4: 3} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) { hangingCallsLeaveRoom(t, connections, hanging) })
	}
}

func hangingCallsLeaveRoom(t *testing.T, connections int, hanging int64) {
	t.Parallel()
	srv, dsn := patientServer(t)
	admins := admin(t, srv)
	db := pool(t, dsn(levels[0]))
	db.SetMaxOpenConns(connections)
	s := mysqlstore.New(db, mysqlstore.Options{CallTimeout: time.Minute})
	t.Cleanup(s.Close)
	const hot = 60
	for i := range hot {
		mustAcquire(t, s, ask(fmt.Sprint("hot", i), "h", time.Hour))
	}
	mine := ask("mine", "m", time.Hour)
	mine.Name.Resource = "other"
	mustAcquire(t, s, mine)

	tx := pool(t, srv.DSN("")).MustBegin()
	defer tx.Rollback()
	tx.MustExec("SELECT 1 FROM lock_record WHERE namespace='test' AND resource_id='order:settle' FOR UPDATE")
	ctx, cancel := context.WithCancel(background)
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	for i := range hot {
		callers.Go(func() {
			if _, err := s.Acquire(ctx, ask(fmt.Sprint("hot", i), "other", time.Hour)); err == nil {
				t.Error("an acquire of a locked row was answered; the test is not what it should be")
			}
		})
	}
	rig.Eventually(t, patience, "all places are taken", func() bool { return lockWaits(t, admins) == hanging })
	for range 10 {
		ctx, cancel := withTimeout(10 * time.Second)
		res := s.Renew(ctx, []tierlock.RenewRequest{{Name: mine.Name, Lease: "m", TTL: time.Hour}})
		if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Errorf("renewal of another lock: got %v; wanted owned", res[0])
		}
		cancel()
	}
	if n := lockWaits(t, admins); n != hanging {
		t.Errorf("%d calls hang; wanted %d", n, hanging)
	}
}

// A row that somebody's open transaction has locked costs its own lease only, and
// not those that are renewed together with it.
func TestLockedRowsDoNotStopOtherRenewals(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	s := open(t, srv.DSN(""), mysqlstore.Options{CallTimeout: 6 * time.Second})
	const leases = 250
	// For more of them than there is time to wait for, a second each.
	stuck := map[int]bool{0: true, 50: true, 77: true, 78: true, 100: true, 150: true, 200: true, leases - 1: true}
	var reqs []tierlock.RenewRequest
	tx := pool(t, srv.DSN("")).MustBegin()
	defer tx.Rollback()
	for i := range leases {
		key := fmt.Sprint("k", i)
		mustAcquire(t, s, ask(key, "l", 10*time.Minute))
		reqs = append(reqs, tierlock.RenewRequest{Name: name(key), Lease: "l", TTL: 30 * time.Minute})
		if stuck[i] {
			tx.MustExec("SELECT 1 FROM lock_record WHERE namespace='test' AND resource_id='order:settle' AND business_id=? FOR UPDATE", key)
		}
	}
	for i, res := range s.Renew(t.Context(), reqs) {
		if stuck[i] {
			if !errors.Is(res.Err, tierlock.ErrUnavailable) {
				t.Errorf("renewal of %s, whose row is locked: got %v; wanted unavailable", reqs[i].Name, res)
			}
			continue
		}
		if res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("renewal of %s: got %v; wanted owned", reqs[i].Name, res)
			continue
		}
		if rec, err := s.Inspect(t.Context(), reqs[i].Name); err != nil || rec.Left < 20*time.Minute {
			t.Errorf("%s was renewed, and %v are left, error %v; wanted half an hour", reqs[i].Name, rec.Left, err)
		}
	}
}

// A caller who has left may use the requests again while the statement that was
// made of them is under way. (The race detector tells.)
func TestRenewOwnsItsRequests(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	s := open(t, srv.DSN(""), calm)
	mustAcquire(t, s, ask("0", "l", time.Minute))
	reqs := make([]tierlock.RenewRequest, 100)
	for round := range 100 {
		for i := range reqs {
			reqs[i] = tierlock.RenewRequest{Name: name(fmt.Sprint(i)), Lease: "l", TTL: time.Minute}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round)*20*time.Microsecond)
		s.Renew(ctx, reqs)
		cancel()
	}
}

// Close waits for its own calls, and not for a query of the pool's owner that
// happens to run on a connection that the store has used.
func TestCloseDoesNotWaitForOthersQueries(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	db.SetMaxOpenConns(1)
	s := mysqlstore.New(db, mysqlstore.Options{CallTimeout: 5 * time.Second})
	mustAcquire(t, s, ask("k", "l", time.Minute))
	prepared := func() int64 {
		var v string
		if err := pool(t, srv.DSN("")).QueryRow("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").Scan(new(string), &v); err != nil {
			t.Fatal(err)
		}
		var n int64
		fmt.Sscan(v, &n)
		return n
	}
	if n := prepared(); n == 0 {
		t.Fatal("no prepared statement on the server; wanted that of the acquire")
	}
	query := make(chan error, 1)
	go func() {
		_, err := db.Exec("DO SLEEP(60)")
		query <- err
	}()
	other := admin(t, srv)
	const running = "FROM information_schema.PROCESSLIST WHERE INFO LIKE 'DO SLEEP%'"
	rig.Eventually(t, patience, "the query runs", func() bool { return number(t, other, "SELECT COUNT(*) "+running) == 1 })
	s.Close()
	select {
	case err := <-query:
		t.Errorf("the query of the pool's owner has ended, with %v, when Close returns; wanted about CallTimeout at most", err)
	default:
		execute(t, other, fmt.Sprint("KILL QUERY ", number(t, other, "SELECT ID "+running)))
		<-query
	}
	rig.Eventually(t, patience, "no statement is left on the server", func() bool { return prepared() == 0 })
}

// A clean-up that fails is repeated with the next beat: that the lease of a dead
// process has ended long ago makes it no more urgent.
func TestFailingCleanUpIsPaced(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	s, log := paced(t, srv)
	s.SetPace(200*time.Millisecond, 1500*time.Millisecond, time.Hour, time.Hour)
	register(s, 1)
	db.MustExec("INSERT INTO lock_member VALUES ('test', ?, 5, 0, 1, 'app', 'dead', 2, UTC_TIMESTAMP(6))", memberID(2))
	const ttl = 12 * time.Second
	mustAcquire(t, s, ask("dead", memberID(2)+"-a", ttl))
	taken := time.Now()
	rig.Eventually(t, patience, "the dead member is reported", func() bool { return log.count("lock=test:order:settle/dead ") == 1 })
	db.MustExec("RENAME TABLE lock_record TO elsewhere")
	rig.Eventually(t, patience, "the clean-up fails", func() bool { return log.count("background work fails") > 0 })
	time.Sleep(time.Until(taken.Add(ttl + time.Second))) // the lease has ended
	beats := func() int64 { return number(t, db.DB, "SELECT beat FROM lock_member WHERE member=?", memberID(1)) }
	began, before := time.Now(), beats()
	time.Sleep(2 * time.Second)
	n := beats() - before
	if took := time.Since(began); n > 4+int64(took/(200*time.Millisecond)) {
		t.Errorf("%d beats in %v; wanted one each 200 ms", n, took)
	}
}

// The longest time to keep a lock is no overflow.
func TestKeepForEver(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	s := open(t, srv.DSN(""), calm)
	for _, keep := range []time.Duration{math.MaxInt64, math.MinInt64} {
		mustAcquire(t, s, ask("k", "l", time.Minute))
		if own, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: name("k"), Lease: "l", Keep: keep}); own != tierlock.LeaseOwned {
			t.Fatal(own, err)
		}
		rec, err := s.Inspect(t.Context(), name("k"))
		if err != nil || rec.Held != (keep > 0) {
			t.Errorf("keep %v: held %v, error %v", keep, rec.Held, err)
		}
	}
}
