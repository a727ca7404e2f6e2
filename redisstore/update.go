package redisstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Update implements [tierlock.Updater] in one round trip.
func (s *Store) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	until := time.Now().Add(s.timeout)
	if err := errors.Join(contract.CheckName(req.Name), contract.CheckLease(req.Token.Lease)); err != nil {
		return 0, invalid("update", req.Name, err)
	}
	t := contract.Storable(req.Token, tierlock.Redis)
	lease := wireLease(t.Lease)
	msg, err := s.run(ctx, until, &updateScript, []string{lockKey(req.Name, "")},
		[]string{lease, leaseEnd(lease), string(contract.AppendToken(nil, &t)), strconv.FormatUint(t.Fence, 10)})
	if err != nil {
		return 0, failed("update", req.Name, err)
	}
	state, err := readOwnership(msg)
	if err != nil {
		return 0, failed("update", req.Name, err)
	}
	return state, nil
}
