package degrade

import (
	"slices"
	"time"
)

// policy is when the machine does what. Exclusion needs none of it: whatever this
// file decides, or forgets, can only cost time.
type policy struct {
	busy      [kinds]bool // one of the kind is under way; adoptions: see hold.sending
	observed  Instant     // when the reading began that the peers are from
	nextPoll  Instant
	nextProbe Instant
	refreshAt Instant
	ackAt     Instant
	retryAt   Instant // starts, openings, takeovers and removals: not before
	told      Vote    // the vote that the arbiter was told last
	tellAt    Instant // another one is told, not before
	empty     string  // the arbiter that was seen without a mode row
	heard     Instant // when the arbiter last answered anything; later by what Stopped told
	inForce   Tier    // the tier of the last open mode
	stayUntil Instant // no return to Redis before
	returns   []Instant
}

// planMode plans what a new mode calls for.
func (m *Machine) planMode(now Instant) {
	p := &m.policy
	p.refreshAt, p.ackAt, p.retryAt = now, now, now
	if m.mode.Drain {
		return
	}
	was := p.inForce
	p.inForce = m.mode.Tier
	p.returns = slices.DeleteFunc(p.returns, func(t Instant) bool { return now.Sub(t) > time.Hour })
	switch {
	case m.mode.Tier == Redis && was == MySQL:
		p.returns = append(p.returns, now) // the dwell keeps these few
	case m.mode.Tier == MySQL:
		// Doubled with each return within the hour: a Redis that comes and goes
		// must not make all of us come and go.
		p.stayUntil = now.Add(min(m.cfg.Dwell<<min(len(p.returns), 10), time.Hour))
	}
}

// planNext plans the next try of an action that has come to its end. What did not
// do what it should is followed by a reading: somebody else was faster.
func (m *Machine) planNext(now Instant, a Action, r Reply) {
	p := &m.policy
	p.busy[a.Kind] = false
	failed := r.Lost || !r.OK
	if !r.Lost && a.Kind != Probe && !(a.Kind == Adopt && a.From.Tier != MySQL) {
		p.heard = now
	}
	soon := now.Add(m.cfg.Poll)
	switch a.Kind {
	case Poll:
		p.nextPoll = a.Sent.Add(m.pollPeriod())
		return
	case Adopt:
		return
	case Probe:
		p.nextProbe = a.Sent.Add(m.cfg.Probe)
		if failed {
			p.nextProbe = a.Sent.Add(m.cfg.Suspect)
		}
		return
	case Refresh:
		p.refreshAt = a.Sent.Add(m.refreshPeriod())
		if failed {
			p.refreshAt, p.tellAt = soon, soon
		} else {
			p.told = a.Vote
		}
	case Ack:
		p.ackAt = a.Sent.Add(a.From.Term / 3)
		if failed {
			p.ackAt = soon
		}
	default:
		if failed {
			p.retryAt = soon
		}
	}
	if failed && !r.Lost {
		p.nextPoll = min(p.nextPoll, now)
	}
}

// Due is what should be begun at now, in a fixed order. It changes nothing: the
// caller passes what it means to do to Begin and carries it out, each on its own,
// none waiting for another.
func (m *Machine) Due(now Instant) []Action {
	var due []Action
	p := &m.policy
	add := func(at Instant, a Action) {
		if now >= at && !p.busy[a.Kind] && m.can(now, a) {
			due = append(due, a)
		}
	}
	vote, at := m.refreshAt(now)
	add(p.nextPoll, Action{Kind: Poll})
	add(p.nextProbe, Action{Kind: Probe})
	add(at, Action{Kind: Refresh, From: m.mode, Vote: vote})
	if to, ok := m.wants(now); ok {
		add(p.retryAt, Action{Kind: Start, From: m.mode, To: to})
	}
	if m.mode.Drain {
		due = append(due, m.adoptions(now)...)
		add(p.ackAt, Action{Kind: Ack, From: m.mode, Vote: vote})
		add(p.retryAt, Action{Kind: Open, From: m.mode})
	}
	if p.empty != "" && (m.watch.healthy || m.watch.failed > 0) {
		add(p.retryAt, m.create())
	}
	if m.stray.Known() {
		add(p.retryAt, m.takeOver())
	}
	for _, peer := range m.peers {
		if m.silent(now, peer) {
			add(p.retryAt, Action{Kind: Remove, Member: peer.ID, Beat: peer.Beat})
			break // one at a time: there is no hurry
		}
	}
	if m.joined && !p.busy[Refresh] && !p.busy[Ack] { // what is under way may write the row anew
		add(p.retryAt, Action{Kind: Leave})
	}
	return due
}

// refreshAt is the vote, and when the next refresh is due to write it: at once if
// it is another one.
func (m *Machine) refreshAt(now Instant) (Vote, Instant) {
	vote := m.watch.vote(now, m.cfg.Up)
	if vote != m.policy.told {
		return vote, min(m.policy.refreshAt, m.policy.tellAt)
	}
	return vote, m.policy.refreshAt
}

// takeOver is the action that answers a stray row.
func (m *Machine) takeOver() Action {
	return Action{Kind: Takeover, From: m.stray, To: m.takeover(m.stray), Known: m.mode.Epoch}
}

// create is the first mode of a chain: on Redis, or on MySQL if Redis does not
// answer.
func (m *Machine) create() Action {
	mode := Mode{Epoch: 1, Tier: MySQL, Server: m.policy.empty, Term: m.cfg.Term, Drift: m.cfg.Drift}
	if m.watch.healthy {
		mode.Tier, mode.Incarnation = Redis, m.watch.incarnation
	}
	return Action{Kind: Create, To: mode}
}

// adoptions are the batches that are due: holds that are not in yet, and those
// whose adopted lease is a third over.
func (m *Machine) adoptions(now Instant) []Action {
	var ids []HoldID
	for id, h := range m.holds {
		if now >= m.adoptAt(h) && m.alive(now, h) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids) // see ids: the order of a map must not show
	var batches []Action
	for batch := range slices.Chunk(ids, m.cfg.Batch) {
		batches = append(batches, Action{Kind: Adopt, From: m.mode, Holds: batch})
	}
	return batches
}

// adoptAt is when the next adoption of a hold is due.
func (m *Machine) adoptAt(h hold) Instant {
	switch {
	case h.sending || h.place.Epoch == m.mode.Epoch:
		return never
	case !h.touched:
		return 0
	case !h.adopted:
		return h.tried.Add(m.cfg.Poll)
	}
	return h.tried.Add(h.lease / 3) // to keep the adopted lease alive
}

// Next is when Due should be asked again if no input comes before. What depends on
// votes and on other members' silence is looked at with the next reading, which
// is among what is due.
func (m *Machine) Next(now Instant) Instant {
	p := &m.policy
	next := never
	at := func(kind Kind, t Instant) {
		if !p.busy[kind] {
			next = min(next, max(t, now))
		}
	}
	at(Poll, p.nextPoll)
	at(Probe, p.nextProbe)
	if m.can(now, Action{Kind: Refresh, From: m.mode}) {
		_, t := m.refreshAt(now)
		at(Refresh, t)
	}
	if m.mode.Drain {
		if m.can(now, Action{Kind: Ack, From: m.mode}) {
			at(Ack, p.ackAt)
		}
		at(Open, max(m.openAt, p.retryAt))
		for _, h := range m.holds {
			if m.alive(now, h) {
				next = min(next, max(now, m.adoptAt(h)))
			}
		}
	}
	return next
}
