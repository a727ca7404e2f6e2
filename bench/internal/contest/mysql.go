package contest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock/mysqlstore"
)

// Tables are the statements that make the tables of all contestants over MySQL,
// and TableNames their names.
var (
	Tables = []string{
		"CREATE TABLE bench_lock (k VARBINARY(64) PRIMARY KEY, v VARBINARY(64) NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE bench_row (k VARBINARY(64) PRIMARY KEY, v VARBINARY(64) NOT NULL, fence BIGINT UNSIGNED NOT NULL, until DATETIME(6) NOT NULL) ENGINE=InnoDB",
	}
	TableNames = []string{"bench_lock", "bench_row", "lock_record", "lock_member", "lock_mode", "lock_permit"}
)

var mysqlstoreContestant = Contestant{
	Name:   Subject,
	About:  "mysqlstore.New with its defaults over such a pool, but with a CallTimeout of 5 s, no observer, log level above Debug",
	Renews: true,
	Open: func(s Settings) (Locker, error) {
		db, err := openPool(s)
		if err != nil {
			return nil, err
		}
		store := mysqlstore.New(sqlx.NewDb(db, "mysql"), mysqlstore.Options{CallTimeout: callTimeout})
		return newTierlock(s, callTimeout, store, func() {
			store.Close()
			db.Close()
		})
	},
}

// callTimeout is longer than the default: the others have no limit at all, and
// with more goroutines than the disk has commits a second all would queue for
// longer than the default.
const callTimeout = 5 * time.Second

// openPool is a pool of as many connections as all have, which stay open.
func openPool(s Settings) (*sql.DB, error) {
	db, err := sql.Open("mysql", s.Addr)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(s.Pool)
	db.SetMaxIdleConns(s.Pool)
	return db, nil
}

var insertContestant = Contestant{
	Name: "insert",
	About: "no library: INSERT and DELETE of a row of two columns, the key as primary key, by prepared statements; waiters try again every 5 ms; " +
		"no lease, no fence, no renewal: the locks of a process that dies stay",
	Endless: true,
	Open:    openInsert,
}

var rowContestant = Contestant{
	Name: "row",
	About: "no library: the least that keeps a fence, a row of four columns that stays, taken and given back by an UPDATE each, made by INSERT where there is none; " +
		"waiters try again every 5 ms; a lease of an hour, no renewal",
	Endless: true,
	Open:    openRow,
}

// insertLocker is the least that a lock in a table can be, with update the least that
// keeps a fence.
type insertLocker struct {
	db                    *sql.DB
	update                *sql.Stmt // of a row that is there; nil where none stays
	insert, remove, owned *sql.Stmt
	poll                  time.Duration
	tokens                *tokens
}

func openInsert(s Settings) (Locker, error) {
	return openTable(s, "", "INSERT INTO bench_lock (k,v) VALUES (?,?)", "DELETE FROM bench_lock WHERE k=? AND v=?",
		"SELECT COUNT(*) FROM bench_lock WHERE k=? AND v=?")
}

func openRow(s Settings) (Locker, error) {
	const now, hour = "UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6)+INTERVAL 1 HOUR"
	return openTable(s, "UPDATE bench_row SET v=?,fence=fence+1,until="+hour+" WHERE k=? AND until<"+now,
		"INSERT INTO bench_row (k,v,fence,until) VALUES (?,?,1,"+hour+")",
		"UPDATE bench_row SET until='2000-01-01' WHERE k=? AND v=? AND until>"+now,
		"SELECT COUNT(*) FROM bench_row WHERE k=? AND v=? AND until>"+now)
}

// openTable is a locker of these statements; update may be "".
func openTable(s Settings, update, insert, remove, owned string) (l Locker, err error) {
	db, err := openPool(s)
	if err != nil {
		return nil, err
	}
	i := &insertLocker{db: db, poll: s.Poll, tokens: newTokens()}
	if i.poll == 0 {
		i.poll = referencePoll
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&i.update, update}, {&i.insert, insert}, {&i.remove, remove}, {&i.owned, owned},
	} {
		if p.text == "" {
			continue
		}
		if *p.stmt, err = db.Prepare(p.text); err != nil {
			db.Close()
			return nil, err
		}
	}
	return i, nil
}

// Errors of the server: somebody's row is there, or two who wanted to insert
// theirs after it had gone waited for each other.
const (
	duplicate = 1062
	deadlock  = 1213
)

func (l *insertLocker) TryLock(ctx context.Context, key string) (Held, error) {
	value := l.tokens.next()
	if l.update != nil {
		if res, err := l.update.ExecContext(ctx, value, key); err == nil {
			if n, err := res.RowsAffected(); n == 1 && err == nil {
				return &insertHeld{l, key, value}, nil
			}
		}
	}
	_, err := l.insert.ExecContext(ctx, key, value)
	if refused := (*mysql.MySQLError)(nil); errors.As(err, &refused) && (refused.Number == duplicate || refused.Number == deadlock) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, err
	}
	return &insertHeld{l, key, value}, nil
}

func (l *insertLocker) Lock(ctx context.Context, key string) (Held, error) {
	return polled(ctx, l.poll, func() (Held, error) { return l.TryLock(ctx, key) })
}

func (l *insertLocker) Close() { l.db.Close() }

type insertHeld struct {
	l          *insertLocker
	key, value string
}

func (h *insertHeld) Unlock() error {
	for {
		res, err := h.l.remove.Exec(h.key, h.value)
		if refused := (*mysql.MySQLError)(nil); errors.As(err, &refused) && refused.Number == deadlock {
			continue // rolled back
		}
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); n != 1 || err != nil {
			return errors.Join(errLost, err)
		}
		return nil
	}
}

func (h *insertHeld) Renew(ctx context.Context) error {
	return isOne(h.l.owned.QueryRowContext(ctx, h.key, h.value))
}

var getLockContestant = Contestant{
	Name: "getlock",
	About: "no library: GET_LOCK and RELEASE_LOCK on a connection that belongs to the lock while it is held or waited for; the server queues; " +
		"no lease, no fence, no row",
	Endless: true,
	Open: func(s Settings) (Locker, error) {
		db, err := openPool(s)
		if err != nil {
			return nil, err
		}
		return getLocker{db}, nil
	},
}

type getLocker struct{ db *sql.DB }

// patience is how long the server lets one wait in one statement, in seconds.
const patience = 10

func (l getLocker) Lock(ctx context.Context, key string) (Held, error) {
	for {
		h, err := l.get(ctx, key, patience)
		if err != ErrHeld {
			return h, err
		}
	}
}

func (l getLocker) TryLock(ctx context.Context, key string) (Held, error) { return l.get(ctx, key, 0) }

// get asks on a connection of its own. The statements are text: prepared ones
// would have to be prepared anew by whoever gets the connection next.
func (l getLocker) get(ctx context.Context, key string, wait int) (Held, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	h := &getHeld{conn, key}
	err = isOne(conn.QueryRowContext(ctx, "SELECT GET_LOCK('"+key+"',"+strconv.Itoa(wait)+")"))
	if err == errLost { // not ours within the time
		err = ErrHeld
	}
	if err != nil {
		h.drop(err)
		return nil, err
	}
	return h, nil
}

func (l getLocker) Close() { l.db.Close() }

type getHeld struct {
	conn *sql.Conn
	key  string
}

// drop gives the connection back, or closes it where nobody knows what it still
// holds.
func (h *getHeld) drop(err error) {
	if err != nil && err != ErrHeld {
		_ = h.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	h.conn.Close()
}

func (h *getHeld) Unlock() error {
	err := isOne(h.conn.QueryRowContext(context.Background(), "SELECT RELEASE_LOCK('"+h.key+"')"))
	h.drop(err)
	return err
}

func (h *getHeld) Renew(ctx context.Context) error {
	return isOne(h.conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+h.key+"')=CONNECTION_ID()"))
}

// isOne wants the answer 1, and takes 0 and NULL for a lock that is not ours.
func isOne(answer *sql.Row) error {
	var n sql.NullInt64
	if err := answer.Scan(&n); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	if n.Int64 != 1 {
		return errLost
	}
	return nil
}
