package mysqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// maxBatch is how many leases one statement renews. It holds the locks of their
// rows until it is committed, so it must not take long.
const maxBatch = 250

// longest is how long a renewal may have gone on when it is executed: more than it
// waits for a row, and less than matters to a lease of some seconds.
const longest = 2 * time.Second

// slack is what clocks, and the rounding of their times, differ by in the time
// of a call.
const slack = 10 * time.Millisecond

// batch is renewals that go into one statement: of one resource, with one TTL and
// place, in the order of the primary key, as all batches lock their rows.
type batch struct {
	namespace, resource string
	ttl                 time.Duration
	place               tierlock.Place // as by strict
	index               []int          // of the requests
}

// refused is the state of a lease that another mode of the chain keeps from being
// renewed.
const refused tierlock.Ownership = 255

var errRefused = fmt.Errorf("%w: not renewed", tierlock.ErrEpoch)

// Renew implements [tierlock.Store]. One statement renews up to 250 leases of a
// resource, and a second is needed only where not all of them were renewed.
// CallTimeout bounds them all together.
func (s *Store) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	until := time.Now().Add(s.timeout)
	results := make([]tierlock.RenewResult, len(reqs))
	var todo []int
	for i, req := range reqs {
		if err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), checkLease(req.Lease), checkPlace(req.Place)); err != nil {
			results[i].Err = invalid("renew", req.Name, err)
			continue
		}
		todo = append(todo, i)
	}
	if todo == nil {
		return results
	}
	srv, err := s.known(ctx, until)
	if err != nil {
		for _, i := range todo {
			results[i].Err = failed("renew", reqs[i].Name, err)
		}
		return results
	}
	var batches sync.WaitGroup
	reqs = slices.Clone(reqs) // a statement may be under way when the caller is not
	for i := range reqs {
		reqs[i].Place = strict(reqs[i].Place)
	}
	limit := make(chan struct{}, 4) // of the places: the rest is for others
	for _, b := range batched(reqs, todo) {
		limit <- struct{}{}
		batches.Go(func() {
			defer func() { <-limit }()
			states, err := call(s, s.renewals, ctx, until, func(ctx context.Context) ([]tierlock.Ownership, error) {
				if req := &reqs[b.index[0]]; req.Explicit {
					state, err := s.prolong(ctx, srv, req)
					return []tierlock.Ownership{state}, err
				}
				return s.renew(ctx, srv, reqs, b)
			})
			if err == nil {
				err = errUnrenewed // what was not
			}
			for n, i := range b.index {
				switch {
				case n >= len(states) || states[n] == 0:
					results[i].Err = failed("renew", reqs[i].Name, err)
				case states[n] == refused:
					results[i].Err = failed("renew", reqs[i].Name, errRefused)
				default:
					results[i].State = states[n]
				}
			}
		})
	}
	batches.Wait()
	return results
}

// batched sorts requests into batches. Explicit holds go by themselves, and so
// does a second request for the same key.
func batched(reqs []tierlock.RenewRequest, todo []int) []batch {
	slices.SortStableFunc(todo, func(i, j int) int {
		a, b := &reqs[i], &reqs[j]
		return cmp.Or(cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Resource, b.Name.Resource),
			cmp.Compare(a.TTL, b.TTL), cmp.Compare(a.Place.Epoch, b.Place.Epoch), cmp.Compare(a.Place.Incarnation, b.Place.Incarnation),
			cmp.Compare(a.Name.Key, b.Name.Key))
	})
	var all []batch
	var last *batch
	for _, i := range todo {
		r := &reqs[i]
		if last != nil && !r.Explicit && last.namespace == r.Name.Namespace && last.resource == r.Name.Resource &&
			last.ttl == r.TTL && last.place == r.Place && len(last.index) < maxBatch && reqs[last.index[len(last.index)-1]].Name.Key != r.Name.Key {
			last.index = append(last.index, i)
			continue
		}
		all = append(all, batch{r.Name.Namespace, r.Name.Resource, r.TTL, r.Place, []int{i}})
		last = nil
		if !r.Explicit {
			last = &all[len(all)-1]
		}
	}
	return all
}

// errUnrenewed stands for a state of 0 that renew gave.
var errUnrenewed = fmt.Errorf("%w: not renewed; somebody's transaction has locked the row, or the statement met a connection of the pool that is in a transaction, or with autocommit off", tierlock.ErrUnavailable)

// renewTries is how often those rows of a batch are tried that somebody has
// locked. Others look whether a lock is free, and lock its row for a moment, which
// is worth a few tries; a lease whose row is locked for longer is not renewed.
const renewTries = 4

// renew renews a batch. The state is 0 of what is there, and was not renewed;
// with an error the states are those of what was done before it.
//
// A statement waits for all of its rows, so one that somebody's open transaction
// has locked would keep every hold of the batch from being renewed. So one of
// several rows does not wait, where the server knows a way to say so, or is of
// those only that were not locked a moment before.
func (s *Store) renew(ctx context.Context, srv *server, reqs []tierlock.RenewRequest, b batch) ([]tierlock.Ownership, error) {
	if len(b.index) == 1 {
		return s.update(ctx, srv, srv.prefix, reqs, b)
	}
	prefix := srv.nowait
	if prefix == "" {
		prefix = srv.prefix
	}
	states := make(map[int]tierlock.Ownership, len(b.index)) // by request
	err := func() error {
		left := b
		for try := 1; ; try++ {
			free := left
			if try > 1 || srv.nowait == "" {
				var err error
				if free.index, err = s.unlocked(ctx, srv, reqs, left); err != nil {
					return err
				}
			}
			learn := func(tried batch, some []tierlock.Ownership) {
				for n, i := range tried.index {
					states[i] = some[n]
				}
				left.index = slices.DeleteFunc(slices.Clone(left.index), func(i int) bool { return states[i] != 0 })
			}
			whole := len(free.index) == len(left.index)
			if len(free.index) > 0 {
				some, err := s.update(ctx, srv, prefix, reqs, free)
				switch {
				case err == nil:
					learn(free, some)
				case locked(err):
					whole = false
				default:
					return err
				}
			}
			if !whole { // what is locked, or is not there at all
				some, err := s.states(ctx, reqs, left, time.Now(), false)
				if err != nil {
					return err
				}
				learn(left, some)
			}
			if len(left.index) == 0 || try == renewTries || !rest(ctx, time.Duration(try)*time.Millisecond) {
				return nil
			}
		}
	}()
	all := make([]tierlock.Ownership, len(b.index))
	for n, i := range b.index {
		all[n] = states[i]
	}
	return all, err
}

// unlocked gives the requests of a batch whose row is there, and was not locked a
// moment ago. It locks the rows in finding out, until it has ended.
func (s *Store) unlocked(ctx context.Context, srv *server, reqs []tierlock.RenewRequest, b batch) ([]int, error) {
	q := make(statement, 0, 256+len(b.index)*48)
	q.add("SELECT business_id FROM lock_record FORCE INDEX (PRIMARY) WHERE ")
	q.keys(reqs, b)
	// In somebody's transaction it would keep them locked.
	q.add(" AND ", srv.sound, " LIMIT ")
	q.int(maxBatch)
	q.add(" FOR UPDATE SKIP LOCKED")
	var keys []string
	if err := again(ctx, func() error {
		keys = keys[:0]
		return s.db.SelectContext(ctx, &keys, q.String())
	}); err != nil {
		return nil, err
	}
	found := make(map[string]bool, len(keys))
	for _, key := range keys {
		found[key] = true
	}
	return slices.DeleteFunc(slices.Clone(b.index), func(i int) bool { return !found[reqs[i].Name.Key] }), nil
}

// keys adds the condition that finds the rows of a batch.
func (q *statement) keys(reqs []tierlock.RenewRequest, b batch) {
	q.add("namespace=")
	q.text(b.namespace)
	q.add(" AND resource_id=")
	q.text(b.resource)
	q.add(" AND business_id IN (")
	list(q, b.index, func(i int) { q.text(reqs[i].Name.Key) })
	q.add(")")
}

// update renews a batch by one statement. Where the number of rows that were
// changed is that of the batch, all were; else what was is read: a lease that is
// there after the statement was there before it, too.
//
// The index is named, since a server may think that a long list is better
// looked up by reading the whole table, and would lock all of it.
func (s *Store) update(ctx context.Context, srv *server, prefix string, reqs []tierlock.RenewRequest, b batch) ([]tierlock.Ownership, error) {
	q := make(statement, 0, 256+len(b.index)*96)
	q.add(prefix, "UPDATE lock_record FORCE INDEX (PRIMARY) SET expire_at=GREATEST(expire_at,UTC_TIMESTAMP(6)+INTERVAL ")
	q.int(b.ttl.Microseconds())
	q.add(" MICROSECOND) WHERE ")
	q.keys(reqs, b)
	q.add(" AND lease_id=CASE business_id")
	for _, i := range b.index {
		q.add(" WHEN ")
		q.text(reqs[i].Name.Key)
		q.add(" THEN ")
		q.text(reqs[i].Lease)
	}
	before, after, _ := strings.Cut(live, "?")
	q.add(" END AND entries IS NULL AND ", before)
	q.int(s.explained())
	q.add(after, " AND ", passed, " BETWEEN 0 AND ")
	q.int(longest.Microseconds()) // see notLater: UTC_TIMESTAMP may be as late as that
	q.add(" AND ", srv.sound)
	q.place(b.place)
	var changed int64
	began := time.Now()
	if err := again(ctx, func() error {
		res, err := s.db.ExecContext(ctx, q.String())
		if err == nil {
			changed, err = res.RowsAffected()
		}
		return err
	}); err != nil {
		return nil, err
	}
	if changed != int64(len(b.index)) {
		return s.states(ctx, reqs, b, began, changed > 0)
	}
	states := make([]tierlock.Ownership, len(b.index))
	for n := range states {
		states[n] = tierlock.LeaseOwned
	}
	return states, nil
}

// place adds the condition that rows and server are those of a place.
func (q *statement) place(p tierlock.Place) {
	if p.Epoch == 0 {
		return
	}
	q.add(" AND ", rowEpoch, "=")
	q.uint(uint64(p.Epoch))
	q.server(p)
}

// server adds the condition that the server is that of a place.
func (q *statement) server(p tierlock.Place) {
	if on := data(p); on != "" {
		q.add(" AND ", identity, "=")
		q.text(on)
	}
}

// keyed is a row of several.
type keyed struct {
	Key string `db:"business_id"`
	row
}

// away tells whether the server that was read from is another than the one that a
// batch is meant for. Where no row says it is asked.
func (s *Store) away(ctx context.Context, reqs []tierlock.RenewRequest, b batch, found []keyed) (bool, error) {
	if b.place.Incarnation == "" {
		return false, nil
	}
	if len(found) > 0 {
		return found[0].Server != b.place.Incarnation, nil
	}
	_, err := s.readAt(ctx, &reqs[b.index[0]].Name, b.place)
	if errors.Is(err, tierlock.ErrEpoch) {
		return true, nil
	}
	return false, err
}

// states reads what the leases of a batch are, 0 where one is there, but was not
// renewed since began. written says that some were.
func (s *Store) states(ctx context.Context, reqs []tierlock.RenewRequest, b batch, began time.Time, written bool) ([]tierlock.Ownership, error) {
	var found []keyed
	q := append(statement{}, "SELECT business_id, "...)
	if b.place.Epoch > 0 {
		q.add(rowEpoch, " AS epoch, ", identity, " AS server, ")
	}
	q.add(columns[len("SELECT "):])
	q.keys(reqs, b)
	q.add(" LIMIT ") // the session's own may be less
	q.int(maxBatch)
	if err := s.db.SelectContext(ctx, &found, q.String()); err != nil {
		return nil, err
	}
	rows := make(map[string]*row, len(found))
	for i := range found {
		rows[found[i].Key] = &found[i].row
	}
	if away, err := s.away(ctx, reqs, b, found); err != nil {
		return nil, err
	} else if away && written {
		return nil, fmt.Errorf("%w: renewed, and read from another server", tierlock.ErrUnavailable)
	} else if away {
		return slices.Repeat([]tierlock.Ownership{refused}, len(b.index)), nil
	}
	states := make([]tierlock.Ownership, len(b.index))
	for n, i := range b.index {
		states[n] = tierlock.LeaseGone
		if r := rows[reqs[i].Name.Key]; r != nil {
			r.At = min(r.Now, s.explained())
			if b.place.Epoch > 0 {
				seen, err := r.at(b.place)
				if err != nil {
					states[n] = refused
					continue
				}
				r = &seen
			}
			states[n], _ = r.state(reqs[i].Lease, false)
			// A lease that is ours but was not made to last longer: its row is
			// locked, or the statement met somebody's transaction, or a clock that
			// could not be trusted.
			if states[n] == tierlock.LeaseOwned && r.left() < b.ttl-time.Since(began)-slack {
				states[n] = 0
			}
		}
	}
	return states, nil
}

// prolong renews a lease of an explicit hold.
func (s *Store) prolong(ctx context.Context, srv *server, req *tierlock.RenewRequest) (tierlock.Ownership, error) {
	return s.change(ctx, srv, &req.Name, req.Lease, req.Place, func(r *row, inside entries) (string, int64) {
		end := r.Now + req.TTL.Microseconds()
		inside[req.Lease] = max(inside[req.Lease], end)
		return noSooner, end
	})
}
