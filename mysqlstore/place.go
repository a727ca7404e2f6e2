package mysqlstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/contract"
)

// A call of a chain says by its Place which mode it is meant for. Whether that is
// in force is judged by the very statement that does something, from the row and
// from the server that executes it; what is read afterwards only tells why nothing
// was done.

const (
	// rowEpoch is the epoch of a row. Processes that use the store by itself, and
	// so know of no epochs, keep the one that is in the fence.
	rowEpoch = "GREATEST(epoch,fence>>49)"
	// anyEpoch is above all of them.
	anyEpoch = 1<<16 - 1
	seqMask  = 1<<contract.SeqBits - 1
	// on is the condition that the executing server is the one that a parameter
	// names, or that it is empty.
	on = "? IN (x''," + identity + ")"
)

func checkPlace(p tierlock.Place) error {
	if p.Epoch > degrade.MaxEpoch {
		return fmt.Errorf("place: epoch %d, wanted at most %d", p.Epoch, degrade.MaxEpoch)
	}
	return nil
}

// strict is p for what is judged by it, and else the zero Place: what is not
// Exclusive is renewed and released by its lease id alone.
func strict(p tierlock.Place) tierlock.Place {
	if p.Epoch == 0 || !p.Exclusive {
		return tierlock.Place{}
	}
	return p
}

// bounds are what a place asks of a row's epoch to be granted over it: rows below
// lo count as free, and those above hi refuse.
func bounds(p tierlock.Place) (lo, hi uint16) {
	if p.Exclusive {
		return p.Epoch, p.Epoch
	}
	return 0, anyEpoch
}

// data is the server that has to execute a call.
func data(p tierlock.Place) string {
	if p.Exclusive {
		return p.Incarnation
	}
	return ""
}

// placedColumns is columns for the place of one lock: a row in any case, with the
// clock, the epoch and the server. Who has no lock has no epoch either.
const placedColumns = "SELECT lease_id, holder_id, COALESCE(attempt,0) AS attempt, entries, token, COALESCE(fence,0) AS fence, " +
	"COALESCE(TIMESTAMPDIFF(MICROSECOND,DATE'1970-01-01',expire_at),0) AS expires, " + moment + " AS now, " +
	"COALESCE(" + rowEpoch + ",0) AS epoch, " + identity + " AS server FROM (SELECT 1) AS one LEFT JOIN lock_record ON "

// readAt is read for a call of a place: what counts as not there is not given, and
// what refuses the call is an error that wraps tierlock.ErrEpoch.
func (s *Store) readAt(ctx context.Context, n *tierlock.Name, p tierlock.Place) (row, error) {
	if p = strict(p); p.Epoch == 0 {
		return s.read(ctx, n)
	}
	var r row
	stmt, err := s.prepared(ctx, placedColumns+named)
	if err != nil {
		return r, err
	}
	era, began := s.era.Load(), time.Now()
	if err := stmt.GetContext(ctx, &r, n.Namespace, n.Resource, n.Key); err != nil {
		return row{}, err
	}
	s.learn(began, r.Now, era)
	r.At = min(r.Now, s.explained())
	return r.at(p)
}

// at is r as an exclusive call of a place sees it.
func (r row) at(p tierlock.Place) (row, error) {
	switch {
	case p.Incarnation != "" && p.Incarnation != r.Server:
		return row{}, fmt.Errorf("%w: meant for server %q, which is %q", tierlock.ErrEpoch, p.Incarnation, r.Server)
	case r.Epoch > p.Epoch:
		return row{}, fmt.Errorf("%w: epoch %d, and the lock's is %d", tierlock.ErrEpoch, p.Epoch, r.Epoch)
	case r.Epoch < p.Epoch:
		return row{Now: r.Now, At: r.At}, nil
	}
	return r, nil
}

// form is the parts of the statement that takes a lock which depend on whether the
// call has a place.
type form struct {
	fence, epoch string // of a new row
	where        string // what has to be true of the server, besides the session
	// decision is the value of the attempt, and so what is done with a row that is
	// there. By it, won says that the lease is the caller's, anew that it was not
	// before, and fresh the same where it is known that it was won.
	decision, won, anew, fresh string
	// least is the least fence of a grant over the row, besides the next of its own;
	// granted and end are the epoch and the end of a row that was won.
	least, granted, end string
	// same is the condition that least is VALUES(fence), which is what the caller
	// works out by itself.
	same string
	// stamp is the fence of a new row and its parts in a token's JSON.
	stamp string
}

// stampAny is the same of any fence, whatever its epoch.
func stampAny(fence string) string {
	return fmt.Sprintf(`%[1]s,'","epoch":',%[1]s>>49,',"seq":',%[1]s&%[2]d`, fence, seqMask)
}

// leastFence is the least fence of the moment, in the epoch of a store that is used by
// itself.
var leastFence = fmt.Sprintf("GREATEST(%s DIV 2+%d,?)", now, leastOf(contract.Epoch))

// unplaced is the form of a store that is used by itself.
var unplaced = form{
	fence:    leastFence,
	epoch:    strconv.Itoa(contract.Epoch),
	decision: "IF((" + expired + " OR lease_id=VALUES(lease_id)) AND " + notLater + ",VALUES(attempt),attempt)",
	won:      "attempt=VALUES(attempt)",
	anew:     "attempt=VALUES(attempt) AND expire_at<=UTC_TIMESTAMP(6)",
	fresh:    "expire_at<=UTC_TIMESTAMP(6)",
	least:    "VALUES(fence)",
	granted:  "VALUES(epoch)",
	end:      "GREATEST(expire_at,VALUES(expire_at))",
	stamp:    fmt.Sprintf(`%[1]s,'","epoch":%[2]d,"seq":',%[1]s-%[3]d`, leastFence, contract.Epoch, base),
}

const (
	// fenceAt and stampAt are leastFence, and its stamp, of an epoch that is a
	// parameter.
	fenceAt = "GREATEST(" + now + " DIV 2+?,?)"
	stampAt = fenceAt + `,'","epoch":',?,',"seq":',` + fenceAt + "-?"
	expired = "expire_at<=LEAST(UTC_TIMESTAMP(6)," + given + ")"
	// fresh tells, by the mark of a placed statement, a lease that was not the
	// caller's before. See placed.
	fresh = "attempt=VALUES(attempt)"
	// least is the least fence of a placed grant over a row: of the largest of all
	// epochs, with the seq of the moment. It is the same before and after the row's
	// fence is changed.
	least = "((GREATEST(" + rowEpoch + ",VALUES(epoch))<<49)+(VALUES(fence)&562949953421311))"
)

// placed is the form of a call that has a place; takeAt gives its parameters.
//
// A row of an earlier epoch may be overwritten while it has not expired, and its
// epoch changes on the way. So the mark says all that was decided: it is even, and
// one more for a lease that was the caller's before.
var placed = form{
	fence: fenceAt,
	epoch: "?",
	where: " AND " + on,
	decision: "IF(" + rowEpoch + "<=? AND (" + rowEpoch + "<? OR " + expired + " OR lease_id=VALUES(lease_id)) AND " + notLater +
		",VALUES(attempt)+IF(" + rowEpoch + "<? OR " + expired + ",0,1),attempt)",
	won:     "attempt BETWEEN VALUES(attempt) AND VALUES(attempt)+1",
	anew:    fresh,
	fresh:   fresh,
	least:   least,
	granted: "IF(" + fresh + "," + least + ">>49,epoch)",
	end:     "IF(" + fresh + ",VALUES(expire_at),GREATEST(expire_at,VALUES(expire_at)))",
	same:    " AND " + least + "=VALUES(fence)",
	stamp:   stampAt,
}

// shared is the form of a call that has a place and is not exclusive: it does as
// unplaced does, but for the epoch, and costs no more. takeAt gives its parameters.
var shared = func() form {
	f := unplaced
	f.fence, f.epoch, f.stamp = fenceAt, "?", stampAt
	f.least, f.same, f.granted = least, placed.same, "IF("+f.fresh+","+least+">>49,epoch)"
	return f
}()

// takeAt is take for a call that has a place.
func (s *Store) takeAt(ctx context.Context, a *attempt) (server int64, err error) {
	req, p := a.req, a.req.Place
	texts := &a.srv.shared
	if p.Exclusive {
		texts = &a.srv.placed
	}
	a.id &^= 1
	ttl, least := req.TTL.Microseconds(), leastOf(p.Epoch)
	args := make([]any, 0, 42)
	args = append(args, req.Name.Namespace, req.Name.Resource, req.Name.Key, a.id, least, a.floor, p.Epoch,
		req.Token.Lease, req.Token.Holder[:min(len(req.Token.Holder), maxHolder)], req.Token.Reentrant)
	query := texts.plain
	if req.Explicit {
		query = texts.explicit
		args = append(args, "{"+string(contract.AppendText(nil, req.Token.Lease))+":", ttl)
	}
	args = append(args, a.head, least, a.floor, p.Epoch, least, a.floor, uint64(p.Epoch)<<contract.SeqBits, ttl, a.tail, ttl)
	explained := s.explained()
	if p.Exclusive {
		lo, hi := bounds(p)
		args = append(args, data(p), a.bound, a.budget, hi, lo, explained, a.bound, a.budget, lo, explained)
	} else {
		args = append(args, a.bound, a.budget, explained, a.bound, a.budget)
	}
	if n := contract.Fences(req); n > 0 {
		query = texts.ranged
		args = append(args, n, int64(n)<<rangeBits, n, n, n)
	}
	return s.writeTake(ctx, a.srv, query, args...)
}

// takes is the statements that take a lock, of one form.
type takes struct{ plain, ranged, explicit, again string }

// newTakes makes them; place is what retakeStatement asks of the place.
func newTakes(session string, f form, place string) takes {
	return takes{
		plain: takeStatement("NULL", session, f), ranged: rangeStatement(session, f),
		explicit: takeStatement("CONCAT(?,"+now+"+?,'}')", session, f),
		again:    retakeStatement(session, place),
	}
}

// leastOf is what half the server's clock in microseconds has to be added to for
// the fence of a grant of an epoch.
func leastOf(epoch uint16) int64 {
	return int64(epoch)<<contract.SeqBits - contract.SeqOrigin/2 + contract.SeqLead
}

// in is a fence of the epoch that a is meant for, with the same seq.
func (a *attempt) in(fence uint64) uint64 {
	if epoch := a.req.Place.Epoch; epoch > 0 {
		return fence&seqMask | uint64(epoch)<<contract.SeqBits
	}
	return fence
}
