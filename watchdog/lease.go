package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// ErrBound is what Ensure returns when no renewal can give as much belief
	// as was asked for: it is more than TTL less margin or than the bounds of
	// the lease leave, or the lease is paused, or the Watchdog closed.
	ErrBound = errors.New("watchdog: more belief than the lease can give")
	// ErrEnded is what Ensure returns when the lease was stopped or belief
	// has ended.
	ErrEnded = errors.New("watchdog: belief has ended")
)

// What End.Err is when belief ran out and no call had reported an error yet.
var (
	errUnanswered = errors.New("watchdog: renewal unanswered when belief ended")
	errUnsent     = errors.New("watchdog: renewal not sent in time")
	errMoved      = errors.New("watchdog: the lease moved during its renewal")
)

// Lease is a lease under watch. It is safe for concurrent use.
type Lease struct {
	w    *Watchdog
	spec Spec // TTL in whole milliseconds

	mu    sync.Mutex
	sent  Instant       // before the last confirmed grant or renewal was sent
	ttl   time.Duration // what that one asked for
	count int           // confirmed renewals
	err   error         // of the last attempt since then
	due   Instant       // when the next attempt is
	tries int           // retries made in this round of attempts

	queued  bool  // due, and waiting for a batch
	call    *call // the one in flight
	stale   *call // the one that was when the lease moved
	paused  bool
	overdue bool // OnOverdue was called
	yielded bool // by Yield, and not succeeded
	stopped bool // by Stop or Yield, after which end and ended stay as they are
	ended   bool
	end     End

	// Guarded by Watchdog.mu:
	watched  bool
	wake     Instant // when to look at the lease
	renewing bool    // it has to because a renewal is due
	until    Instant // end of belief, when last placed
	wakeAt   int     // place in Watchdog.wakes, -1 if not in it
	readyAt  int     // place in Watchdog.ready, -1 if not in it
}

// Value is Spec.Value.
func (l *Lease) Value() any { return l.spec.Value }

// Left is the belief left by the clock, 0 when it is over. After Stop it goes
// on telling how long the lease, if it is not released, may be believed in.
func (l *Lease) Left() time.Duration {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked(now)
}

// End reports whether belief has ended, and how: by the clock, so also where
// OnEnd is still to be called. After Stop it is what Stop returned.
func (l *Lease) End() (End, bool) {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	return l.end, l.ended
}

// Pause ends renewal, except for one in flight, whose confirmation still
// counts. Belief is watched further and ends by itself, with Reason Expired
// unless a bound had been reached before. There is no way back.
func (l *Lease) Pause() {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	if l.stopped || l.ended || l.paused {
		return
	}
	l.paused = true
	l.queued = false
	l.placeLocked()
}

// Stop ends the watch: no renewal starts after it began, and it waits for the
// one in flight, at most until ctx ends. So when it returned and ctx has not
// ended, nothing of this process will prolong the lease, and it can be
// released. (A renewal that was given up earlier may still reach the store.)
//
// It returns whether, and how, belief had ended when Stop was called. If it
// had, OnEnd is called, perhaps later; if not, it never will be. Stop is
// idempotent: further calls wait likewise and return the same.
func (l *Lease) Stop(ctx context.Context) (End, bool) {
	now := Now()
	l.mu.Lock()
	l.noticeLocked(now)
	if !l.stopped {
		l.stopped = true
		l.queued = false
		l.w.forget(l, false)
	}
	c, end, ended := l.call, l.end, l.ended
	l.mu.Unlock()
	if c != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
		}
	}
	return end, ended
}

// Deny ends belief at once, with Reason NotHeld: a store has said definitely, in
// answer to something else than a renewal, that the lease is not the caller's. err
// says so, and becomes End.Err. OnEnd is called, perhaps later. It does nothing
// where belief has ended or the lease was stopped.
func (l *Lease) Deny(err error) {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	if l.stopped || l.ended {
		return
	}
	l.endLocked(End{Reason: NotHeld, Err: err, At: now.t, Held: now.Sub(l.spec.Sent)})
	l.w.forget(l, true)
}

// Ensure returns nil if at least least is left of belief, now or after a
// renewal at once; a renewal in flight is joined first. ErrBound comes without
// delay where no renewal could give so much, ErrEnded (and ErrNotHeld with it,
// if that is why) where belief is over. Any other error means that the renewal
// got no answer, or that ctx ended: that ends neither belief nor a renewal
// that has begun, and regular renewal goes on.
//
// Near TTL less margin the round trip itself may use up what was asked for:
// that is ErrBound too, after a confirmed renewal.
func (l *Lease) Ensure(ctx context.Context, least time.Duration) error {
	began := Now()
	tried := false // a renewal that was sent after began has come back
	for {
		c, err := l.ensure(ctx, least, tried)
		if c == nil {
			return err
		}
		select {
		case <-c.done:
			tried = !c.sent.before(began)
		case <-ctx.Done():
		}
	}
}

// ensure returns the call to wait for, or the verdict.
func (l *Lease) ensure(ctx context.Context, least time.Duration, tried bool) (*call, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := Now()
	l.noticeLocked(now)
	switch left := l.leftLocked(now); {
	case l.stopped:
		return nil, fmt.Errorf("watchdog: ensure %v: lease stopped: %w", least, ErrEnded)
	case l.ended && l.end.Err != nil:
		return nil, fmt.Errorf("watchdog: ensure %v: %w (%v): %w", least, ErrEnded, l.end.Reason, l.end.Err)
	case l.ended:
		return nil, fmt.Errorf("watchdog: ensure %v: %w (%v)", least, ErrEnded, l.end.Reason)
	case left >= least:
		return nil, nil
	case ctx.Err() != nil:
		err := ctx.Err()
		if cause := context.Cause(ctx); cause != err {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return nil, fmt.Errorf("watchdog: ensure %v: %w", least, err)
	case tried && l.err != nil:
		return nil, fmt.Errorf("watchdog: ensure %v: %w", least, l.err)
	case tried:
		return nil, fmt.Errorf("watchdog: ensure %v: %v left after a renewal: %w", least, left, ErrBound)
	}
	ttl := l.askLocked(now)
	if !l.renewableLocked() || ttl-Margin(ttl) < least {
		return nil, fmt.Errorf("watchdog: ensure %v: %w", least, ErrBound)
	}
	if l.call != nil {
		return l.call, nil
	}
	c := newCall(now, min(l.w.cfg.CallTimeout, l.leftLocked(now)))
	// The renewal has its own goroutine and deadline: a caller who goes away
	// does not break it for those who joined.
	if !l.w.goSend(c, []Renewal{{Lease: l, TTL: ttl, Sent: c.sent}}) {
		return nil, fmt.Errorf("watchdog: ensure %v: watchdog closed: %w", least, ErrBound)
	}
	l.call = c
	l.queued = false // this one is sent instead
	l.placeLocked()
	return c, nil
}
