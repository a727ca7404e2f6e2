package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// pruneChunk is how many rows PruneGuard reads at a time.
const pruneChunk = 500

// The table is walked along its primary key: an index on used_at would make
// every guarded write dearer, for the sake of something that runs once a day.
// Two comparisons instead of one of row values, which MySQL would answer by a
// scan from the table's beginning.
const guardPage = `SELECT resource_id, business_id, used_at < UTC_TIMESTAMP(6) - INTERVAL 7 DAY
FROM tierlock_guard
WHERE resource_id > UNHEX(?) OR (resource_id = UNHEX(?) AND business_id > UNHEX(?))
ORDER BY resource_id, business_id LIMIT ?`

// One row a statement, found by its whole key. A range or a list of keys may be
// executed as a scan, which would lock the rows of live keys on its way and hold
// them against transactions that hold others.
const guardDelete = `DELETE FROM tierlock_guard
WHERE resource_id = UNHEX(?) AND business_id = UNHEX(?) AND used_at < UTC_TIMESTAMP(6) - INTERVAL 7 DAY`

// PruneGuard deletes the rows of [Guard] that have not been used for seven days,
// by the database's clock, and says how many it deleted. What that risks stands
// at [Guard].
//
// It reads the table once, 500 rows at a time, and locks no row but the one that
// it deletes, each in a transaction of its own: so it may run in several
// processes at once, be ended by ctx at any time, and take a while where there
// is much to delete. A row that some transaction is using is left alone, after
// the server's lock wait. db is a pool and not a transaction because that would
// keep all these locks.
func PruneGuard(ctx context.Context, db *sql.DB) (deleted int64, err error) {
	var resource, key string // of the last row read; nothing is smaller than these
	for {
		old, read, err := guardPageAfter(ctx, db, &resource, &key)
		if err != nil {
			return deleted, pruneError(err)
		}
		for _, row := range old {
			// Between the reading and this a hold may have used the row, so
			// the condition is repeated.
			result, err := db.ExecContext(ctx, guardDelete, digits(row[0]), digits(row[1]))
			if inUse(err) {
				continue
			}
			if err != nil {
				return deleted, pruneError(err)
			}
			n, err := result.RowsAffected()
			if err != nil {
				return deleted, pruneError(err)
			}
			deleted += n
		}
		if read < pruneChunk {
			return deleted, nil
		}
	}
}

// guardPageAfter reads the rows that follow resource and key, of which it
// returns the old ones, and moves resource and key to the last one read. The
// connection is back in the pool when it returns: the pool may have one only.
func guardPageAfter(ctx context.Context, db *sql.DB, resource, key *string) (old [][2]string, read int, err error) {
	rows, err := db.QueryContext(ctx, guardPage, digits(*resource), digits(*resource), digits(*key), pruneChunk)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var r, k string
		var isOld bool
		if err := rows.Scan(&r, &k, &isOld); err != nil {
			return nil, 0, err
		}
		if isOld {
			old = append(old, [2]string{r, k})
		}
		*resource, *key = r, k
		read++
	}
	return old, read, rows.Err()
}

// inUse tells a row whose lock another transaction would not let go of.
func inUse(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == 1205 // ER_LOCK_WAIT_TIMEOUT
}

func pruneError(err error) error {
	return fmt.Errorf("tierlock: pruning of the guard's table: %w", guardTableError(err))
}
