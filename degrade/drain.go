package degrade

// mayAck reports whether everything that this process holds is in the new epoch,
// confirmed. Holds that are no longer believed do not count; the ack must not wait
// for them, and they cannot come back.
func (m *Machine) mayAck(now Instant) bool {
	some, all := false, true
	for _, h := range m.holds {
		if !m.alive(now, h) || h.place.Epoch == m.mode.Epoch {
			continue
		}
		if h.adopted && now < h.newUntil {
			some = true
		} else {
			all = false
		}
	}
	return all || some && m.rules.AckAfterFirst
}

// mayOpen reports whether nobody can have a belief in the old epoch that is not
// in the new one as well: every member of it has acked, or W has run out by our
// own clock since we learned of the drain. A majority would not be enough: the
// one who has not heard is the one who still believes.
func (m *Machine) mayOpen(now Instant) bool {
	return now >= m.openAt ||
		m.clear && (!m.mode.Hard || m.rules.HardOpensByAcks) ||
		m.rules.OpenAtOnce
}

// beginAdopt notes that adoptions are under way. From now on there may be
// something in the new store.
func (m *Machine) beginAdopt(now Instant, a Action) {
	for _, id := range a.Holds {
		h, ok := m.holds[id]
		if !ok {
			continue
		}
		h.touched, h.sending, h.tried = true, true, now
		if m.rules.AdoptedWhenSent && !h.adopted || m.rules.RetryMovesCap && h.adopted {
			h.adopted, h.newUntil = true, now.Add(h.lease)
		}
		m.holds[id] = h
	}
}

// doneAdopt takes in what came of a batch. It may be repeated for holds that are
// in already: that is how an adopted lease is kept alive in a long drain. Only a
// confirmed one moves the cap, and only to what its own sending justifies.
func (m *Machine) doneAdopt(now Instant, a Action, r Reply) {
	for i, id := range a.Holds {
		h, ok := m.holds[id]
		if !ok || m.mode != a.From {
			continue // of another drain: what it says is no longer asked
		}
		h.sending = false
		m.holds[id] = h
		if r.Lost || i >= len(r.Adopted) || !m.alive(now, h) {
			continue
		}
		switch r.Adopted[i] {
		case Taken:
			if until := a.Sent.Add(h.lease); until > now {
				h.adopted, h.newUntil = true, max(h.newUntil, until)
				if h.place.sameData(m.mode.Ticket()) || m.rules.AdoptRenewsAll {
					// It is the very key, of the coming epoch now: it keeps those away
					// who have not heard of the drain, too, and as a key of the old
					// epoch nothing can renew it any more.
					h.until = max(h.until, until)
				}
				m.holds[id] = h
			}
		case NotTaken:
			if !m.rules.KeepRefused {
				m.end(id, Refused)
			} else {
				h.adopted, h.newUntil = true, a.Sent.Add(h.lease)
				m.holds[id] = h
			}
		}
	}
}
