package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// untilWaiting returns when n transactions wait for rows. It asks for a counter,
// since the server keeps the table innodb_trx as it was while somebody goes on
// reading it.
func untilWaiting(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var waiting int
	for end := time.Now().Add(guardPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := db.QueryRow("SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_row_lock_current_waits'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting >= n {
			return
		}
	}
	t.Fatalf("%d transactions wait for rows, want %d", waiting, n)
}

func readRegister(t *testing.T, tx mysqlstore.Tx) (value int64) {
	t.Helper()
	if err := tx.QueryRowContext(guardContext(t), "SELECT value FROM register WHERE id = 1").Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// A holder is paused before its write, or in the middle of it, while a younger
// one writes; the order is forced.
func TestGuardAgainstAPausedHolder(t *testing.T) {
	server := rig.MariaDB(t)
	for _, level := range guardLevels {
		checkPaused(t, guardPool(t, server, ""), level)
	}
	// By default in newer versions: a locking read of what is newer than the
	// transaction's view is an error. The guard comes before any view.
	checkPaused(t, guardPool(t, server, "innodb_snapshot_isolation=ON"), sql.LevelRepeatableRead)
}

func checkPaused(t *testing.T, db *sql.DB, level sql.IsolationLevel) {
	// start runs the guard in a transaction of its own that has to wait.
	start := func(t *testing.T, fence uint64) (*sql.Tx, chan error) {
		tx, ended, ctx := guardBegin(t, db, level), make(chan error, 1), guardContext(t)
		go func() { ended <- mysqlstore.Guard(ctx, tx, guardToken("42", fence)) }()
		untilWaiting(t, db, 1)
		return tx, ended
	}
	hold := func(t *testing.T, fence uint64) *sql.Tx {
		tx := guardBegin(t, db, level)
		if err := mysqlstore.Guard(guardContext(t), tx, guardToken("42", fence)); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	commit := func(t *testing.T, tx *sql.Tx) {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for name, setup := range map[string]string{"first write": "DELETE FROM tierlock_guard",
		"later write": "INSERT INTO tierlock_guard VALUES ('order', '42', 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE fence = 1"} {
		run := func(what string, test func(t *testing.T)) {
			t.Run(fmt.Sprintf("%s, %s, %s", level, name, what), func(t *testing.T) {
				guardExec(t, db, setup)
				guardExec(t, db, "UPDATE register SET value = 0")
				test(t)
			})
		}
		run("paused before the transaction", func(t *testing.T) {
			if err := guarded(t, db, guardToken("42", 6)); err != nil {
				t.Fatal(err)
			}
			wantFenced(t, guarded(t, db, guardToken("42", 5)), "42", 5, 6)
		})
		run("arrives while the younger writes", func(t *testing.T) {
			younger := hold(t, 6)
			_, ended := start(t, 5)
			commit(t, younger)
			wantFenced(t, <-ended, "42", 5, 6)
		})
		run("arrives while the younger writes, which undoes it", func(t *testing.T) {
			younger := hold(t, 6)
			_, ended := start(t, 5)
			if err := younger.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err) // nothing younger has been written
			}
		})
		run("paused in mid transaction", func(t *testing.T) {
			older := hold(t, 5)
			guardExec(t, older, "UPDATE register SET value = 100 WHERE id = 1")
			younger, ended := start(t, 6)
			commit(t, older)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			// A plain read, which sees the older's write.
			if value := readRegister(t, younger); value != 100 {
				t.Errorf("the younger reads %d, want 100", value)
			}
			commit(t, younger)
			wantFenced(t, guarded(t, db, guardToken("42", 5)), "42", 5, 6)
		})
	}
}

// A guarded key holds up no other, be its row new or not, nor the keys that
// come next to it.
func TestGuardHoldsOneKeyOnly(t *testing.T) {
	server := rig.MariaDB(t)
	db, impatient := guardPool(t, server, ""), guardPool(t, server, "innodb_lock_wait_timeout=1")
	for _, level := range guardLevels {
		guardExec(t, db, "DELETE FROM tierlock_guard")
		for _, key := range []string{"b", "d", "g"} {
			if err := guarded(t, db, guardToken(key, 5)); err != nil {
				t.Fatal(err)
			}
		}
		holding := guardBegin(t, db, level)
		for _, key := range []string{"d", "e"} { // one that is there, one that is new
			if err := mysqlstore.Guard(guardContext(t), holding, guardToken(key, 5)); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range []string{"a", "b", "c", "dd", "f", "g", "h"} {
			if err := commitGuarded(guardContext(t), impatient, level, guardToken(key, 5)); err != nil {
				t.Errorf("%s: %q beside d and e: %v", level, key, err)
			}
		}
		var e *mysql.MySQLError
		if err := commitGuarded(guardContext(t), impatient, level, guardToken("d", 5)); !errors.As(err, &e) || e.Number != 1205 {
			t.Errorf("%s: d itself: got %v, want 1205", level, err)
		}
		holding.Rollback()
	}
}

// Holders that believe in the same lock at once, with older and younger fences,
// read a register by a plain SELECT and write back one more. No write is lost,
// and none comes after that of a younger hold. Nor does one key deadlock with
// itself, from its first row on.
func TestGuardedRegister(t *testing.T) {
	const writers = 32
	server := rig.MariaDB(t)
	for _, level := range guardLevels {
		t.Run(level.String(), func(t *testing.T) {
			db := guardPool(t, server, "")
			db.SetMaxOpenConns(writers)
			for round := range 3 {
				guardExec(t, db, "DELETE FROM tierlock_guard")
				guardExec(t, db, "UPDATE register SET value = 0")
				guardExec(t, db, "DROP TABLE IF EXISTS history")
				guardExec(t, db, "CREATE TABLE history (seq BIGINT AUTO_INCREMENT PRIMARY KEY, value BIGINT NOT NULL, fence BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB")
				var fences atomic.Uint64
				var committed, refused, undone atomic.Int64
				var wg sync.WaitGroup
				ctx := guardContext(t)
				write := func() error {
					fence := fences.Add(1)
					if rand.IntN(3) == 0 { // paused: younger ones overtake it
						time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
					}
					for range 2 { // two writes in one hold
						tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
						if err != nil {
							return err
						}
						defer tx.Rollback()
						if err := mysqlstore.Guard(ctx, tx, guardToken("42", fence)); errors.Is(err, mysqlstore.ErrFenced) {
							refused.Add(1)
							return nil
						} else if err != nil {
							return err
						}
						var value int64
						if err := tx.QueryRowContext(ctx, "SELECT value FROM register WHERE id = 1").Scan(&value); err != nil {
							return err
						}
						if _, err := tx.ExecContext(ctx, "UPDATE register SET value = ? WHERE id = 1", value+1); err != nil {
							return err
						}
						if _, err := tx.ExecContext(ctx, "INSERT INTO history (value, fence) VALUES (?, ?)", value+1, fence); err != nil {
							return err
						}
						if committed.Load() > 0 && rand.IntN(8) == 0 { // a job that fails, though not the first
							undone.Add(1)
							return tx.Rollback()
						}
						if err := tx.Commit(); err != nil {
							return err
						}
						committed.Add(1)
					}
					return nil
				}
				for range writers {
					wg.Go(func() {
						for range 10 {
							if err := write(); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				if t.Failed() {
					return
				}
				t.Logf("round %d: %d written, %d refused, %d undone", round, committed.Load(), refused.Load(), undone.Load())
				if committed.Load() < writers || refused.Load() == 0 || undone.Load() == 0 {
					t.Errorf("too few to tell")
				}
				if value := readRegister(t, db); value != committed.Load() {
					t.Errorf("the register is %d after %d writes", value, committed.Load())
				}
				checkHistory(t, db)
			}
		})
	}
}

// checkHistory wants values that rise by one, and fences that do not fall.
func checkHistory(t *testing.T, db *sql.DB) {
	t.Helper()
	rows, err := db.Query("SELECT value, fence FROM history ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var last struct {
		value int64
		fence uint64
	}
	for rows.Next() {
		now := last
		if err := rows.Scan(&now.value, &now.fence); err != nil {
			t.Fatal(err)
		}
		if now.value != last.value+1 || now.fence < last.fence {
			t.Errorf("after value %d of fence %d comes value %d of fence %d", last.value, last.fence, now.value, now.fence)
		}
		last = now
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// What the documentation says of the first row of a key: where its transaction
// is undone and several wait, some are ended by 1213, and only by that; begun
// anew, all pass.
func TestGuardFirstRowUndone(t *testing.T) {
	const waiters = 8
	db := guardPool(t, rig.MariaDB(t), "")
	ctx := guardContext(t)
	for _, level := range guardLevels {
		var deadlocks atomic.Int64
		for round := range 5 {
			token := guardToken(fmt.Sprint(level, round), 5)
			first := guardBegin(t, db, level)
			if err := mysqlstore.Guard(ctx, first, token); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() {
					for {
						err := commitGuarded(ctx, db, level, token)
						var e *mysql.MySQLError
						if errors.As(err, &e) && e.Number == 1213 {
							deadlocks.Add(1)
							continue
						}
						if err != nil {
							t.Error(err)
						}
						return
					}
				})
			}
			untilWaiting(t, db, waiters)
			if err := first.Rollback(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if fence, _ := storedFence(t, db, token.Key); fence != token.Fence {
				t.Errorf("fence %d is stored, want %d", fence, token.Fence)
			}
		}
		t.Logf("%s: %d deadlocks", level, deadlocks.Load())
	}
}

func commitGuarded(ctx context.Context, db *sql.DB, level sql.IsolationLevel, token tierlock.Token) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := mysqlstore.Guard(ctx, tx, token); err != nil {
		return err
	}
	return tx.Commit()
}
