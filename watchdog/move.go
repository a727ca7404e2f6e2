package watchdog

import "time"

// Move tells that the lease lives on in another place, where a request that was
// sent at sent got it for ttl. Belief goes by that from now on, and renewals go on
// from there; Config.Renew sends them to the new place from before this call on. A
// renewal that is in flight was for the former place: its answer counts for
// nothing. Belief that has ended stays ended, and a lease that is renewed no more
// (paused, or at a bound) gets no more time by it than it had.
func (l *Lease) Move(sent Instant, ttl time.Duration) {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	if l.ended {
		return
	}
	l.stale = l.call // a batch that takes the lease from now on asks for its new place
	until := sent.add(ttl - Margin(ttl))
	if !l.renewableLocked() && l.leaseUntilLocked().before(until) {
		return
	}
	l.sent, l.ttl, l.err = sent, ttl, nil
	l.tries = 0
	l.due = sent.add(l.spec.TTL * rounds[0] / 6)
	l.noticeLocked(now) // it may have got less
	if !l.ended && !l.stopped {
		l.placeLocked()
	}
}

// Recheck looks at belief anew, because Spec.Cap may have fallen: OnEnd then comes
// as soon as belief has ended by it, and not only when it would have before.
func (l *Lease) Recheck() {
	now := Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticeLocked(now)
	if !l.ended && !l.stopped {
		l.placeLocked()
	}
}
