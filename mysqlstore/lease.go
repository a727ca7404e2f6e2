package mysqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Release implements [tierlock.Store]. The row stays, free, and keeps its
// fence; the clean-up takes it away later.
func (s *Store) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	until := time.Now().Add(s.timeout)
	if err := errors.Join(contract.CheckName(req.Name), checkLease(req.Lease), checkPlace(req.Place)); err != nil {
		return 0, invalid("release", req.Name, err)
	}
	req.Place = strict(req.Place)
	// No lease is longer, so a longer time to keep it would shorten none either.
	// Rounded up to what the column holds.
	req.Keep = (min(req.Keep, contract.MaxTTL) + time.Microsecond - 1).Truncate(time.Microsecond)
	srv, err := s.known(ctx, until)
	if err != nil {
		return 0, failed("release", req.Name, err)
	}
	alone := func(ctx context.Context) (tierlock.Ownership, error) {
		if req.Explicit {
			return s.giveUp(ctx, srv, &req)
		}
		return s.release(ctx, srv, &req)
	}
	var state tierlock.Ownership
	if req.Explicit || req.Keep > 0 || req.Place.Epoch > 0 || srv.nowait == "" {
		state, err = call(s, s.places, ctx, until, alone)
	} else {
		state, err = s.releases.call(ctx, until, req.Name, &req, alone)
	}
	if err != nil {
		return 0, failed("release", req.Name, err)
	}
	if state == tierlock.LeaseOwned && !req.Explicit && req.Keep == 0 {
		s.left.add(req.Name)
	}
	return state, nil
}

// Each answers with a number that depends on the row, so that it is given for a
// row only. The index is named as in retakeStatement.
const (
	releaseNow   = "UPDATE lock_record FORCE INDEX (PRIMARY) SET epoch=IF(LAST_INSERT_ID(fence)>0,epoch,0),expire_at=" + released + " WHERE " + ours
	releaseLater = "UPDATE lock_record SET epoch=IF(LAST_INSERT_ID(fence)>0,epoch,0)," +
		"expire_at=LEAST(expire_at,UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND) WHERE " + ours
	ours = named + " AND lease_id=? AND entries IS NULL AND " + live
)

func (s *Store) release(ctx context.Context, srv *server, req *tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	query, args := releaseNow, make([]any, 0, 8)
	if req.Keep > 0 {
		query, args = releaseLater, append(args, req.Keep.Microseconds())
	}
	args = append(args, req.Name.Namespace, req.Name.Resource, req.Name.Key, req.Lease, s.explained())
	query += " AND " + srv.sound
	if req.Place.Epoch > 0 {
		query += " AND " + rowEpoch + "=? AND " + on
		args = append(args, req.Place.Epoch, req.Place.Incarnation)
	}
	for try := 1; ; try++ {
		number, err := s.write(ctx, srv, query, args...)
		if err != nil {
			return 0, err
		}
		if number != 0 {
			return tierlock.LeaseOwned, nil
		}
		r, err := s.readAt(ctx, &req.Name, req.Place)
		if err != nil {
			return 0, err
		}
		// Granted again between the two statements, or nothing was done in a
		// session that is not sound: once more, if need be on another connection.
		if state, owned := r.state(req.Lease, false); !owned {
			return state, nil
		}
		if try == 10 || !rest(ctx, crowdedPause(try)) {
			return 0, errNoEffect
		}
	}
}

// giveUp takes a lease out of an explicit hold, which ends with its last.
func (s *Store) giveUp(ctx context.Context, srv *server, req *tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	return s.change(ctx, srv, &req.Name, req.Lease, req.Place, func(r *row, inside entries) (string, int64) {
		delete(inside, req.Lease)
		// What the others still need, and what is to be kept, but no more than
		// there is.
		need := inside.last()
		if req.Keep > 0 {
			need = max(need, r.Now+req.Keep.Microseconds())
		}
		return noLater, max(need, releasedAt)
	})
}

// Inspect implements [tierlock.Store]. It is one read that takes no lock.
func (s *Store) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	until := time.Now().Add(s.timeout)
	if err := contract.CheckName(name); err != nil {
		return tierlock.Record{}, invalid("inspect", name, err)
	}
	_, err := s.known(ctx, until)
	if err != nil {
		return tierlock.Record{}, failed("inspect", name, err)
	}
	r, err := call(s, s.places, ctx, until, func(ctx context.Context) (row, error) { return s.read(ctx, &name) })
	if err != nil {
		return tierlock.Record{}, failed("inspect", name, err)
	}
	if !r.live() {
		return tierlock.Record{}, nil
	}
	rec := tierlock.Record{Held: true, Token: r.token(), Left: r.left(), Holds: 1}
	if r.Entries != nil {
		rec.Holds = max(len(r.entries()), 1)
	}
	return rec, nil
}
