package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

var background = context.Background()

const (
	// slack is what a busy machine may add to a bound, besides the time for which it
	// stands still: see within.
	slack = 500 * time.Millisecond
	// patience is for what has to happen, soon, but on a busy machine.
	patience = 30 * time.Second
)

func name(key string) tierlock.Name {
	return tierlock.Name{Namespace: "test", Resource: "order:settle", Key: key}
}

// row is the condition that finds the row of name(key).
func row(key string) string {
	return fmt.Sprintf("namespace='test' AND resource_id='order:settle' AND business_id=x'%x'", key)
}

var leases atomic.Int64

// newLease is shaped like the library's: 32 digits of a member, then its own.
func newLease() string { return fmt.Sprintf("%032x%012x", 0xabcdef, leases.Add(1)) }

// ask is a request that nothing is special about.
func ask(key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	return tierlock.AcquireRequest{
		Name: name(key), TTL: ttl, Budget: time.Minute,
		Token: tierlock.Token{
			Lease: lease, ID: "hold-" + lease, Resource: "order:settle", Key: key, Holder: "app@host/1",
			App: "app", Host: "host", PID: 1, TTL: ttl, ClientTime: time.Now(), RequestID: "req \"1\" <&>\n",
		},
	}
}

// askAs is ask for an explicit holder.
func askAs(holder, key, lease string, ttl time.Duration) tierlock.AcquireRequest {
	req := ask(key, lease, ttl)
	req.Explicit, req.Token.Holder = true, holder
	return req
}

func drop(key, lease string) tierlock.ReleaseRequest {
	return tierlock.ReleaseRequest{Name: name(key), Lease: lease}
}

func dropAs(key, lease string) tierlock.ReleaseRequest {
	return tierlock.ReleaseRequest{Name: name(key), Lease: lease, Explicit: true}
}

func mustAcquire(t testing.TB, s tierlock.Store, req tierlock.AcquireRequest) tierlock.Token {
	t.Helper()
	res, err := s.Acquire(t.Context(), req)
	if err != nil || !res.Granted {
		t.Fatalf("acquire %s: got %+v, %v; wanted a grant", req.Name, res, err)
	}
	return res.Token
}

func mustRelease(t testing.TB, s tierlock.Store, req tierlock.ReleaseRequest, want tierlock.Ownership) {
	t.Helper()
	got, err := s.Release(t.Context(), req)
	if err != nil || got != want {
		t.Fatalf("release %s: got %v, %v; wanted %v", req.Name, got, err, want)
	}
}

func mustInspect(t testing.TB, s tierlock.Store, key string) tierlock.Record {
	t.Helper()
	rec, err := s.Inspect(t.Context(), name(key))
	if err != nil {
		t.Fatalf("inspect %s: %v", name(key), err)
	}
	return rec
}

// wantClass checks that err is of one class, and of no other, and says all the
// parts.
func wantClass(t testing.TB, what string, err, class error, says ...string) {
	t.Helper()
	for _, c := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured} {
		if got, want := errors.Is(err, c), errors.Is(class, c); got != want {
			t.Errorf("%s: got error %v; is it %q: %v, wanted %v", what, err, c, got, want)
			return
		}
	}
	for _, part := range says {
		if err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got error %v; wanted it to say %q", what, err, part)
		}
	}
}

// within reports f if it takes longer than d, and returns how long it took. For as
// long as the process does not get to run, f may take longer.
func within(t testing.TB, d time.Duration, what string, f func()) time.Duration {
	t.Helper()
	const step = 10 * time.Millisecond
	ended, stood := make(chan struct{}), make(chan time.Duration)
	began := time.Now()
	go func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		still, last := time.Duration(0), began
		for over := false; !over; {
			select {
			case <-tick.C:
			case <-ended:
				over = true
			}
			now := time.Now()
			still += max(0, now.Sub(last)-step)
			last = now
		}
		stood <- still
	}()
	f()
	took := time.Since(began)
	close(ended)
	if still := <-stood; took > d+still {
		t.Errorf("%s took %v, of which the process stood still for %v; wanted at most %v", what, took, still, d)
	}
	return took
}

// patiently repeats a call as long as it says that somebody had the row for too long:
// where many want one row, a machine that stands still for a second makes it say that.
func patiently(call func() error) error {
	for end := time.Now().Add(patience); ; {
		err := call()
		var refused *mysql.MySQLError
		waited := errors.Is(err, tierlock.ErrLate) || errors.As(err, &refused) && refused.Number == 1205
		if !waited || time.Now().After(end) {
			return err
		}
	}
}

// acquirePatiently is an acquire that is repeated so.
func acquirePatiently(s tierlock.Store, req tierlock.AcquireRequest) (res tierlock.AcquireResult, err error) {
	err = patiently(func() error {
		res, err = s.Acquire(background, req)
		return err
	})
	return res, err
}

// releasePatiently is a release that is repeated so.
func releasePatiently(s tierlock.Store, req tierlock.ReleaseRequest) (own tierlock.Ownership, err error) {
	err = patiently(func() error {
		own, err = s.Release(background, req)
		return err
	})
	return own, err
}

// migrated is a server of the test's own, with the tables.
func migrated(t testing.TB, args ...string) *rig.MariaDBServer {
	t.Helper()
	srv := rig.MariaDB(t, args...)
	migrate(t, srv)
	return srv
}

// admin is a pool for what the test itself has to ask or change.
func admin(t testing.TB, srv *rig.MariaDBServer) *sql.DB {
	t.Helper()
	return pool(t, srv.DSN("multiStatements=true")).DB
}

func execute(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) int64 {
	t.Helper()
	res, err := db.ExecContext(background, query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	n, _ := res.RowsAffected()
	return n
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(background, query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// inTransactions counts the rows that the transactions of all connections have locked
// or changed. InnoDB has some of its own, for the statistics, which are nobody's.
func inTransactions(t testing.TB, db *sql.DB) int64 {
	t.Helper()
	return number(t, db, "SELECT COALESCE(SUM(trx_rows_locked+trx_rows_modified), 0) "+
		"FROM information_schema.innodb_trx WHERE trx_mysql_thread_id<>0")
}

// foreign begins a transaction of somebody else's that executes a statement and
// stays open. It is rolled back at the end of the test, if not before.
func foreign(t testing.TB, db *sql.DB, query string, args ...any) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(background, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // most have ended by then
	execute(t, tx, query, args...)
	return tx
}

// transactions is how many transactions of connections are open, or wait for a row. The server
// renews that table only when nobody has read it for 100 ms.
func transactions(t testing.TB, db *sql.DB, where string) int64 {
	t.Helper()
	time.Sleep(120 * time.Millisecond)
	return number(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id<>0 AND "+where)
}

func lockWaits(t testing.TB, db *sql.DB) int64 {
	t.Helper()
	return transactions(t, db, "trx_state='LOCK WAIT'")
}

// noTransactions waits until everything sent has been executed.
func noTransactions(t testing.TB, db *sql.DB) {
	t.Helper()
	rig.Eventually(t, patience, "no transaction is open", func() bool { return transactions(t, db, "true") == 0 })
}

var levels = []string{"REPEATABLE-READ", "READ-COMMITTED"}

// at is the parameters of a DSN for sessions of an isolation level.
func at(level string) string { return "tx_isolation=%27" + level + "%27" }

// quick has a limit that a call given up is to meet soon.
var quick = mysqlstore.Options{CallTimeout: 300 * time.Millisecond}

func withTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(background, d)
}
