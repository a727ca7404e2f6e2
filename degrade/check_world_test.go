package degrade_test

import (
	"fmt"

	"github.com/tierlock/tierlock/degrade"
)

// This file is the world in which the checker runs real machines: the arbiter, the
// two stores, and what is under way between them. All of it is a value, so that a
// state is copied by assignment; a machine is cloned before it is changed.

const maxProcs = 3

// scope is the size of a world and which faults it has.
type scope struct {
	procs, keys int
	epochs      uint16 // the largest epoch that a start may lead to
	grants      uint8  // per key, store and epoch
	lease       int    // ticks that a lease is believed
	slack       int    // ticks that it lasts longer in the store
	term, drift int    // of permits; drift in thousandths
	slow        uint8  // clock ticks that each process may lose
	grace       int

	failover  bool          // Redis fails over once, keeping or losing its data
	toRedis   bool          // drains may lead to Redis
	late      kindSet       // requests that may be executed after their sender gave up
	pending   kindSet       // … whose replies may be late; others come at once or never
	slowGrant bool          // replies of grants may be late
	dup       uint8         // replies that come again
	stale     bool          // polls may see the mode row before the last change
	loss      bool          // the arbiter fails over once and forgets its latest commits
	rewind    bool          // … all of them since the start
	remove    bool          // silent members are removed
	leave     bool          // processes close
	starter   bool          // the last process knows nothing at first
	rules     degrade.Rules // taken away from the machines
	broken    broken        // … and from the stores
}

// broken are the rules that live in the stores' scripts and statements.
type broken struct {
	adoptOverwrites   bool // an adoption takes whatever is there
	adoptLowersRecord bool // … and fences are counted from its own
	laterEpochTaken   bool // a grant takes a row of a later epoch
	fenceWithoutEpoch bool
	anyIncarnation    bool // requests are executed whatever data Redis has
	majorityIsEnough  bool // "nobody is un-acked" is said once most have acked
	ackedNotMember    bool // who acked is no member of the epoch acked
	refreshInDrain    bool // a refresh asks for the epoch before a drain only
	ackUnguarded      bool // an ack is written whatever the mode is
	openUnguarded     bool // an open is written whatever the mode is
	startUnguarded    bool // a start is written whatever the mode is
	ackKeepsBeat      bool // an ack does not change the beat
	removeIgnoresBeat bool // a member is removed whatever its beat is
	serverUnchecked   bool // statements on the mode and members are executed on whatever server
	lockOnAnyServer   bool // … and those on locks
}

type kindSet uint32

func kindsOf(kinds ...degrade.Kind) kindSet {
	var s kindSet
	for _, k := range kinds {
		s |= 1 << k
	}
	return s
}
func (s kindSet) has(k degrade.Kind) bool { return s>>k&1 == 1 }

// cell is what a store has of a key: a holder, and the record that fences are
// counted from, which outlives it.
type cell struct {
	owner, epoch, fence, record uint8
	ttl                         uint8
}

type member struct {
	here         bool
	epoch, acked uint8
	beat         uint16
}

// arbiter is the arbiter's database, lock rows included.
type arbiter struct {
	mode    degrade.Mode
	members [maxProcs]member
	rows    [2]cell
}

// call is a request and, once executed, its reply.
type call struct {
	a degrade.Action
	r degrade.Reply
}

// grant is a grant that is under way.
type grant struct {
	key   int
	fence uint8
	sent  degrade.Instant
	t     degrade.Ticket
}

// What is behind a pointer in proc and world is replaced, never changed.
type proc struct {
	m       *degrade.Machine
	clock   degrade.Instant
	op      *call    // the reply that is under way
	grant   *grant   // and that of a grant
	fence   [2]uint8 // of the hold of each key
	ended   [2]bool  // it was seen to have ended
	slow    uint8
	dups    uint8
	closing bool
}

// late is a request that is still on its way, written when it was sent.
type late struct {
	a     degrade.Action
	of    int
	fence [2]uint8
}

type world struct {
	p       [maxProcs]proc
	db      arbiter
	server  string
	before  *degrade.Mode // the mode row before its last change, for stale readings
	backup  *arbiter      // what a failover of the arbiter falls back to
	redis   [2][2]cell
	failed  bool
	late    *late
	highest [2]uint8 // fence believed so far
	beats   uint16
}

var keyIDs = [2]degrade.HoldID{"k0", "k1"}
var memberIDs = [maxProcs]string{"a", "b", "c"}
var incarnations = [2]string{"0", "1"}

func (s *scope) world() world {
	var w world
	w.server = "A"
	w.db.mode = degrade.Mode{
		Epoch: 1, Tier: degrade.Redis, Incarnation: "0", Server: "A",
		Term: dur(s.term), Drift: s.drift,
	}
	for i := range s.procs {
		c := degrade.Config{Member: memberIDs[i], Term: dur(s.term), Drift: s.drift, Grace: dur(s.grace),
			Refresh: 1, Poll: 1, Probe: 1, Suspect: 1, Up: 1, Dwell: 1}
		m := degrade.NewWith(c, s.rules)
		w.p[i] = proc{m: m, slow: s.slow, dups: s.dup}
		if !s.starter || i < s.procs-1 {
			for _, a := range []degrade.Action{{Kind: degrade.Poll}, {Kind: degrade.Refresh, From: w.db.mode}} {
				a, _ = m.Begin(0, a)
				m.Done(0, a, s.exec(&w, i, a))
			}
		}
	}
	if s.rewind {
		b := w.db
		w.backup = &b
	}
	return w
}

// exec carries out a request of process i and gives its reply.
func (s *scope) exec(w *world, i int, a degrade.Action) degrade.Reply {
	db, x := &w.db, &s.broken
	is := func(m degrade.Mode) bool {
		return db.mode == m && (m.Server == w.server || x.serverUnchecked)
	}
	beat := func() uint16 {
		w.beats++
		return w.beats
	}
	me := &db.members[i]
	switch a.Kind {
	case degrade.Poll:
		r := degrade.Reply{OK: true, Mode: db.mode, Server: w.server}
		acked := 0
		for j := range s.procs {
			if m := db.members[j]; m.here {
				if x.ackedNotMember {
					m.acked = 0
					if db.members[j].acked == uint8(db.mode.Epoch) {
						m.acked = uint8(db.mode.Epoch)
					}
				}
				if m.acked == uint8(db.mode.Epoch) {
					acked++
				}
				r.Members = append(r.Members, degrade.Member{ID: memberIDs[j], Epoch: uint16(m.epoch), Acked: uint16(m.acked), Beat: uint64(m.beat)})
			}
		}
		if x.majorityIsEnough && db.mode.Drain && 2*acked > s.procs {
			for j := range r.Members {
				r.Members[j].Acked = db.mode.Epoch
			}
		}
		return r
	case degrade.Refresh:
		if is(a.From) || x.refreshInDrain && db.mode.Drain && db.mode.Epoch == a.From.Epoch+1 {
			acked := me.acked
			*me = member{true, uint8(a.From.Epoch), acked, beat()}
			return degrade.Reply{OK: true}
		}
	case degrade.Start:
		if is(a.From) || x.startUnguarded {
			s.setMode(w, a.To)
			return degrade.Reply{OK: true}
		}
	case degrade.Open:
		if is(a.From) || x.openUnguarded {
			to := a.From
			to.Drain, to.Hard = false, false
			s.setMode(w, to)
			return degrade.Reply{OK: true}
		}
	case degrade.Takeover:
		if db.mode == a.From && (a.From.Server != w.server || a.From.Epoch < a.Known) {
			to := a.To
			to.Server = w.server
			s.setMode(w, to)
			return degrade.Reply{OK: true, Server: w.server}
		}
	case degrade.Ack:
		if is(a.From) || x.ackUnguarded {
			b := me.beat
			if !x.ackKeepsBeat || !me.here {
				b = beat()
			}
			*me = member{true, me.epoch, uint8(a.From.Epoch), b}
			return degrade.Reply{OK: true}
		}
	case degrade.Remove:
		for j, id := range memberIDs {
			if m := &db.members[j]; id == a.Member && m.here && (uint64(m.beat) == a.Beat || x.removeIgnoresBeat) {
				*m = member{}
				return degrade.Reply{OK: true}
			}
		}
	case degrade.Leave:
		*me = member{}
		return degrade.Reply{OK: true}
	case degrade.Adopt:
		var r degrade.Reply
		for _, id := range a.Holds {
			r.Adopted = append(r.Adopted, s.adopt(w, i, id, a.From.Ticket()))
		}
		return r
	default:
		panic(fmt.Sprintf("kind %d", a.Kind))
	}
	return degrade.Reply{}
}

func (s *scope) setMode(w *world, m degrade.Mode) {
	if s.stale {
		before := w.db.mode
		w.before = &before
	}
	w.db.mode = m
}

// cell is where a ticket's key is, or nil if nothing there answers to it.
func (s *scope) cell(w *world, t degrade.Ticket, key int) *cell {
	if t.Tier == degrade.MySQL {
		if t.Incarnation != w.server && !s.broken.serverUnchecked && !s.broken.lockOnAnyServer {
			return nil
		}
		return &w.db.rows[key]
	}
	for inc, name := range incarnations {
		if t.Incarnation == name && (inc == 0 || w.failed) {
			return &w.redis[inc][key]
		}
	}
	return nil
}

func keyOf(id degrade.HoldID) int { return int(id[1] - '0') }

// adopt is the statement or script of an adoption.
func (s *scope) adopt(w *world, i int, id degrade.HoldID, t degrade.Ticket) degrade.Adoption {
	key := keyOf(id)
	fence, c := w.p[i].fence[key], s.cell(w, t, key)
	if c == nil {
		return degrade.NotTaken
	}
	own := c.owner == uint8(i+1) && c.fence == fence
	free := c.owner == 0 || uint16(c.epoch) < t.Epoch
	if !s.broken.adoptOverwrites && (uint16(c.epoch) > t.Epoch || !own && !free && c.fence > fence) {
		return degrade.NotTaken
	}
	c.owner, c.epoch, c.fence, c.ttl = uint8(i+1), uint8(t.Epoch), fence, s.ttl()
	c.record = max(c.record, fence)
	if s.broken.adoptLowersRecord {
		c.record = fence
	}
	return degrade.Taken
}

func (s *scope) ttl() uint8 { return uint8(s.lease + s.slack) }

// acquire is the statement or script of a grant. It gives the fence, or 0.
func (s *scope) acquire(w *world, i, key int, t degrade.Ticket) uint8 {
	c := s.cell(w, t, key)
	if c == nil {
		return 0
	}
	if uint16(c.epoch) > t.Epoch && !s.broken.laterEpochTaken {
		return 0
	}
	if c.owner != 0 && uint16(c.epoch) == t.Epoch {
		return 0
	}
	fence := max(c.record, uint8(t.Epoch)<<3) + 1
	if s.broken.fenceWithoutEpoch {
		fence = c.record + 1
	}
	if fence&7 > s.grants {
		return 0 // out of scope
	}
	*c = cell{owner: uint8(i + 1), epoch: uint8(t.Epoch), fence: fence, record: fence, ttl: s.ttl()}
	return fence
}
