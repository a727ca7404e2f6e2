package mysqlstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tierlock/tierlock"
)

// releaseTogether is releaseNow for several rows. The number that comes with the answer
// has a mark, above a bit for each lease that it has released, in their order. It goes
// from row to row in LAST_INSERT_ID, which has something else in it before the first.
func releaseTogether(rows int, session string) string {
	const one = named + " AND lease_id=?"
	return "UPDATE lock_record FORCE INDEX (PRIMARY) SET epoch=IF(LAST_INSERT_ID(IF(LAST_INSERT_ID()>>32=?,LAST_INSERT_ID(),?<<32)" +
		"|(1<<(FIELD(lease_id" + strings.Repeat(",?", rows) + ")-1)))>0,epoch,0),expire_at=" + released +
		" WHERE (" + one + strings.Repeat(" OR "+one, rows-1) + ") AND entries IS NULL AND " + live + " AND " + session
}

// releaseAll releases several leases by one statement. The rows of those that it has
// not released are read.
func (s *Store) releaseAll(ctx context.Context, calls []*gathered[*tierlock.ReleaseRequest, tierlock.Ownership]) ([]outcome[tierlock.Ownership], error) {
	outcomes := make([]outcome[tierlock.Ownership], len(calls))
	srv := s.server.Load()
	leases := make([]any, 0, maxGathered)
	var sent []int
	for i, c := range calls {
		// One that is not the lease's only one could not be told from the other. And
		// there may be another server by now.
		if srv.nowait == "" || slices.Contains(leases, any(c.q.Lease)) {
			outcomes[i].alone = true
			continue
		}
		sent, leases = append(sent, i), append(leases, c.q.Lease)
	}
	if sent == nil {
		return outcomes, nil
	}
	text, size := sized(srv.releaseTogether, len(sent))
	stmt, err := s.prepared(ctx, text)
	if err != nil {
		return nil, err
	}
	mark := 1 + rand.Int64N(1<<31-1)
	args := make([]any, 0, 5*size+3)
	args = append(append(args, mark, mark), leases...)
	for range size - len(sent) { // filled up with the last
		args = append(args, leases[len(leases)-1])
	}
	for n := range size {
		q := calls[sent[min(n, len(sent)-1)]].q
		args = append(args, q.Name.Namespace, q.Name.Resource, q.Name.Key, q.Lease)
	}
	args = append(args, s.explained())
	res, err := stmt.ExecContext(ctx, args...)
	var number int64
	if err == nil {
		number, err = res.LastInsertId()
	}
	if err != nil {
		return nil, err
	}
	var others []int
	for n, i := range sent {
		if number>>32 == mark && number>>n&1 == 1 {
			outcomes[i] = outcomeOf(tierlock.LeaseOwned, nil)
		} else {
			others = append(others, i)
		}
	}
	if others == nil {
		return outcomes, nil
	}
	names := make([]*tierlock.Name, len(others))
	for n, i := range others {
		names[n] = &calls[i].name
	}
	rows, err := s.readAll(ctx, names)
	if err != nil && cut(err) {
		s.era.Add(1)
	}
	for n, i := range others {
		if err != nil { // of each: the statement has not failed, and is not to be sent again
			outcomes[i] = failedAs[tierlock.Ownership](s.told(ctx, err))
			continue
		}
		state, owned := rows[n].state(calls[i].q.Lease, false)
		outcomes[i] = outcomeOf(state, nil)
		outcomes[i].alone = owned // granted again, or nothing was done in a session that is not sound
	}
	return outcomes, nil
}
