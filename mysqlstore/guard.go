package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
)

// What [Guard] refuses with.
var (
	// ErrFenced: a younger hold of the key has written already, so that the
	// token's hold is over, whatever its process believes. The error is a
	// *[FencedError]. Roll the transaction back.
	ErrFenced = errors.New("tierlock: write refused: a younger hold of the key has written")
	// ErrNoFence: the token has no fence to compare, since the hold is worth
	// [tierlock.ProcessLocal] only. See [AllowLocal].
	ErrNoFence = errors.New("tierlock: write refused: the hold has no fence")
)

// FencedError says which write was refused, and by what.
type FencedError struct {
	Resource, Key string
	// Fence is the refused token's, Stored the larger one that the table has.
	Fence, Stored uint64
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("%v: %s has fence %d, refused is %d", ErrFenced, guardName(e.Resource, e.Key), e.Stored, e.Fence)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// Tx is a transaction of the caller's: *sql.Tx, *sqlx.Tx, and what ORMs have in
// their place.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

var _ Tx = (*sql.Tx)(nil)

// GuardOption changes what one call of [Guard] lets pass.
type GuardOption func(*guardOptions)

type guardOptions struct{ local bool }

// AllowLocal lets tokens of the process-local tier pass. They have no fence, so
// nothing is compared, locked or written for them: for as long as both stores
// are away, two processes may write the same. Without this option such a write
// is refused with [ErrNoFence].
func AllowLocal() GuardOption { return func(o *guardOptions) { o.local = true } }

// GuardSchema is the statement that creates the table of [Guard], for the
// migrations of the business database. Nothing in this package runs it.
func GuardSchema() string { return guardSchema }

// The names are VARBINARY and not text with a binary collation: such a
// collation still pads, so that '42' and '42 ' would be one key. There is no
// second index, which every guarded write would have to maintain and whose
// locks could close a circle.
const guardSchema = `CREATE TABLE IF NOT EXISTS tierlock_guard (
	resource_id VARBINARY(64) NOT NULL,
	business_id VARBINARY(512) NOT NULL,
	fence BIGINT UNSIGNED NOT NULL,
	used_at DATETIME(6) NOT NULL,
	PRIMARY KEY (resource_id, business_id)
) ENGINE=InnoDB`

// One statement that judges, raises and locks: a SELECT first would leave a gap
// in which a younger hold commits. It judges by the newest committed row, at
// any isolation level. What is refused changes nothing, used_at neither: that
// would keep the row of a dead key alive. VALUES, which MySQL would rather see
// replaced by a row alias, is the only form that MariaDB knows, too.
//
// Names travel as digits: where character_set_connection is another than the
// client's, the server converts a text, and bytes that the driver sends as a
// parameter as well. Two keys could become one.
const guardRaise = `INSERT INTO tierlock_guard (resource_id, business_id, fence, used_at)
VALUES (UNHEX(?), UNHEX(?), ?, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
	used_at = IF(fence <= VALUES(fence), VALUES(used_at), used_at),
	fence = GREATEST(fence, VALUES(fence))`

// A locking read, since a plain one would show the row as of the transaction's
// snapshot, where a stale token may still be the youngest. The row is locked by
// guardRaise already.
const guardRead = `SELECT fence FROM tierlock_guard WHERE resource_id = UNHEX(?) AND business_id = UNHEX(?) FOR UPDATE`

// changedRow is the number of affected rows that the server reports for an ON
// DUPLICATE KEY UPDATE that changed a row, which a refusal never does. All else
// is read back: one is a new row, or with clientFoundRows an unchanged one, and
// none is an unchanged one, as for the same fence again in one microsecond.
const changedRow = 2

// Guard refuses the write of a holder whose lock has passed on to another. It
// belongs at the beginning of the caller's own transaction, in the database
// that has the data which the lock protects:
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	defer tx.Rollback()
//	if err := mysqlstore.Guard(ctx, tx, tierlock.TokenFrom(ctx)); err != nil {
//		return err
//	}
//	… // read and write what the lock protects
//	return tx.Commit()
//
// No lease keeps a process from being stopped between a look at its context and
// its write, for longer than the lease lasts. The guard does: it keeps the
// largest fence that has written for each resource and key, in the table of
// [GuardSchema], raises it to the token's, and holds that row's lock until the
// transaction ends. A transaction of an older hold has then either committed
// before, and this one sees what it wrote, or is refused with [ErrFenced]. The
// same fence passes any number of times: all writes of one hold, and those of
// holds that re-entered it. A transaction that is rolled back has raised
// nothing.
//
// # What the caller has to see to
//
//   - Guard comes before the first read of the transaction. At REPEATABLE READ,
//     the default, a plain SELECT fixes what the transaction sees from then
//     on; after one, Guard would pass and the transaction go on to work
//     with data from before the latest write. (SELECT … FOR UPDATE always
//     reads the newest.)
//   - An error ends the transaction: roll it back. Nothing in it is refused
//     by the database itself.
//   - Every write to the data takes the same lock and calls Guard. Whoever
//     does not is not held up.
//   - Transactions are short. One whose process is stopped after Guard keeps
//     the row until the server ends its connection; younger holds wait for
//     it and get the server's error 1205.
//   - A transaction that guards several keys does so in the order of their
//     bytes, first by resource, then by key: two that go in different orders
//     deadlock, as with any rows.
//
// It has to be a real transaction. Without one the lock on the row would be
// gone before the write is sent, so a *sql.DB, a *sqlx.DB and whatever embeds
// one is refused. A *sql.Conn is not, since it may have sent BEGIN; whether it
// has is the caller's business, as is an ORM's session in autocommit.
//
// # Names
//
// A token has no namespace, and the table neither: one business database is of
// one environment. Two locks with the same resource and key but of different
// namespaces, over the same data, are compared with each other, as the data
// requires; resources that protect different data in one database need
// different names.
//
// # Errors
//
// Beside [ErrFenced] and [ErrNoFence], a token or a transaction that cannot be
// right is a *[tierlock.InvalidError], and a missing table or permission wraps
// [tierlock.ErrMisconfigured]. Every error of the database is wrapped as it is,
// for errors.As to a *mysql.MySQLError: after 1213 (a deadlock) the server has
// rolled the transaction back, and it is to be begun anew.
//
// The first transaction for a key inserts its row. If it is rolled back while
// others wait for the same key, InnoDB ends all but one of these with 1213; so
// it may for some that arrive while [PruneGuard] deletes the row. That takes
// three transactions under one key at once, as of one hold that begins several.
//
// # Pruning
//
// The table has one small row for each key ever guarded. [PruneGuard] deletes
// those that have not been used for seven days; nothing in this package calls
// it, so do it daily, say, from any process. The price: once the row of a key is
// gone, nothing refuses a holder that was stopped all that time and wakes up
// now. Who cannot accept that prunes never.
func Guard(ctx context.Context, tx Tx, token tierlock.Token, opts ...GuardOption) error {
	var o guardOptions
	for _, opt := range opts {
		opt(&o)
	}
	if err := checkGuard(tx, token); err != nil {
		return err
	}
	if token.Tier == tierlock.Local && o.local {
		return nil
	}
	// A fence that some store of the local tier made up compares with nothing
	// that another process has, and must not get into the table.
	if token.Fence == 0 || token.Tier == tierlock.Local {
		return fmt.Errorf("%w: %s", ErrNoFence, token)
	}
	resource, key := digits(token.Resource), digits(token.Key)
	result, err := tx.ExecContext(ctx, guardRaise, resource, key, token.Fence)
	if err != nil {
		return guardError(token, err)
	}
	if n, err := result.RowsAffected(); err == nil && n == changedRow {
		return nil
	}
	var stored uint64
	if err := tx.QueryRowContext(ctx, guardRead, resource, key).Scan(&stored); err != nil {
		return guardError(token, err)
	}
	if stored != token.Fence {
		return &FencedError{Resource: token.Resource, Key: token.Key, Fence: token.Fence, Stored: stored}
	}
	return nil
}

// hasStats is what a *sql.DB and types that embed one have, and no transaction.
type hasStats interface{ Stats() sql.DBStats }

func checkGuard(tx Tx, token tierlock.Token) error {
	if tx == nil {
		return &tierlock.InvalidError{Field: "tx", Value: nil, Bound: "a transaction"}
	}
	if _, ok := tx.(hasStats); ok {
		return &tierlock.InvalidError{Field: "tx", Value: fmt.Sprintf("%T", tx),
			Bound: "a transaction, since a pool would free the row's lock before the write"}
	}
	if token.IsZero() {
		return &tierlock.InvalidError{Field: "token", Value: token.String(),
			Bound: "the token of a hold, and is the zero Token, as TokenFrom gives for a context without a lock"}
	}
	// Outside strict mode the server would cut what is too long, and two keys
	// would be one.
	if n := len(token.Resource); n < 1 || n > maxResourceBytes {
		return &tierlock.InvalidError{Field: "token.Resource", Value: token.Resource,
			Bound: fmt.Sprintf("1 to %d characters of A-Z a-z 0-9 _ . : -", maxResourceBytes)}
	}
	if n := utf8.RuneCountInString(token.Key); n < 1 || n > maxKeyChars || !utf8.ValidString(token.Key) {
		return &tierlock.InvalidError{Field: "token.Key", Value: token.Key,
			Bound: fmt.Sprintf("valid UTF-8 of 1 to %d characters", maxKeyChars)}
	}
	return nil
}

// The bounds of names, as tierlock.Name has them; the columns are made for
// them, with four bytes to a character.
const (
	maxResourceBytes = 64
	maxKeyChars      = 128
)

func digits(name string) string { return hex.EncodeToString([]byte(name)) }

func guardError(token tierlock.Token, err error) error {
	err = guardTableError(err)
	return fmt.Errorf("tierlock: guard of %s: %w", guardName(token.Resource, token.Key), err)
}

// guardTableError tells the operator what is missing.
func guardTableError(err error) error {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		switch e.Number {
		case 1146: // ER_NO_SUCH_TABLE
			return fmt.Errorf("%w: %w (GuardSchema has the statement that creates the table)", tierlock.ErrMisconfigured, err)
		case 1142, 1143: // ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR
			return fmt.Errorf("%w: %w (Guard needs SELECT, INSERT and UPDATE on tierlock_guard, PruneGuard SELECT and DELETE)", tierlock.ErrMisconfigured, err)
		}
	}
	return err
}

func guardName(resource, key string) string { return resource + "/" + strconv.Quote(key) }
