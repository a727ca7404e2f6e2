package mysqlstore

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A hold of an explicit holder may have several leases: they stand in the
// column entries of the lock's row, each with its end, and the row expires with
// the last of them. Few holds are of this kind, and few calls change one at the
// same time. So the set is read, changed here and written back on the condition
// that the row is still as it was read. Where another change came between, it is
// begun anew after a pause at random, as long as the call may last.

// join tries to enter the hold that is there. It is not done where the lock is
// free, and has to be taken.
func (s *Store) join(ctx context.Context, a *attempt) (res tierlock.AcquireResult, done bool, err error) {
	req := a.req
	for try := 1; ; try++ {
		r, err := s.readAt(ctx, &req.Name, req.Place)
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
		server, err := s.rewrite(ctx, a.srv, &req.Name, &r, inside, noSooner, end, a.bound, a.budget, req.Place)
		switch {
		case err != nil:
			return res, false, err
		case server == 0 && a.late(r.Now):
			return res, false, fmt.Errorf("%w: not executed in time", tierlock.ErrLate)
		case server == 0:
			if !rest(ctx, crowdedPause(try)) {
				return res, false, crowded()
			}
			continue
		}
		if stored.Lease == req.Token.Lease {
			return tierlock.AcquireResult{Granted: true, Token: stored}, true, nil
		}
		t := contract.WithFence(req.Token, stored.Fence)
		t = contract.Stamped(t, req.TTL, server)
		t.Epoch = max(t.Epoch, stored.Epoch, uint64(req.Place.Epoch)) // the fence is the hold's
		return tierlock.AcquireResult{Granted: true, Reentered: true, Token: t}, true, nil
	}
}

// change changes the entries of an explicit hold that a lease belongs to, or
// says why there is nothing to change. edit changes them and gives the end of the
// row.
func (s *Store) change(ctx context.Context, srv *server, n *tierlock.Name, lease string, p tierlock.Place,
	edit func(r *row, inside entries) (which string, end int64)) (tierlock.Ownership, error) {
	for try := 1; ; try++ {
		r, err := s.readAt(ctx, n, p)
		if err != nil {
			return 0, err
		}
		state, owned := r.state(lease, true)
		if !owned {
			return state, nil
		}
		inside := r.entries()
		which, end := edit(&r, inside)
		server, err := s.rewrite(ctx, srv, n, &r, inside, which, end, math.MaxInt64, math.MaxInt64, p)
		if err != nil {
			return 0, err
		}
		if server != 0 {
			return tierlock.LeaseOwned, nil
		}
		if !rest(ctx, crowdedPause(try)) {
			return 0, crowded()
		}
	}
}

// Which of two ends a row gets: its own or another.
const (
	noSooner = "GREATEST"
	noLater  = "LEAST"
)

// rewrite gives an explicit hold other entries and another end, a time that was
// read from the server, if its row is still as it was read, and it is not later
// than bound, and it has gone on for budget at most. It returns a time of the
// server's, or 0 where nothing was changed.
//
// Where there is a place, its epoch becomes the row's if it is larger, and an
// exclusive one has to be the row's and the server's.
func (s *Store) rewrite(ctx context.Context, srv *server, n *tierlock.Name, r *row, inside entries, which string, end, bound, budget int64, p tierlock.Place) (int64, error) {
	q := "UPDATE lock_record SET entries=?,epoch=IF(LAST_INSERT_ID(" + now + ")>0,epoch,0),"
	args := make([]any, 0, 14)
	args = append(args, inside.text())
	if p.Epoch > 0 {
		q = "UPDATE lock_record SET entries=?,epoch=IF(LAST_INSERT_ID(" + now + ")>0,GREATEST(epoch,?),0),"
		args = append(args, p.Epoch)
	}
	q += "expire_at=" + which + "(expire_at," + given + ") WHERE " +
		named + " AND attempt=? AND entries=? AND " + live + " AND " + srv.sound + " AND " + notLater
	args = append(args, end, n.Namespace, n.Resource, n.Key, r.Attempt, string(r.Entries), s.explained(), bound, budget)
	if p.Epoch > 0 {
		q += " AND ? IN (0," + rowEpoch + ") AND " + on
		args = append(args, strict(p).Epoch, data(p))
	}
	return s.write(ctx, srv, q, args...)
}

// crowdedPause is as long as a few changes by others take, and at random so that
// those who met do not meet again.
func crowdedPause(try int) time.Duration {
	return rand.N(time.Duration(min(try, 20)) * time.Millisecond)
}

func crowded() error {
	return fmt.Errorf("%w: the row could not be changed: it was changed by others each time, or the connection is in a transaction", tierlock.ErrUnavailable)
}
