package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// row is a row of lock_record as it is read. Times are microseconds of Unix
// time, by the server's clock.
type row struct {
	Lease    []byte `db:"lease_id"`
	Holder   []byte `db:"holder_id"`
	Attempt  uint64 `db:"attempt"`
	Entries  []byte `db:"entries"`
	Token    []byte `db:"token"`
	Fence    uint64 `db:"fence"`
	ExpireAt int64  `db:"expires"`
	Now      int64  `db:"now"`
	// At is what leases are judged by: now, or what is explained of it.
	At int64 `db:"-"`
	// Epoch and Server are of a row that was read for a place.
	Epoch  uint16 `db:"epoch"`
	Server string `db:"server"`
}

const columns = "SELECT lease_id, holder_id, attempt, entries, token, fence, " +
	"TIMESTAMPDIFF(MICROSECOND,DATE'1970-01-01',expire_at) AS expires, " + moment + " AS now FROM lock_record WHERE "

// read reads a row without locking it, and learns the server's clock. The zero
// row stands for none: it has expired long ago.
func (s *Store) read(ctx context.Context, n *tierlock.Name) (row, error) {
	var r row
	stmt, err := s.prepared(ctx, columns+named)
	if err != nil {
		return r, err
	}
	era, began := s.era.Load(), time.Now()
	err = stmt.GetContext(ctx, &r, n.Namespace, n.Resource, n.Key)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, nil
	}
	if err == nil {
		s.learn(began, r.Now, era)
		r.At = min(r.Now, s.explained())
	}
	return r, err
}

// clockNow reads the server's clock.
func (s *Store) clockNow(ctx context.Context) (int64, error) {
	var server int64
	era, began := s.era.Load(), time.Now()
	err := s.db.GetContext(ctx, &server, "SELECT "+moment)
	if err == nil {
		s.learn(began, server, era)
	}
	return server, err
}

// askClock reads the server's clock as a call of its own.
func (s *Store) askClock(ctx context.Context, until time.Time) error {
	_, err := call(s, s.places, ctx, until, s.clockNow)
	return err
}

// explained is what the server's clock can show by now, as far as this process
// knows: a lease that ends later has not ended, whatever the clock shows. A step
// forward so neither gives the lock of another away nor ends a hold that goes on.
func (s *Store) explained() int64 {
	if at, known := s.clock.Explained(s.local(time.Now())); known {
		return at
	}
	return never
}

// live tells whether anybody held the lock when the row was read.
func (r *row) live() bool { return r.ExpireAt > r.At }

// left is how long its lease lasts, by the server's clock as long as that shows
// that it does.
func (r *row) left() time.Duration {
	left := r.ExpireAt - r.Now
	if left <= 0 {
		left = r.ExpireAt - r.At
	}
	return time.Duration(left) * time.Microsecond
}

func (r *row) token() tierlock.Token { return contract.ReadToken(string(r.Token)) }

// held is the answer to an acquire that found the lock held.
func (r *row) held() tierlock.AcquireResult {
	return tierlock.AcquireResult{Token: r.token(), Left: r.left()}
}

// entries is the leases of an explicit hold, each with its end. A hold of
// another kind has none.
type entries map[string]int64

// entries gives the living leases of an explicit hold. It is nil where the hold
// is of another kind, and empty where all have been given up and the lock is
// only kept.
func (r *row) entries() entries {
	if r.Entries == nil {
		return nil
	}
	all := make(entries)
	if json.Unmarshal(r.Entries, &all) != nil {
		return nil // written by nobody here: nobody enters
	}
	for lease, end := range all {
		if end <= r.At {
			delete(all, lease)
		}
	}
	return all
}

// last is the latest end of all, 0 for none.
func (e entries) last() (end int64) {
	for _, at := range e {
		end = max(end, at)
	}
	return end
}

// text is the stored form.
func (e entries) text() string {
	b, _ := json.Marshal(e) // cannot fail
	return string(b)
}

// state is the answer about a lease that a statement did not find to be the
// owner; owned says that by now it is.
func (r *row) state(lease string, explicit bool) (state tierlock.Ownership, owned bool) {
	if !r.live() {
		return tierlock.LeaseGone, false
	}
	if explicit {
		_, owned = r.entries()[lease]
	} else {
		owned = r.Entries == nil && string(r.Lease) == lease
	}
	if owned {
		return tierlock.LeaseOwned, true
	}
	return tierlock.LeaseTaken, false
}
