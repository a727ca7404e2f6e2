package degrade

import (
	"slices"
	"strings"
	"time"
)

// Vote is what a member says of Redis in its row.
type Vote struct {
	// Down: three probes in a row have failed.
	Down bool
	// Up: every probe for the configured time has succeeded.
	Up bool
	// Incarnation is the one last seen.
	Incarnation string
}

// Member is a member row.
type Member struct {
	ID           string
	Epoch, Acked uint16
	Beat         uint64 // changed by each write of the row, and never the same again
	Vote         Vote
	Digest       string // what the member tells of its policies, see Config
	App, Host    string // for people
}

// of is the epoch that the member belongs to.
func (r Member) of() uint16 { return max(r.Epoch, r.Acked) }

// unacked is how many of the members of the epoch before epoch have not acked it.
// Members of still earlier ones were waited for when that epoch opened.
func unacked(rows []Member, epoch uint16) int {
	n := 0
	for _, r := range rows {
		if r.of() == epoch-1 {
			n++
		}
	}
	return n
}

// peer is a member row as seen by this process over time.
type peer struct {
	Member
	since Instant // when this beat was first seen: the row was written before
}

// observe compares the member rows with those of the last reading. Members that
// are gone are forgotten with them: nothing here outlives its row.
func (m *Machine) observe(now Instant, a Action, r Reply) {
	if a.Sent < m.policy.observed {
		return // an older reading than one that we have
	}
	m.policy.observed = a.Sent
	peers := make([]peer, 0, len(r.Members))
	for _, row := range r.Members {
		p := peer{Member: row, since: now}
		if old, known := m.peer(row.ID); known && old.Beat == row.Beat {
			p.since = old.since
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(p, q peer) int { return strings.Compare(p.ID, q.ID) })
	m.peers = peers
}

// peer finds a member among those of the last reading.
func (m *Machine) peer(id string) (peer, bool) {
	i, ok := slices.BinarySearchFunc(m.peers, id, func(p peer, id string) int { return strings.Compare(p.ID, id) })
	if !ok {
		return peer{}, false
	}
	return m.peers[i], true
}

// silent reports whether a member has written nothing for so long that its permit
// is over by any clock: its last write came before we first saw this beat, so W
// from there is enough.
func (m *Machine) silent(now Instant, p peer) bool {
	return m.rules.RemoveAtOnce || m.mode.Known() && now.Sub(p.since) >= m.mode.wait(m.cfg.Grace)
}

// mayRemove reports whether a removal is safe. The statement itself checks that the
// beat is still the same.
func (m *Machine) mayRemove(now Instant, a Action) bool {
	p, ok := m.peer(a.Member)
	return ok && p.Beat == a.Beat && m.silent(now, p)
}

// maxSeen is the largest epoch that any member row has shown.
func (m *Machine) maxSeen() uint16 {
	var e uint16
	for _, p := range m.peers {
		e = max(e, p.of())
	}
	return e
}

// live are the members that count in a vote: those whose beat has changed within
// three periods of their refreshes.
func (m *Machine) live(now Instant) []peer {
	var live []peer
	for _, p := range m.peers {
		if now.Sub(p.since) <= 3*m.refreshPeriod() {
			live = append(live, p)
		}
	}
	return live
}

// Digests gives, for each digest among those of the live members that is not this
// process's own, one member that has it, in the order of the digests. What they mean
// is for others to say.
func (m *Machine) Digests(now Instant) []Member {
	var others []Member
	for _, p := range m.live(now) {
		i, known := slices.BinarySearchFunc(others, p.Digest, func(o Member, d string) int { return strings.Compare(o.Digest, d) })
		if !known && p.Digest != m.cfg.Digest {
			others = slices.Insert(others, i, p.Member)
		}
	}
	return others
}

// refreshPeriod keeps the writes of all members together under 200 a second, and
// every member well inside its permit.
func (m *Machine) refreshPeriod() time.Duration {
	d := max(m.cfg.Refresh, time.Duration(len(m.peers))*(time.Second/200))
	if m.mode.Known() {
		d = min(d, m.mode.Term/3)
	}
	return d
}

// pollPeriod keeps the readings of all members together under 500 a second.
func (m *Machine) pollPeriod() time.Duration {
	return max(m.cfg.Poll, time.Duration(len(m.peers))*(time.Second/500))
}
