package tests_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// register is how a worker keeps the number that a lock protects: it reads it when it
// has the lock, and writes the next one when it has worked.
type register struct {
	fenced bool // a write is refused where a younger hold has written
	// mayLose says whether an update may be lost where the write came that long
	// after the last look at the lock.
	mayLose func(resource string, late time.Duration) bool
}

// lateWrite is how long after the look a write may come, in a process that is not
// stopped, before it counts as one that was: well within the margin of a lease, which
// belief ends before it.
const lateWrite = 200 * time.Millisecond

// registers are the ways. "plain" is a file, written right after a look at the lock:
// what a lock alone can do. "fenced" claims its row by the fence when it reads, and
// writes where the fence is not larger; "guarded" is a transaction that begins with
// Guard.
var registers = map[string]register{
	"plain": {mayLose: func(resource string, late time.Duration) bool {
		return resource != exclusiveResource || late > lateWrite
	}},
	"fenced":  {fenced: true, mayLose: func(string, time.Duration) bool { return false }},
	"guarded": {fenced: true, mayLose: func(string, time.Duration) bool { return false }},
}

// registerOf is the way of a key. Fences of best effort may repeat where a failover
// has lost some, so that a claim proves nothing there.
func registerOf(resource, key string) string {
	switch n := int(key[len(key)-1]); {
	case n%3 == 0:
		return "plain"
	case n%3 == 1 && resource == exclusiveResource:
		return "fenced"
	}
	return "guarded"
}

// registerSchema makes the table of the fenced and the guarded ones.
const registerSchema = "CREATE TABLE register (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL, fence BIGINT UNSIGNED NOT NULL)"

// registerTools are what a worker has for them: a directory, and a pool past the
// proxies, whose clientFoundRows tells "unchanged" from "refused".
type registerTools struct {
	dir string
	db  *sql.DB
}

var errRefused = errors.New("refused")

// read reads the number at the beginning of a hold; for a guarded one that is done by
// write.
func (r *registerTools) read(ctx context.Context, how, name string, t tierlock.Token) (v int64, err error) {
	switch how {
	case "plain":
		b, err := os.ReadFile(filepath.Join(r.dir, name))
		if errors.Is(err, os.ErrNotExist) || err == nil && len(b) == 0 {
			return 0, nil
		}
		if err != nil || len(b) != 8 {
			return 0, fmt.Errorf("%d bytes: %w", len(b), err)
		}
		return int64(binary.LittleEndian.Uint64(b)), nil
	case "fenced":
		// First the claim: from now on no older hold writes.
		res, err := r.db.ExecContext(ctx, "UPDATE register SET fence=? WHERE name=? AND fence<=?", t.Fence, name, t.Fence)
		if err != nil {
			return 0, err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return 0, errors.Join(errRefused, err)
		}
		err = r.db.QueryRowContext(ctx, "SELECT value FROM register WHERE name=?", name).Scan(&v)
		return v, err
	}
	return 0, nil
}

// write writes the number that follows what was read, after a last look at the lock,
// and returns it and when that look was. After an error nobody knows.
func (r *registerTools) write(ctx context.Context, how, name string, t tierlock.Token, v int64, held func() bool) (wrote, looked int64, err error) {
	switch how {
	case "plain":
		f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return 0, 0, err
		}
		defer f.Close()
		if looked = machineTime(); !held() {
			return 0, 0, errRefused
		}
		_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(v+1)), 0)
		return v + 1, looked, err
	case "fenced":
		looked = machineTime()
		res, err := r.db.ExecContext(ctx, "UPDATE register SET value=?, fence=? WHERE name=? AND fence<=?", v+1, t.Fence, name, t.Fence)
		if err != nil {
			return 0, 0, err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return 0, 0, errors.Join(errRefused, err)
		}
		return v + 1, looked, nil
	}
	looked = machineTime()
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, 0, err
	}
	defer tx.Rollback()
	if err := mysqlstore.Guard(ctx, tx, t); err != nil {
		return 0, 0, err
	}
	if err := tx.QueryRowContext(ctx, "SELECT value FROM register WHERE name=?", name).Scan(&v); err != nil {
		return 0, 0, err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE register SET value=? WHERE name=?", v+1, name); err != nil {
		return 0, 0, err
	}
	return v + 1, looked, tx.Commit()
}
