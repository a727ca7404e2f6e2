package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

// Pauses of the acquire loop.
const (
	// With push, a waiter reads the key this often at least; the push only
	// makes it sooner.
	pollWithPush = time.Second
	// Without push, at random between these two.
	pollMin, pollMax = 50 * time.Millisecond, 250 * time.Millisecond
	// After an answer that was lost or late. Each further one in a row doubles
	// the pause, up to the most: what was given up may still be executed, and has
	// to be undone, so a store that is slow for too much to do would get more.
	retryMin, retryMax, retryMost = 20 * time.Millisecond, 80 * time.Millisecond, time.Second
	// A call that had less time says nothing by its failure.
	minTelling = 100 * time.Millisecond
	// A watch that could not be had is asked for again after this.
	rewatch = 2 * time.Second
)

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
	read := false // look before the next attempt
	failures := 0 // in a row
	for {
		now := time.Now()
		if err := a.stopped(ctx, now); err != nil {
			return nil, err
		}
		switch turn, err := a.steer(ctx, now); {
		case err != nil:
			return nil, err
		case turn == turnAgain:
			continue
		case turn == turnElsewhere:
			if watch != nil {
				watch.Close()
				watch = nil
			}
			watchAt, read, failures = time.Time{}, false, 0
		}
		if part := a.at.backend.part(a.name); !part.breaker.Allow(now) { // it may be another by now
			if !a.patient() {
				return nil, a.downError()
			}
			changed := a.at.backend.changed()
			wait := jitter(retryMin, retryMax) + part.breaker.Wait(now)
			if err := a.pause(ctx, wait, changed); err != nil && err != errSignal {
				return nil, err
			}
			continue
		}
		var left time.Duration
		var err error
		if read {
			left, err = a.read(ctx, now)
			if err == nil && left == 0 {
				read = false
				continue
			}
		} else {
			var k *Lock
			if k, left, err = a.attempt(ctx, now); k != nil {
				return k, nil
			}
		}
		if err != nil {
			// Also after a failed read the next step is an attempt.
			read = false
			if stop := a.failure(ctx, err); stop != nil {
				return nil, stop
			}
			pause := jitter(retryMin, retryMax) << min(failures, 8)
			failures++
			changed := a.at.backend.changed() // before the look
			if !a.at.backend.part(a.name).breaker.Open() {
				changed = nil
			}
			if err := a.pause(ctx, min(pause, retryMost), changed); err != nil && err != errSignal {
				return nil, err
			}
			continue
		}
		failures = 0
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
		case err == errSignal:
			read = false
		case err != nil:
			return nil, err
		}
	}
}

// attempt asks for the lease once, at now: belief is counted from there, before
// the request is sent.
func (a *acquisition) attempt(ctx context.Context, now time.Time) (k *Lock, left time.Duration, err error) {
	l, token := a.locker, &a.hold.token
	sent := watchdog.At(now)
	if token.Lease == "" {
		*token = l.newToken(a.name, a.call, a.resource.cfg, a.at.backend.Tier())
	}
	ttl := a.call.ttl
	margin := watchdog.Margin(ttl)
	budget := a.fullBudget()
	if left, bounded := a.waitLeft(now); bounded {
		budget = min(budget, max(left, time.Millisecond))
	}
	token.ClientTime = now.Truncate(time.Microsecond)
	callCtx := bound.By(ctx, now.Add(budget))
	defer callCtx.End()
	part := a.at.backend.part(a.name)
	res, err := a.at.backend.Acquire(callCtx, AcquireRequest{Name: a.name, TTL: ttl, Budget: min(budget, margin/2),
		Token: *token, Explicit: a.hold.explicit, Place: a.at.place, Fences: a.fences()})
	answered := time.Now()
	a.latency = answered.Sub(now)
	switch {
	case err == nil && res.Granted:
		part.report(a.name, nil)
		k, err = a.grant(ctx, sent, answered, res)
		return k, 0, err
	case err == nil:
		part.report(a.name, nil)
		a.held, a.holder, a.failed = true, res.Token, nil
		a.hold.place.answer(true, res.Token, nil)
		return nil, res.Left, nil
	case errors.Is(err, ErrLate), errors.Is(err, ErrMisconfigured), refusedByMode(err):
		// Answers, too: the store is up. Late means that nothing was changed, and
		// so does another mode; what a misconfigured store did before it failed is
		// not known.
		if !errors.Is(err, ErrLate) && !refusedByMode(err) {
			a.refusedOnly = a.refusedOnly || !a.dirty
			a.dirty, a.settled = true, laterOf(a.settled, time.Now())
		}
		part.report(a.name, err)
	default:
		a.dirty = true
		a.settled = laterOf(a.settled, time.Now().Add(max(a.at.backend.linger(), 2*budget+50*time.Millisecond)))
		if a.cut = !a.telling(ctx, callCtx, budget); a.cut {
			if ctx.Err() == nil && budget >= a.fullBudget() {
				a.hold.place.answer(false, Token{}, nil) // a short lease: what was known is no longer sure
			}
			return nil, 0, err
		}
		part.report(a.name, err)
	}
	a.hold.place.answer(false, Token{}, err)
	return nil, 0, err
}

// telling reports whether a failed call says something about the store: not
// where the caller's context, or what was left of the wait, may have cut it
// short, nor where a very short lease allowed it no time to speak of.
func (a *acquisition) telling(ctx, callCtx context.Context, budget time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	return callCtx.Err() == nil || budget >= max(a.fullBudget(), min(minTelling, a.locker.cfg.CallTimeout))
}

// fullBudget is what a call to the store may take where the wait leaves it.
func (a *acquisition) fullBudget() time.Duration {
	ttl := a.call.ttl
	return min(a.locker.cfg.CallTimeout, (ttl-watchdog.Margin(ttl))/2)
}

// grant makes the hold of a granted lease, unless it comes too late for
// anybody to want it.
func (a *acquisition) grant(ctx context.Context, sent watchdog.Instant, answered time.Time, res AcquireResult) (*Lock, error) {
	h := a.hold
	if watchdog.At(answered).Sub(sent) >= a.call.ttl-watchdog.Margin(a.call.ttl) {
		// Nobody may believe in it any more. The place is kept: the next
		// attempt, with the same lease, makes a new lease of it.
		a.dirty, a.settled = true, laterOf(a.settled, time.Now())
		return nil, errLateGrant
	}
	h.token, h.sent, h.settled = res.Token, sent, a.settled
	if l := a.locker.local; l != nil && a.at.backend == l.store {
		l.enter(h, a.call)
	} else if a.resource.chained && !a.locker.chain.enter(h, a.at, sent, a.call) {
		a.dirty, a.settled = true, laterOf(a.settled, time.Now())
		return nil, errModeChanged
	}
	h.run = leaseRun{began: answered, latency: a.latency, fences: min(max(res.Fences, 0), maxHandOvers)}
	k, err := a.begin(ctx, answered, nil)
	if err == nil && res.Reentered {
		h.tellReentered()
	}
	return k, err
}

// begin makes the hold, whose token is set, on a lease that was granted or that
// the former holder has yielded.
func (a *acquisition) begin(ctx context.Context, at time.Time, former *watchdog.Lease) (*Lock, error) {
	l, r, h := a.locker, a.resource, a.hold
	k, err := h.open(ctx, 0)
	if err != nil {
		return nil, err // cannot be: nobody else knows the hold
	}
	h.place.hold(&h.token, at)
	l.holds.add(h)
	if n := r.holds.Add(1); r.cfg.MaxHolds > 0 && n > int64(r.cfg.MaxHolds) {
		emit(l.notify, l.cfg.Observer.TooManyHolds, TooManyHoldsEvent{Labels: l.notify.labels(h.token),
			At: time.Now(), Holds: int(n), Want: r.cfg.MaxHolds})
		l.notify.say(slog.LevelWarn, "tierlock: more holds than expected", h.token,
			slog.Int64("holds", n), slog.Int("want", r.cfg.MaxHolds))
	}
	h.watch(a.call, former)

	// Whoever ended the hold meanwhile (a stop of this process, the caller's
	// context, Close) wins: the key is given back.
	switch {
	case h.lossOnly() != nil:
		err = errLateGrant
	case ctx.Err() != nil:
		err = ended(ctx)
	case a.locker.isClosing():
		err = ErrClosed
	case a.call.worth > 0 && h.guarantee() < a.call.worth:
		err = a.worthLess(h.guarantee(), h.at().ticket.Tier)
	}
	if err == nil {
		return k, nil
	}
	a.over = true // the place is lost with the hold, so there is no further attempt
	h.abandon(k, err)
	// Only an earlier attempt can still be under way, but the lease may run from
	// now on: a key in the past would be taken for expired, and not undone.
	a.dirty, a.settled = true, laterOf(a.settled, time.Now())
	return nil, err
}

// failure says what an attempt's error means for the call: nil to go on.
func (a *acquisition) failure(ctx context.Context, err error) error {
	switch {
	case err == ErrClosed || errors.Is(err, ErrMisconfigured):
		return err
	case ctx.Err() != nil:
		return ended(ctx)
	}
	// A held key whose last look our own wait cut short is just held; and a call
	// cut short does not hide what the store said to the one before.
	if !a.cut || !a.held && a.failed == nil {
		a.failed = err
	}
	a.cut = false
	if a.over || a.call.noWait {
		return errWaitOver
	}
	return nil
}

var errModeChanged = fmt.Errorf("%w: locks began to move to another store during the grant, or the permit ended", ErrUnavailable)

var errLateGrant = fmt.Errorf("%w: the grant came too late", ErrUnavailable)

// patient reports whether the call goes on while the store is down: only if
// it was told to, or if it already waits for a key known to be held, or if another
// store may soon take over.
func (a *acquisition) patient() bool {
	return a.call.untilDone || (a.held || a.resource.lower()) && !a.call.noWait
}

func (a *acquisition) downError() error {
	a.failed = ErrUnavailable
	if last := a.at.backend.part(a.name).lastErr.Load(); last != nil {
		a.failed = fmt.Errorf("%w: not tried after repeated failures, the last: %w", ErrUnavailable, *last)
	}
	return errWaitOver
}

// read looks whether the key is free: then it gives 0, else a positive time.
func (a *acquisition) read(ctx context.Context, now time.Time) (time.Duration, error) {
	l := a.locker
	budget := l.cfg.CallTimeout
	if left, bounded := a.waitLeft(now); bounded {
		budget = min(budget, left)
	}
	callCtx := bound.By(ctx, now.Add(budget))
	defer callCtx.End()
	part := a.at.backend.part(a.name)
	rec, err := a.at.backend.Inspect(callCtx, a.name)
	if err != nil {
		if a.cut = !a.telling(ctx, callCtx, budget); a.cut {
			return 0, err
		}
		part.report(a.name, err)
		a.hold.place.answer(false, Token{}, err)
		return 0, err
	}
	part.report(a.name, nil)
	if !rec.Held || rec.Token.Lease == a.hold.token.Lease {
		return 0, nil // free, or ours by a grant whose answer was lost
	}
	if a.call.holder != "" && rec.Token.Holder == a.call.holder {
		return 0, nil // perhaps to be entered: only an attempt tells
	}
	a.held, a.holder, a.failed = true, rec.Token, nil
	a.hold.place.answer(true, rec.Token, nil)
	return max(rec.Left, time.Millisecond), nil
}

// watch asks for wake-ups; without them polling serves.
func (a *acquisition) watch(ctx context.Context) Watch {
	w, ok := a.at.backend.Store.(Watcher)
	if !ok {
		return nil
	}
	now, budget := time.Now(), a.locker.cfg.CallTimeout
	if left, bounded := a.waitLeft(now); bounded {
		budget = min(budget, left)
	}
	callCtx := bound.By(ctx, now.Add(budget))
	defer callCtx.End()
	watch, err := w.Watch(callCtx, a.name)
	a.at.backend.pushes.Store(err == nil)
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
	case <-a.moved:
		return errSignal
	case <-a.waitOver():
		return errWaitOver
	case <-ctx.Done():
		return ended(ctx)
	case <-a.locker.closing:
		return ErrClosed
	}
}

// waitOver is ready when the wait is over; it never is for a call that waits
// until its context ends.
func (a *acquisition) waitOver() <-chan time.Time {
	if a.timer == nil {
		left, bounded := a.waitLeft(time.Now())
		if !bounded {
			return nil
		}
		a.timer = time.NewTimer(left)
	}
	return a.timer.C
}

// waitLeft is what is left of the wait at now. A call that does not wait has no such
// bound: its one attempt has the store's.
func (a *acquisition) waitLeft(now time.Time) (time.Duration, bool) {
	if a.call.untilDone || a.call.noWait {
		return 0, false
	}
	return a.call.wait - now.Sub(a.start), true
}

func (a *acquisition) stopped(ctx context.Context, now time.Time) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if a.locker.isClosing() {
		return ErrClosed
	}
	if left, bounded := a.waitLeft(now); bounded && left <= 0 {
		return errWaitOver
	}
	return nil
}

func jitter(from, to time.Duration) time.Duration { return from + rand.N(to-from) }
