package mysqlstore

import (
	"context"
	"strings"

	"github.com/tierlock/tierlock"
)

// enterStatement adds a lease to an explicit hold, and gives the hold the token of
// the lease where that has the larger fence.
const enterStatement = "UPDATE lock_record SET entries=?,epoch=IF(LAST_INSERT_ID(" + now + ")>0,GREATEST(epoch,?),0)," +
	"lease_id=IF(?>" + keptFence + ",?,lease_id),token=IF(?>" + keptFence + ",?,token),fence=GREATEST(fence,?)," +
	"expire_at=GREATEST(expire_at," + given + ") WHERE " + named + " AND attempt=? AND entries=? AND " + live +
	" AND ? IN (0," + rowEpoch + ") AND " + on + " AND " + notLater

// enterHold adopts a lease into an explicit hold that is there. The state is 0 where
// that has gone meanwhile, or was changed by others each time.
func (s *Store) enterHold(ctx context.Context, srv *server, b *adoption, h *adopted) (tierlock.Ownership, error) {
	n, t := &h.req.Name, &h.req.Token
	for try := 1; ; try++ {
		r, err := s.readAt(ctx, n, h.req.Place)
		if err != nil {
			return 0, err
		}
		inside := r.entries()
		if !r.live() || inside == nil || string(r.Holder) != t.Holder {
			return 0, nil
		}
		end := r.Now + h.req.TTL.Microseconds()
		inside[t.Lease] = max(inside[t.Lease], end)
		server, err := s.write(ctx, srv, enterStatement+" AND "+srv.sound, inside.text(), h.req.Place.Epoch,
			t.Fence, t.Lease, t.Fence, string(h.token), t.Fence, end, n.Namespace, n.Resource, n.Key, r.Attempt, string(r.Entries), s.explained(),
			strict(h.req.Place).Epoch, data(h.req.Place), b.bound, b.budget)
		if err != nil && !locked(err) {
			return 0, err
		}
		if server != 0 {
			return tierlock.LeaseOwned, nil
		}
		if err != nil || try == 10 || !rest(ctx, crowdedPause(try)) {
			return 0, nil
		}
	}
}

// around gives what stands before and after the only parameter of a condition.
func around(condition string) (before, after string) {
	before, after, _ = strings.Cut(condition, "?")
	return before, after
}
