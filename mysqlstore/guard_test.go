package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// guardPatience is for what has to happen, soon, but on a busy machine.
const guardPatience = 30 * time.Second

var guardLevels = []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted}

// guardPool opens a business database with the guard's table and one register
// row for each of a few keys.
func guardPool(t testing.TB, server *rig.MariaDBServer, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", server.DSN(params))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	guardExec(t, db, mysqlstore.GuardSchema())
	guardExec(t, db, "CREATE TABLE IF NOT EXISTS register (id INT PRIMARY KEY, value BIGINT NOT NULL) ENGINE=InnoDB")
	guardExec(t, db, "INSERT IGNORE INTO register VALUES (1, 0)")
	return db
}

func guardExec(t testing.TB, db mysqlstore.Tx, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(guardContext(t), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func guardContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guardPatience)
	t.Cleanup(cancel)
	return ctx
}

func guardBegin(t testing.TB, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func guardToken(key string, fence uint64) tierlock.Token {
	return tierlock.Token{Lease: "lease", ID: "hold", Resource: "order", Key: key, Tier: tierlock.Redis, Fence: fence}
}

// guarded runs a transaction of nothing but the guard, committed if that passed.
func guarded(t testing.TB, db *sql.DB, token tierlock.Token, opts ...mysqlstore.GuardOption) error {
	t.Helper()
	tx := guardBegin(t, db, sql.LevelDefault)
	if err := mysqlstore.Guard(guardContext(t), tx, token, opts...); err != nil {
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return nil
}

func wantFenced(t testing.TB, err error, key string, fence, stored uint64) {
	t.Helper()
	var fenced *mysqlstore.FencedError
	if !errors.Is(err, mysqlstore.ErrFenced) || !errors.As(err, &fenced) {
		t.Fatalf("fence %d against %d of %q: got %v, want ErrFenced", fence, stored, key, err)
	}
	if want := (mysqlstore.FencedError{Resource: "order", Key: key, Fence: fence, Stored: stored}); *fenced != want {
		t.Fatalf("got %+v, want %+v", *fenced, want)
	}
	for _, part := range []string{"order", key, fmt.Sprint(fence), fmt.Sprint(stored)} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func storedFence(t testing.TB, db mysqlstore.Tx, key string) (fence uint64, ok bool) {
	t.Helper()
	err := db.QueryRowContext(guardContext(t), "SELECT fence FROM tierlock_guard WHERE resource_id = 'order' AND business_id = ?",
		[]byte(key)).Scan(&fence)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false
	}
	if err != nil {
		t.Fatal(err)
	}
	return fence, true
}

// Scenario 78, over a database: whatever the connection is set to, at both usual
// isolation levels, and with what stands for a transaction elsewhere.
func TestGuard(t *testing.T) {
	server := rig.MariaDB(t)
	for _, params := range []string{
		"",
		"clientFoundRows=true",
		"interpolateParams=true",
		"clientFoundRows=true&interpolateParams=true",
		"parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27",
		"charset=latin1",
		"charset=latin1&interpolateParams=true",
		"character_set_connection=latin1", // into which the server converts text
		"character_set_connection=latin1&interpolateParams=true",
		"sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%27&interpolateParams=true",
		"sql_mode=%27%27",
		"innodb_snapshot_isolation=ON", // as newer versions of MariaDB have it
	} {
		t.Run(params, func(t *testing.T) {
			db := guardPool(t, server, params)
			for _, level := range guardLevels {
				t.Run(level.String(), func(t *testing.T) {
					guardExec(t, db, "DELETE FROM tierlock_guard")
					checkGuard(t, func(do func(mysqlstore.Tx) error) error {
						tx := guardBegin(t, db, level)
						if err := do(tx); err != nil {
							return errors.Join(err, tx.Rollback())
						}
						return tx.Commit()
					})
				})
			}
			t.Run("sqlx", func(t *testing.T) {
				guardExec(t, db, "DELETE FROM tierlock_guard")
				checkGuard(t, func(do func(mysqlstore.Tx) error) error {
					tx, err := sqlx.NewDb(db, "mysql").BeginTxx(context.Background(), nil)
					if err != nil {
						return err
					}
					defer tx.Rollback()
					if err := do(tx); err != nil {
						return err
					}
					return tx.Commit()
				})
			})
		})
	}
}

// checkGuard needs an empty table.
func checkGuard(t *testing.T, transaction func(func(mysqlstore.Tx) error) error) {
	t.Helper()
	ctx := guardContext(t)
	try := func(key string, fence uint64) error {
		return transaction(func(tx mysqlstore.Tx) error { return mysqlstore.Guard(ctx, tx, guardToken(key, fence)) })
	}
	pass := func(key string, fence uint64) {
		t.Helper()
		if err := try(key, fence); err != nil {
			t.Fatalf("fence %d of %q: %v", fence, key, err)
		}
	}
	pass("42", 5) // its first row
	pass("42", 5)
	if err := transaction(func(tx mysqlstore.Tx) error {
		for range 3 { // in one transaction, and faster than the clock ticks
			if err := mysqlstore.Guard(ctx, tx, guardToken("42", 5)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantFenced(t, try("42", 4), "42", 4, 5)
	wantFenced(t, try("42", 4), "42", 4, 5) // the first refusal has changed nothing
	pass("42", 6)
	wantFenced(t, try("42", 5), "42", 5, 6)
	pass("42", 6)

	// The transaction is the caller's: what it undoes was never raised.
	undo := errors.New("undo")
	for _, key := range []string{"42", "new"} {
		err := transaction(func(tx mysqlstore.Tx) error {
			if err := mysqlstore.Guard(ctx, tx, guardToken(key, 9)); err != nil {
				return err
			}
			if fence, _ := storedFence(t, tx, key); fence != 9 {
				t.Errorf("inside the transaction the fence of %q is %d, want 9", key, fence)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
		pass(key, 7)
	}

	// Beyond what is exact in a float64, an int64 and the 16,383rd epoch.
	for _, fence := range []uint64{1<<53 + 1, 16_383<<49 - 1, 16_383 << 49, math.MaxUint64 - 1, math.MaxUint64} {
		pass("big", fence)
		pass("big", fence)
		wantFenced(t, try("big", fence-1), "big", fence-1, fence)
	}

	// One key each, as they are on every store.
	for i, key := range []string{
		"a", "A", "ä", "a ", " a", "a\x00", "ａ", "a\\", "a'", `a"`, "a%", "ß", "ss", "\x00", "\x1a",
		strings.Repeat("𝄞", 128), strings.Repeat("𝄞", 127) + "𝄡", strings.Repeat("k", 128),
	} {
		pass(key, uint64(100-i))
	}
	// Nor does the border between resource and key move.
	for i, pair := range [][2]string{{"order:settle", "42"}, {"order", "settle:42"}, {"ORDER", "settle:42"}, {strings.Repeat("r", 64), "42"}} {
		token := guardToken(pair[1], uint64(100-i))
		token.Resource = pair[0]
		if err := transaction(func(tx mysqlstore.Tx) error { return mysqlstore.Guard(ctx, tx, token) }); err != nil {
			t.Fatal(err)
		}
	}
}

// A transaction that has read something sees the table as it was then, where the
// stale fence is still the largest.
func TestGuardJudgesByTheNewestRow(t *testing.T) {
	server := rig.MariaDB(t)
	for _, params := range []string{"", "clientFoundRows=true"} {
		db := guardPool(t, server, params)
		for _, level := range guardLevels {
			for _, before := range []uint64{0, 5} { // 0: the snapshot has no row
				t.Run(fmt.Sprintf("%s %s from %d", params, level, before), func(t *testing.T) {
					guardExec(t, db, "DELETE FROM tierlock_guard")
					if before > 0 {
						if err := guarded(t, db, guardToken("42", before)); err != nil {
							t.Fatal(err)
						}
					}
					stale := guardBegin(t, db, level)
					if fence, _ := storedFence(t, stale, "42"); fence != before {
						t.Fatalf("the snapshot has fence %d, want %d", fence, before)
					}
					if err := guarded(t, db, guardToken("42", 7)); err != nil {
						t.Fatal(err)
					}
					wantFenced(t, mysqlstore.Guard(guardContext(t), stale, guardToken("42", 5)), "42", 5, 7)
				})
			}
		}
	}
}

// One statement in the ordinary case, as each is a round trip inside the
// caller's transaction; and none for a token that is not compared.
func TestGuardStatements(t *testing.T) {
	db := guardPool(t, rig.MariaDB(t), "")
	tx := &countingTx{Tx: guardBegin(t, db, sql.LevelDefault)}
	statements := func(token tierlock.Token, opts ...mysqlstore.GuardOption) (int, error) {
		tx.n = 0
		err := mysqlstore.Guard(guardContext(t), tx, token, opts...)
		return tx.n, err
	}
	for i, want := range []int{2, 1, 1} {
		if n, err := statements(guardToken("42", 5)); err != nil || n != want {
			t.Errorf("write %d of a hold: %d statements and %v, want %d", i+1, n, err, want)
		}
	}
	if n, err := statements(guardToken("42", 6)); err != nil || n != 1 {
		t.Errorf("a younger hold: %d statements and %v, want 1", n, err)
	}
	if n, err := statements(guardToken("42", 5)); !errors.Is(err, mysqlstore.ErrFenced) || n != 2 {
		t.Errorf("a stale hold: %d statements and %v, want 2 and ErrFenced", n, err)
	}

	// Where the clock stands still the row of the same hold does not change.
	guardExec(t, tx, "SET timestamp = 1764547200")
	for _, want := range []int{1, 2} {
		if n, err := statements(guardToken("42", 6)); err != nil || n != want {
			t.Errorf("at one moment: %d statements and %v, want %d", n, err, want)
		}
	}
	if n, err := statements(guardToken("42", 5)); !errors.Is(err, mysqlstore.ErrFenced) || n != 2 {
		t.Errorf("a stale hold at the same moment: %d statements and %v, want 2 and ErrFenced", n, err)
	}

	local := guardToken("42", 0)
	local.Tier = tierlock.Local
	odd := guardToken("42", 8) // a fence that compares with nothing elsewhere
	odd.Tier = tierlock.Local
	for _, token := range []tierlock.Token{local, odd} {
		if n, err := statements(token); !errors.Is(err, mysqlstore.ErrNoFence) || n != 0 {
			t.Errorf("%v: %d statements and %v, want none and ErrNoFence", token, n, err)
		}
		if n, err := statements(token, mysqlstore.AllowLocal()); err != nil || n != 0 {
			t.Errorf("%v, allowed: %d statements and %v", token, n, err)
		}
	}
	// The option is for the local tier, not for tokens that lost their fence.
	if n, err := statements(guardToken("42", 0), mysqlstore.AllowLocal()); !errors.Is(err, mysqlstore.ErrNoFence) || n != 0 {
		t.Errorf("no fence from Redis: %d statements and %v, want none and ErrNoFence", n, err)
	}
	if n, err := statements(guardToken("42", 5), mysqlstore.AllowLocal()); !errors.Is(err, mysqlstore.ErrFenced) || n != 2 {
		t.Errorf("a stale fence where local tokens pass: %d statements and %v, want 2 and ErrFenced", n, err)
	}
}

// countingTx is a transaction as an ORM may have it.
type countingTx struct {
	mysqlstore.Tx
	n int
}

func (c *countingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.n++
	return c.Tx.ExecContext(ctx, query, args...)
}

func (c *countingTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	c.n++
	return c.Tx.QueryRowContext(ctx, query, args...)
}

// These are refused before anything is sent: there is no server.
func TestGuardArguments(t *testing.T) {
	db, err := sql.Open("mysql", "root@tcp(127.0.0.1:1)/none")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	type embedded struct{ *sqlx.DB }
	long := guardToken("42", 5)
	long.Resource = strings.Repeat("r", 65)
	unnamed := guardToken("42", 5)
	unnamed.Resource = ""
	for _, c := range []struct {
		name         string
		tx           mysqlstore.Tx
		token        tierlock.Token
		field, bound string
	}{
		{"nil", nil, guardToken("42", 5), "tx", "a transaction"},
		{"pool", db, guardToken("42", 5), "tx", "a transaction"},
		{"sqlx pool", sqlx.NewDb(db, "mysql"), guardToken("42", 5), "tx", "a transaction"},
		{"embedded pool", embedded{sqlx.NewDb(db, "mysql")}, guardToken("42", 5), "tx", "a transaction"},
		{"zero token", &sql.Tx{}, tierlock.Token{}, "token", "zero Token"},
		{"no resource", &sql.Tx{}, unnamed, "token.Resource", "1 to 64"},
		{"long resource", &sql.Tx{}, long, "token.Resource", "1 to 64"},
		{"no key", &sql.Tx{}, guardToken("", 5), "token.Key", "1 to 128"},
		{"long key", &sql.Tx{}, guardToken(strings.Repeat("𝄞", 129), 5), "token.Key", "1 to 128"},
		{"key in latin1", &sql.Tx{}, guardToken("\xe4", 5), "token.Key", "valid UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, opts := range [][]mysqlstore.GuardOption{nil, {mysqlstore.AllowLocal()}} {
				err := mysqlstore.Guard(guardContext(t), c.tx, c.token, opts...)
				var e *tierlock.InvalidError
				if !errors.As(err, &e) || e.Field != c.field || !strings.Contains(err.Error(), c.bound) {
					t.Errorf("got %v, want an InvalidError of %s that says %q", err, c.field, c.bound)
				}
			}
		})
	}
}

// What the database says reaches the caller, and what an operator has to do.
func TestGuardDatabaseErrors(t *testing.T) {
	server := rig.MariaDB(t)
	db := guardPool(t, server, "")
	number := func(err error) uint16 {
		var e *mysql.MySQLError
		if !errors.As(err, &e) {
			t.Errorf("got %v, want an error of the server", err)
			return 0
		}
		return e.Number
	}

	// Two transactions that guard two keys in different orders.
	one, two := guardBegin(t, db, sql.LevelDefault), guardBegin(t, db, sql.LevelDefault)
	for tx, key := range map[*sql.Tx]string{one: "a", two: "b"} {
		if err := mysqlstore.Guard(guardContext(t), tx, guardToken(key, 5)); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 2)
	for tx, key := range map[*sql.Tx]string{one: "b", two: "a"} {
		go func() {
			err := mysqlstore.Guard(guardContext(t), tx, guardToken(key, 5))
			if err != nil { // the victim, whose transaction is over
				tx.Rollback()
			}
			ended <- err
		}()
	}
	first, second := <-ended, <-ended
	if first == nil {
		first, second = second, first
	}
	if n := number(first); n != 1213 || second != nil {
		t.Errorf("two that go in different orders: %v and %v, want 1213 and nil", first, second)
	}
	one.Rollback()
	two.Rollback()

	// A younger hold that waits for the row longer than the server lets it.
	held := guardBegin(t, db, sql.LevelDefault)
	if err := mysqlstore.Guard(guardContext(t), held, guardToken("42", 5)); err != nil {
		t.Fatal(err)
	}
	if err := guarded(t, guardPool(t, server, "innodb_lock_wait_timeout=1"), guardToken("42", 6)); number(err) != 1205 {
		t.Errorf("got %v, want 1205", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := mysqlstore.Guard(ctx, guardBegin(t, db, sql.LevelDefault), guardToken("42", 6)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
	held.Rollback()

	guardExec(t, db, "CREATE USER poor IDENTIFIED BY 'pw'")
	guardExec(t, db, "GRANT SELECT ON tierlock_guard TO poor")
	cfg, err := mysql.ParseDSN(server.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = "poor", "pw"
	poor, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer poor.Close()
	check := func(err error, code uint16, hint string) {
		t.Helper()
		if n := number(err); n != code || !errors.Is(err, tierlock.ErrMisconfigured) || !strings.Contains(err.Error(), hint) {
			t.Errorf("got %v, want ErrMisconfigured, %d, and %q in the text", err, code, hint)
		}
	}
	check(guarded(t, poor, guardToken("42", 6)), 1142, "INSERT and UPDATE")
	guardExec(t, db, "GRANT INSERT, UPDATE ON tierlock_guard TO poor")
	if err := guarded(t, poor, guardToken("42", 6)); err != nil {
		t.Errorf("with the permissions that the error names: %v", err)
	}
	wantFenced(t, guarded(t, poor, guardToken("42", 5)), "42", 5, 6)

	guardExec(t, db, "DROP TABLE tierlock_guard")
	check(guarded(t, db, guardToken("42", 6)), 1146, "GuardSchema")
	_, err = mysqlstore.PruneGuard(guardContext(t), db)
	check(err, 1146, "GuardSchema")
}
