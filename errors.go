package tierlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// What callers branch on, with errors.Is. ErrUnavailable and ErrMisconfigured
// stand beside the Store contract.
var (
	// ErrHeld: a store said during this wait that another holds the key. The
	// error is a *[HeldError].
	ErrHeld = errors.New("tierlock: held by another")
	// ErrLost: the hold ended before it was unlocked. The error is a
	// *[LostError]. What was done under the lock may have been done twice:
	// its outcome is unknown until it is looked up.
	ErrLost = errors.New("tierlock: lock lost")
	// ErrLeaseExceeded: the hold reached its bound (option Lease,
	// Resource.MaxHold or Resource.MaxRenewals).
	ErrLeaseExceeded = errors.New("tierlock: bound of the hold reached")
	// ErrReentrant: the context already carries a hold of this key, and this
	// call cannot enter it. Waiting would never end.
	ErrReentrant = errors.New("tierlock: key is already locked by this context")
	// ErrQueueFull: Resource.MaxWaiters callers of this process wait already.
	ErrQueueFull = errors.New("tierlock: too many waiters")
	// ErrClosed: the Locker is closed.
	ErrClosed = errors.New("tierlock: locker closed")
	// ErrReleased: the handle was unlocked. It is the cause of
	// [Lock.Context] from then on.
	ErrReleased = errors.New("tierlock: lock released")
	// ErrNotHeld: Unlock or Ensure of a nil or zero Lock, which never held
	// anything.
	ErrNotHeld = errors.New("tierlock: not a held lock")
	// ErrInvalid: a bad argument or configuration. The error is an
	// *[InvalidError], or several joined.
	ErrInvalid = errors.New("tierlock: invalid")
)

// InvalidError names a field or argument and the bound that it breaks.
type InvalidError struct {
	Field string // such as "Resources[2].TTL", "key", "option Wait"
	Value any
	Bound string // what would be right
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("tierlock: invalid %s %#v: must be %s", e.Field, e.Value, e.Bound)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

func invalid(field string, value any, bound string, args ...any) error {
	if d, ok := value.(time.Duration); ok {
		value = d.String()
	}
	return &InvalidError{Field: field, Value: value, Bound: fmt.Sprintf(bound, args...)}
}

// HeldError says that the key is held by another.
type HeldError struct {
	Resource, Key string
	// Waited is how long the call waited.
	Waited time.Duration
	// Holder is the present holder's token, zero where it is not known.
	Holder Token
	// Cause says why the wait ended before its time: the context's error,
	// or the store's if it stopped answering. It is nil otherwise.
	Cause error
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("tierlock: %s/%s is held by another after waiting %v", e.Resource, printable(e.Key), e.Waited.Round(time.Millisecond))
	if !e.Holder.IsZero() {
		s += " (holder: " + e.Holder.String() + ")"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Unwrap gives the cause.
func (e *HeldError) Unwrap() error { return e.Cause }

// LossReason says how a hold was lost.
type LossReason uint8

const (
	// Expired: the lease ran out by the holder's clock although no renewal
	// had failed: the process was paused or suspended, or the caller's
	// context had ended and the lock was not unlocked in time.
	Expired LossReason = iota + 1
	// Taken: the store says that another lease holds the key.
	Taken
	// Unconfirmed: the lease ran out by the holder's clock because the store
	// answered no renewal.
	Unconfirmed
	// Gone: the store says that the key does not exist: it lost its data,
	// or somebody deleted the key.
	Gone
)

// String is the name used in logs, errors and labels.
func (r LossReason) String() string {
	switch r {
	case Expired:
		return "expired"
	case Taken:
		return "taken"
	case Unconfirmed:
		return "unconfirmed"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// LostError says that a hold ended before it was unlocked.
type LostError struct {
	Token  Token
	Reason LossReason
	// Held is how long the hold was believed in.
	Held time.Duration
	// Err is the store's last error about it, if any.
	Err error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("tierlock: lock lost (%s) after %v: %s", e.Reason, e.Held.Round(time.Millisecond), e.Token)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap gives the store's last error, but for the classes that tell a caller
// that nothing is held, or that the lock was held until now: a loss is neither.
func (e *LostError) Unwrap() error {
	return masked(e.Err, ErrUnavailable, ErrMisconfigured, ErrLate, context.Canceled, context.DeadlineExceeded)
}

// contextError is the error of an ended context. It matches both ctx.Err and
// context.Cause: a custom cause alone would stop matching
// context.DeadlineExceeded.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// maskedError matches all that err does but for some errors, to which callers
// would give another meaning where it stands.
type maskedError struct {
	err  error
	mask []error
}

func (e *maskedError) Error() string      { return e.err.Error() }
func (e *maskedError) As(target any) bool { return errors.As(e.err, target) }
func (e *maskedError) Is(target error) bool {
	return !slices.Contains(e.mask, target) && errors.Is(e.err, target)
}

func masked(err error, mask ...error) error {
	for _, m := range mask {
		if errors.Is(err, m) {
			return &maskedError{err, mask}
		}
	}
	return err
}

// ofCall is a store's error about a call that the library's own limit may have
// cut short. Who matches the context's errors asks whether his own context has
// ended; if it has, that is told beside this.
func ofCall(err error) error {
	if err == nil { // nearly always, and then the list below costs an allocation
		return nil
	}
	return masked(err, context.DeadlineExceeded, context.Canceled)
}

// resultOf is the bounded label for an acquire's error.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, context.Canceled): // before what its cause may match
		return "canceled"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrClosed):
		return "closed"
	case errors.Is(err, ErrQueueFull):
		return "queue-full"
	case errors.Is(err, ErrMisconfigured):
		return "misconfigured"
	}
	return "error"
}
