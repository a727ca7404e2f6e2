package mysqlstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// To take a lock whose row is there, and free, is an UPDATE with all that has to be
// true in its condition. Next to it takeStatement costs a server twice the time, mostly
// to go through its text, as it asks for each column once more whether it may. But where
// there is no such row the UPDATE was for nothing. So it is tried where this
// process has given back the lock a while ago, and takeStatement comes after it where
// it has changed nothing.

// retakeStatement is the statement with what has to be true of the session and of
// the place. It takes a row that was released, whose fence is below the first of the
// grant, and leaves everything else to takeStatement: a lease that has expired, or is
// the caller's own, and a fence that is ahead of the server's clock.
//
// The index is named, since a server works out from each condition what else it could
// use. The condition is worked out when the row is locked, since it asks for the moving
// clock. What is assigned depends on no column of the row, as a session may say that
// assignments see what was there before them.
//
// The answer is the time of the grant, and depends on the row, so that it is given for
// a row only: a server may work out beforehand what is the same for all. The fences are
// those that rangeStatement gives, from the same clock: the first and that without its
// epoch in the token, which is the holder's, and the last in the column.
func retakeStatement(session, place string) string {
	const fence = "GREATEST(" + now + " DIV 2+?,?)"
	return "UPDATE lock_record FORCE INDEX (PRIMARY) SET attempt=?,epoch=?,lease_id=?,holder_id=?,reentrant=?,entries=NULL," +
		"token=CONCAT(?," + fence + `,'","epoch":',?,',"seq":',` + fence + `,',"serverTime":',LAST_INSERT_ID(IF(fence,` + now + `,0)),',"expireAt":',` + now + "+?,?)," +
		"create_time=UTC_TIMESTAMP(6),expire_at=UTC_TIMESTAMP(6)+INTERVAL ? MICROSECOND,fence=" + fence +
		" WHERE " + named + " AND fence<" + fence + " AND expire_at=" + released + " AND " + notLater + " AND " + session + place
}

// retake sends the statement. Its answer is that of rangeStatement, 0 where nothing
// was changed.
func (s *Store) retake(ctx context.Context, a *attempt) (server int64, err error) {
	req, p := a.req, a.req.Place
	ttl, n := req.TTL.Microseconds(), int64(contract.Fences(req))
	epoch := max(p.Epoch, contract.Epoch)
	whole, floor, zero := leastOf(epoch), int64(a.floor), int64(epoch)<<contract.SeqBits
	a.id = rand.Uint64() &^ 1 // as takeAt does
	args := make([]any, 0, 25)
	args = append(args, a.id, epoch, req.Token.Lease, req.Token.Holder[:min(len(req.Token.Holder), maxHolder)], req.Token.Reentrant,
		a.head, whole-n, floor-n, epoch, whole-n-zero, floor-n-zero, ttl, a.tail, ttl, whole, floor,
		req.Name.Namespace, req.Name.Resource, req.Name.Key, whole-n, floor-n, a.bound, a.budget)
	query := a.srv.takes.again
	switch {
	case p.Epoch > 0 && p.Exclusive:
		query = a.srv.placed.again
		args = append(args, epoch, data(p))
	case p.Epoch > 0:
		query = a.srv.shared.again
		args = append(args, epoch)
	}
	if server, err = s.writeTake(ctx, a.srv, query, args...); server > 0 {
		server += n << rangeBits
	}
	return server, err
}

const (
	// maxLeft is how many locks are known to have a row. One takes some 200 bytes.
	maxLeft = 1024
	// leftFor is how long: for less than rows are kept.
	leftFor = 5 * time.Minute
)

// leftRows knows the locks that were released here, whose rows should be there still,
// and free. It may be wrong.
type leftRows struct {
	mu     sync.Mutex
	since  map[tierlock.Name]time.Time
	always bool // for tests: all are there
}

// add notes that a lock was released.
func (l *leftRows) add(n tierlock.Name) {
	at := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == nil {
		l.since = make(map[tierlock.Name]time.Time)
	}
	if _, known := l.since[n]; !known && len(l.since) >= maxLeft {
		for other := range l.since { // any
			delete(l.since, other)
			break
		}
	}
	l.since[n] = at
}

// take tells whether a lock is one of these, and forgets it.
func (l *leftRows) take(n tierlock.Name) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, known := l.since[n]
	delete(l.since, n)
	return known && time.Since(since) < leftFor || l.always
}
