package mysqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// maxAdopted is about how long the text of one statement may be.
const maxAdopted = 1 << 20

// adoption is holds that go into one statement: of one place, no two of one key, in
// the order of the primary key.
type adoption struct {
	place tierlock.Place
	holds []*adopted
	// bound and budget are as in attempt.
	bound, budget int64
}

// adopted is one hold, and what came of it: the zero result while that is unknown.
type adopted struct {
	req    *tierlock.AdoptRequest
	index  int // of the request
	token  []byte
	result tierlock.RenewResult
}

func (h *adopted) settled() bool { return h.result != tierlock.RenewResult{} }

// Adopt implements [tierlock.Chained]. One statement writes up to 250 holds, 32 on
// MySQL, where none can be told not to wait; a second reads what came of it, and more are needed only where rows are locked. An
// explicit hold that is there already is entered by two statements of its own.
// CallTimeout bounds them all together; what it has left undone is ErrUnavailable.
//
// A statement that is executed later than CallTimeout after the call began writes
// nothing.
func (s *Store) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	sent := time.Now()
	until := sent.Add(s.timeout)
	results := make([]tierlock.RenewResult, len(reqs))
	todo := make([]*adopted, 0, len(reqs))
	for i := range reqs {
		h, err := newAdopted(reqs[i], i)
		if err != nil {
			results[i].Err = invalid("adopt", reqs[i].Name, err)
			continue
		}
		if req := h.req; req.Place.Exclusive && req.Token.Epoch > uint64(req.Place.Epoch) {
			err := fmt.Errorf("%w: epoch %d, and the hold's fence is of %d", tierlock.ErrEpoch, req.Place.Epoch, req.Token.Epoch)
			results[i].Err = failed("adopt", req.Name, err)
			continue
		}
		todo = append(todo, h)
	}
	failAll := func(holds []*adopted, err error) {
		for _, h := range holds {
			results[h.index].Err = failed("adopt", h.req.Name, err)
		}
	}
	if len(todo) == 0 {
		return results
	}
	srv, err := s.ready(ctx, until)
	var offset int64
	if err == nil {
		offset, err = s.offset(ctx, until)
	}
	if err != nil {
		failAll(todo, err)
		return results
	}
	limit := make(chan struct{}, 4) // of the places: the rest is for others
	var all sync.WaitGroup
	for _, b := range adoptions(todo, srv) {
		b.budget = s.timeout.Microseconds()
		b.bound = s.local(sent) + offset + b.budget
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			got, err := s.adoptAll(ctx, until, srv, b)
			if err != nil {
				failAll(b.holds, err)
				return
			}
			for n, h := range b.holds {
				if results[h.index] = got[n]; got[n].Err != nil {
					results[h.index].Err = failed("adopt", h.req.Name, got[n].Err)
				}
			}
		})
	}
	all.Wait()
	return results
}

// adoptAll is adopt as a call. The results come with the answer: the caller may be
// gone by then.
func (s *Store) adoptAll(ctx context.Context, until time.Time, srv *server, b *adoption) ([]tierlock.RenewResult, error) {
	return call(s, s.renewals, ctx, until, func(ctx context.Context) ([]tierlock.RenewResult, error) {
		err := s.adopt(ctx, srv, b)
		if err != nil && cut(err) {
			s.era.Add(1)
		}
		err = s.told(ctx, err)
		got := make([]tierlock.RenewResult, len(b.holds))
		for n, h := range b.holds {
			if got[n] = h.result; !h.settled() {
				got[n].Err = cmp.Or(err, error(errUnadopted))
			}
		}
		return got, nil
	})
}

var errUnadopted = fmt.Errorf("%w: not adopted; somebody's transaction has locked the row, the statement came late, or it met a connection of the pool that is in a transaction, or with autocommit off", tierlock.ErrUnavailable)

func newAdopted(req tierlock.AdoptRequest, index int) (*adopted, error) {
	t := contract.Storable(req.Token, tierlock.MySQL)
	err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), checkLease(t.Lease), checkPlace(req.Place))
	switch {
	case err != nil:
	case req.Place.Epoch == 0:
		err = errors.New("place: epoch 0, wanted that of the mode to be adopted into")
	case req.Explicit && len(t.Holder) > maxHolder:
		err = fmt.Errorf("holder %q: wanted at most %d bytes", t.Holder, maxHolder)
	}
	if err != nil {
		return nil, err
	}
	// What is not exclusive may have been granted in a later epoch than its process
	// has heard of.
	t.Epoch = max(uint64(req.Place.Epoch), t.Fence>>contract.SeqBits)
	req.Token = t
	h := &adopted{req: &req, index: index}
	if h.token, err = t.MarshalJSON(); err == nil && len(h.token) > maxToken {
		err = fmt.Errorf("token is %d bytes as JSON, wanted at most %d", len(h.token), maxToken)
	}
	return h, err
}

// fewHolds is how many holds go into one statement of a server that knows no way not
// to wait. A place for a row that is locked keeps as many from being adopted: that one
// is, nothing tells before, see unlockedHolds.
const fewHolds = 32

// adoptions sorts holds into batches.
func adoptions(todo []*adopted, srv *server) []*adoption {
	most := maxBatch
	if srv.nowait == "" {
		most = fewHolds
	}
	slices.SortStableFunc(todo, func(x, y *adopted) int {
		a, b := x.req, y.req
		return cmp.Or(cmp.Compare(a.Place.Epoch, b.Place.Epoch), cmp.Compare(strict(a.Place).Epoch, strict(b.Place).Epoch), cmp.Compare(data(a.Place), data(b.Place)),
			cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Resource, b.Name.Resource), cmp.Compare(a.Name.Key, b.Name.Key))
	})
	var all []*adoption
	for len(todo) > 0 {
		b := &adoption{place: todo[0].req.Place}
		var later []*adopted // of a key that is in the batch already
		size := 0
		for n, h := range todo {
			same := h.req.Place.Epoch == b.place.Epoch && data(h.req.Place) == data(b.place) && h.req.Place.Exclusive == b.place.Exclusive
			if !same || len(b.holds) == most || size > maxAdopted {
				later = append(later, todo[n:]...)
				break
			}
			if len(b.holds) > 0 && b.holds[len(b.holds)-1].req.Name == h.req.Name {
				later = append(later, h)
				continue
			}
			b.holds = append(b.holds, h)
			size += 2*len(h.token) + 512
		}
		all, todo = append(all, b), later
	}
	return all
}

// offset is that of the server's clock, which is asked for it if it is not known.
func (s *Store) offset(ctx context.Context, until time.Time) (int64, error) {
	for asked := 0; ; asked++ {
		if offset, known := s.clock.Offset(s.local(time.Now()), s.era.Load()); known {
			return offset, nil
		}
		if asked == 3 {
			return 0, fmt.Errorf("%w: the connection was lost again and again", tierlock.ErrUnavailable)
		}
		if err := s.askClock(ctx, until); err != nil {
			return 0, err
		}
	}
}

// adopt writes a batch and finds out what came of it. What it leaves unsettled is
// not in, or unknown with an error.
func (s *Store) adopt(ctx context.Context, srv *server, b *adoption) error {
	left := slices.Clone(b.holds)
	for try := 1; ; try++ {
		free := left
		if srv.nowait == "" {
			var err error
			if free, err = s.unlockedHolds(ctx, srv, left); err != nil {
				return err
			}
		}
		began := time.Now()
		written, err := s.writeHolds(ctx, srv, b, free)
		if err != nil {
			return err
		}
		if err := s.settle(ctx, srv, b, left, began, written); err != nil {
			return err
		}
		left = slices.DeleteFunc(left, (*adopted).settled)
		if len(left) == 0 || try == renewTries || !rest(ctx, time.Duration(try)*time.Millisecond) {
			return nil
		}
	}
}

// writeHolds sends the statement, and tells whether it wrote anything. Where a row is
// locked it sends one for each half, so that at last that row alone is left out; it
// waits for none, where the server knows a way to say so.
func (s *Store) writeHolds(ctx context.Context, srv *server, b *adoption, holds []*adopted) (written bool, err error) {
	if len(holds) == 0 {
		return false, nil
	}
	prefix := srv.nowait
	if prefix == "" {
		prefix = srv.prefix
	}
	q := s.adoptStatement(prefix, srv, b, holds)
	err = again(ctx, func() error {
		res, err := s.db.ExecContext(ctx, q)
		if err == nil {
			var n int64
			n, err = res.RowsAffected()
			written = n > 0
		}
		return err
	})
	if !locked(err) {
		return written, err
	}
	if len(holds) == 1 {
		return false, nil
	}
	half := len(holds) / 2
	first, err := s.writeHolds(ctx, srv, b, holds[:half])
	if err != nil {
		return first, err
	}
	second, err := s.writeHolds(ctx, srv, b, holds[half:])
	return first || second, err
}

const (
	// sameHold tells a row of the same explicit holder: to be entered.
	sameHold = "(entries IS NOT NULL AND VALUES(entries) IS NOT NULL AND holder_id=VALUES(holder_id))"
	// sameLease tells a row that has the lease already.
	sameLease = "(lease_id=VALUES(lease_id) AND entries IS NULL AND VALUES(entries) IS NULL)"
)

// adoptStatement writes holds over what is free, of an earlier epoch, of their own
// lease, or of a fence not larger than their own; a row of a later epoch has a later
// grant, whatever its fence. An explicit hold that is there is not overwritten by
// another lease of the same holder, but is entered: see enterHold.
//
// The mark says what was decided, as in placed: one more for a lease that was there.
// Its token goes only forward, as the holds that followed each other on it did.
func (s *Store) adoptStatement(prefix string, srv *server, b *adoption, holds []*adopted) string {
	lo, hi := bounds(b.place)
	mark := rand.Uint64() >> 1 &^ 1
	q := make(statement, 0, 4096+len(holds)*1024)
	q.add(prefix, "INSERT INTO lock_record (namespace,resource_id,business_id,attempt,fence,epoch,lease_id,holder_id,reentrant,entries,token,create_time,expire_at)"+
		" SELECT d.ns,d.res,d.k,")
	q.uint(mark)
	q.add(",d.f,d.ep,d.l,d.h,d.r,IF(d.e IS NULL,NULL,CONCAT(d.e,", now, "+d.ttl,'}')),d.t,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL d.ttl MICROSECOND FROM (")
	for n, h := range holds {
		h.values(&q, n)
	}
	inTime := func() {
		q.add(passed, " BETWEEN 0 AND LEAST(")
		q.int(b.bound)
		q.add("-", now, ",")
		q.int(b.budget)
		q.add(")")
	}
	q.add(") AS d WHERE ", srv.sound)
	q.server(b.place)
	q.add(" AND ")
	inTime()
	q.add(" ORDER BY d.n ON DUPLICATE KEY UPDATE attempt=IF(", rowEpoch, "<=")
	q.uint(uint64(hi))
	q.add(" AND (", rowEpoch, "<")
	q.uint(uint64(lo))
	before, after := around(expired)
	q.add(" OR ", before)
	q.int(s.explained())
	q.add(after, " OR NOT ", sameHold, " AND (", rowEpoch, "<")
	q.uint(uint64(b.place.Epoch))
	q.add(" OR ", sameLease, " OR ", rowEpoch, "=")
	q.uint(uint64(b.place.Epoch))
	q.add(" AND ", keptFence, "<=VALUES(fence))) AND ")
	inTime()
	q.add(",VALUES(attempt)+IF(", sameLease, ",1,0),attempt)")
	const (
		won  = "attempt BETWEEN VALUES(attempt) AND VALUES(attempt)+1"
		over = "attempt=VALUES(attempt)"
	)
	q.add(",token=IF("+won+",IF(NOT("+over+") AND "+keptFence+">VALUES(fence),token,VALUES(token)),token)",
		",fence=IF("+won+",GREATEST(fence,VALUES(fence)),fence)",
		",epoch=IF("+won+",GREATEST(epoch,VALUES(epoch)),epoch)",
		",create_time=IF("+over+",VALUES(create_time),create_time)")
	for _, column := range [...]string{"lease_id", "holder_id", "reentrant", "entries"} {
		q.add(",", column, "=IF("+won+",VALUES(", column, "),", column, ")")
	}
	q.add(",expire_at=IF(" + won + ",IF(" + over + ",VALUES(expire_at),GREATEST(expire_at,VALUES(expire_at))),expire_at)")
	return q.String()
}

// values adds the hold as the nth row of a table of constants.
func (h *adopted) values(q *statement, n int) {
	name := func(as string) {
		if n == 0 {
			q.add(" AS ", as)
		}
	}
	// A column of the table is as wide as the widest, of bytes: the server knows how
	// many only where none has a character set.
	text := func(s, as string) {
		q.add(",")
		q.binary(s)
		name(as)
	}
	if n > 0 {
		q.add(" UNION ALL ")
	}
	q.add("SELECT ")
	q.int(int64(n))
	name("n")
	t := &h.req.Token
	text(h.req.Name.Namespace, "ns")
	text(h.req.Name.Resource, "res")
	text(h.req.Name.Key, "k")
	q.add(",")
	q.uint(t.Fence)
	name("f")
	q.add(",")
	q.uint(t.Epoch)
	name("ep")
	text(t.Lease, "l")
	text(t.Holder[:min(len(t.Holder), maxHolder)], "h")
	if t.Reentrant {
		q.add(",1")
	} else {
		q.add(",0")
	}
	name("r")
	if h.req.Explicit {
		text("{"+string(contract.AppendText(nil, t.Lease))+":", "e")
	} else {
		q.add(",NULL")
		name("e")
	}
	text(string(h.token), "t")
	q.add(",")
	q.int(h.req.TTL.Microseconds())
	name("ttl")
}
