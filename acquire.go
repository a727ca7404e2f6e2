package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
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
	a.at = r.locker.direct()
	n, o := r.locker.notify, &r.locker.cfg.Observer
	labels := Labels{App: r.locker.cfg.App, Resource: r.cfg.Name, Tier: a.at.backend.Tier()}
	ctx = n.acquireStart(ctx, AcquireStart{Labels: labels, Key: key, At: a.start})
	k, err := a.run(ctx)
	labels.Tier = a.at.backend.Tier()
	if f := o.AcquireEnd; f != nil {
		e := AcquireEnd{Labels: labels, Key: key, At: time.Now(), Token: k.Token(), Err: err,
			Waited: time.Since(a.start), Latency: a.latency}
		n.events.push(func() { f(ctx, e) })
	}
	if err != nil {
		return nil, err
	}
	if n.wants(slog.LevelDebug, a.start) {
		n.say(slog.LevelDebug, "tierlock: locked", k.Token(), slog.Duration("waited", time.Since(a.start)))
	}
	return k, nil
}

// acquisition is one call that contends for a key: first for its turn in the
// process, then at the store.
type acquisition struct {
	locker   *Locker
	resource *ResourceHandle
	name     Name
	call     call
	start    time.Time
	at       route // the store that it asks
	// hold is what becomes of it. Its place is the one in the line; its token's
	// lease id is one for all attempts: that makes them idempotent.
	hold    *hold
	latency time.Duration

	timer      *time.Timer     // over the wait; made when there is first something to wait for
	moved      <-chan struct{} // closed when the mode of the chain changes; nil outside one
	drain      uint16          // the drain that it waits for, and since when
	drainSince time.Time

	held   bool  // a store, or a hold in this process, said so during this wait
	holder Token // and by whom
	failed error // the store's last failure, nil after an answer

	queued      bool      // there were others in front
	cut         bool      // the last call was cut short by our own limits
	over        bool      // the place is lost: no further attempt
	refusedOnly bool      // dirty by ErrMisconfigured alone
	dirty       bool      // a grant may have been made that we did not see
	settled     time.Time // nothing that we sent is executed after that
}

var errWaitOver = errors.New("wait is over")

func (a *acquisition) run(ctx context.Context) (k *Lock, err error) {
	l := a.locker
	// Counted before the look at closing, so that Close waits for what this
	// call may leave to be undone.
	l.calls.begin()
	defer l.calls.end()
	if a.locker.isClosing() {
		return nil, a.refusal(ErrClosed)
	}
	// A store that is known to be down costs nobody a wait in line.
	if !a.call.untilDone && !a.resource.lower() && a.at.backend.part(a.name).breaker.Wait(a.start) > 0 {
		return nil, a.refusal(a.downError())
	}
	defer func() {
		if a.timer != nil {
			a.timer.Stop()
		}
	}()
	a.hold = &hold{locker: l, resource: a.resource, name: a.name, explicit: a.call.holder != ""}
	a.hold.place.ttl = a.takesOver()
	a.queued = l.lines.enter(&a.hold.place, a.name, a.call.holder, a.start)
	defer func() {
		if k == nil {
			a.leave()
		}
	}()
	if a.queued {
		// The turn may have come by now, and a lease with it.
		if !a.hold.place.active() {
			if err := a.queue(ctx); err != nil {
				return nil, a.refusal(err)
			}
		}
		if k, err = a.succeed(ctx); err == nil && k == nil {
			err = a.giveWay(ctx)
		}
	}
	if err == nil && k == nil {
		k, err = a.contend(ctx)
	}
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
			Labels: Labels{App: l.cfg.App, Resource: r.cfg.Name, Tier: a.at.backend.Tier()}})
	}
	l.queued.Add(1)
	defer func() {
		r.waiters.Add(-1)
		l.queued.Add(-1)
	}()
	defer a.learn() // before the place is left
	for {
		changed := a.at.backend.changed() // before the look at it
		var told <-chan struct{}
		if a.at.backend.part(a.name).breaker.Open() && !a.call.untilDone && !r.lower() {
			k := a.hold.place.knows()
			if !k.active && !k.held {
				return a.downError()
			}
			told = k.change
		}
		select {
		case <-a.hold.place.turn:
			return nil
		case <-changed:
		case <-told:
		case <-ctx.Done():
			return ended(ctx)
		case <-l.closing:
			return ErrClosed
		case <-a.waitOver():
			return errWaitOver
		}
	}
}

// learn takes over what the contender in front has been told meanwhile.
func (a *acquisition) learn() knowledge {
	k := a.hold.place.knows()
	a.held, a.holder = k.held || k.rested, k.holder
	if k.failed != nil {
		a.failed = k.failed
	}
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
		}
		select {
		case <-a.hold.place.turn:
			return nil
		case <-k.change:
		case <-ctx.Done():
			return ended(ctx)
		case <-a.locker.closing:
			return ErrClosed
		case <-limit.C:
			return errWaitOver
		}
	}
}

// endedContext marks the error of the caller's context, whose cause may match
// anything, the errors of this package included.
type endedContext struct{ error }

func ended(ctx context.Context) error { return endedContext{contextError(ctx)} }

// refusal is the error that the caller gets.
func (a *acquisition) refusal(err error) error {
	over := err == errWaitOver
	byContext := false
	if e, ok := err.(endedContext); ok {
		err, byContext = e.error, true
	}
	switch {
	case !byContext && (err == ErrClosed || errors.Is(err, ErrMisconfigured) || errors.Is(err, ErrQueueFull)):
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
	a.at.backend.undo.add(undoTask{
		req:     ReleaseRequest{Name: a.name, Lease: a.hold.token.Lease, Explicit: a.hold.explicit, Place: a.at.place},
		token:   a.hold.token,
		settled: a.settled,
		until:   a.settled.Add(a.call.ttl),
		refused: a.refusedOnly,
	})
}
