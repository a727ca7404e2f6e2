package degrade

import "time"

// HoldID names a hold. The machine only compares it.
type HoldID string

// Hold is what a machine has to know of a hold when it begins.
type Hold struct {
	ID HoldID
	// Lease is how long the store's word lasts from the sending of a request,
	// the margin taken off. An adoption gets as much.
	Lease time.Duration
	// Until is when the lease that was just granted ends.
	Until Instant
	// Exclusive holds live under the permit. Others do not: their guarantee is
	// FencedOnly at most.
	Exclusive bool
}

// hold is a Hold and its way through a drain.
type hold struct {
	lease     time.Duration
	until     Instant // end of the lease at place
	exclusive bool
	place     Ticket  // where it was granted or moved to
	adopted   bool    // a lease of the epoch drained into is confirmed …
	newUntil  Instant // … until here
	touched   bool    // an adoption was sent in this drain: something may be there
	sending   bool    // one is under way; policy only
	tried     Instant // when one was last sent; policy only
}

// Ticket is leave to ask a store for something: for this epoch, on this tier and
// on this incarnation of its data. The store refuses it elsewhere.
type Ticket struct {
	Epoch uint16
	Tier  Tier
	// Incarnation is the replication id of Redis, or the identity of the MySQL
	// server: a permit outlives a failover of the arbiter by its whole term, and
	// what was granted just before may be missing on the new primary.
	Incarnation string
}

// sameData reports whether two tickets, perhaps of two epochs, are for the same keys.
func (t Ticket) sameData(u Ticket) bool { return t.Tier == u.Tier && t.Incarnation == u.Incarnation }

// Ticket is what requests of this mode carry.
func (m Mode) Ticket() Ticket {
	if m.Tier == MySQL {
		return Ticket{m.Epoch, m.Tier, m.Server}
	}
	return Ticket{m.Epoch, m.Tier, m.Incarnation}
}

// MayGrant gives leave to ask for a grant of an Exclusive resource at now. There
// is none in a drain, without a valid permit of the present epoch, and after
// Close.
func (m *Machine) MayGrant(now Instant) (Ticket, bool) {
	ok := m.mode.Known() && !m.mode.Drain && !m.closing &&
		(m.permitEpoch == m.mode.Epoch || m.rules.GrantForeignPermit) && now < m.permit
	if m.rules.GrantAnyPermit {
		ok = m.mode.Known() && !m.mode.Drain
	}
	return m.mode.Ticket(), ok
}

// BestEffort is where to ask for a grant that is not exclusive, which needs neither
// permit nor arbiter. It is settled in an open mode whose arbiter answers. If not,
// a caller that can wait does: a drain will be over soon. One that cannot goes on:
// in a drain to the coming tier; without an arbiter to Redis, since MySQL is the
// arbiter.
func (m *Machine) BestEffort(now Instant) (t Ticket, settled bool) {
	silent := m.Silent(now)
	if !m.mode.Known() || silent && m.mode.Tier == MySQL {
		return Ticket{m.mode.Epoch, Redis, m.watch.incarnation}, false
	}
	return m.mode.Ticket(), !m.mode.Drain && !silent
}

// Silent reports whether the arbiter has answered nothing for three periods of the
// polls.
func (m *Machine) Silent(now Instant) bool { return now > m.silentAt() }

// silentAt is when three periods of the polls are over, unless the arbiter answers.
func (m *Machine) silentAt() Instant { return m.policy.heard.Add(3 * m.pollPeriod()) }

// Place is where a hold's own lease is: where it was granted or, after a switch,
// was moved to. A hold that the machine does not know has none.
func (m *Machine) Place(id HoldID) (Ticket, bool) {
	h, ok := m.holds[id]
	return h.place, ok
}

// Granted tells that a store has granted h on t, and reports whether the caller
// may believe it. If not, the grant has to be undone: the mode or the permit has
// changed while the request was under way.
func (m *Machine) Granted(now Instant, t Ticket, h Hold) bool {
	if _, twice := m.holds[h.ID]; twice {
		return false // a hold begins once; a reply that comes again says nothing new
	}
	if h.Exclusive {
		if p, ok := m.MayGrant(now); (!ok || p != t) && !(m.rules.GrantInDrain && m.mode.Drain) {
			return false
		}
	} else if m.closing || m.mode.Known() && t.Epoch != m.mode.Epoch {
		// Best effort asks no permit, but a hold of a mode that is over would
		// not take part in the next drain.
		return false
	}
	if now >= h.Until {
		return false
	}
	m.holds[h.ID] = hold{lease: h.Lease, until: h.Until, exclusive: h.Exclusive, place: t}
	return true
}

// Renewed tells that the store of a hold's own epoch has renewed its lease until
// then. It reports whether the hold is still believed; what has ended once is
// not revived.
func (m *Machine) Renewed(now Instant, id HoldID, epoch uint16, until Instant) bool {
	h, ok := m.holds[id]
	if !ok || !m.alive(now, h) {
		return false
	}
	if h.place.Epoch == epoch && until > h.until {
		h.until = until
		m.holds[id] = h
	}
	return true
}

// Release tells that a hold has ended, for whatever reason: unlocked, lost or
// refused. It names where it has to be freed: what was adopted, or perhaps was,
// is in two places.
func (m *Machine) Release(id HoldID) []Ticket {
	h, ok := m.holds[id]
	if !ok {
		return nil
	}
	delete(m.holds, id)
	if h.touched {
		return []Ticket{h.place, m.mode.Ticket()}
	}
	return []Ticket{h.place}
}

// Belief is when belief in a hold ends unless something renews it; no later than
// now means that it has ended. A hold that the machine does not know has none.
func (m *Machine) Belief(id HoldID) Instant {
	h, ok := m.holds[id]
	if !ok {
		return 0
	}
	return m.belief(h)
}

// Cap is the part of Belief that is not the hold's present lease: who keeps that
// lease itself, as the watchdog does, ends at the earlier of the two. The cap of
// a hold that is not Exclusive never binds.
func (m *Machine) Cap(id HoldID) Instant {
	h, ok := m.holds[id]
	if !ok {
		return 0
	}
	h.until = never
	return m.belief(h)
}

// belief is the rule that all of the protocol is for: how long this process may
// say "I hold it". Until a drain is known to be open it is the old lease AND,
// from the first sending of the ack, the adopted one AND the permit: from that
// sending on the epoch may have opened behind our back, and then only the adopted
// lease keeps others away; before it nothing of the new epoch counts, so that
// adoption alone extends nothing.
func (m *Machine) belief(h hold) Instant {
	u := h.until
	if !h.exclusive {
		return u
	}
	if m.mode.Drain && m.ackSent && !(m.rules.CapWhenConfirmed && !m.acked) {
		if !h.adopted {
			if m.rules.AckAfterFirst {
				return min(u, m.permit)
			}
			return 0
		}
		if m.rules.NoOldLeaseCap && m.acked {
			u = h.newUntil
		}
		u = min(u, h.newUntil)
	}
	if m.rules.NoPermitCap && !m.ackSent || m.rules.NoPermitCapAdopted && m.acked {
		return u
	}
	return min(u, m.permit)
}

// alive reports whether a hold is believed at now. Everything that would extend
// a belief asks this first: between two inputs a hold ends silently, and a reply
// that was under way meanwhile must not bring it back.
func (m *Machine) alive(now Instant, h hold) bool {
	return m.rules.LateRevives || now < m.belief(h)
}
