package rig_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/rig"
)

// ahead is by how much the clock that the expression reads is ahead of this
// process's, give or take the time of the query.
func ahead(t *testing.T, db *sql.DB, expression string) (least, most time.Duration) {
	t.Helper()
	before := time.Now()
	text := textSQL(t, db, "SELECT CAST(UNIX_TIMESTAMP("+expression+") * 1000000 AS SIGNED)")
	after := time.Now()
	us, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMicro(us)
	return at.Sub(after), at.Sub(before)
}

// Each way in which SQL reads the time follows a step, at once, forward and
// back, in connections that are there already and in new ones; the clock of the
// connection's own wait for a row does not.
func TestMariaDBClock(t *testing.T) {
	rig.NoLeak(t)
	s, clock := rig.MariaDBWithClock(t, "--innodb-lock-wait-timeout=1", "--default-time-zone=+00:00")
	old := openSQL(t, s.DSN(""))
	execSQL(t, old, "CREATE TABLE k (id INT PRIMARY KEY)")
	execSQL(t, old, "INSERT INTO k VALUES (1)")
	var offset time.Duration
	for _, step := range []time.Duration{40 * time.Second, time.Hour, -2 * time.Hour, 250 * time.Millisecond} {
		clock.Step(step)
		offset += step
		for _, db := range []*sql.DB{old, openSQL(t, s.DSN(""))} {
			for _, expression := range []string{"UTC_TIMESTAMP(6)", "NOW(6)", "SYSDATE(6)"} {
				// The server's clock counts microseconds, ours nanoseconds.
				least, most := ahead(t, db, expression)
				if least-time.Microsecond > offset || most+time.Microsecond < offset {
					t.Errorf("%s is between %v and %v ahead, want %v", expression, least, most, offset)
				}
			}
		}
		wantRowWait(t, s, time.Second)
	}
}

// wantRowWait checks that a wait for a row's lock is given up after about the
// time that the server is set to.
func wantRowWait(t *testing.T, s *rig.MariaDBServer, want time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*soon)
	defer cancel()
	db := openSQL(t, s.DSN(""))
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "DELETE FROM k"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = db.ExecContext(ctx, "DELETE FROM k")
	took := time.Since(start)
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || refused.Number != 1205 {
		t.Errorf("a wait for a row ended with %v after %v, want error 1205", err, took)
	}
	if took < want-want/10 || took > want+soon {
		t.Errorf("a wait for a row took %v, want about %v", took, want)
	}
}
