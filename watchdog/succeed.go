package watchdog

import "time"

// One lease may serve several holders in turn. Each has a Lease of its own here,
// with its own bounds and callbacks; belief goes over from one to the next.

// Yield ends the watch for a successor: it is Stop without its wait. It does
// nothing and reports false where there is nothing to pass on, or not for certain:
// belief has ended, less than least is left of it, a renewal is in flight, or the
// lease was stopped before. After it has reported true OnEnd is not called, Left
// goes on telling what is left, and [Lease.Succeed] may follow, or not: belief is
// then nobody's.
func (l *Lease) Yield(least time.Duration) bool {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	if l.stopped || l.ended || l.call != nil || l.leftLocked(now) < least {
		return false
	}
	l.stopped, l.yielded = true, true
	l.queued = false
	l.w.forget(l, false)
	return true
}

// Succeed begins to watch, for the next holder, a lease that was yielded. Belief
// goes on from the last confirmed grant or renewal; bounds, Overdue and the number
// of renewals are the successor's own and count from spec.Sent, which is when it
// takes over. spec.TTL must not be less than the former one. If belief is over by
// now, it ends as any other does.
//
// It is for one successor, and panics without a Yield before it.
func (l *Lease) Succeed(spec Spec) *Lease {
	l.mu.Lock()
	if !l.yielded {
		l.mu.Unlock()
		panic("watchdog: Succeed without Yield")
	}
	l.yielded = false
	next := newLease(l.w, spec)
	// No call is in flight and none will be: these do not change any more.
	next.sent, next.ttl, next.err = l.sent, l.ttl, l.err
	next.due, next.tries = l.due, l.tries
	l.mu.Unlock()
	l.w.begin(next)
	return next
}
