package mysqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tierlock/tierlock"
)

// namedRow is a row of any name.
type namedRow struct {
	Namespace string `db:"namespace"`
	Resource  string `db:"resource_id"`
	keyed
}

func (r *namedRow) name() tierlock.Name {
	return tierlock.Name{Namespace: r.Namespace, Resource: r.Resource, Key: r.Key}
}

// rowsOf adds the condition that finds the rows of holds, which are in order.
func (q *statement) rowsOf(holds []*adopted) {
	q.add("(")
	for i := 0; i < len(holds); {
		n, first := i, holds[i].req.Name
		for n < len(holds) && holds[n].req.Name.Namespace == first.Namespace && holds[n].req.Name.Resource == first.Resource {
			n++
		}
		if i > 0 {
			q.add(" OR ")
		}
		q.add("namespace=")
		q.text(first.Namespace)
		q.add(" AND resource_id=")
		q.text(first.Resource)
		q.add(" AND business_id IN (")
		list(q, holds[i:n], func(h *adopted) { q.text(h.req.Name.Key) })
		q.add(")")
		i = n
	}
	q.add(") LIMIT ") // the session's own may be less
	q.int(maxBatch)
}

// unlockedHolds gives those whose row nobody has locked a moment ago, or that have
// none.
func (s *Store) unlockedHolds(ctx context.Context, srv *server, holds []*adopted) ([]*adopted, error) {
	find := func(end string) (map[tierlock.Name]bool, error) {
		var q statement
		q.add("SELECT namespace, resource_id, business_id FROM lock_record FORCE INDEX (PRIMARY) WHERE ", srv.sound, " AND ")
		q.rowsOf(holds)
		q.add(end)
		var rows []namedRow
		err := again(ctx, func() error {
			rows = rows[:0]
			return s.db.SelectContext(ctx, &rows, q.String())
		})
		found := make(map[tierlock.Name]bool, len(rows))
		for i := range rows {
			found[rows[i].name()] = true
		}
		return found, err
	}
	there, err := find("")
	if err != nil || len(there) == 0 {
		return holds, err
	}
	unlocked, err := find(" FOR UPDATE SKIP LOCKED")
	return slices.DeleteFunc(slices.Clone(holds), func(h *adopted) bool { return there[h.req.Name] && !unlocked[h.req.Name] }), err
}

// settle reads what the rows of holds are since began, and enters explicit holds.
// written says that the statement before wrote something.
func (s *Store) settle(ctx context.Context, srv *server, b *adoption, holds []*adopted, began time.Time, written bool) error {
	var q statement
	q.add("SELECT namespace, resource_id, business_id, ", rowEpoch, " AS epoch, ", identity, " AS server, ",
		columns[len("SELECT "):])
	q.rowsOf(holds)
	var found []namedRow
	era, asked := s.era.Load(), time.Now()
	if err := s.db.SelectContext(ctx, &found, q.String()); err != nil {
		return err
	}
	server := ""
	rows := make(map[tierlock.Name]row, len(found))
	for i := range found {
		r := &found[i]
		if i == 0 {
			s.learn(asked, r.Now, era)
		}
		r.At = min(r.Now, s.explained())
		server = r.Server
		rows[r.name()] = r.row
	}
	if on := data(b.place); on != "" && server != on {
		if server == "" { // no row says
			r, err := s.readServer(ctx)
			if err != nil {
				return err
			}
			server = r
		}
		switch {
		case server == on:
		case written:
			return fmt.Errorf("%w: adopted, and read from another server", tierlock.ErrUnavailable)
		default:
			for _, h := range holds {
				h.result.Err = fmt.Errorf("%w: meant for server %q, which is %q", tierlock.ErrEpoch, on, server)
			}
			return nil
		}
	}
	for _, h := range holds {
		r, ok := rows[h.req.Name]
		if !ok {
			continue
		}
		if b.place.Exclusive {
			var err error
			if r, err = r.at(b.place); err != nil {
				h.result.Err = err
				continue
			}
		}
		state, enter := h.found(&r, time.Since(began))
		if enter {
			var err error
			if state, err = s.enterHold(ctx, srv, b, h); err != nil {
				return err
			}
		}
		h.result.State = state
	}
	return nil
}

// readServer reads who serves.
func (s *Store) readServer(ctx context.Context) (server string, err error) {
	err = s.db.GetContext(ctx, &server, "SELECT "+identity)
	return server, err
}

// found is what a row says of a hold that was to be written so long ago: 0 where it
// is not in, and could be, and enter where it is for enterHold to say.
func (h *adopted) found(r *row, since time.Duration) (state tierlock.Ownership, enter bool) {
	if !r.live() {
		return 0, false
	}
	t := &h.req.Token
	wanted := h.req.TTL - since - slack
	if h.req.Explicit && r.Entries != nil && string(r.Holder) == t.Holder {
		end, in := r.entries()[t.Lease]
		left := time.Duration(end-r.Now) * time.Microsecond
		if in && left >= wanted && r.Epoch >= h.req.Place.Epoch {
			return tierlock.LeaseOwned, false
		}
		return 0, true
	}
	if !h.req.Explicit && r.Entries == nil && string(r.Lease) == t.Lease {
		if r.left() >= wanted && r.Epoch >= h.req.Place.Epoch {
			return tierlock.LeaseOwned, false
		}
		return 0, false
	}
	if at := h.req.Place.Epoch; r.Epoch < at || r.Epoch == at && r.fenceHeld() <= t.Fence {
		return 0, false
	}
	return tierlock.LeaseTaken, false
}

// fenceHeld is the fence of the lease that a row has, as keptFence.
func (r *row) fenceHeld() uint64 {
	if t := r.token(); !t.IsZero() {
		return t.Fence
	}
	return r.Fence
}
