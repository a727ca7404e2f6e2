package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

// hold is one acquisition: what all handles on it share.
//
// It ends once, by the first of: a loss or a bound (the watchdog says so), the
// release after the last Unlock, the end of the Locker.
type hold struct {
	locker   *Locker
	resource *ResourceHandle
	name     Name
	token    Token // does not change once the lease is granted
	explicit bool
	place    place
	chained  *chainHold       // its part in a chain, nil outside one
	local    *localHold       // nil unless it was granted for want of a store
	sent     watchdog.Instant // before the request for the lease
	settled  time.Time        // nothing that was sent to get the lease is executed after that
	run      leaseRun

	next, prev *hold // in Locker.holds

	unanswered atomic.Bool // a renewal was not answered

	mu        sync.Mutex
	lease     *watchdog.Lease
	handles   []*Lock
	live      int         // handles whose caller's context has not ended
	releasing bool        // the last handle was unlocked; nobody may enter any more
	cause     error       // why the hold ended; nil before
	update    *time.Timer // of a hold by hand-over: see updateSoon

	// The first handle and the room for a list of it alone: most holds have no
	// other, and need no allocations for them.
	lock  Lock
	alone [1]*Lock
}

// open adds a handle for a caller with that context. limit bounds the handle
// alone; 0 for none. It refuses with ErrReleased where the hold is over, so that
// the caller may as well contend, and with ErrReentrant where it is renewed no
// more: to enter it would be to lose it soon.
func (h *hold) open(ctx context.Context, limit time.Duration) (*Lock, error) {
	base, cancel := context.WithCancelCause(ctx)
	outer := lockOf(ctx) // the caller's code, perhaps: not under the mutex
	h.mu.Lock()
	defer h.mu.Unlock()
	k := &h.lock
	if k.hold != nil {
		k = new(Lock)
	} else {
		h.handles = h.alone[:0]
	}
	k.hold, k.cancel, k.outer, k.live = h, cancel, outer, true
	k.ctx = lockContext{Context: base, lock: k}
	switch {
	case h.releasing || h.cause != nil:
		cancel(ErrReleased)
		return nil, ErrReleased
	case len(h.handles) > 0 && h.live == 0:
		cancel(ErrReentrant)
		return nil, fmt.Errorf("%w: the hold's own context has ended: %s", ErrReentrant, h.token)
	}
	h.handles = append(h.handles, k)
	h.live++
	if ctx.Done() != nil {
		k.stopCtx = context.AfterFunc(ctx, func() { h.callerGone(k) })
	}
	if limit > 0 {
		k.until = time.Now().Add(limit)
		k.bound = time.AfterFunc(limit, func() {
			if k.ctx.Err() == nil && h.ended() == nil {
				k.exceeded.Store(true)
			}
			k.cancel(h.exceededError(limit))
			h.callerGone(k) // nobody works under this handle any more
		})
	}
	return k, nil
}

// callerGone is told when the context ends with which a handle was taken, or
// the handle's own bound is reached.
// Renewal ends with the last of them; the key stays, because the body may
// still run.
func (h *hold) callerGone(k *Lock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dieLocked(k)
}

func (h *hold) dieLocked(k *Lock) {
	if !k.live {
		return
	}
	k.live = false
	h.live--
	if h.live == 0 && h.lease != nil {
		h.lease.Pause()
	}
}

// unlock closes a handle, and with the last one the hold.
func (h *hold) unlock(k *Lock) error {
	if k.stopCtx != nil {
		k.stopCtx()
	}
	if k.bound != nil {
		k.bound.Stop()
	}
	h.mu.Lock()
	if i := slices.Index(h.handles, k); i >= 0 {
		h.handles = slices.Delete(h.handles, i, i+1)
	}
	last := len(h.handles) == 0
	if last {
		h.releasing = true
	} else {
		h.dieLocked(k)
	}
	h.mu.Unlock()

	var exceeded error
	if k.exceeded.Load() {
		exceeded = h.exceededError(0)
	}
	if last {
		// The context ends before the key is given up: nobody believes in a
		// lock that another may have.
		h.finalCause(k)
		if exceeded == nil && h.handOver() {
			return nil
		}
		return h.release(exceeded)
	}
	k.cancel(ErrReleased)
	if err := h.lossOnly(); err != nil {
		return err
	}
	return exceeded
}

// finalCause ends the last handle's context: with the loss, if there was one
// that the watchdog has not come to tell yet.
func (h *hold) finalCause(k *Lock) {
	if end, over := h.lease.End(); over {
		k.cancel(h.endError(end))
		return
	}
	k.cancel(ErrReleased)
}

// release stops the renewal and gives the key up. Only the last unlock calls
// it; exceeded, the error of its own bound, is the result where there is no other.
func (h *hold) release(exceeded error) error {
	l := h.locker
	// First stop, then release: nothing renews after a release. The wait is
	// for a renewal in flight. One that outlasts it does no harm: a store
	// renews only what still carries the lease.
	// One limit for both: the wait ends with that renewal's own CallTimeout.
	now := time.Now()
	ctx := bound.By(context.Background(), now.Add(2*l.cfg.CallTimeout))
	defer ctx.End()
	left, stopped := h.lease.Left(), watchdog.At(now)
	end, over := h.lease.Stop(ctx)
	var loss error
	if over {
		loss = h.endError(end)
		h.finish(loss)
	}

	h.stopUpdate()
	sent := time.Now()
	at, keep := h.at(), h.keep(sent)
	saved := h.chained.saved(at) // as long as the machine knows it
	if h.chained != nil {
		h.chained.leave()
		at = h.chained.give(sent.Add(keep))
	}
	if h.local != nil {
		at = h.local.stop()
	}
	req := ReleaseRequest{Name: h.name, Lease: h.token.Lease, Explicit: h.explicit, Keep: keep, Place: at.place}
	part := at.backend.part(h.name)
	state, err := at.backend.Release(ctx, req)
	part.report(h.name, err)
	h.local.leave(sent.Add(keep)) // after the release, which an undo must not precede
	answered := time.Now()
	if req.Keep > 0 && h.unanswered.Load() {
		// A renewal whose answer was lost may still be executed, and prolong
		// what is kept.
		h.settled = laterOf(h.settled, sent.Add(max(l.cfg.CallTimeout+at.backend.linger(), 2*l.cfg.CallTimeout+50*time.Millisecond)))
	}
	if err != nil || sent.Before(h.settled) {
		// Not confirmed; or an earlier attempt of this acquisition, whose
		// answer was lost, may still be executed and grant the lease anew.
		// The lease may have its whole TTL by a renewal sent just before.
		at.backend.undo.add(undoTask{req: req, token: h.token, keepUntil: sent.Add(req.Keep), settled: laterOf(sent, h.settled),
			until: laterOf(sent, h.settled).Add(h.token.TTL + l.cfg.CallTimeout)})
	}
	switch {
	case err != nil:
		if loss == nil && exceeded != nil {
			err = fmt.Errorf("%w; release not confirmed: %v", exceeded, err)
		} else if loss == nil {
			err = fmt.Errorf("tierlock: unlock %s: release not confirmed: %w", h.token, err)
		}
	case loss == nil && state != LeaseOwned && !saved && watchdog.At(answered).Sub(stopped) < left:
		// By our clock the lease still ran when this answer came: the store
		// lost it, or somebody deleted it. (Later it may just have expired
		// while the release was under way, after an intact hold.)
		loss = &LostError{Token: h.token, Reason: lossOfState(state), Held: stopped.Sub(h.sent)}
	}
	h.rest(answered)
	if loss != nil {
		err = loss
		h.finish(loss)
	} else {
		h.finish(ErrReleased)
	}
	if err == nil {
		err = exceeded
	}
	h.tellReleased(answered, answered.Sub(sent), err)
	return err
}

func (h *hold) tellReleased(at time.Time, latency time.Duration, err error) {
	l := h.locker
	held := watchdog.At(at).Sub(h.sent)
	if l.notify.wants(slog.LevelDebug, at) {
		l.notify.say(slog.LevelDebug, "tierlock: unlocked", h.token, slog.Duration("held", held), slog.Any("err", err))
	}
	if f := l.cfg.Observer.Released; f != nil {
		emit(l.notify, f, ReleasedEvent{Labels: l.notify.labels(h.token), At: at,
			Token: h.token, Held: held, Latency: latency, Err: err})
	}
}

// keep is what MinHold leaves of the key's life now.
func (h *hold) keep(now time.Time) time.Duration {
	if h.resource.cfg.MinHold == 0 {
		return 0
	}
	return max(0, h.resource.cfg.MinHold-watchdog.At(now).Sub(h.sent))
}

// finish ends the hold for a cause, once; later calls do nothing. All handles'
// contexts end first, and only then may the next caller of this process have
// its turn.
func (h *hold) finish(cause error) {
	h.mu.Lock()
	if h.cause != nil {
		h.mu.Unlock()
		return
	}
	h.cause = cause
	var handles []*Lock
	if len(h.handles) > 0 { // else the last one was unlocked, and has ended
		handles = slices.Clone(h.handles)
	}
	h.mu.Unlock()
	for _, k := range handles {
		k.cancel(cause)
	}
	if h.chained != nil && cause != ErrClosed { // then its body may still run
		h.chained.leave()
	}
	if cause != ErrClosed && cause != ErrReleased {
		h.local.end()
	}
	h.stopUpdate()
	h.locker.holds.remove(h)
	h.resource.holds.Add(-1)
	h.place.leave() // last: the next hold of the key may begin at once
	if cause == ErrReleased {
		return
	}

	n := h.locker.notify
	o := &h.locker.cfg.Observer
	var loss *LostError
	switch {
	case errors.As(cause, &loss):
		n.say(slog.LevelWarn, "tierlock: lock lost", h.token, slog.String("reason", loss.Reason.String()),
			slog.Duration("held", loss.Held), slog.Any("err", loss.Err))
		emit(n, o.Lost, LostEvent{Labels: n.labels(h.token), At: time.Now(), Token: h.token, Err: loss})
	case errors.Is(cause, ErrLeaseExceeded):
		held := watchdog.Since(h.sent)
		n.say(slog.LevelWarn, "tierlock: bound of the hold reached", h.token, slog.Duration("held", held))
		emit(n, o.BoundReached, BoundEvent{Labels: n.labels(h.token), At: time.Now(), Token: h.token, Held: held})
	}
}

// ended is why the hold is over, judged by the clock now, or nil.
func (h *hold) ended() error {
	h.mu.Lock()
	cause, lease := h.cause, h.lease
	h.mu.Unlock()
	if cause != nil {
		return cause
	}
	if end, over := lease.End(); over {
		return h.endError(end)
	}
	return nil
}

// lossOnly is ended, but for the ends that are no news to an unlocking caller.
func (h *hold) lossOnly() error {
	if err := h.ended(); errors.Is(err, ErrLost) || errors.Is(err, ErrLeaseExceeded) {
		return err
	}
	return nil
}

// endError is what the watchdog's end means to callers.
func (h *hold) endError(end watchdog.End) error {
	switch end.Reason {
	case watchdog.Limit:
		return h.exceededError(end.Held)
	case watchdog.NotHeld:
		if errors.Is(end.Err, errEndedByMode) {
			return &LostError{Token: h.token, Reason: h.chained.lossReason(), Held: end.Held}
		}
		state := LeaseGone
		var not *notHeldError
		if errors.As(end.Err, &not) {
			state = not.state
		}
		return &LostError{Token: h.token, Reason: lossOfState(state), Held: end.Held, Err: end.Err}
	case watchdog.Capped:
		reason := Taken // of a local hold
		if h.chained != nil {
			reason = h.chained.lossReason()
		}
		return &LostError{Token: h.token, Reason: reason, Held: end.Held, Err: end.Err}
	case watchdog.Unconfirmed:
		return &LostError{Token: h.token, Reason: Unconfirmed, Held: end.Held, Err: end.Err}
	}
	return &LostError{Token: h.token, Reason: Expired, Held: end.Held, Err: end.Err}
}

func (h *hold) exceededError(held time.Duration) error {
	if held == 0 {
		return fmt.Errorf("%w: %s", ErrLeaseExceeded, h.token)
	}
	return fmt.Errorf("%w after %v: %s", ErrLeaseExceeded, held.Round(time.Millisecond), h.token)
}

func lossOfState(s Ownership) LossReason {
	if s == LeaseTaken {
		return Taken
	}
	return Gone
}

// notHeldError carries a store's definite answer through the watchdog.
type notHeldError struct{ state Ownership }

func (e *notHeldError) Error() string { return "store says " + e.state.String() }
func (e *notHeldError) Unwrap() error { return watchdog.ErrNotHeld }

// watch puts the lease under the watchdog, as the successor of a former holder's
// where that is not nil.
func (h *hold) watch(c call, former *watchdog.Lease) {
	l := h.locker
	spec := watchdog.Spec{
		Sent: h.sent, TTL: c.ttl, Limit: c.limit, MaxRenewals: h.resource.cfg.MaxRenewals, Value: h,
		OnEnd: func(end watchdog.End) { h.finish(h.endError(end)) },
	}
	if h.chained != nil {
		spec.Cap = h.chained.cap
	} else if h.local != nil {
		spec.Cap = h.local.cap
	}
	if f := l.cfg.Observer.Renewed; f != nil {
		spec.OnRenewed = func(r watchdog.Renewed) {
			emit(l.notify, f, RenewedEvent{Labels: l.notify.labels(h.token), At: time.Now(), Token: h.token,
				TTL: r.TTL, Latency: r.Latency, Count: r.Count})
		}
	}
	if c.expect > 0 {
		spec.Overdue = 3 * c.expect
		spec.OnOverdue = func() {
			held := watchdog.Since(h.sent)
			l.notify.say(slog.LevelWarn, "tierlock: held longer than expected", h.token,
				slog.Duration("held", held), slog.Duration("expect", c.expect))
			emit(l.notify, l.cfg.Observer.Overdue, OverdueEvent{Labels: l.notify.labels(h.token), At: time.Now(),
				Token: h.token, Held: held, Expect: c.expect})
		}
	}
	var lease *watchdog.Lease
	if former != nil {
		lease = former.Succeed(spec)
	} else {
		lease = l.dog.Watch(spec)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lease = lease
	if h.live == 0 {
		lease.Pause() // the caller's context ended before there was a lease to pause
	}
}

// abandon ends a hold that nobody was given.
func (h *hold) abandon(k *Lock, cause error) {
	if k.stopCtx != nil {
		k.stopCtx()
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	h.lease.Stop(over) // without a wait: the undo that follows is repeated
	h.mu.Lock()
	h.handles, h.releasing = nil, true
	h.mu.Unlock()
	if h.chained != nil {
		h.chained.leave()
		h.chained.giveAll(time.Time{})
	}
	h.local.leave(time.Time{})
	k.cancel(cause)
	h.finish(ErrReleased)
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
