package mysqlstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/tierlock/tierlock"
)

// releaseTogether is releaseNow for several rows. It leaves a mark in each that it
// has released.
func releaseTogether(rows int, session string) string {
	const one = named + " AND lease_id=?"
	return "UPDATE lock_record FORCE INDEX (PRIMARY) SET attempt=?,expire_at=" + released +
		" WHERE (" + one + strings.Repeat(" OR "+one, rows-1) + ") AND entries IS NULL AND " + live + " AND " + session
}

// errUnclear is the outcome of a release that took a lease away, or came when
// another had it.
var errUnclear = fmt.Errorf("%w: others took the lock at once; whether it was released by this call or lost before cannot be told", tierlock.ErrUnavailable)

// releaseAll releases several leases by one statement. Where it changed as many
// rows, all were released; else the rows are read.
func (s *Store) releaseAll(ctx context.Context, calls []*gathered[*tierlock.ReleaseRequest, tierlock.Ownership]) ([]outcome[tierlock.Ownership], error) {
	outcomes := make([]outcome[tierlock.Ownership], len(calls))
	srv := s.server.Load()
	if srv.nowait == "" { // another server by now
		for i := range outcomes {
			outcomes[i].alone = true
		}
		return outcomes, nil
	}
	text, size := sized(srv.releaseTogether, len(calls))
	stmt, err := s.prepared(ctx, text)
	if err != nil {
		return nil, err
	}
	mark := rand.Uint64()
	args := make([]any, 0, 4*size+2)
	args = append(args, mark)
	for i := range size {
		q := calls[min(i, len(calls)-1)].q // filled up with the last
		args = append(args, q.Name.Namespace, q.Name.Resource, q.Name.Key, q.Lease)
	}
	args = append(args, s.explained())
	res, err := stmt.ExecContext(ctx, args...)
	var changed int64
	if err == nil {
		changed, err = res.RowsAffected() // of found rows it is the same: the mark is new
	}
	if err != nil {
		return nil, err
	}
	if changed == int64(len(calls)) {
		for i := range outcomes {
			outcomes[i] = outcomeOf(tierlock.LeaseOwned, nil)
		}
		return outcomes, nil
	}
	names := make([]*tierlock.Name, len(calls))
	for i, c := range calls {
		names[i] = &c.name
	}
	rows, err := s.readAll(ctx, names)
	if err != nil { // of each: the statement has not failed, and is not to be sent again
		if cut(err) {
			s.era.Add(1)
		}
		for i := range outcomes {
			outcomes[i] = failedAs[tierlock.Ownership](s.told(ctx, err))
		}
		return outcomes, nil
	}
	left := changed // rows that were released, and taken by others since
	for i := range rows {
		if rows[i].Attempt == mark {
			left--
		}
	}
	for i, c := range calls {
		if rows[i].Attempt == mark {
			outcomes[i] = outcomeOf(tierlock.LeaseOwned, nil)
			continue
		}
		state, owned := rows[i].state(c.q.Lease, false)
		switch {
		case owned: // granted again, or nothing was done in a session that is not sound
			outcomes[i].alone = true
		case left > 0:
			outcomes[i] = failedAs[tierlock.Ownership](errUnclear)
		default:
			outcomes[i] = outcomeOf(state, nil)
		}
	}
	return outcomes, nil
}
