package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A statement runs on another goroutine than its caller, and to its end: a caller who
// leaves does not cut it. To cut a statement is to close its connection, while
// the server goes on with it; callers that come and go would leave more and more
// threads behind, each waiting for the same row. So the store has a bounded
// number of statements under way, each ended by its own deadline.

// answer is what a statement gave.
type answer[T any] struct {
	value T
	err   error
}

// places bounds calls: one for each that is under way.
type places chan struct{}

// call runs f, which is one statement or a few, in one of the places, and returns
// when it has ended, or ctx has, or at until. The ctx of f ends at until only.
func call[T any](s *Store, in places, ctx context.Context, until time.Time, f func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, contract.Ended(ctx)
	}
	within, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	if err := s.enter(in, ctx, within); err != nil {
		cancel()
		return none, err
	}
	done := make(chan answer[T], 1)
	s.run(func() {
		defer s.leave(in)
		defer cancel()
		v, err := f(within)
		if err != nil && cut(err) {
			s.era.Add(1)
		}
		done <- answer[T]{v, err}
	})
	var a answer[T]
	known := true
	select {
	case a = <-done:
	case <-ctx.Done():
		known = false
	case <-within.Done(): // f mostly ends then, but nothing makes a driver do so
		known = false
	}
	if !known {
		select {
		case a = <-done: // both at once: what is known counts
			known = true
		default:
		}
	}
	switch left := ctx.Err() != nil; {
	case known && !(left && errors.Is(a.err, errLocked)): // given up for the caller's having left
		return a.value, s.told(within, a.err)
	case left:
		return none, contract.Ended(ctx)
	}
	return none, s.told(within, within.Err())
}

// told names the limit where it was the store's own.
func (s *Store) told(within context.Context, err error) error {
	if err != nil && within.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		// Not wrapped: it is not the caller's deadline that has passed.
		return fmt.Errorf("%w: %w within %v", tierlock.ErrUnavailable, errNoAnswer, s.timeout)
	}
	return err
}

var errNoAnswer = errors.New("no answer")

// enter waits for one of the places for statements.
func (s *Store) enter(in places, ctx, within context.Context) error {
	select {
	case in <- struct{}{}:
	default:
		select {
		case in <- struct{}{}:
		case <-ctx.Done():
			return contract.Ended(ctx)
		case <-within.Done():
			return fmt.Errorf("%w: %d statements are still without an answer", tierlock.ErrUnavailable, cap(in))
		case <-s.quit:
			return classed(errClosed)
		}
	}
	err := s.begin()
	if err != nil {
		<-in
	}
	return err
}

// begin counts what Close has to wait for.
func (s *Store) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return classed(errClosed)
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) leave(in places) {
	s.calls.Done()
	<-in
}

// write executes a prepared writing statement, and again after what has rolled
// it back. It returns the number that the statement put into LAST_INSERT_ID,
// which comes with the answer itself and so belongs to no session.
func (s *Store) write(ctx context.Context, srv *server, query string, args ...any) (number int64, err error) {
	return s.writeAs(ctx, srv.prefix, query, args...)
}

// writeAs is write with a prefix, which says how long the statement waits for a row.
func (s *Store) writeAs(ctx context.Context, prefix, query string, args ...any) (number int64, err error) {
	err = again(ctx, func() error {
		stmt, err := s.prepared(ctx, prefix+query)
		if err != nil {
			return err
		}
		res, err := stmt.ExecContext(ctx, args...)
		if err == nil {
			number, err = res.LastInsertId()
		}
		return err
	})
	return number, err
}

// again repeats what was rolled back.
func again(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || !repeatable(err) || try == 5 {
			return err
		}
		if !rest(ctx, time.Duration(try)*time.Millisecond) {
			return err
		}
	}
}

// rest pauses, and tells whether ctx goes on after that.
func rest(ctx context.Context, d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// prepared gives a statement that database/sql prepares on each connection that
// it comes to use it on.
func (s *Store) prepared(ctx context.Context, query string) (*sqlx.Stmt, error) {
	if stmt, ok := s.stmts.Load(query); ok {
		return stmt.(*sqlx.Stmt), nil
	}
	stmt, err := s.db.PreparexContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if other, ok := s.stmts.LoadOrStore(query, stmt); ok {
		// To close it here could take as long as the query of somebody else who
		// was given its connection. Few come to this, and only at first.
		s.stmts.Store(stmt, stmt)
		return other.(*sqlx.Stmt), nil
	}
	return stmt, nil
}
