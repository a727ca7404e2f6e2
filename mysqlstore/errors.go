package mysqlstore

import (
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

var errClosed = errors.New("the store is closed")

// errNoEffect is the end of several tries of which none did anything.
var errNoEffect = fmt.Errorf("%w: the statement had no effect; it may have met a connection that another user of the pool left in a transaction, or with autocommit off", tierlock.ErrUnavailable)

// misfit is an error about settings that somebody has to change.
func misfit(format string, args ...any) error {
	return fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, fmt.Errorf(format, args...))
}

// classed joins err with the class that callers branch on. What already has a
// class keeps it.
func classed(err error) error {
	for _, class := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured, tierlock.ErrEpoch} {
		if errors.Is(err, class) {
			return err
		}
	}
	hint, wrong := misconfigured(err)
	switch {
	case !wrong:
		return fmt.Errorf("%w: %w", tierlock.ErrUnavailable, err)
	case hint != "":
		return fmt.Errorf("%w: %w (%s)", tierlock.ErrMisconfigured, err, hint)
	}
	return fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, err)
}

// failed is the error of one operation on one lock.
func failed(op string, n tierlock.Name, err error) error {
	return fmt.Errorf("mysqlstore: %s %s: %w", op, n, classed(err))
}

// invalid is the error of a request that no server was asked about.
func invalid(op string, n tierlock.Name, err error) error {
	return fmt.Errorf("mysqlstore: %s %s: %w: %w", op, n, tierlock.ErrMisconfigured, err)
}

// misconfigured tells the answers that no retry can change before somebody
// changes a setting, and what to change. Everything else, known or not, is an
// unavailable server: too many connections, read-only, shutting down, a full
// disk, a lock wait that took too long, a broken connection.
func misconfigured(err error) (hint string, ok bool) {
	var foreign *contract.Unclassed
	if errors.As(err, &foreign) {
		return "", false
	}
	for _, e := range []error{mysql.ErrNoTLS, mysql.ErrCleartextPassword, mysql.ErrNativePassword, mysql.ErrOldPassword, mysql.ErrUnknownPlugin, mysql.ErrOldProtocol, mysql.ErrPktTooLarge} {
		if errors.Is(err, e) {
			return "", true
		}
	}
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		return "", false
	}
	switch refused.Number {
	case 1146: // no such table
		return "create the tables: see Schema and Migrate", true
	case 1054, 1136, 1176, 1264, 1288, 1347, 1356, 1364, 1406: // unknown column, column count, no such index, out of range, a view, no default, too long
		return "the table is not as it has to be: see Schema and Migrate", true
	case 1044, 1045, 1698, 1130, 1251, 1820, 1862, 4151, 3118: // access denied, host, plugin, password expired, account locked
		return "", true
	case 1142, 1143, 1227, 1370: // table, column, global privilege
		return "the user needs SELECT, INSERT, UPDATE and DELETE on lock_record, lock_member and lock_permit, and all but DELETE on lock_mode", true
	case 1046, 1049: // no database selected, unknown database
		return "", true
	case 1665: // binary log in statement format under READ COMMITTED
		return "binlog_format has to be ROW or MIXED", true
	case 1193, 1115, 1229, 1231, 1232, 1238, 1273, 1298: // a variable, character set, collation or time zone, of the DSN perhaps: unknown, of a wrong value or scope
		return "", true
	case 1048: // null refused
		return "the table is not as it has to be, see Schema and Migrate; or sql_mode has EMPTY_STRING_IS_NULL", true
	case 1104: // too big a SELECT
		return "max_join_size is too small, or sql_big_selects off", true
	case 1153: // packet
		return "max_allowed_packet is too small", true
	case 1064, 1305: // syntax, function
		return "the server has to be MySQL 8.0.19 or MariaDB 10.6, or later", true
	}
	return "", false
}

// repeatable tells the failures that have rolled the statement back, and that a
// repetition may well be spared: a deadlock (on a multi-primary cluster a lost
// certification, too), and a row that changed since the snapshot.
func repeatable(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && (refused.Number == 1213 || refused.Number == 1020)
}

// locked tells that the statement has waited for a row as long as it may.
func locked(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && refused.Number == 1205
}

// errLocked is what becomes of it for the caller of an acquire: nothing was changed, and
// the server is well.
var errLocked = fmt.Errorf("%w: a transaction of somebody else has locked the row", tierlock.ErrLate)

// cut tells the failures after which the next connection may lead to another
// server: all that a server did not send, and that is not a refusal of our own.
func cut(err error) bool {
	for _, own := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured, tierlock.ErrEpoch} {
		if errors.Is(err, own) {
			return false
		}
	}
	var refused *mysql.MySQLError
	return !errors.As(err, &refused)
}
