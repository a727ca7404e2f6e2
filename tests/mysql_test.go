package tests_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// A Locker over a database, where that differs from one over Redis.

// execSQL executes a statement on a pool, a connection or in a transaction. A
// SELECT must have no arguments: where the server leaves out what the client knows
// already, the driver waits for it for ever.
func execSQL(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(bg, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// makeRow inserts the row of a lock that is free.
const makeRow = "INSERT INTO lock_record SELECT '" + namespace + "','job',?,'','',1,1,1,0,NULL,'','2000-01-01','2000-01-01'"

// The place of a row is taken by somebody else's transaction, and the call ends
// before that does. The row comes late: held by nobody, believed in by nobody. The
// undo finds it, though one look right after the call showed nothing.
func TestLateRowIsUndone(t *testing.T) {
	t.Parallel()
	srv := migratedServer(t, "--version=8.0.36") // on MariaDB no acquire waits for a row
	db := mysqlPool(t, srv.DSN("")).DB
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED"} {
		for _, limit := range []time.Duration{100 * time.Millisecond, callTimeout} {
			for kind, opts := range map[string][]tierlock.Option{"plain": nil, "explicit": {tierlock.Holder("h")}} {
				t.Run(fmt.Sprint(level, "/", limit, "/", kind), func(t *testing.T) {
					s := openMySQL(t, srv.DSN("innodb_lock_wait_timeout=4&tx_isolation=%27"+level+"%27"), mysqlstore.Options{CallTimeout: limit})
					cfg := config(s, tierlock.Resource{Name: "job", TTL: 10 * time.Second, Reentrant: true})
					cfg.CallTimeout = limit
					l := lockerOf(t, cfg)
					warm(t, l)
					tx, err := db.BeginTx(bg, nil)
					if err != nil {
						t.Fatal(err)
					}
					execSQL(t, tx, makeRow, t.Name())
					_, err = l.TryLock(bg, "job", t.Name(), opts...)
					wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
					wantNotIs(t, "TryLock", err, tierlock.ErrHeld)
					look := func() (tok []byte, live bool) {
						err := db.QueryRow("SELECT token, expire_at>UTC_TIMESTAMP(6) FROM lock_record WHERE business_id=?", t.Name()).Scan(&tok, &live)
						if err != nil && !errors.Is(err, sql.ErrNoRows) {
							t.Fatal(err)
						}
						return tok, live
					}
					if tok, _ := look(); tok != nil {
						t.Fatalf("the row is there already: %s", tok)
					}
					if err := tx.Rollback(); err != nil {
						t.Fatal(err)
					}
					came := false
					for end := time.Now().Add(s.Linger() + slack); time.Now().Before(end); {
						tok, live := look()
						came = came || tok != nil
						if tok != nil && !live && l.Status().Undos == 0 {
							break
						}
						time.Sleep(2 * time.Millisecond)
					}
					if !came {
						t.Error("no row came late: nothing was tried here")
					}
					idle(t, l)
					if tok, live := look(); live {
						t.Errorf("held by a call that failed: %s", tok)
					}
					mustUnlock(t, mustLock(t, l, "job", t.Name(), tierlock.Wait(patience)))
				})
			}
		}
	}
}

// Scenario 85: the bodies of held locks query the pool that the store uses, as
// many at once as it has connections. Nobody waits for a connection that a lock
// keeps: none does.
func TestPoolIsSharedWithTheBodies(t *testing.T) {
	t.Parallel()
	const conns = 4
	srv := migratedServer(t)
	pool := mysqlPool(t, srv.DSN(mysqlParams))
	pool.SetMaxOpenConns(conns)
	s := mysqlstore.New(pool, mysqlstore.Options{CallTimeout: 2 * time.Second})
	t.Cleanup(s.Close)
	cfg := config(s, tierlock.Resource{Name: "job", TTL: 6 * time.Second, Wait: patience})
	cfg.CallTimeout = 2 * time.Second
	l := lockerOf(t, cfg)
	execSQL(t, pool, "CREATE TABLE work (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
	var all sync.WaitGroup
	var inside sync.WaitGroup
	inside.Add(conns)
	for i := range conns {
		all.Go(func() {
			entered := sync.OnceFunc(inside.Done)
			defer entered() // also where the lock was not had
			err := l.Do(bg, "job", fmt.Sprint(i), func(ctx context.Context) error {
				entered()
				inside.Wait()                                                         // all four are held
				for end := time.Now().Add(7 * time.Second); time.Now().Before(end); { // longer than the TTL
					tx, err := pool.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					_, err = tx.ExecContext(ctx, "INSERT INTO work VALUES (?,1) ON DUPLICATE KEY UPDATE n=n+1", i)
					time.Sleep(20 * time.Millisecond) // it keeps its connection for a while
					if err = errors.Join(err, tx.Commit()); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("body %d: %v", i, err)
			}
		})
	}
	// And as many who wait for a lock that is held.
	for i := range 2 * conns {
		all.Go(func() {
			inside.Wait()
			if err := l.Do(bg, "job", fmt.Sprint(i%conns), func(context.Context) error { return nil }); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// Scenario 89: 32 goroutines of four Lockers on four keys, at both isolation
// levels, while somebody else's transactions hold rows, one after the other, for
// longer than a call lasts. Every call gets its lock; no deadlock, lock wait or
// lack of connections reaches a caller; and the sections do not overlap. There is no
// deadlock in the server either, of which a repetition would spare the caller.
func TestNoDeadlockReachesTheCaller(t *testing.T) {
	t.Parallel()
	const lasting, goroutines, keys = 4 * time.Second, 32, 4
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED"} {
		t.Run(level, func(t *testing.T) {
			srv := migratedServer(t, "--max-connections=60")
			db := mysqlPool(t, srv.DSN("")).DB
			for key := range keys { // a row that is not there would be a gap, for all keys
				execSQL(t, db, makeRow, fmt.Sprint(key))
			}
			var lockers []*tierlock.Locker
			for range 4 {
				pool := mysqlPool(t, srv.DSN(mysqlParams+"&tx_isolation=%27"+level+"%27"))
				pool.SetMaxOpenConns(8)
				s := mysqlstore.New(pool, mysqlstore.Options{})
				t.Cleanup(s.Close)
				lockers = append(lockers, newLocker(t, s, tierlock.Resource{Name: "job", TTL: 10 * time.Second, Reentrant: true}))
			}
			end := time.Now().Add(lasting)
			var inside [keys]sync.Mutex
			var fences [keys]uint64
			rounds := make([]int, goroutines)
			var all sync.WaitGroup
			for i := range goroutines {
				all.Go(func() {
					l := lockers[i%len(lockers)]
					for time.Now().Before(end) {
						key := rand.N(keys)
						k, err := l.Lock(bg, "job", fmt.Sprint(key), tierlock.Wait(patience))
						if err != nil {
							t.Errorf("lock: %v", err)
							return
						}
						if !inside[key].TryLock() {
							t.Error("two are inside")
							return
						}
						if f := k.Token().Fence; f <= fences[key] {
							t.Errorf("fence %d after %d", f, fences[key])
						}
						fences[key] = k.Token().Fence
						inside[key].Unlock()
						err = k.Unlock()
						// A row that is not to be had in time: the release is repeated in
						// the background. Nothing else may be told.
						if err != nil && !errors.Is(err, tierlock.ErrUnavailable) {
							t.Errorf("unlock: %v", err)
						}
						if err != nil {
							for _, number := range []string{"1213", "1205", "1040", "1203", "1226"} {
								if strings.Contains(err.Error(), "Error "+number) {
									t.Errorf("the caller is told: %v", err)
								}
							}
						}
						rounds[i]++
					}
				})
			}
			all.Go(func() {
				for time.Now().Before(end) {
					tx, err := db.BeginTx(bg, nil)
					if err != nil {
						t.Error(err)
						return
					}
					execSQL(t, tx, "SELECT * FROM lock_record WHERE namespace='"+namespace+"' AND resource_id='job' AND business_id='"+fmt.Sprint(rand.N(keys))+"' FOR UPDATE")
					time.Sleep(time.Duration(200+rand.N(600)) * time.Millisecond)
					if err := tx.Rollback(); err != nil {
						t.Error(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
			all.Wait()
			sum := 0
			for _, n := range rounds {
				sum += n
			}
			t.Logf("%d locks", sum)
			var name string
			var deadlocks int
			if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(&name, &deadlocks); err != nil {
				t.Fatal(err)
			}
			if deadlocks > 0 {
				t.Errorf("%d deadlocks in the server", deadlocks)
			}
			if sum < goroutines {
				t.Errorf("%d locks by %d goroutines are no trial", sum, goroutines)
			}
		})
	}
}

// Scenarios 10 and 11: the database is stopped (SIGSTOP). A call with a wait of
// 200 ms and no deadline returns on time; holds are over before their leases are;
// and what had been sent grants nothing when it is executed.
func TestDatabaseStopped(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	d := mysqlDeployment(t)
	l := newLocker(t, newSpy(d.open(t, d.addr)), tierlock.Resource{Name: "job", TTL: ttl})
	warm(t, l)
	for round, opt := range []tierlock.Option{tierlock.Wait(200 * time.Millisecond), tierlock.NoWait()} {
		key := fmt.Sprint("k", round)
		held := mustLock(t, l, "job", "held", tierlock.Wait(patience))
		_, end, _ := d.look(t, "job", "held")
		d.Pause()
		start := time.Now()
		_, err := l.Lock(bg, "job", key, opt)
		limit := 200 * time.Millisecond
		if round == 1 {
			limit = callTimeout
		}
		between(t, "time until the call returned", time.Since(start), 0, limit+slack)
		wantIs(t, "lock", err, tierlock.ErrUnavailable)
		wantNotIs(t, "lock", err, tierlock.ErrHeld)
		over := lastBelief(held)
		waitEnd(t, held)
		if !over.Before(end) {
			t.Errorf("believed in until %v after the lease", over.Sub(end))
		}
		wantLost(t, "cause", context.Cause(held.Context()), "unconfirmed", "expired")
		time.Sleep(time.Until(end.Add(200 * time.Millisecond)))
		d.Resume()
		for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
			d.wantGone(t, "job", key)
		}
		wantLost(t, "Unlock", held.Unlock(), "unconfirmed", "expired")
		idle(t, l)
		mustUnlock(t, mustLock(t, l, "job", key, tierlock.Wait(patience), tierlock.UntilDone()))
	}
}

// The database is killed and started again, in mid hold and while a waiter is
// there: the hold goes on, since committed rows are there and a lease outlasts the
// restart, though a renewal failed meanwhile; and the waiter has the lock after it.
func TestDatabaseKilledAndStarted(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second // the server is back before belief ends
	d := mysqlDeployment(t)
	res := tierlock.Resource{Name: "job", TTL: 30 * time.Second}
	s := newSpy(d.open(t, d.addr))
	a, b := newLocker(t, s, res), newLocker(t, d.open(t, d.addr), res)
	warm(t, b)
	k := mustLock(t, a, "job", "k", tierlock.TTL(ttl))
	got := make(chan *tierlock.Lock, 1)
	go func() {
		k, err := b.Lock(bg, "job", "k", tierlock.UntilDone())
		if err != nil {
			t.Error(err)
		}
		got <- k
	}()
	time.Sleep(300 * time.Millisecond)
	d.Kill()
	killed := time.Now()
	_, err := b.TryLock(bg, "job", "other")
	wantIs(t, "TryLock without a database", err, tierlock.ErrUnavailable)
	rig.Eventually(t, patience, "a renewal is tried without a database", func() bool { return s.renewedAfter(k.Token().Lease, killed) > 0 })
	time.Sleep(100 * time.Millisecond)
	d.Start()
	select {
	case <-got:
		t.Fatal("the waiter has it while it is held")
	case <-k.Context().Done():
		t.Fatalf("lost: %v", context.Cause(k.Context()))
	case <-time.After(ttl + time.Second): // longer than the lease
	}
	mustUnlock(t, k)
	select {
	case next := <-got:
		if next.Token().Fence <= k.Token().Fence {
			t.Errorf("fence %d after %d", next.Token().Fence, k.Token().Fence)
		}
		mustUnlock(t, next)
	case <-time.After(patience):
		t.Fatal("the waiter does not get it")
	}
}

// read_only on a server that was the primary: unavailable, holds are lost in time
// and waiters told nothing wrong, and all works again without a restart. The user
// has the rights that the documentation asks for and no more, since who may ignore
// read_only would not notice.
func TestReadOnlyInMidHold(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	srv := migratedServer(t)
	db := mysqlPool(t, srv.DSN("multiStatements=true")).DB
	execSQL(t, db, `CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret';
		GRANT SELECT, INSERT, UPDATE, DELETE ON tierlock.lock_record TO app@'127.0.0.1';
		GRANT SELECT, INSERT, UPDATE, DELETE ON tierlock.lock_member TO app@'127.0.0.1'`)
	s := openMySQL(t, strings.Replace(srv.DSN(mysqlParams), "root@", "app:secret@", 1), mysqlstore.Options{})
	l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl})
	k := mustLock(t, l, "job", "k", tierlock.Wait(patience))
	locked := time.Now()
	execSQL(t, db, "SET GLOBAL read_only=1")
	_, err := l.TryLock(bg, "job", "other")
	wantClass(t, "TryLock", err, tierlock.ErrUnavailable, "1290")
	between(t, "from the lock to its loss", waitEnd(t, k).Sub(locked), ttl/2, ttl+slack)
	wantLost(t, "cause", context.Cause(k.Context()), "unconfirmed", "expired")
	wantLost(t, "Unlock", k.Unlock(), "unconfirmed", "expired")
	execSQL(t, db, "SET GLOBAL read_only=0")
	rig.Eventually(t, patience, "the store is available", func() bool {
		k, err := l.TryLock(bg, "job", "other")
		return err == nil && k.Unlock() == nil
	})
	mustUnlock(t, mustLock(t, l, "job", "k", tierlock.Wait(patience)))
}

// Scenario 97: while the user's section runs no row is locked, and no transaction
// is open; while others wait for it, none lasts.
func TestNoRowIsLockedWhileASectionRuns(t *testing.T) {
	t.Parallel()
	d := mysqlDeployment(t)
	res := tierlock.Resource{Name: "job", TTL: 6 * time.Second, Wait: patience}
	a, b := newLocker(t, d.open(t, d.addr), res), newLocker(t, d.open(t, d.addr), res)
	db := mysqlPool(t, d.peer(d.addr).Locks).DB
	k := mustLock(t, a, "job", "k")
	waited := make(chan error, 1)
	go func() { waited <- b.Do(bg, "job", "k", func(context.Context) error { return nil }) }()
	for range 20 { // renewals and polls among them
		time.Sleep(120 * time.Millisecond) // the table is made anew after 100 ms
		var n int
		if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id<>0 AND trx_started<NOW()-INTERVAL 1 SECOND").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != 0 {
			t.Errorf("%d transactions last", n)
		}
		// Somebody else's may have the row, at once.
		tx, err := db.BeginTx(bg, nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		execSQL(t, tx, "SELECT * FROM lock_record WHERE namespace='"+namespace+"' AND resource_id='job' AND business_id='k' FOR UPDATE")
		between(t, "time to lock the row", time.Since(start), 0, slack)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	mustUnlock(t, k)
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
