package mysqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Sizes of the columns: a server that is not strict would cut what is longer.
const (
	maxLease  = 128
	maxHolder = 512
	maxToken  = 60_000
)

// attempt is one acquire on its way.
type attempt struct {
	req *tierlock.AcquireRequest
	srv *server
	// id marks the row as written by the statement sent last. Each has its own:
	// to one that is refused, the mark of the one before would look like its own,
	// and the refused one would write.
	id uint64
	// bound is the latest time of the server at which the grant is wanted, end
	// the same by the local clock, which is not stepped, and budget how long it
	// may have been on its way, in microseconds.
	bound, budget int64
	end           time.Time
	floor         uint64 // the least fence of a new row
	retried       bool   // retake was tried
	// The token's JSON, around what only the server knows.
	head, tail string
	left       <-chan struct{} // closed when the caller has left
}

// Acquire implements [tierlock.Store]. It is one statement where it is granted,
// its own or one of several calls, and one more where the lock is held, or the clock of the server is not known:
// after a lost connection, and after a minute in which nothing was read. At first
// the server is asked what it is, and again when connections were lost. A
// budget that is shorter than one round trip is always refused.
//
// The lease is taken by one INSERT … ON DUPLICATE KEY UPDATE on the primary
// key, or, where the lock was released here lately, by an UPDATE; where that finds
// that the row was used or deleted meanwhile, two or three more follow. Whether it was is read from the answer to that statement itself, or from
// the row; the number of affected rows, which depends on the DSN, counts for
// nothing.
func (s *Store) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	sent := time.Now()
	var none tierlock.AcquireResult
	err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), checkLease(req.Token.Lease), checkPlace(req.Place))
	if err == nil && req.Explicit && (len(req.Token.Holder) > maxHolder || !utf8.ValidString(req.Token.Holder)) {
		err = fmt.Errorf("holder %q: wanted valid UTF-8 of at most %d bytes", req.Token.Holder, maxHolder)
	}
	if err != nil {
		return none, invalid("acquire", req.Name, err)
	}
	req.Token = contract.Storable(req.Token, tierlock.MySQL)
	a := newAttempt(&req)
	if size := len(a.head) + len(a.tail); size > maxToken {
		return none, invalid("acquire", req.Name, fmt.Errorf("token is %d bytes as JSON, wanted at most %d", size, maxToken))
	}
	res, err := s.acquire(ctx, sent, a)
	if err != nil {
		return none, failed("acquire", req.Name, err)
	}
	return res, nil
}

func newAttempt(req *tierlock.AcquireRequest) *attempt {
	return &attempt{req: req,
		head: string(contract.AppendText([]byte(`{"lease":`), req.Token.Lease)) + `,"fence":"`,
		tail: string(contract.AppendRest(nil, &req.Token)),
	}
}

func checkLease(lease string) error {
	if len(lease) > maxLease {
		return fmt.Errorf("lease %q: wanted at most %d bytes", lease, maxLease)
	}
	return contract.CheckLease(lease)
}

func (s *Store) acquire(ctx context.Context, sent time.Time, a *attempt) (tierlock.AcquireResult, error) {
	var none tierlock.AcquireResult
	until := sent.Add(s.timeout)
	budget := min(a.req.Budget, s.timeout) // nobody waits longer for the answer
	if end, ok := ctx.Deadline(); ok {
		budget = min(budget, end.Sub(sent))
	}
	srv, err := s.ready(ctx, until)
	if err != nil {
		return none, err
	}
	a.srv, a.left = srv, ctx.Done()
	began := sent
	for try := 1; ; try++ {
		offset, known := s.clock.Offset(s.local(began), s.era.Load())
		for asked := 0; !known; asked++ {
			if asked == 3 {
				return none, fmt.Errorf("%w: the connection was lost again and again", tierlock.ErrUnavailable)
			}
			if err := s.askClock(ctx, until); err != nil {
				return none, err
			}
			began = time.Now()
			offset, known = s.clock.Offset(s.local(began), s.era.Load())
		}
		if began.Sub(sent) >= budget {
			if ctx.Err() != nil {
				return none, contract.Ended(ctx)
			}
			return none, fmt.Errorf("%w: not sent within %v", tierlock.ErrLate, budget)
		}
		// The bound counts from the beginning of the call, not of this try.
		a.budget = budget.Microseconds()
		a.bound, a.end = s.local(sent)+offset+a.budget, sent.Add(budget)
		a.floor = a.in(fenceOf(s.floor.Load()))
		res, err := s.askFor(ctx, until, a)
		if err == nil || !errors.Is(err, tierlock.ErrLate) || try == 2 {
			return res, err
		}
		// Late by the offset we knew, which may have been too low: the refusal
		// told more. Where it did not, a second try would be later still.
		began = time.Now()
		if now, known := s.clock.Offset(s.local(began), s.era.Load()); !known || now <= offset {
			return res, err
		}
	}
}

// attempt tries once to take or enter the lock.
func (s *Store) attempt(ctx context.Context, a *attempt) (tierlock.AcquireResult, error) {
	var none tierlock.AcquireResult
	for range 10 {
		if a.req.Explicit {
			if res, done, err := s.join(ctx, a); done || err != nil {
				return res, err
			}
		}
		era, began := s.era.Load(), time.Now()
		server, err := s.takeUnlocked(ctx, a)
		if err != nil {
			return none, err
		}
		if server > granted {
			n := int(server >> rangeBits)
			server &= 1<<rangeBits - 1
			s.learn(began, server, era)
			res := a.grant(server, max(a.in(fenceOf(server)), a.floor))
			res.Token, res.Fences = contract.Ahead(res.Token, n), n
			return res, nil
		}
		r, err := s.readAt(ctx, &a.req.Name, a.req.Place)
		if errors.Is(err, tierlock.ErrEpoch) && server != 0 {
			// Taken, and by now somewhere else or in a later mode: nobody can say
			// that nothing was changed.
			return none, fmt.Errorf("%w: granted, and then: %v", tierlock.ErrUnavailable, err)
		}
		if err != nil {
			return none, err
		}
		if r.Now == 0 { // no row: only lateness keeps one from being made
			if r.Now, err = s.clockNow(ctx); err != nil {
				return none, err
			}
		}
		if res, done, err := a.judge(&r, server == granted); done || err != nil {
			return res, err
		}
	}
	return none, errNoEffect
}

// wrote tells whether a row is as the statement sent last has left it.
func (a *attempt) wrote(r *row) bool {
	return r.Attempt == a.id || a.req.Place.Epoch > 0 && r.Attempt == a.id+1
}

// judge tells what came of an attempt from the row that was read after it. mine is
// that the statement has found, or made, the lease to be the caller's. It is not
// done where the lock became free between the two, or nothing was done in a
// session that is not sound.
func (a *attempt) judge(r *row, mine bool) (res tierlock.AcquireResult, done bool, err error) {
	switch {
	case r.live() && (a.wrote(r) || mine && string(r.Lease) == a.req.Token.Lease):
		t := r.token()
		if t.IsZero() {
			return res, false, fmt.Errorf("the stored token cannot be read: %.200q", r.Token)
		}
		return tierlock.AcquireResult{Granted: true, Token: t, Fences: a.further(r, t)}, true, nil
	case r.live() && string(r.Lease) != a.req.Token.Lease:
		// One that enters may do so: it was taken in between, perhaps by the same
		// holder.
		return r.held(), !a.req.Explicit, nil
	case a.late(r.Now):
		return res, false, fmt.Errorf("%w: not executed in time", tierlock.ErrLate)
	}
	return res, false, nil
}

// grant is the answer to an attempt that took a free lock.
func (a *attempt) grant(server int64, fence uint64) tierlock.AcquireResult {
	t := contract.WithFence(contract.Granted(a.req.Token, a.req.TTL, server), fence)
	return tierlock.AcquireResult{Granted: true, Token: t}
}

// late tells whether the grant is wanted no more, at a time of the server's that
// was just read. That alone would not do: it may have been stepped back.
func (a *attempt) late(server int64) bool { return server > a.bound || time.Now().After(a.end) }

const base = uint64(contract.Epoch) << contract.SeqBits

// granted is what the statement answers where the lock was taken but the row
// has to be read; a larger number is the time of the grant.
const granted = 1

// The statement that takes a free lock, makes a lease of the caller's own last
// longer, and leaves any other as it is.
//
// Assignments run from left to right and see what the former have written. So
// the decision is made once, in the first: the mark of this statement is written
// or is not. Two readings of a clock that moves could differ. expire_at comes
// last, since the others ask whether the lock was free.
//
// The branch that inserts computes its values before it waits for anything, so
// its guard stands where they are computed; one that had to wait after that
// comes late, and is for the caller to undo.
//
// LAST_INSERT_ID(x) makes x the number that comes with the answer: here the time
// of the grant, 1 where the row has to be read for its fence, 0 where the lock
// was not taken. In the branch that inserts it stands in the condition, so that it
// counts for a row that is made only: a server may compute a value that it need not,
// as where it has to convert it to another character set.
//
// takeStatement is the statement with an expression for the entries, what has to be
// true of the session, and the form.
func takeStatement(entries, session string, f form) string {
	q := "INSERT INTO lock_record (namespace,resource_id,business_id,attempt,fence,epoch,lease_id,holder_id,reentrant,entries,token,create_time,expire_at)" +
		" SELECT ?,?,?,?," + f.fence + "," + f.epoch + ",?,?,?," + entries +
		",CONCAT(?," + f.stamp + `,',"serverTime":',` + now + `,',"expireAt":',` + now + "+?,?)" +
		",UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND FROM DUAL WHERE IF(" + session + f.where + " AND " + notLater + ",LAST_INSERT_ID(" + now + "),0)>0" +
		" ON DUPLICATE KEY UPDATE attempt=" + f.decision +
		",fence=IF(" + f.anew + ",GREATEST(fence+1," + f.least + "),fence)" +
		",epoch=IF(" + f.won + ",IF(LAST_INSERT_ID(IF(" + f.fresh + " AND fence=VALUES(fence)," + now + ",1))>0," + f.granted + ",0)," +
		"IF(LAST_INSERT_ID(0)=0,epoch,0))"
	for _, column := range [...]string{"lease_id", "holder_id", "reentrant", "entries", "create_time"} {
		q += fmt.Sprintf(",%s=IF("+f.anew+",VALUES(%[1]s),%[1]s)", column)
	}
	// The usual fence stands in the new token already.
	q += ",token=IF(" + f.anew + ",IF(fence=VALUES(fence),VALUES(token),REPLACE(VALUES(token)," +
		"CONCAT('\"fence\":\"'," + stampAny("VALUES(fence)") + "),CONCAT('\"fence\":\"'," + stampAny("fence") + "))),token)"
	return q + ",expire_at=IF(" + f.won + "," + f.end + ",expire_at)"
}

// lockedPauses is how often the time between two tries for a row that is locked is
// doubled, from a millisecond on.
const lockedPauses = 5

// takeUnlocked sends the statement, and again while somebody has locked the row, for
// as long as a statement may wait for one.
//
// It does not wait in the server, where that can be told so. Of several that waited for
// a row which is undone, as a statement for several calls may be, each would be
// given a lock of the gap that it leaves, whatever their isolation, and none could make
// the row anew: a deadlock. Who never waits is in none.
func (s *Store) takeUnlocked(ctx context.Context, a *attempt) (server int64, err error) {
	began := time.Now()
	for try := 1; ; try++ {
		server, err = s.take(ctx, a)
		switch {
		case !locked(err):
			return server, err
		case a.srv.nowait == "" || time.Since(began) > a.srv.lockWait:
			return 0, errLocked
		}
		// Not all at once again: who comes at the same time each time, waits each time.
		pause := time.Millisecond << min(try-1, lockedPauses)
		select {
		case <-a.left: // nobody wants it
			return 0, errLocked
		default:
		}
		if !rest(ctx, pause/2+rand.N(pause)) || !time.Now().Before(a.end) {
			return 0, errLocked
		}
		a.budget = min(a.budget, time.Until(a.end).Microseconds())
	}
}

// take sends the statement, or where the row should be there the one of retake. Of
// that, too, the row tells what is to be done when it did nothing.
func (s *Store) take(ctx context.Context, a *attempt) (server int64, err error) {
	req := a.req
	if !req.Explicit && !a.retried && s.left.take(req.Name) {
		a.retried = true
		return s.retake(ctx, a)
	}
	ttl := req.TTL.Microseconds()
	a.id = rand.Uint64()
	if req.Place.Epoch > 0 {
		return s.takeAt(ctx, a)
	}
	args := make([]any, 0, 31)
	args = append(args, req.Name.Namespace, req.Name.Resource, req.Name.Key, a.id, a.floor,
		req.Token.Lease, req.Token.Holder[:min(len(req.Token.Holder), maxHolder)], req.Token.Reentrant)
	query := a.srv.takes.plain
	if req.Explicit {
		query = a.srv.takes.explicit
		args = append(args, "{"+string(contract.AppendText(nil, req.Token.Lease))+":", ttl)
	}
	args = append(args, a.head, a.floor, a.floor, ttl, a.tail, ttl, a.bound, a.budget, s.explained(), a.bound, a.budget)
	if n := contract.Fences(req); n > 0 {
		query = a.srv.takes.ranged
		args = append(args, n, int64(n)<<rangeBits, n, n, n)
	}
	return s.writeTake(ctx, a.srv, query, args...)
}

// writeTake is write for a statement that may make a row: see takeUnlocked.
func (s *Store) writeTake(ctx context.Context, srv *server, query string, args ...any) (int64, error) {
	return s.writeAs(ctx, cmp.Or(srv.nowait, srv.prefix), query, args...)
}

// fenceOf is the fence of a grant at a time of the server's. A clock that stands
// before the origin, as one that was never set, counts as being there.
func fenceOf(server int64) uint64 {
	return base | uint64(max(server-contract.SeqOrigin, 0)/2+contract.SeqLead)
}
