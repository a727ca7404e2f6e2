package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// A transaction of somebody else's holds a row, or the place where it would be
// inserted, for longer than a call lasts.

// insertRow makes a row of a lock that is free.
const insertRow = "INSERT INTO lock_record SELECT 'test','order:settle',?,'','',1,1,1,0,NULL,'','2000-01-01','2000-01-01'"

// The row is there, so the statement decides after its wait, and too late: it
// writes nothing.
func TestAcquireGivenUpAtALockedRow(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, level := range levels {
		for _, limit := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond} {
			for kind, explicit := range map[string]bool{"plain": false, "explicit": true} {
				t.Run(fmt.Sprint(level, "/", limit, "/", kind), func(t *testing.T) {
					s := open(t, srv.DSN(at(level)), mysqlstore.Options{CallTimeout: limit})
					key := t.Name()
					execute(t, db, insertRow, key)
					inspectSoon(t, s, key) // the server is known by then
					tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row(key)+" FOR UPDATE")
					req := ask(key, newLease(), patience)
					req.Explicit = explicit
					var res tierlock.AcquireResult
					var err error
					took := within(t, limit+slack, "acquire", func() { res, err = s.Acquire(background, req) })
					wantNotInTime(t, res, err)
					if took < limit {
						t.Fatalf("given up after %v, %v: the row was not waited for", took, err)
					}
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
					noTransactions(t, db)
					if n := number(t, db, "SELECT COUNT(*) FROM lock_record WHERE lease_id<>'' AND "+row(key)); n != 0 {
						t.Error("the late statement took the lock")
					}
				})
			}
		}
	}
}

// wantNotInTime checks what an acquire says whose row was locked until its limit: that
// there was no answer, or on MariaDB, where it does not wait in the server, that it
// comes too late. One that the server finds late asks for no row, and is told who holds
// the lock, if anybody does.
func wantNotInTime(t testing.TB, res tierlock.AcquireResult, err error) {
	t.Helper()
	if err == nil && !res.Granted && res.Left > 0 {
		return
	}
	if !errors.Is(err, tierlock.ErrLate) {
		wantClass(t, "acquire", err, tierlock.ErrUnavailable)
	}
}

// inspectSoon reads a lock until the store answers: its limit may be short.
func inspectSoon(t testing.TB, s tierlock.Store, key string) (rec tierlock.Record) {
	t.Helper()
	rig.Eventually(t, patience, "the store answers", func() bool {
		var err error
		rec, err = s.Inspect(background, name(key))
		return err == nil
	})
	return rec
}

// There is no row yet, and somebody else's transaction has the place where it
// would be: values are computed before the wait for that, so the row may come
// late. One look after the call was given up is not enough to know: it shows
// nothing, and later the lock is held. Not later than Linger says, though; and a
// release sent after that is final.
func TestLateRowIsFoundByTheUndo(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36") // on MariaDB no acquire waits
	db := admin(t, srv)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			// The call is sent before its limit, and the rollback comes while its
			// statement waits, also where the machine stands still in between.
			s := open(t, srv.DSN("innodb_lock_wait_timeout=12&"+at(level)), mysqlstore.Options{CallTimeout: 4 * time.Second})
			key := t.Name()
			inspectSoon(t, s, key)
			tx := foreign(t, db, insertRow, key)
			lease := newLease()
			_, err := s.Acquire(background, ask(key, lease, time.Hour))
			gaveUp := time.Now()
			wantClass(t, "acquire", err, tierlock.ErrUnavailable)
			if inspectSoon(t, s, key).Held {
				t.Fatal("held while the row waits for another transaction")
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			var rec tierlock.Record
			rig.Eventually(t, patience, "the row comes late", func() bool {
				rec = inspectSoon(t, s, key)
				return rec.Held
			})
			if rec.Token.Lease != lease {
				t.Fatalf("got %+v; wanted the late row of lease %s", rec, lease)
			}
			// Nobody else comes in, and the undo finds it.
			other := open(t, srv.DSN(""), calm)
			if res, err := other.Acquire(background, ask(key, newLease(), time.Second)); err != nil || res.Granted {
				t.Errorf("another's acquire: got %+v, %v; wanted held", res, err)
			}
			time.Sleep(time.Until(gaveUp.Add(s.Linger())))
			mustRelease(t, other, drop(key, lease), tierlock.LeaseOwned)
			if mustInspect(t, other, key).Held {
				t.Error("held after the undo")
			}
		})
	}
}

// As long as the place is taken: the statement does not outlast what Linger says,
// so that afterwards nothing comes any more.
func TestNothingComesAfterLinger(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, params := range []string{"", "innodb_lock_wait_timeout=1"} {
		t.Run(params, func(t *testing.T) {
			s := open(t, srv.DSN(params), quick)
			key := t.Name()
			inspectSoon(t, s, key)
			if got, want := s.Linger(), time.Second+quick.CallTimeout; got != want {
				t.Errorf("Linger: got %v; wanted %v", got, want)
			}
			tx := foreign(t, db, insertRow, key)
			res, err := s.Acquire(background, ask(key, newLease(), patience))
			wantNotInTime(t, res, err)
			time.Sleep(s.Linger() + slack)
			if n := lockWaits(t, db); n != 0 {
				t.Errorf("%d statements still wait after %v", n, s.Linger())
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			noTransactions(t, db)
			if rec := inspectSoon(t, s, key); rec.Held {
				t.Errorf("held: %+v", rec)
			}
		})
	}
}

// Renewals, releases and reads of a lock whose row somebody else's transaction
// holds: each ends on time, the read is not hindered at all, and all is well as
// soon as the row is free.
func TestHeldLockWithALockedRow(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), quick)
	other := open(t, srv.DSN(""), calm)
	lease := newLease()
	first := mustAcquire(t, other, ask("k", lease, time.Hour))
	inspectSoon(t, s, "k")
	tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row("k")+" FOR UPDATE")
	within(t, quick.CallTimeout+slack, "renew", func() {
		res := s.Renew(background, []tierlock.RenewRequest{{Name: name("k"), Lease: lease, TTL: patience}})
		wantClass(t, "renew", res[0].Err, tierlock.ErrUnavailable)
	})
	within(t, quick.CallTimeout+slack, "release", func() {
		_, err := s.Release(background, drop("k", lease))
		wantClass(t, "release", err, tierlock.ErrUnavailable)
	})
	if rec := mustInspect(t, other, "k"); !rec.Held || rec.Token != first {
		t.Errorf("inspect: got %+v; wanted %v", rec, first)
	}
	within(t, quick.CallTimeout+slack, "acquire", func() {
		res, err := s.Acquire(background, ask("k", newLease(), patience))
		wantNotInTime(t, res, err)
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	noTransactions(t, db)
	// The release that was given up was executed, or has to be repeated.
	if got, err := other.Release(t.Context(), drop("k", lease)); err != nil || got == tierlock.LeaseTaken {
		t.Errorf("release: %v, %v", got, err)
	}
	mustAcquire(t, other, ask("k", newLease(), patience))
}

// A transaction that holds one row must not cost the holds of all others: what
// is renewed together with it is renewed all the same, within a few tries.
func TestOneLockedRowDoesNotEndOtherHolds(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	short := open(t, srv.DSN(""), quick)
	inspectSoon(t, short, "0")
	const holds = 20
	var reqs []tierlock.RenewRequest
	for i := range holds {
		key, lease := fmt.Sprint(i), newLease()
		mustAcquire(t, s, ask(key, lease, patience))
		reqs = append(reqs, tierlock.RenewRequest{Name: name(key), Lease: lease, TTL: 2 * patience})
	}
	tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row("7")+" FOR UPDATE")
	renewed := make(map[string]bool)
	for range 4 { // as the watchdog: once, and three times more
		within(t, quick.CallTimeout+slack, "renew", func() {
			for i, res := range short.Renew(background, reqs) {
				if res.Err == nil && res.State != tierlock.LeaseOwned {
					t.Errorf("%s: %v", reqs[i].Name, res.State)
				} else if res.Err == nil {
					renewed[reqs[i].Name.Key] = true
				}
			}
		})
	}
	if renewed["7"] || len(renewed) != holds-1 {
		t.Errorf("renewed: %v; wanted all but 7", renewed)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, "all are renewed", func() bool {
		for _, res := range short.Renew(background, reqs) {
			if res.Err != nil {
				return false
			}
		}
		return true
	})
}

// Scenario 86: 200 calls that are cancelled after 50 ms while somebody else's
// transaction holds the row. The server is left with no more threads than the
// store has places, and soon with none of them waiting.
func TestCancelledCallsLeaveNoThreads(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			const places = 8
			s := open(t, srv.DSN(at(level)), mysqlstore.Options{CallTimeout: calm.CallTimeout, MaxCalls: places})
			key := t.Name()
			execute(t, db, insertRow, key)
			inspectSoon(t, s, key)
			baseline := srv.Threads()
			tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row(key)+" FOR UPDATE")
			most := 0
			var calls sync.WaitGroup
			for range 200 {
				calls.Go(func() {
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					time.AfterFunc(50*time.Millisecond, cancel)
					began := time.Now()
					_, err := s.Acquire(ctx, ask(key, newLease(), patience))
					if errors.Is(err, tierlock.ErrLate) && time.Since(began) > time.Second {
						return // the row was waited for as long as that may be, before it was cancelled
					}
					wantClass(t, "acquire", err, tierlock.ErrUnavailable)
					for _, unwanted := range []string{"1205", "1213", "1040"} {
						if strings.Contains(err.Error(), unwanted) {
							t.Errorf("the caller is told %v", err)
						}
					}
					if !errors.Is(err, context.Canceled) {
						t.Errorf("got %v; wanted the ctx's error", err)
					}
				})
				time.Sleep(5 * time.Millisecond)
				most = max(most, srv.Threads())
			}
			calls.Wait()
			if limit := baseline + 3*places; most > limit {
				t.Errorf("up to %d threads, %d before; wanted at most %d", most, baseline, limit)
			}
			rig.Eventually(t, patience, "no statement waits any more", func() bool { return lockWaits(t, db) == 0 })
			rig.Eventually(t, patience, "the threads have ended", func() bool { return srv.Threads() <= baseline+places })
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			noTransactions(t, db)
			if rec := inspectSoon(t, s, key); rec.Held {
				t.Errorf("held by a call that was cancelled: %+v", rec)
			}
			t.Logf("%d threads before, %d at most, %d after", baseline, most, srv.Threads())
		})
	}
}
