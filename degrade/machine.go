package degrade

import (
	"maps"
	"slices"
	"time"
)

// MaxDigest is the most bytes that a digest may have.
const MaxDigest = 4600

// Config is what a machine is told once. The zero value of each field but Member
// means its default.
type Config struct {
	// Member is the id of this start of this process: 128 random bits, so that
	// no row is ever mistaken for a later start's.
	Member string
	// Digest tells the policies of this process's resources, as far as they have
	// to be the same everywhere, in at most MaxDigest bytes. Its runner writes it
	// into the member row; see Digests.
	Digest string

	// Refresh is the time between two refreshes of the permit (10 s), stretched
	// with the number of members and never beyond a third of the permit.
	Refresh time.Duration
	// Poll is the time between two readings of the mode (1 s), stretched likewise.
	Poll time.Duration
	// Probe is the time between two probes of Redis while nothing fails (5 s),
	// and Suspect the time while something does (1 s).
	Probe, Suspect time.Duration
	// Up is how long Redis has to be healthy before a return (30 s).
	Up time.Duration
	// Dwell is the shortest stay on MySQL (1 min). It doubles with each return
	// within the hour, up to an hour.
	Dwell time.Duration
	// Grace is what a hard drain waits beyond a permit (60 s).
	Grace time.Duration
	// Batch is the largest number of holds in one adoption (256).
	Batch int

	// Term and Drift (in thousandths) are used only by the process that creates
	// the mode row (60 s, 10).
	Term  time.Duration
	Drift int
}

func (c *Config) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Refresh, 10*time.Second)
	def(&c.Poll, time.Second)
	def(&c.Probe, 5*time.Second)
	def(&c.Suspect, time.Second)
	def(&c.Up, 30*time.Second)
	def(&c.Dwell, time.Minute)
	def(&c.Grace, time.Minute)
	def(&c.Term, time.Minute)
	if c.Drift == 0 {
		c.Drift = 10
	}
	if c.Batch == 0 {
		c.Batch = 256
	}
}

// Machine is one process's part in a chain. Make one with [New]. It is not safe
// for concurrent use: its runner holds a mutex around each call, and never across
// I/O. No method reads a clock. Readings of now are taken under that mutex, so that
// they never go back from one call to the next: a belief that was seen to have
// ended would otherwise be there again.
type Machine struct {
	cfg   Config
	rules rules

	mode Mode // the latest known

	// The permit: leave to believe until then, counted from the sending of the
	// statement that got it; and the epoch it is for. Leave to grant needs the
	// epoch to be the present one; belief does not: while a drain into e+1 is
	// learned of, the permit of e counts on, since whoever opens e+1 has either
	// our ack or waited for the end of that permit.
	permit      Instant
	permitEpoch uint16

	// In a drain.
	openAt  Instant // end of the own wait W
	clear   bool    // the arbiter said that no member of the old epoch is un-acked
	ackSent bool    // an ack was sent at least once; it may be executed at any time
	acked   bool    // and one was confirmed; only the switches in rules ask

	holds map[HoldID]hold
	peers []peer

	joined  bool // a refresh was sent: there may be a member row
	closing bool
	stray   Mode // a row that the arbiter has lost its right to, see takeover

	watch  watch  // probes of Redis, the vote
	policy policy // when to do what; nothing here is needed for exclusion
	events []Event
}

// New makes a machine that knows nothing yet. It wants to poll.
func New(c Config) *Machine {
	c.fill()
	return &Machine{cfg: c, holds: map[HoldID]hold{}}
}

// Mode is the latest mode that the machine knows.
func (m *Machine) Mode() Mode { return m.mode }

// Permit is when the permit ends, whatever epoch it is for.
func (m *Machine) Permit() Instant { return m.permit }

// Close tells that this process takes no new holds. When its last one has ended
// the machine removes its member row, so that nobody waits for it.
func (m *Machine) Close() { m.closing = true }

// Stopped tells that the process did not run for d until now. It asked nobody
// meanwhile, so that neither the arbiter nor a member was silent to it.
func (m *Machine) Stopped(d time.Duration) {
	m.policy.heard = m.policy.heard.Add(d)
	for i := range m.peers {
		m.peers[i].since = m.peers[i].since.Add(d)
	}
}

// learn takes in a mode that the arbiter has shown. Late answers show old modes:
// only one that is later than the known counts.
//
// What becomes of the holds is decided here and in belief, nowhere else.
func (m *Machine) learn(now Instant, to Mode) {
	if !to.after(m.mode) {
		return
	}
	from := m.mode
	for _, id := range m.ids() {
		h := m.holds[id]
		if h.exclusive && !m.alive(now, h) {
			m.end(id, Lapsed)
			continue
		}
		if h, ok := m.carry(from, to, h); ok {
			m.holds[id] = h
		} else {
			m.end(id, LeftBehind) // by what the map has: carry's copy is dropped
		}
	}
	m.mode = to
	m.clear, m.ackSent, m.acked = false, false, false
	if to.Drain {
		// The wait begins when we learn of the drain, by our clock; no time is
		// taken from the row, since no two clocks agree on it.
		w := to.wait(m.cfg.Grace)
		switch {
		case m.rules.WaitTerm:
			w = to.Term
		case m.rules.HardWaitsNothing && to.Hard, m.rules.StarterOpensAtOnce && !from.Known():
			w = 0
		}
		m.openAt = now.Add(w)
		m.tell(Event{Kind: Draining, Mode: to})
	} else {
		m.tell(Event{Kind: Opened, Mode: to})
	}
	if to.Epoch > MaxEpoch-jump {
		m.tell(Event{Kind: Exhausted, Mode: to})
	}
	m.planMode(now)
}

// carry decides whether a hold goes on when the mode becomes to.
func (m *Machine) carry(from, to Mode, h hold) (hold, bool) {
	switch {
	case h.place.Epoch == to.Epoch:
		return h, true // best effort, granted in the drain into to
	case !from.Known():
		// Best effort again: granted while the arbiter had not been reached.
		h.place.Epoch = to.Epoch
		return h, h.place == to.Ticket() && !to.Drain
	case to.Drain && h.place.Epoch == from.Epoch && (to.Epoch == from.Epoch+1 || to.Hard && !from.Drain):
		return h, true // a drain: adopt it
	case from.Drain && (to.Epoch == from.Epoch || to.Drain && to.Epoch == from.Epoch+1 && !to.Hard):
		// The epoch that we had drained into has opened. (In the second case it
		// was open for a while and is being drained already.) A hold is part of
		// it if its adoption was confirmed and an ack is at the arbiter or may
		// be; belief has been capped by the adopted lease since then. If the ack
		// never arrived, the epoch was opened by someone's wait, and the permit
		// had ended before that.
		in := h.adopted && m.ackSent
		if !in {
			h.newUntil = h.until // for the rule's switch only: it is dropped
		}
		h.place, h.until = from.Ticket(), h.newUntil
		h.adopted, h.newUntil, h.touched = false, 0, false
		return h, in || m.rules.KeepUnadopted
	}
	// A drain, and perhaps more, was missed.
	return h, m.rules.KeepSkipped
}

// ids are the holds in a fixed order: a map has none, and the machine's answers
// depend on its inputs alone.
func (m *Machine) ids() []HoldID {
	return slices.Sorted(maps.Keys(m.holds))
}

func (m *Machine) end(id HoldID, why Reason) {
	places := m.Release(id)
	m.tell(Event{Kind: HoldEnded, Hold: id, Reason: why, Places: places})
}
