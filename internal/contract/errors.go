package contract

import (
	"context"
	"errors"
	"fmt"

	"github.com/tierlock/tierlock"
)

// Ended reports a ctx with its cause: a cause alone would no longer match
// context.DeadlineExceeded.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, Unclass(cause))
}

// Unclassed is an error that matches whatever err does, but for the classes:
// the cause of a ctx is the caller's and may be anything, the answer of another
// store included, and says nothing about what this one did.
type Unclassed struct{ err error }

// Unclass hides the classes that err matches.
func Unclass(err error) *Unclassed { return &Unclassed{err} }

// Error is that of what is hidden.
func (e *Unclassed) Error() string { return e.err.Error() }

// Is stands for Unwrap, past which nothing could be hidden.
func (e *Unclassed) Is(target error) bool {
	switch target {
	case tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured, tierlock.ErrEpoch:
		return false
	}
	return errors.Is(e.err, target)
}

// As stands for Unwrap, too.
func (e *Unclassed) As(target any) bool { return errors.As(e.err, target) }
