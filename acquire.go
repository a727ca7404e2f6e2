package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Pauses of the acquire loop.
const (
	// With push, a waiter reads the key this often at least; the push only
	// makes it sooner.
	pollWithPush = time.Second
	// Without push, at random between these two.
	pollMin, pollMax = 50 * time.Millisecond, 250 * time.Millisecond
	// After an answer that was lost or late.
	retryMin, retryMax = 20 * time.Millisecond, 80 * time.Millisecond
	// A watch that could not be had is asked for again after this.
	rewatch = 2 * time.Second
)

// lock checks the arguments, enters a hold that ctx carries, or contends.
func (r *ResourceHandle) lock(ctx context.Context, key string, opts []Option, try bool) (*Lock, error) {
	c, err := r.call(opts, try)
	if err != nil {
		return nil, err
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	name := r.name(key)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("tierlock: lock %s: %w", name, contextError(ctx))
	}
	if k, done, err := r.reenter(ctx, name, c); done {
		return k, err
	}

	a := &acquisition{locker: r.locker, resource: r, name: name, call: c, start: time.Now()}
	n, o := r.locker.notify, &r.locker.cfg.Observer
	labels := Labels{App: r.locker.cfg.App, Resource: r.cfg.Name, Tier: r.locker.store.Tier()}
	ctx = n.acquireStart(ctx, AcquireStart{Labels: labels, Key: key, At: a.start})
	k, err := a.run(ctx)
	if f := o.AcquireEnd; f != nil {
		e := AcquireEnd{Labels: labels, Key: key, At: time.Now(), Token: k.Token(), Err: err,
			Waited: time.Since(a.start), Latency: a.latency}
		n.events.push(func() { f(ctx, e) })
	}
	if err != nil {
		return nil, err
	}
	n.say(slog.LevelDebug, "tierlock: locked", k.Token(), slog.Duration("waited", time.Since(a.start)))
	return k, nil
}

// reenter looks for a hold of the key among those that ctx carries. It is done
// when there is nothing left to contend for: the hold was entered, or the call
// would wait for itself.
func (r *ResourceHandle) reenter(ctx context.Context, name Name, c call) (k *Lock, done bool, err error) {
	outer := lockOf(ctx)
	for outer != nil && (outer.hold.locker != r.locker || outer.hold.name != name) {
		outer = outer.outer
	}
	if outer == nil {
		return nil, false, nil
	}
	h := outer.hold
	if h.ended() != nil {
		return nil, false, nil // ctx outlives the hold (context.WithoutCancel)
	}
	if !r.cfg.Reentrant || c.holder != "" && (!h.explicit || h.token.Holder != c.holder) {
		return nil, true, fmt.Errorf("%w: %s", ErrReentrant, h.token)
	}
	h.mu.Lock()
	dead := h.live == 0 && !h.releasing
	h.mu.Unlock()
	if dead {
		// Its lease is renewed no more; to enter it would be to lose it soon.
		return nil, true, fmt.Errorf("%w: the hold's own context has ended: %s", ErrReentrant, h.token)
	}
	var limit time.Duration
	if c.limit > 0 && c.limit != r.cfg.MaxHold {
		limit = c.limit
	}
	if k = h.open(ctx, limit); k == nil {
		return nil, false, nil // it was unlocked meanwhile
	}
	h.mu.Lock()
	handles := len(h.handles)
	h.mu.Unlock()
	n := r.locker.notify
	emit(n, r.locker.cfg.Observer.Reentered, ReenteredEvent{Labels: n.labels(h.token), At: time.Now(), Token: h.token, Handles: handles})
	n.say(slog.LevelDebug, "tierlock: re-entered", h.token, slog.Int("handles", handles))
	return k, true, nil
}

// acquisition is one call that contends for a key: first for its turn in the
// process, then at the store.
type acquisition struct {
	locker   *Locker
	resource *ResourceHandle
	name     Name
	call     call
	start    time.Time
	place    *place
	token    Token // the lease id is one for all attempts: that makes them idempotent
	latency  time.Duration

	timer  *time.Timer // over the wait; made when there is first something to wait for
	held   bool        // a store, or a hold in this process, said so during this wait
	holder Token       // and by whom
	failed error       // the store's last failure, nil after an answer

	dirty   bool      // a grant may have been made that we did not see
	settled time.Time // nothing that we sent is executed after that
}

var errWaitOver = errors.New("wait is over")

func (a *acquisition) run(ctx context.Context) (k *Lock, err error) {
	l := a.locker
	// Counted before the look at closing, so that Close waits for what this
	// call may leave to be undone.
	l.calls.add(a)
	defer l.calls.remove(a)
	if a.isClosing() {
		return nil, a.refusal(ErrClosed)
	}
	// A store that is known to be down costs nobody a wait in line.
	if !a.call.untilDone && l.store.breaker.Wait(time.Now()) > 0 {
		return nil, a.refusal(a.downError())
	}
	defer func() {
		if a.timer != nil {
			a.timer.Stop()
		}
	}()
	a.place = l.lines.enter(a.name, a.call.holder)
	defer func() {
		if k == nil {
			a.place.leave()
		}
	}()
	if !a.place.active() {
		if err := a.queue(ctx); err != nil {
			return nil, a.refusal(err)
		}
	}
	k, err = a.contend(ctx)
	if err != nil {
		a.undo()
		return nil, a.refusal(err)
	}
	return k, nil
}

// queue waits for the turn in this process.
func (a *acquisition) queue(ctx context.Context) error {
	l, r := a.locker, a.resource
	if a.call.noWait {
		return a.ask(ctx)
	}
	if n := r.waiters.Add(1); n > int64(r.cfg.MaxWaiters) {
		r.waiters.Add(-1)
		return fmt.Errorf("%w: %d wait for resource %s in this process", ErrQueueFull, n-1, r.cfg.Name)
	} else if l.cfg.Observer.Queued != nil {
		emit(l.notify, l.cfg.Observer.Queued, QueuedEvent{At: time.Now(), Key: a.name.Key, Length: int(n),
			Labels: Labels{App: l.cfg.App, Resource: r.cfg.Name, Tier: l.store.Tier()}})
	}
	l.queued.Add(1)
	defer func() {
		r.waiters.Add(-1)
		l.queued.Add(-1)
	}()
	defer a.learn() // before the place is left
	select {
	case <-a.place.turn:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	case <-l.closing:
		return ErrClosed
	case <-a.over():
		return errWaitOver
	}
}

// learn takes over what the contender in front has been told meanwhile.
func (a *acquisition) learn() knowledge {
	k := a.place.knows()
	a.held, a.holder, a.failed = k.held, k.holder, k.failed
	return k
}

// ask is queue for a caller that does not wait: it takes the answer that the
// store gives, or has given in this wait, to the contender in front.
func (a *acquisition) ask(ctx context.Context) error {
	limit := time.NewTimer(a.locker.cfg.CallTimeout)
	defer limit.Stop()
	for {
		k := a.learn()
		switch {
		case k.active:
			return nil
		case errors.Is(k.failed, ErrMisconfigured):
			return k.failed
		case k.held || k.failed != nil:
			return errWaitOver
		case k.contended:
			a.held, a.holder = true, k.holder
			return errWaitOver
		}
		select {
		case <-a.place.turn:
			return nil
		case <-k.change:
		case <-ctx.Done():
			return contextError(ctx)
		case <-a.locker.closing:
			return ErrClosed
		case <-limit.C:
			return errWaitOver
		}
	}
}

// contend asks the store for the key until it is granted, the wait is over or
// an error is final. The steps are: acquire; where the key is held, watch it
// and acquire again (a release before the watch was live went unseen); then
// sleep until a signal, and acquire, or until the poll, and read.
func (a *acquisition) contend(ctx context.Context) (*Lock, error) {
	var watch Watch
	var watchAt time.Time
	defer func() {
		if watch != nil {
			watch.Close()
		}
	}()
	l := a.locker
	read := false // look before the next attempt
	for {
		if err := a.stopped(ctx); err != nil {
			return nil, err
		}
		if !l.store.breaker.Allow(time.Now()) {
			if !a.patient() {
				return nil, a.downError()
			}
			if err := a.pause(ctx, jitter(retryMin, retryMax)+l.store.breaker.Wait(time.Now()), nil); err != nil {
				return nil, err
			}
			continue
		}
		var left time.Duration
		var err error
		if read {
			left, err = a.read(ctx)
			if err == nil && left == 0 {
				read = false
				continue
			}
		} else {
			var k *Lock
			if k, left, err = a.attempt(ctx); k != nil {
				return k, nil
			}
		}
		if err != nil {
			// Also after a failed read the next step is an attempt.
			read = false
			if stop := a.failure(ctx, err); stop != nil {
				return nil, stop
			}
			if err := a.pause(ctx, jitter(retryMin, retryMax), nil); err != nil {
				return nil, err
			}
			continue
		}
		if a.call.noWait {
			return nil, errWaitOver
		}
		if watch == nil && !time.Now().Before(watchAt) {
			watchAt = time.Now().Add(rewatch)
			if watch = a.watch(ctx); watch != nil {
				read = false
				continue
			}
		}
		var signal <-chan struct{}
		poll := jitter(pollMin, pollMax)
		if watch != nil {
			signal, poll = watch.C(), pollWithPush
		}
		if left > 0 {
			poll = min(poll, left+time.Millisecond)
		}
		read = true
		switch err := a.pause(ctx, poll, signal); {
		case errors.Is(err, errSignal):
			read = false
		case err != nil:
			return nil, err
		}
	}
}

// attempt asks for the lease once.
func (a *acquisition) attempt(ctx context.Context) (k *Lock, left time.Duration, err error) {
	l := a.locker
	if a.token.Lease == "" {
		a.token = l.newToken(a.name, a.call, a.resource.cfg)
	}
	ttl := a.call.ttl
	margin := watchdog.Margin(ttl)
	budget := min(l.cfg.CallTimeout, (ttl-margin)/2)
	if left, bounded := a.waitLeft(); bounded {
		budget = min(budget, max(left, time.Millisecond))
	}
	a.token.ClientTime = time.Now().Truncate(time.Microsecond)
	callCtx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	// Belief is counted from here: before the request is sent.
	sent, sentAt := watchdog.Now(), time.Now()
	res, err := l.store.Acquire(callCtx, AcquireRequest{Name: a.name, TTL: ttl, Budget: min(budget, margin/2),
		Token: a.token, Explicit: a.call.holder != ""})
	a.latency = time.Since(sentAt)
	switch {
	case err == nil && res.Granted:
		l.report(nil)
		k, err = a.grant(ctx, sent, res)
		return k, 0, err
	case err == nil:
		l.report(nil)
		a.held, a.holder, a.failed = true, res.Token, nil
		a.place.answer(true, res.Token, nil)
		return nil, res.Left, nil
	case errors.Is(err, ErrLate), errors.Is(err, ErrMisconfigured):
		// Answers, too: nothing was changed, and the store is up.
		l.report(err)
	default:
		a.dirty = true
		a.settled = time.Now().Add(2*budget + 50*time.Millisecond)
		if !a.telling(ctx, callCtx, budget) {
			return nil, 0, err
		}
		l.report(err)
	}
	a.place.answer(false, Token{}, err)
	return nil, 0, err
}

// telling reports whether a failed call says something about the store: not
// where our own time limit or the caller's context may have cut it short.
func (a *acquisition) telling(ctx, callCtx context.Context, budget time.Duration) bool {
	return ctx.Err() == nil && (callCtx.Err() == nil || budget >= a.locker.cfg.CallTimeout)
}

// grant makes the hold of a granted lease, unless it comes too late for
// anybody to want it.
func (a *acquisition) grant(ctx context.Context, sent watchdog.Instant, res AcquireResult) (*Lock, error) {
	l, r := a.locker, a.resource
	h := &hold{locker: l, resource: r, name: a.name, token: res.Token, explicit: a.call.holder != "",
		place: a.place, sent: sent, settled: a.settled}
	k := h.open(ctx, 0)
	a.place.hold(h.token)
	l.holds.add(h)
	if n := r.holds.Add(1); r.cfg.MaxHolds > 0 && n > int64(r.cfg.MaxHolds) {
		emit(l.notify, l.cfg.Observer.TooManyHolds, TooManyHoldsEvent{Labels: l.notify.labels(h.token),
			At: time.Now(), Holds: int(n), Want: r.cfg.MaxHolds})
		l.notify.say(slog.LevelWarn, "tierlock: more holds than expected", h.token,
			slog.Int64("holds", n), slog.Int("want", r.cfg.MaxHolds))
	}
	h.watch(a.call)

	// Whoever ended the hold meanwhile (a lease that came too late, the
	// caller's context, Close) wins: the key is given back.
	var err error
	switch {
	case h.lossOnly() != nil:
		err = fmt.Errorf("%w: the grant came too late: %w", ErrUnavailable, h.lossOnly())
	case ctx.Err() != nil:
		err = contextError(ctx)
	case a.isClosing():
		err = ErrClosed
	}
	if err == nil {
		return k, nil
	}
	h.abandon(k, err)
	a.dirty = true // settled stays: only an earlier attempt can still be under way
	return nil, err
}

// failure says what an attempt's error means for the call: nil to go on.
func (a *acquisition) failure(ctx context.Context, err error) error {
	a.failed = err
	switch {
	case errors.Is(err, ErrMisconfigured), errors.Is(err, ErrClosed):
		return err
	case ctx.Err() != nil:
		return contextError(ctx)
	case a.call.noWait:
		return errWaitOver
	}
	return nil
}

// patient reports whether the call goes on while the store is down: only if
// it was told to, or if it already waits for a key known to be held.
func (a *acquisition) patient() bool {
	return a.call.untilDone || a.held && !a.call.noWait
}

func (a *acquisition) downError() error {
	a.failed = ErrUnavailable
	if last := a.locker.store.lastErr.Load(); last != nil {
		a.failed = fmt.Errorf("%w: not tried after repeated failures, the last: %w", ErrUnavailable, *last)
	}
	return errWaitOver
}

// read looks whether the key is free: then it gives 0, else a positive time.
func (a *acquisition) read(ctx context.Context) (time.Duration, error) {
	l := a.locker
	budget := l.cfg.CallTimeout
	if left, bounded := a.waitLeft(); bounded {
		budget = min(budget, left)
	}
	callCtx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	rec, err := l.store.Inspect(callCtx, a.name)
	if err != nil {
		if a.telling(ctx, callCtx, budget) {
			l.report(err)
		}
		return 0, err
	}
	l.report(nil)
	if !rec.Held || rec.Token.Lease == a.token.Lease {
		return 0, nil // free, or ours by a grant whose answer was lost
	}
	if a.call.holder != "" && rec.Token.Holder == a.call.holder {
		return 0, nil // perhaps to be entered: only an attempt tells
	}
	a.held, a.holder, a.failed = true, rec.Token, nil
	a.place.answer(true, rec.Token, nil)
	return max(rec.Left, time.Millisecond), nil
}

func (a *acquisition) watch(ctx context.Context) Watch {
	w, ok := a.locker.store.Store.(Watcher)
	if !ok {
		return nil
	}
	budget := a.locker.cfg.CallTimeout
	if left, bounded := a.waitLeft(); bounded {
		budget = min(budget, left)
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	watch, err := w.Watch(ctx, a.name)
	if err != nil {
		return nil // polling serves
	}
	return watch
}

var errSignal = errors.New("signal")

// pause sleeps for d. It returns errSignal on a signal, and otherwise what
// ended the whole wait, if anything did.
func (a *acquisition) pause(ctx context.Context, d time.Duration, signal <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-signal:
		return errSignal
	case <-a.over():
		return errWaitOver
	case <-ctx.Done():
		return contextError(ctx)
	case <-a.locker.closing:
		return ErrClosed
	}
}

// over is ready when the wait is over; it never is for a call that waits
// until its context ends.
func (a *acquisition) over() <-chan time.Time {
	left, bounded := a.waitLeft()
	if !bounded || a.call.noWait {
		return nil
	}
	if a.timer == nil {
		a.timer = time.NewTimer(left)
	}
	return a.timer.C
}

// waitLeft is what is left of the wait. A call that does not wait has no such
// bound: its one attempt has the store's.
func (a *acquisition) waitLeft() (time.Duration, bool) {
	if a.call.untilDone || a.call.noWait {
		return 0, false
	}
	return a.call.wait - time.Since(a.start), true
}

func (a *acquisition) stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	if a.isClosing() {
		return ErrClosed
	}
	if left, bounded := a.waitLeft(); bounded && left <= 0 {
		return errWaitOver
	}
	return nil
}

func (a *acquisition) isClosing() bool {
	select {
	case <-a.locker.closing:
		return true
	default:
		return false
	}
}

// refusal is the error that the caller gets.
func (a *acquisition) refusal(err error) error {
	over := errors.Is(err, errWaitOver)
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrMisconfigured), errors.Is(err, ErrQueueFull):
	case a.held:
		e := &HeldError{Resource: a.name.Resource, Key: a.name.Key, Waited: time.Since(a.start), Holder: a.holder}
		if !over {
			e.Cause = err
		}
		if a.failed != nil {
			e.Cause = errors.Join(e.Cause, a.failed)
		}
		return e
	default: // no store has said anything about the key
		cause := a.failed
		if cause == nil {
			cause = fmt.Errorf("no answer within %v", time.Since(a.start).Round(time.Millisecond))
		}
		if !errors.Is(cause, ErrUnavailable) {
			cause = fmt.Errorf("%w: %w", ErrUnavailable, cause)
		}
		if over {
			err = cause
		} else if !errors.Is(err, ErrUnavailable) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	return fmt.Errorf("tierlock: lock %s: %w", a.name, err)
}

// undo makes sure that no grant of this call stays.
func (a *acquisition) undo() {
	if !a.dirty {
		return
	}
	a.locker.undo.add(undoTask{
		req:     ReleaseRequest{Name: a.name, Lease: a.token.Lease, Explicit: a.call.holder != ""},
		token:   a.token,
		settled: a.settled,
		until:   a.settled.Add(a.call.ttl),
	})
}

func jitter(from, to time.Duration) time.Duration { return from + rand.N(to-from) }
