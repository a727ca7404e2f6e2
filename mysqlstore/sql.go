package mysqlstore

import (
	"encoding/hex"
	"strconv"
)

// What is sent all the time is prepared, once for each connection: to parse such
// a statement costs the server as much as to execute it. What differs each time,
// and what is rare, is sent as text without parameters, for which the driver
// would prepare, execute and close. What a text holds is either digits or a
// literal made by statement.text.

const (
	// now is the server's clock when the statement began, in microseconds of
	// Unix time. As an integer no setting of session or driver changes it. A date
	// is not read anew from its text each time, as a string would be.
	now = "TIMESTAMPDIFF(MICROSECOND,DATE'1970-01-01',UTC_TIMESTAMP(6))"
	// passed is how long the statement has been going on, in microseconds:
	// SYSDATE moves while a statement waits for a row, NOW does not. Both are
	// in the session's zone, so their difference is in none. It is negative, or
	// an hour too much, where the zone's offset or the server's clock changes
	// meanwhile.
	passed = "TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6))"
	// named finds the row of a lock.
	named = "namespace=? AND resource_id=? AND business_id=?"
	// released is the expire_at of a free row. It is a constant and lies in the
	// past by any clock, so that a clock that is stepped revives no lock.
	released = "TIMESTAMP'2000-01-01 00:00:00'"
	// releasedAt is the same in microseconds.
	releasedAt = 946684800_000000
	// notLater is the condition that the server's clock, at the moment, is not
	// past a bound in microseconds of Unix time, a parameter, and that the
	// statement has not gone on for longer than a second one, as none has that is
	// in time. What makes the passed time doubtful counts as late: a session whose
	// time somebody has set (SET timestamp) writes leases that have ended.
	notLater = passed + " BETWEEN 0 AND LEAST(?-" + now + ",?)"
	// moment is the server's clock at the moment, so also in such a session.
	moment = now + "+GREATEST(" + passed + ",0)"
	// given is a time of the server's, a parameter in microseconds of Unix time;
	// never lies behind all of them, and is one that DATETIME can hold.
	given = "TIMESTAMP'1970-01-01 00:00:00.000000'+INTERVAL ? MICROSECOND"
	never = 250_000_000_000_000_000
	// live tells a row that somebody holds, by the clock of the moment or, where
	// that is sooner, by a given time: the one of Store.explained.
	live = "expire_at>LEAST(UTC_TIMESTAMP(6)+INTERVAL " + passed + " MICROSECOND," + given + ")"
)

// statement is the text of a statement being written.
type statement []byte

func (q *statement) add(parts ...string) {
	for _, p := range parts {
		*q = append(*q, p...)
	}
}

func (q *statement) int(n int64)   { *q = strconv.AppendInt(*q, n, 10) }
func (q *statement) uint(n uint64) { *q = strconv.AppendUint(*q, n, 10) }

// text adds a literal: in quotes what means the same under every character set
// and SQL mode, anything else in hexadecimal.
func (q *statement) text(s string) {
	if quotable(s) {
		q.add("'", s, "'")
		return
	}
	q.binary(s)
}

// binary adds a literal in hexadecimal, which has no character set.
func (q *statement) binary(s string) {
	q.add("x'")
	*q = hex.AppendEncode(*q, []byte(s))
	q.add("'")
}

func quotable(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '\'' || c == '\\' {
			return false
		}
	}
	return true
}

func (q statement) String() string { return string(q) }

// list adds the elements with commas between them.
func list[T any](q *statement, all []T, add func(T)) {
	for i, e := range all {
		if i > 0 {
			q.add(",")
		}
		add(e)
	}
}
