package mysqlstore

import (
	"context"
	"fmt"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A hold of an explicit holder may have several leases: they stand in the
// column entries of the lock's row, each with its end, and the row expires with
// the last of them. Few holds are of this kind, and few calls change one at the
// same time. So the set is read, changed here and written back on the condition
// that the row is still as it was read.

// maxTries bounds how often a change is begun anew because another came between.
const maxTries = 20

// founder adds the entries of a row that is made or taken: those of the founder
// of an explicit hold, and none for any other.
func (a *attempt) founder(q *statement) {
	if !a.req.Explicit {
		q.add("NULL")
		return
	}
	q.add("CONCAT(")
	q.text("{" + string(contract.AppendText(nil, a.req.Token.Lease)) + ":")
	q.add(",", now, "+")
	q.int(a.req.TTL.Microseconds())
	q.add(",'}')")
}

// join tries to enter the hold that is there. It is not done where the lock is
// free, and has to be taken.
func (s *Store) join(ctx context.Context, a *attempt) (res tierlock.AcquireResult, done bool, err error) {
	req := a.req
	for range maxTries {
		r, err := s.read(ctx, &req.Name)
		if err != nil {
			return res, false, err
		}
		if !r.live() {
			return res, false, nil
		}
		inside := r.entries()
		if len(inside) == 0 || string(r.Holder) != req.Token.Holder {
			return r.held(), true, nil
		}
		stored := r.token()
		if stored.IsZero() {
			return res, false, fmt.Errorf("the stored token cannot be read: %.200q", r.Token)
		}
		end := r.Now + req.TTL.Microseconds()
		inside[req.Token.Lease] = max(inside[req.Token.Lease], end)
		q := s.rewrite(a.srv, &req.Name, &r, inside, func(q *statement) {
			q.add("GREATEST(expire_at,", moment(end), ")")
		})
		q.add(" AND ")
		q.notLater(a.bound)
		server, _, err := s.exec(ctx, q.String())
		switch {
		case err != nil:
			return res, false, err
		case server == 0 && r.Now > a.bound:
			return res, false, fmt.Errorf("%w: not executed in time", tierlock.ErrLate)
		case server == 0:
			continue
		}
		if stored.Lease == req.Token.Lease {
			return tierlock.AcquireResult{Granted: true, Token: stored}, true, nil
		}
		t := contract.WithFence(req.Token, stored.Fence)
		return tierlock.AcquireResult{Granted: true, Reentered: true, Token: contract.Stamped(t, req.TTL, server)}, true, nil
	}
	return res, false, crowded()
}

// change changes the entries of an explicit hold that a lease belongs to, or
// says why there is nothing to change. edit gives the new end of the row.
func (s *Store) change(ctx context.Context, srv *server, n *tierlock.Name, lease string,
	edit func(r *row, inside entries, q *statement)) (tierlock.Ownership, error) {
	for range maxTries {
		r, err := s.read(ctx, n)
		if err != nil {
			return 0, err
		}
		state, owned := r.state(lease, true)
		if !owned {
			return state, nil
		}
		inside := r.entries()
		q := s.rewrite(srv, n, &r, inside, func(q *statement) { edit(&r, inside, q) })
		server, _, err := s.exec(ctx, q.String())
		if err != nil {
			return 0, err
		}
		if server != 0 {
			return tierlock.LeaseOwned, nil
		}
	}
	return 0, crowded()
}

// rewrite is the statement that gives an explicit hold other entries and another
// end, if its row is still as it was read. Its answer is a time of the server's,
// or 0 where the row is not.
func (s *Store) rewrite(srv *server, n *tierlock.Name, r *row, inside entries, end func(*statement)) statement {
	var q, at statement
	end(&at) // may change inside
	q.add(srv.prefix, "UPDATE lock_record SET entries=")
	q.text(inside.text())
	q.add(",epoch=IF(LAST_INSERT_ID(", now, ")>0,epoch,0),expire_at=")
	q = append(q, at...)
	q.add(" WHERE ")
	q.name(n)
	q.add(" AND attempt=")
	q.uint(r.Attempt)
	q.add(" AND entries=")
	q.text(string(r.Entries))
	q.add(" AND ", live)
	return q
}

// moment is a time of the server's that was read from it.
func moment(micros int64) string {
	return fmt.Sprintf("TIMESTAMP('1970-01-01 00:00:00.000000') + INTERVAL %d MICROSECOND", micros)
}

func crowded() error {
	return fmt.Errorf("%w: too many leases of one holder come and go at the same time", tierlock.ErrUnavailable)
}
