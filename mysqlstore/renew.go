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

// batch is renewals that go into one statement: of one resource, with one TTL,
// in the order of the primary key, as all batches lock their rows.
type batch struct {
	namespace, resource string
	ttl                 time.Duration
	index               []int // of the requests
}

// Renew implements [tierlock.Store]. One statement renews up to 250 leases of a
// resource, and a second is needed only where not all of them were renewed.
// CallTimeout bounds them all together.
func (s *Store) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	until := time.Now().Add(s.timeout)
	results := make([]tierlock.RenewResult, len(reqs))
	var todo []int
	for i, req := range reqs {
		if err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), checkLease(req.Lease)); err != nil {
			results[i].Err = invalid("renew", req.Name, err)
			continue
		}
		todo = append(todo, i)
	}
	if todo == nil {
		return results
	}
	srv, err := s.ready(ctx, until)
	if err != nil {
		for _, i := range todo {
			results[i].Err = failed("renew", reqs[i].Name, err)
		}
		return results
	}
	var batches sync.WaitGroup
	reqs = slices.Clone(reqs)       // a statement may be under way when the caller is not
	limit := make(chan struct{}, 4) // of the places: the rest is for others
	for _, b := range batched(reqs, todo, s.alone.now()) {
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
			if srv.nowait == "" {
				s.alone.learn(reqs, b, err)
			}
			for n, i := range b.index {
				if err != nil {
					results[i].Err = failed("renew", reqs[i].Name, err)
					continue
				}
				if states[n] == 0 {
					results[i].Err = failed("renew", reqs[i].Name, errUnrenewed)
					continue
				}
				results[i].State = states[n]
			}
		})
	}
	batches.Wait()
	return results
}

// batched sorts requests into batches. Explicit holds go by themselves, and so
// do a second request for the same key and what is suspected, which comes last.
func batched(reqs []tierlock.RenewRequest, todo []int, suspected map[tierlock.Name]time.Time) []batch {
	var last []batch
	if len(suspected) > 0 {
		todo = slices.DeleteFunc(todo, func(i int) bool {
			r := &reqs[i]
			if _, ok := suspected[r.Name]; ok {
				last = append(last, batch{r.Name.Namespace, r.Name.Resource, r.TTL, []int{i}})
				return true
			}
			return false
		})
	}
	return append(together(reqs, todo), last...)
}

func together(reqs []tierlock.RenewRequest, todo []int) []batch {
	slices.SortStableFunc(todo, func(i, j int) int {
		a, b := &reqs[i], &reqs[j]
		return cmp.Or(cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Resource, b.Name.Resource),
			cmp.Compare(a.TTL, b.TTL), cmp.Compare(a.Name.Key, b.Name.Key))
	})
	var all []batch
	var last *batch
	for _, i := range todo {
		r := &reqs[i]
		if last != nil && !r.Explicit && last.namespace == r.Name.Namespace && last.resource == r.Name.Resource &&
			last.ttl == r.TTL && len(last.index) < maxBatch && reqs[last.index[len(last.index)-1]].Name.Key != r.Name.Key {
			last.index = append(last.index, i)
			continue
		}
		all = append(all, batch{r.Name.Namespace, r.Name.Resource, r.TTL, []int{i}})
		last = nil
		if !r.Explicit {
			last = &all[len(all)-1]
		}
	}
	return all
}

// errUnrenewed stands for a state of 0 that renew gave.
var errUnrenewed = fmt.Errorf("%w: not renewed; somebody's transaction has locked the row, or the statement met a connection of the pool that is in a transaction, or with autocommit off", tierlock.ErrUnavailable)

// renewApart renews a batch of which one row is locked at least, by somebody's
// open transaction perhaps: in parts, so that the other leases do not end with
// that one. No part waits, since those after it have no time to.
func (s *Store) renewApart(ctx context.Context, srv *server, reqs []tierlock.RenewRequest, b batch) ([]tierlock.Ownership, error) {
	if len(b.index) == 1 {
		return make([]tierlock.Ownership, 1), nil
	}
	var states []tierlock.Ownership
	for _, index := range [][]int{b.index[:len(b.index)/2], b.index[len(b.index)/2:]} {
		part := b
		part.index = index
		some, err := s.renewPart(ctx, srv, srv.nowait, reqs, part)
		if err != nil {
			return nil, err
		}
		states = append(states, some...)
	}
	return states, nil
}

// renew renews a batch. Where the number of rows that were changed is that of
// the batch, all were; else what was is read: a lease that is there after the
// statement was there before it, too. The state is 0 where it is there, but was not
// renewed.
//
// The index is named, since a server may think that a long list is better
// looked up by reading the whole table, and would lock all of it.
func (s *Store) renew(ctx context.Context, srv *server, reqs []tierlock.RenewRequest, b batch) ([]tierlock.Ownership, error) {
	prefix := srv.prefix
	if len(b.index) > 1 && srv.nowait != "" {
		prefix = srv.nowait
	}
	return s.renewPart(ctx, srv, prefix, reqs, b)
}

func (s *Store) renewPart(ctx context.Context, srv *server, prefix string, reqs []tierlock.RenewRequest, b batch) ([]tierlock.Ownership, error) {
	q := make(statement, 0, 256+len(b.index)*96)
	q.add(prefix, "UPDATE lock_record FORCE INDEX (PRIMARY) SET expire_at=GREATEST(expire_at,UTC_TIMESTAMP(6)+INTERVAL ")
	q.int(b.ttl.Microseconds())
	q.add(" MICROSECOND) WHERE ")
	keys := func() {
		q.add("namespace=")
		q.text(b.namespace)
		q.add(" AND resource_id=")
		q.text(b.resource)
		q.add(" AND business_id IN (")
		list(&q, b.index, func(i int) { q.text(reqs[i].Name.Key) })
		q.add(")")
	}
	keys()
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
	var changed int64
	began := time.Now()
	// Others look whether a lock is free, and lock its row for a moment. That is
	// worth a few tries, and what is locked for longer is set apart.
	tries := 0
	err := again(ctx, func() error {
		res, err := s.db.ExecContext(ctx, q.String())
		if err == nil {
			changed, err = res.RowsAffected()
		}
		if tries++; tries < 3 && prefix == srv.nowait && locked(err) {
			return fmt.Errorf("%w: %w", errAgain, err)
		}
		return err
	})
	if prefix == srv.nowait && srv.nowait != "" && locked(err) {
		return s.renewApart(ctx, srv, reqs, b)
	}
	if err != nil {
		return nil, err
	}
	states := make([]tierlock.Ownership, len(b.index))
	if changed == int64(len(b.index)) {
		for n := range states {
			states[n] = tierlock.LeaseOwned
		}
		return states, nil
	}
	var found []struct {
		Key string `db:"business_id"`
		row
	}
	q = append(q[:0], "SELECT business_id, "+columns[len("SELECT "):]...)
	keys()
	q.add(" LIMIT ") // the session's own may be less
	q.int(maxBatch)
	if err := s.db.SelectContext(ctx, &found, q.String()); err != nil {
		return nil, err
	}
	rows := make(map[string]*row, len(found))
	for i := range found {
		rows[found[i].Key] = &found[i].row
	}
	for n, i := range b.index {
		states[n] = tierlock.LeaseGone
		if r := rows[reqs[i].Name.Key]; r != nil {
			r.At = min(r.Now, s.explained())
			states[n], _ = r.state(reqs[i].Lease, false)
			// A lease that is ours but was not made to last longer: by a statement
			// in somebody's transaction, or one whose clock could not be trusted.
			if states[n] == tierlock.LeaseOwned && r.left() < b.ttl-time.Since(began)-slack {
				states[n] = 0
			}
		}
	}
	return states, nil
}

// prolong renews a lease of an explicit hold.
func (s *Store) prolong(ctx context.Context, srv *server, req *tierlock.RenewRequest) (tierlock.Ownership, error) {
	return s.change(ctx, srv, &req.Name, req.Lease, func(r *row, inside entries) (string, int64) {
		end := r.Now + req.TTL.Microseconds()
		inside[req.Lease] = max(inside[req.Lease], end)
		return noSooner, end
	})
}
