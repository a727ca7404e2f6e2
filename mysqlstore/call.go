package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A statement runs on a goroutine of its own, and to its end: a caller who
// leaves does not cut it. To cut a statement is to close its connection, while
// the server goes on with it; callers that come and go would leave more and more
// threads behind, each waiting for the same row. So the store has a bounded
// number of statements under way, each ended by its own deadline.

// answer is what a statement gave.
type answer[T any] struct {
	value T
	err   error
}

// call runs f, which is one statement or a few, and returns when it has ended,
// or ctx has, or at until. The ctx of f ends at until only.
func call[T any](s *Store, ctx context.Context, until time.Time, f func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, contract.Ended(ctx)
	}
	within, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	if err := s.enter(ctx, within); err != nil {
		cancel()
		return none, err
	}
	done := make(chan answer[T], 1)
	go func() {
		defer s.leave()
		defer cancel()
		v, err := f(within)
		if err != nil && cut(err) {
			s.era.Add(1)
		}
		done <- answer[T]{v, err}
	}()
	select {
	case a := <-done:
		return a.value, s.told(within, a.err)
	case <-ctx.Done():
		select {
		case a := <-done: // both at once: what is known counts
			return a.value, s.told(within, a.err)
		default:
		}
		return none, contract.Ended(ctx)
	}
}

// told names the limit where it was the store's own.
func (s *Store) told(within context.Context, err error) error {
	if err != nil && within.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		// Not wrapped: it is not the caller's deadline that has passed.
		return fmt.Errorf("%w: no answer within %v", tierlock.ErrUnavailable, s.timeout)
	}
	return err
}

// enter waits for one of the places for statements.
func (s *Store) enter(ctx, within context.Context) error {
	select {
	case s.places <- struct{}{}:
	default:
		select {
		case s.places <- struct{}{}:
		case <-ctx.Done():
			return contract.Ended(ctx)
		case <-within.Done():
			return fmt.Errorf("%w: %d statements are still without an answer", tierlock.ErrUnavailable, cap(s.places))
		case <-s.quit:
			return classed(errClosed)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-s.places
		return classed(errClosed)
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) leave() {
	s.calls.Done()
	<-s.places
}

// exec sends one writing statement, and again after what has rolled it back. It
// returns the number that the statement put into LAST_INSERT_ID, which comes
// with the answer itself and so belongs to no session, and the affected rows.
func (s *Store) exec(ctx context.Context, query string) (id, rows int64, err error) {
	for try := 1; ; try++ {
		res, err := s.db.ExecContext(ctx, query)
		if err == nil {
			id, _ = res.LastInsertId() // the driver has both at hand
			rows, _ = res.RowsAffected()
			return id, rows, nil
		}
		if !repeatable(err) || try == 5 {
			return 0, 0, err
		}
		pause := time.NewTimer(time.Duration(try) * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return 0, 0, err
		}
	}
}
