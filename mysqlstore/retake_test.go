package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// A lock that was released here is taken again by one statement, the UPDATE of its
// row; and where that row is no longer what it was left as, by what takes any other.
func TestTakenAgain(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--log-output=TABLE")
	db := admin(t, srv)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	for what, c := range map[string]struct {
		fences, got int
		between     func(t *testing.T, key string)
		statements  string // of the second acquire, by their first words
	}{
		"left as it was": {0, 0, func(*testing.T, string) {}, "UPDATE"},
		"with fences":    {100, 100, func(*testing.T, string) {}, "UPDATE"},
		"used by another": {0, 0, func(t *testing.T, key string) {
			lease := newLease()
			mustAcquire(t, other, ask(key, lease, patience))
			mustRelease(t, other, drop(key, lease), tierlock.LeaseOwned)
		}, "UPDATE"},
		"used by several": {0, 0, func(t *testing.T, key string) {
			lease := newLease()
			mustAcquire(t, other, askAs("h", key, lease, patience))
			mustRelease(t, other, dropAs(key, lease), tierlock.LeaseOwned)
		}, "UPDATE"},
		"gone": {0, 0, func(t *testing.T, key string) { execute(t, db, "DELETE FROM lock_record WHERE "+row(key)) }, "UPDATE SELECT SELECT INSERT"},
		"fence ahead": {100, 0, func(t *testing.T, key string) {
			execute(t, db, "UPDATE lock_record SET fence=fence+60000000 WHERE "+row(key))
		}, "UPDATE SELECT INSERT SELECT"},
		"expired, not given": {0, 0, func(t *testing.T, key string) {
			execute(t, db, "UPDATE lock_record SET expire_at='2001-01-01' WHERE "+row(key))
		}, "UPDATE SELECT INSERT"},
	} {
		t.Run(what, func(t *testing.T) {
			key := t.Name()
			lease := newLease()
			mustAcquire(t, s, ask(key, lease, patience))
			mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
			c.between(t, key)
			before := number(t, db, "SELECT COALESCE(MAX(fence),0) FROM lock_record WHERE "+row(key))
			execute(t, db, "TRUNCATE mysql.general_log")
			execute(t, db, "SET GLOBAL general_log=1")
			req := ask(key, newLease(), patience)
			req.Fences = c.fences
			res, err := s.Acquire(background, req)
			execute(t, db, "SET GLOBAL general_log=0")
			if err != nil || !res.Granted || res.Fences != c.got || int64(res.Token.Fence) <= before {
				t.Fatalf("got %+v, %v; wanted a grant above %d with %d more", res, err, before, c.got)
			}
			if said := retakeSaid(t, db); said != c.statements {
				t.Errorf("sent %s; wanted %s", said, c.statements)
			}
			if rec := mustInspect(t, other, key); !rec.Held || rec.Token != res.Token {
				t.Errorf("stored %+v; wanted the token that was given, %+v", rec.Token, res.Token)
			}
			if last := number(t, db, "SELECT fence FROM lock_record WHERE "+row(key)); last != int64(res.Token.Fence)+int64(res.Fences) {
				t.Errorf("the row's fence is %d; wanted the last of %d and %d more", last, res.Token.Fence, res.Fences)
			}
			if res, err := other.Acquire(background, ask(key, newLease(), patience)); err != nil || res.Granted {
				t.Errorf("another's acquire: %+v, %v; wanted held", res, err)
			}
			mustRelease(t, s, drop(key, req.Token.Lease), tierlock.LeaseOwned)
		})
	}
}

// retakeSaid is the first words of what the log has of the store's statements.
func retakeSaid(t *testing.T, db *sql.DB) string {
	t.Helper()
	var all []string
	if err := sqlx.NewDb(db, "mysql").Select(&all, "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log "+
		"WHERE command_type IN ('Execute','Query') AND argument NOT LIKE '%general_log%' ORDER BY event_time"); err != nil {
		t.Fatal(err)
	}
	for i, text := range all {
		_, text, _ = strings.Cut(" FOR "+strings.TrimPrefix(text, "SET STATEMENT innodb_lock_wait_timeout=0 FOR "), " FOR ")
		all[i], _, _ = strings.Cut(text, " ")
	}
	return strings.Join(all, " ")
}

// A row of a later epoch than that of the call, and another server than that which it
// is meant for, keep it from being taken so, too.
func TestTakenAgainForAPlace(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	s.RetakeAlways()
	for what, c := range map[string]struct {
		row   int
		place tierlock.Place
		epoch uint64 // of the grant, 0 for none
	}{
		"shared, of its epoch":       {2, tierlock.Place{Epoch: 2}, 2},
		"shared, of a later epoch":   {5, tierlock.Place{Epoch: 2}, 5},
		"placed, of its epoch":       {2, tierlock.Place{Epoch: 2, Exclusive: true}, 2},
		"placed, of an earlier one":  {1, tierlock.Place{Epoch: 2, Exclusive: true}, 2},
		"placed, of a later epoch":   {5, tierlock.Place{Epoch: 2, Exclusive: true}, 0},
		"placed, for another server": {2, tierlock.Place{Epoch: 2, Exclusive: true, Incarnation: "other"}, 0},
	} {
		t.Run(what, func(t *testing.T) {
			key := t.Name()
			execute(t, db, insertRow, key)
			execute(t, db, fmt.Sprintf("UPDATE lock_record SET epoch=%d WHERE %s", c.row, row(key)))
			req := ask(key, newLease(), patience)
			req.Place = c.place
			res, err := s.Acquire(background, req)
			if c.epoch == 0 {
				if !errors.Is(err, tierlock.ErrEpoch) || number(t, db, "SELECT COUNT(*) FROM lock_record WHERE lease_id='' AND "+row(key)) != 1 {
					t.Errorf("got %+v, %v; wanted an untouched row", res, err)
				}
				return
			}
			if err != nil || !res.Granted || res.Token.Epoch != c.epoch {
				t.Fatalf("got %+v, %v; wanted a grant of epoch %d", res, err, c.epoch)
			}
			if n := number(t, db, "SELECT epoch FROM lock_record WHERE "+row(key)); n != int64(c.epoch) {
				t.Errorf("the row's epoch is %d, wanted %d", n, c.epoch)
			}
			if rec := mustInspect(t, s, key); rec.Token != res.Token {
				t.Errorf("stored %+v; wanted %+v", rec.Token, res.Token)
			}
		})
	}
}

// Who finds it held by another is told so, by the row that is read then.
func TestTakenAgainIsHeldByAnother(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	lease, theirs := newLease(), newLease()
	mustAcquire(t, s, ask("k", lease, patience))
	mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	given := mustAcquire(t, other, ask("k", theirs, patience))
	res, err := s.Acquire(background, ask("k", newLease(), patience))
	if err != nil || res.Granted || res.Token != given {
		t.Errorf("got %+v, %v; wanted held with %+v", res, err, given)
	}
	mustRelease(t, other, drop("k", theirs), tierlock.LeaseOwned)
}

// A statement that waits for the row in the server, as over MySQL, and longer than it is
// wanted, takes nothing: not when the row is free again, either.
func TestTakenAgainTooLate(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			srv := migrated(t, "--version=8.0.36")
			db := admin(t, srv)
			// The call is sent before its limit, and its statement waits for longer.
			s := open(t, srv.DSN(at(level)+"&innodb_lock_wait_timeout=60"), mysqlstore.Options{CallTimeout: 4 * time.Second})
			s.RetakeAlways()
			for kind, place := range map[string]tierlock.Place{"plain": {}, "shared": {Epoch: 1}, "placed": {Epoch: 1, Exclusive: true}} {
				t.Run(kind, func(t *testing.T) {
					key := t.Name()
					execute(t, db, insertRow, key)
					inspectSoon(t, s, key)
					tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row(key)+" FOR UPDATE")
					req := ask(key, newLease(), patience)
					req.Place = place
					_, err := s.Acquire(background, req)
					wantClass(t, "acquire", err, tierlock.ErrUnavailable)
					if n := number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE lock_record FORCE INDEX (PRIMARY) SET attempt%' AND id<>CONNECTION_ID()"); n != 1 {
						t.Fatalf("%d statements wait for the row", n)
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
		})
	}
}

// In a session of which somebody has made something else it changes nothing that
// counts: the assignments may see the row as it was.
func TestTakenAgainInOddSessions(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	for i, params := range []string{
		"sql_mode=%27SIMULTANEOUS_ASSIGNMENT,STRICT_ALL_TABLES%27", "sql_mode=%27ORACLE%27", "sql_mode=%27NO_UNSIGNED_SUBTRACTION%27",
		"sql_mode=%27TRADITIONAL,NO_ZERO_DATE,ANSI%27&time_zone=%27%2B05:45%27&loc=Asia%2FKolkata&parseTime=true&clientFoundRows=true&charset=gbk",
	} {
		t.Run(params, func(t *testing.T) {
			s := open(t, srv.DSN(params), calm)
			key, last := fmt.Sprint(i), uint64(0)
			for range 3 {
				lease := newLease()
				got := mustAcquire(t, s, ask(key, lease, patience))
				if rec := mustInspect(t, s, key); rec.Token != got || got.Fence <= last {
					t.Errorf("stored %+v; wanted %+v, above %d", rec.Token, got, last)
				}
				last = got.Fence
				mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
			}
		})
	}
	t.Run("in a transaction", func(t *testing.T) {
		p := pool(t, srv.DSN(""))
		p.SetMaxOpenConns(1)
		s := mysqlstore.New(p, calm)
		t.Cleanup(s.Close)
		lease := newLease()
		mustAcquire(t, s, ask("k", lease, patience))
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
		if _, err := p.Exec("BEGIN"); err != nil {
			t.Fatal(err)
		}
		if res, err := s.Acquire(background, ask("k", newLease(), patience)); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("got %+v, %v; wanted unavailable", res, err)
		}
		if _, err := p.Exec("ROLLBACK"); err != nil {
			t.Fatal(err)
		}
	})
}

// What is known of locks that were released takes a bounded amount of memory, and is
// forgotten before the rows go.
func TestReleasedLocksAreForgotten(t *testing.T) {
	s := mysqlstore.New(nil, calm)
	for i := range 5000 {
		s.NoteReleased(name(fmt.Sprint(i)))
	}
	if n := s.KnownReleased(); n == 0 || n > 1024 {
		t.Errorf("%d are known", n)
	}
}
