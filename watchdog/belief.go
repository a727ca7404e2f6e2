package watchdog

import (
	"context"
	"errors"
	"time"
)

// The rules of belief of one lease. Nothing here waits or calls out.

const (
	maxRetries  = 3 // of one failed renewal, within one round
	maxRetryGap = 500 * time.Millisecond
	// minGain is the least that a renewal has to add under a Limit: the ask
	// is cut to whole milliseconds and must not fall below what is left.
	minGain = time.Millisecond
)

// rounds are when attempts begin, in sixths of the TTL after the last
// confirmed renewal was sent: every third of it, and once more shortly before
// belief ends, at nine tenths. Without that last one a store that came back
// after four sixths would find nobody asking.
var rounds = [...]time.Duration{2, 4, 5}

func newLease(w *Watchdog, spec Spec) *Lease {
	spec.TTL = spec.TTL.Truncate(time.Millisecond)
	l := &Lease{w: w, spec: spec, sent: spec.Sent, ttl: spec.TTL, wakeAt: -1, readyAt: -1}
	if spec.Limit > 0 {
		l.ttl = min(l.ttl, spec.Limit.Truncate(time.Millisecond))
	}
	l.due = l.sent.add(spec.TTL * rounds[0] / 6)
	return l
}

// untilLocked is when belief ends.
func (l *Lease) untilLocked() Instant {
	until := l.leaseUntilLocked()
	if l.spec.Cap != nil {
		if limit := l.spec.Cap(); limit.before(until) {
			return limit
		}
	}
	return until
}

// leaseUntilLocked is when belief ends by the lease alone.
func (l *Lease) leaseUntilLocked() Instant { return l.sent.add(l.ttl - Margin(l.ttl)) }

func (l *Lease) leftLocked(now Instant) time.Duration {
	if l.ended {
		return 0
	}
	return max(0, l.untilLocked().Sub(now))
}

// boundedLocked says that a bound allows no further renewal.
func (l *Lease) boundedLocked() bool {
	if l.spec.MaxRenewals > 0 && l.count >= l.spec.MaxRenewals {
		return true
	}
	reach := l.sent.Sub(l.spec.Sent) + l.ttl
	return l.spec.Limit > 0 && l.spec.Limit-reach < minGain
}

func (l *Lease) renewableLocked() bool {
	return !l.stopped && !l.ended && !l.paused && !l.w.closed.Load() && !l.boundedLocked()
}

// askLocked is the TTL that a renewal sent at now asks for. As long as the
// lease is not bounded, it is not less than what the last grant has left.
func (l *Lease) askLocked(now Instant) time.Duration {
	ttl := l.spec.TTL
	if l.spec.Limit > 0 {
		ttl = min(ttl, l.spec.Limit-now.Sub(l.spec.Sent))
	}
	return ttl.Truncate(time.Millisecond)
}

// expireLocked ends belief if the clock says so, and reports whether it did:
// then the caller owes OnEnd. Whoever looks at a lease first comes by here, so
// that all see the same end, whatever happens to the lease later.
func (l *Lease) expireLocked(now Instant) bool {
	if l.stopped || l.ended {
		return false
	}
	until := l.untilLocked()
	over := now.Sub(until)
	if over < 0 {
		return false
	}
	// A cap may lie before all that happened: then belief ends with the look.
	held := until.Sub(l.spec.Sent)
	if held < 0 {
		over, held = 0, now.Sub(l.spec.Sent)
	}
	end := End{
		Reason: Expired,
		Err:    l.err,
		At:     now.t.Add(-over),
		Held:   held,
	}
	switch {
	case until.before(l.leaseUntilLocked()):
		end.Reason = Capped
	case l.boundedLocked():
		end.Reason = Limit
	case l.paused || l.w.closed.Load():
	case l.err != nil:
		end.Reason = Unconfirmed
	case l.call != nil:
		end.Reason, end.Err = Unconfirmed, errUnanswered
	case l.queued:
		// All calls in flight hang, and this one found no place among them.
		end.Reason, end.Err = Unconfirmed, errUnsent
	}
	l.endLocked(end)
	return true
}

func (l *Lease) endLocked(end End) {
	l.ended, l.end, l.queued = true, end, false
}

// noticeLocked is expireLocked for callers of the API: they may hold locks of
// their own that OnEnd wants, so it is left to the next look.
func (l *Lease) noticeLocked(now Instant) {
	if l.expireLocked(now) {
		l.w.forget(l, true)
	}
}

// beginLocked takes the lease into the batch c, unless things have changed
// since it was queued.
func (l *Lease) beginLocked(c *call) (Renewal, bool) {
	if !l.queued || !l.renewableLocked() || l.leftLocked(c.sent) == 0 {
		return Renewal{}, false // Ensure was first, or the end is all to come
	}
	l.queued = false
	if c.sent.before(l.sent) {
		// The batch was made before the last renewal and its worker was held
		// up since: its answer would set belief back.
		l.placeLocked()
		return Renewal{}, false
	}
	l.call = c
	l.due = c.sent // may have been taken along early
	return Renewal{Lease: l, TTL: l.askLocked(c.sent), Sent: c.sent}, true
}

// verdict is what the answer to a renewal leads to.
type verdict struct {
	renewed bool
	ended   bool
	Renewed
}

// answerLocked takes in the answer to the call in flight.
func (l *Lease) answerLocked(c *call, ttl time.Duration, err error) verdict {
	// Read here, under the mutex: with an earlier reading a belief that Left
	// has already called over could be revived.
	now := Now()
	cut := err != nil && l.w.closed.Load() && !errors.Is(err, ErrNotHeld)
	if err != nil && !cut && !l.ended && c != l.stale && !(l.err != nil && l.cutShort(c, err, now)) {
		l.err = err
	}
	// A confirmation that comes after the end is worth nothing: somebody may
	// have acted on the end. expireLocked comes before call is cleared, so
	// that the renewal counts as unanswered.
	expired := l.expireLocked(now)
	l.call = nil
	switch {
	case l.ended:
		return verdict{ended: expired}
	case c == l.stale:
		l.err, l.stale = errMoved, nil
		return verdict{} // about the former place, whatever it says
	case cut: // by Close: says nothing about the store
		return verdict{}
	case err == nil:
		if l.leftLocked(now) == 0 {
			return verdict{} // stopped meanwhile, and Left has said 0
		}
		l.sent, l.ttl, l.err = c.sent, ttl, nil
		l.count++
		l.tries = 0
		l.due = l.sent.add(l.spec.TTL * rounds[0] / 6)
		return verdict{renewed: !l.stopped, Renewed: Renewed{TTL: ttl, Latency: now.Sub(c.sent), Count: l.count}}
	case errors.Is(err, ErrNotHeld) && l.stopped:
		l.ttl = 0 // Stop has told its end, but Left must not go on
		return verdict{}
	case errors.Is(err, ErrNotHeld):
		l.endLocked(End{Reason: NotHeld, Err: err, At: now.t, Held: now.Sub(l.spec.Sent)})
		return verdict{ended: true}
	}
	l.retryLocked(now)
	return verdict{}
}

// cutShort says that an error only tells that belief was about to end: the call
// had less time than others, and has used it up. It must not hide what the store
// said before. The clock is asked as well, since the error need not tell.
func (l *Lease) cutShort(c *call, err error, now Instant) bool {
	return c.limit < l.w.cfg.CallTimeout &&
		(now.Sub(c.sent) >= c.limit || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errUnsent))
}

// retryLocked plans the next attempt after one that got no answer.
func (l *Lease) retryLocked(now Instant) {
	if now.before(l.due) {
		return // Ensure's, out of turn: the plan stands
	}
	if l.tries < maxRetries {
		l.tries++
		l.due = now.add(min(maxRetryGap, l.spec.TTL/20))
		return
	}
	l.tries = 0
	for _, sixths := range rounds {
		l.due = l.sent.add(l.spec.TTL * sixths / 6)
		if now.before(l.due) {
			return
		}
	}
	l.due = l.untilLocked() // no further one
}
