package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// sweepBatch is how many rows one statement deletes, and sweepPause how long
// others have between two of them.
const (
	sweepBatch = 500
	sweepPause = 10 * time.Millisecond
)

// oldRow is a row that may go.
type oldRow struct {
	Namespace string `db:"namespace"`
	Resource  string `db:"resource_id"`
	Key       string `db:"business_id"`
	Fence     uint64 `db:"fence"`
}

// sweeping is how far a sweep has come; the zero value has not begun.
type sweeping struct {
	below uint64 // what the fences that may go are below, within their epoch
	from  uint64 // the fences that have been looked at are below it
}

// limit is the fence below which rows of the epoch that the sweep has come to may go.
func (at sweeping) limit() uint64 { return at.from&^seqMask | at.below }

// sweep deletes the rows that are no longer needed: those that were taken, and
// whose lease has ended, longer ago than they are kept, so that the server's
// clock has long passed their fence. Fences are times within their epoch, so it goes
// from epoch to epoch. They are found through the index on the
// fence, without a lock, and deleted by the primary key with the condition
// repeated. Rows that somebody's transaction has locked are for the next sweep. It
// returns how many went. more is asked between batches; where it ends the sweep, at
// tells how to go on.
//
// The latest time that is known of the server is written down, and a row goes
// only if its fence is below the time that the sweep before has written: all
// processes have read that since, as they do when they start and with each beat. A
// process that makes a row anew begins above it, so the fences of a lock rise also
// where the server's clock is stepped back after its row has gone.
func (s *Store) sweep(ctx context.Context, at *sweeping, more func(context.Context) bool) (deleted int64, err error) {
	const limit = 10 * time.Second // of a batch
	if at.below == 0 {
		if at.below, err = s.sweepable(ctx, limit); err != nil {
			return 0, err
		}
	}
	for {
		rows, err := background(s, ctx, limit, func(ctx context.Context, _ *server) (rows []oldRow, err error) {
			var q statement
			q.add("SELECT namespace,resource_id,business_id,fence FROM lock_record FORCE INDEX (taken) WHERE fence>=")
			q.uint(at.from)
			q.add(" AND ")
			s.mayGo(&q, at.limit())
			q.add(" ORDER BY fence LIMIT ")
			q.int(sweepBatch)
			return rows, s.db.SelectContext(ctx, &rows, q.String())
		})
		if err != nil {
			return deleted, err
		}
		if len(rows) == 0 {
			next, err := s.nextEpoch(ctx, limit, at.from)
			if err != nil {
				return deleted, err
			}
			if next == 0 {
				*at = sweeping{}
				return deleted, nil
			}
			at.from = next
			continue
		}
		below := at.limit()
		next := rows[len(rows)-1].Fence
		if len(rows) < sweepBatch || next == at.from {
			next++ // all of that fence have been seen, or as many as fit
		}
		at.from = next
		slices.SortFunc(rows, func(a, b oldRow) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Key, b.Key))
		})
		for len(rows) > 0 {
			n := 1
			for n < len(rows) && rows[n].Namespace == rows[0].Namespace && rows[n].Resource == rows[0].Resource {
				n++
			}
			gone, err := background(s, ctx, limit, func(ctx context.Context, srv *server) (int64, error) {
				return s.deleteRows(ctx, srv, rows[:n], below)
			})
			deleted += gone
			if err != nil && !locked(err) {
				return deleted, err
			}
			rows = rows[n:]
		}
		select {
		case <-time.After(sweepPause):
		case <-ctx.Done():
			return deleted, contract.Ended(ctx)
		}
		if !more(ctx) {
			return deleted, nil
		}
	}
}

// nextEpoch is the least fence of a later epoch than that of a fence, 0 for none.
func (s *Store) nextEpoch(ctx context.Context, limit time.Duration, fence uint64) (uint64, error) {
	return background(s, ctx, limit, func(ctx context.Context, _ *server) (next uint64, err error) {
		var q statement
		q.add("SELECT COALESCE(MIN(fence),0) FROM lock_record FORCE INDEX (taken) WHERE fence>")
		q.uint(fence | seqMask)
		return next, s.db.GetContext(ctx, &next, q.String())
	})
}

// sweepable writes down the latest time that is known of the server, and gives what
// the fences of rows that may go are below, within their epoch.
func (s *Store) sweepable(ctx context.Context, limit time.Duration) (uint64, error) {
	keep := s.pace.keep.Microseconds()
	return background(s, ctx, limit, func(ctx context.Context, srv *server) (uint64, error) {
		server, err := s.clockNow(ctx)
		if err != nil {
			return 0, err
		}
		// The number that comes back is the floor that was there, 0 for none: also
		// where nothing was written, in a session that is not sound.
		known, err := s.write(ctx, srv, "INSERT INTO lock_member (namespace,member,beat,floor,holds,app,host,pid,started_at) "+
			"SELECT '','',LAST_INSERT_ID(0),?,0,'','',0,UTC_TIMESTAMP(6) FROM DUAL WHERE "+srv.sound+
			" ON DUPLICATE KEY UPDATE floor=GREATEST(LAST_INSERT_ID(floor),VALUES(floor))", s.floor.Load())
		return fenceOf(min(server-keep, known)) & seqMask, err
	})
}

// mayGo adds the condition.
func (s *Store) mayGo(q *statement, below uint64) {
	q.add("fence<")
	q.uint(below)
	// By a step forward of the server's clock no lease ends, here neither.
	before, after, _ := strings.Cut(given, "?")
	q.add(" AND expire_at<LEAST(UTC_TIMESTAMP(6),", before)
	q.int(s.explained())
	q.add(after, ") - INTERVAL ")
	q.int(s.pace.keep.Microseconds())
	q.add(" MICROSECOND")
}

// deleteRows deletes rows of one resource. The form with two tables takes the
// name of an index, as in renew.
func (s *Store) deleteRows(ctx context.Context, srv *server, rows []oldRow, below uint64) (deleted int64, err error) {
	var q statement
	prefix := srv.nowait
	if prefix == "" {
		prefix = srv.prefix
	}
	q.add(prefix, "DELETE r FROM lock_record AS r FORCE INDEX (PRIMARY) WHERE namespace=")
	q.text(rows[0].Namespace)
	q.add(" AND resource_id=")
	q.text(rows[0].Resource)
	q.add(" AND business_id IN (")
	list(&q, rows, func(r oldRow) { q.text(r.Key) })
	q.add(") AND ", srv.sound, " AND ")
	s.mayGo(&q, below)
	err = again(ctx, func() error {
		res, err := s.db.ExecContext(ctx, q.String())
		if err == nil {
			deleted, err = res.RowsAffected()
		}
		return err
	})
	return deleted, err
}
