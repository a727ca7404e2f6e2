package mysqlstore

import (
	"context"
	"math"
	"time"

	"github.com/tierlock/tierlock"
)

// AdoptWithin sends the statement of an adoption that is wanted until so long from
// now, by the server's clock. It tells whether anything was written.
func (s *Store) AdoptWithin(ctx context.Context, reqs []tierlock.AdoptRequest, d time.Duration) (written bool, err error) {
	srv, err := s.ready(ctx, time.Now().Add(s.timeout))
	if err != nil {
		return false, err
	}
	b := &adoption{place: reqs[0].Place, budget: s.timeout.Microseconds()}
	for i, req := range reqs {
		h, err := newAdopted(req, i)
		if err != nil {
			return false, err
		}
		b.holds = append(b.holds, h)
	}
	if b.bound, err = s.clockNow(ctx); err != nil {
		return false, err
	}
	b.bound += d.Microseconds()
	return s.writeHolds(ctx, srv, b, b.holds)
}

// EnterAt reads the hold that a request is to enter, and sends the statement that enters
// it for a place that may be another. It tells whether anything was written.
func (s *Store) EnterAt(ctx context.Context, req tierlock.AcquireRequest, p tierlock.Place) (written bool, err error) {
	srv, err := s.ready(ctx, time.Now().Add(s.timeout))
	if err != nil {
		return false, err
	}
	r, err := s.readAt(ctx, &req.Name, req.Place)
	if err != nil {
		return false, err
	}
	end := r.Now + req.TTL.Microseconds()
	server, err := s.rewrite(ctx, srv, &req.Name, &r, r.entries(), noSooner, end, math.MaxInt64, math.MaxInt64, p)
	return server != 0, err
}
