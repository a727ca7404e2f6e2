package tierlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Lock is a handle on a hold: what Lock and TryLock give. Each call gives a
// handle of its own, also where it entered an existing hold, and each is to be
// unlocked. All methods are safe for concurrent use, and on a nil Lock they
// say that nothing is held.
type Lock struct {
	hold   *hold
	ctx    lockContext
	cancel context.CancelCauseFunc
	outer  *Lock // the next handle outward in the context, of whatever key

	stopCtx  func() bool // ends the watch over the caller's context
	bound    *time.Timer // of a handle that entered a hold with a bound of its own
	exceeded atomic.Bool // that bound was reached
	live     bool        // the caller's context has not ended; guarded by hold.mu

	until    time.Time // of bound
	once     sync.Once
	unlocked error
}

// Context ends when the caller may no longer believe in the lock: when it is
// lost, reaches its bound, is unlocked, when the Locker is closed, or when the
// caller's context ends. context.Cause tells which: a *[LostError], or an
// error matching ErrLeaseExceeded, ErrReleased or ErrClosed, or the caller's
// own cause. It derives from the caller's context and carries the token, see
// [TokenFrom]. Of a nil Lock it is an ended context.
func (k *Lock) Context() context.Context {
	if k == nil || k.hold == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotHeld)
		return ctx
	}
	return &k.ctx
}

// Token is the identity of the hold. Of a nil Lock it is zero.
func (k *Lock) Token() Token {
	if k == nil || k.hold == nil {
		return Token{}
	}
	return k.hold.token
}

// Guarantee is what the hold is worth. It does not rise during a hold. Of a
// nil Lock it is 0.
func (k *Lock) Guarantee() Guarantee {
	if k == nil || k.hold == nil {
		return 0
	}
	return k.hold.guarantee()
}

// Err is nil while the lock is held, judged by the clock now. Later it says
// why not: a *[LostError], or an error matching ErrLeaseExceeded, ErrReleased,
// ErrClosed, ErrNotHeld (a nil Lock) or the caller's context.
func (k *Lock) Err() error {
	if k == nil || k.hold == nil {
		return ErrNotHeld
	}
	if k.exceeded.Load() { // its own bound came first, whatever came later
		return k.hold.exceededError(0)
	}
	if err := k.hold.ended(); err != nil {
		return err
	}
	return contextError(&k.ctx)
}

// Unlock ends the hold, if this is its last handle. It takes no context: it
// works when the caller's has ended, and takes at most twice the CallTimeout.
// It is idempotent: a further call returns what the first did.
//
// The error is nil if the lock was held until now and the store confirmed the
// release, or the lease went on to the next caller of this process: then the store
// was not asked. A *[LostError] says that it was lost before, an error matching
// ErrLeaseExceeded that it had reached its bound, and one matching
// ErrUnavailable that the lock was held until now but the release could not be
// confirmed: it is repeated in the background until the key has expired. In
// every case nothing renews the key any more.
func (k *Lock) Unlock() error {
	if k == nil || k.hold == nil {
		return ErrNotHeld
	}
	k.once.Do(func() { k.unlocked = k.hold.unlock(k) })
	return k.unlocked
}

// Ensure makes sure that the lease lasts for at least d more, by the holder's
// own clock, and renews it if need be; it takes at most the CallTimeout. Call
// it before a step that must not be cut off. More than TTL minus margin, or
// than what the bounds leave, is an error at once, matching
// watchdog.ErrBound. A failure does not
// end the hold; the old lease runs on.
func (k *Lock) Ensure(d time.Duration) error {
	if err := k.Err(); err != nil {
		return err
	}
	if !k.until.IsZero() && time.Until(k.until) < d {
		return fmt.Errorf("tierlock: ensure %v of %s: %w", d, k.hold.token, watchdog.ErrBound)
	}
	ctx, cancel := context.WithTimeoutCause(&k.ctx, k.hold.locker.cfg.CallTimeout, ErrUnavailable)
	defer cancel()
	if err := k.hold.lease.Ensure(ctx, d); err != nil {
		if end := k.hold.ended(); end != nil {
			return end
		}
		if k.ctx.Err() == nil {
			err = ofCall(err)
		}
		return fmt.Errorf("tierlock: ensure %v of %s: %w", d, k.hold.token, err)
	}
	return nil
}

// lockContext carries a handle. It is a context of its own kind, and not one
// of context.WithValue, to save the allocation.
type lockContext struct {
	context.Context
	lock *Lock
}

type lockKey struct{}

func (c *lockContext) Value(key any) any {
	if key == (lockKey{}) {
		return c.lock
	}
	return c.Context.Value(key)
}

func lockOf(ctx context.Context) *Lock {
	k, _ := ctx.Value(lockKey{}).(*Lock)
	return k
}

// TokenFrom gives the token of the innermost hold that ctx carries, and the
// zero Token if it carries none. It does not say whether the hold is still
// believed in; ctx does.
func TokenFrom(ctx context.Context) Token { return lockOf(ctx).Token() }
