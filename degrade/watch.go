package degrade

import "time"

// threshold is the number of failed probes in a row that flips a vote.
const threshold = 3

// watch is this process's own sight of Redis.
type watch struct {
	failed      int     // probes in a row
	suspect     bool    // a call has failed since the last good probe
	healthy     bool    // the last probe succeeded
	since       Instant // … and all since this one
	incarnation string  // the one last seen
	seen        Instant // when the probe began that all this is from
}

// Suspect tells that a call to Redis has failed. It is no vote: it makes the
// probes come faster. A contended lock, the caller's own timeout and a script's
// refusal are no failures and are not told.
func (m *Machine) Suspect(now Instant) {
	if !m.watch.suspect {
		m.watch.suspect = true
		m.policy.nextProbe = min(m.policy.nextProbe, now)
	}
}

// Doubt tells that Redis may have other data than the mode names: a call was refused
// for its data, or another member has seen that. It is no vote either. The next probe
// comes sooner, yet no sooner than Suspect after the last one: whoever is behind with
// the mode is refused with each call.
func (m *Machine) Doubt(now Instant) {
	m.policy.nextProbe = min(m.policy.nextProbe, max(now, m.watch.seen.Add(m.cfg.Suspect)))
}

// othersDoubt reports whether a live member votes for other data than the mode names,
// where this process has not seen any. A switch takes more than half of the votes, and
// who has no calls would else wait for the next probe.
func (m *Machine) othersDoubt(now Instant) bool {
	if m.mode.Tier != Redis || m.mode.Drain || m.watch.incarnation != m.mode.Incarnation {
		return false
	}
	for _, p := range m.live(now) {
		if v := p.Vote; !v.Down && v.Incarnation != "" && v.Incarnation != m.mode.Incarnation {
			return true
		}
	}
	return false
}

func (w *watch) probed(now Instant, a Action, r Reply) {
	if a.Sent < w.seen {
		return // an older probe than the one that we know of
	}
	w.seen = a.Sent
	if r.Lost || !r.OK {
		w.failed++
		w.healthy, w.suspect = false, true
		return
	}
	if !w.healthy || w.incarnation != r.Incarnation {
		w.since = now
	}
	w.failed, w.healthy, w.suspect = 0, true, false
	w.incarnation = r.Incarnation
}

func (w *watch) vote(now Instant, up time.Duration) Vote {
	return Vote{
		Down:        w.failed >= threshold,
		Up:          w.healthy && now.Sub(w.since) >= up,
		Incarnation: w.incarnation,
	}
}

// wants is the mode that the members together want to switch to, if any.
//
// From Redis away: more than half of the live members vote that it is down. To
// Redis with other data: more than half see it healthy under one other id. Back to
// Redis: nine of ten have seen it healthy for Up, under one id, and the dwell is
// over. Who alone is cut off drags nobody: its vote is one.
func (m *Machine) wants(now Instant) (Mode, bool) {
	if !m.mode.Known() || m.mode.Drain || m.mode.Epoch >= MaxEpoch {
		return Mode{}, false
	}
	live := m.live(now)
	down, up := 0, map[string]int{}
	for _, p := range live {
		switch {
		case p.Vote.Down:
			down++
		case p.Vote.Incarnation != "" && (m.mode.Tier == Redis || p.Vote.Up):
			up[p.Vote.Incarnation]++
		}
	}
	if m.mode.Tier == Redis {
		if 2*down > len(live) {
			return m.mode.next(MySQL, ""), true
		}
		for id, n := range up {
			if id != m.mode.Incarnation && 2*n > len(live) {
				return m.mode.next(Redis, id), true
			}
		}
		return Mode{}, false
	}
	if now < m.policy.stayUntil {
		return Mode{}, false
	}
	for id, n := range up {
		if 10*n >= 9*len(live) && n > 0 {
			return m.mode.next(Redis, id), true
		}
	}
	return Mode{}, false
}
