package degrade_test

import (
	"fmt"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

func dur(ticks int) time.Duration { return time.Duration(ticks) }

// steps are all that can happen next in a world. Nothing has to: what never
// happens is a process that has stopped, a link that is cut, a request that is
// lost.
type steps struct {
	*scope
	w         *world
	next      []world
	names     []string // only while a trace is printed
	tracing   bool
	violation string
}

func (s *steps) emit(w world, format string, args ...any) {
	if s.violation == "" {
		s.violation = s.overlap(&w)
	}
	s.next = append(s.next, w)
	if s.tracing {
		s.names = append(s.names, fmt.Sprintf(format, args...))
	}
}

// overlap says which key two processes believe to hold.
func (s *steps) overlap(w *world) string {
	for k := range s.keys {
		holders := 0
		for i := range s.procs {
			if w.p[i].m.Belief(keyIDs[k]) > w.p[i].clock {
				holders++
			}
		}
		if holders > 1 {
			return fmt.Sprintf("%d processes believe to hold key %d", holders, k)
		}
	}
	return ""
}

// of is a copy of the world in which process i may be changed.
func (s *steps) of(i int) world {
	w := *s.w
	w.p[i].m = w.p[i].m.Clone()
	return w
}

func (s *steps) all(w *world) {
	s.w, s.next, s.names, s.violation = w, s.next[:0], s.names[:0], ""
	s.tick()
	s.faults()
	for i := range s.procs {
		if w.p[i].op.a.Kind == 0 {
			s.begin(i)
		} else {
			s.reply(i)
		}
		s.locks(i)
	}
}

// tick lets time pass; any process that may still lose a tick may lose this one.
func (s *steps) tick() {
	for lost := range 1 << s.procs {
		w := *s.w
		ok := true
		for i := range s.procs {
			if lost>>i&1 == 0 {
				w.p[i].clock++
			} else if w.p[i].slow > 0 {
				w.p[i].slow--
			} else {
				ok = false
			}
		}
		if !ok {
			continue
		}
		for k := range s.keys {
			for _, c := range []*cell{&w.db.rows[k], &w.backup.rows[k], &w.redis[0][k], &w.redis[1][k]} {
				if c.ttl > 0 {
					if c.ttl--; c.ttl == 0 {
						c.owner = 0
					}
				}
			}
		}
		s.emit(w, "a tick (lost by %03b)", lost)
	}
}

// faults are what happens to the servers, and requests that are late.
func (s *steps) faults() {
	if s.failover && !s.w.failed {
		w := *s.w
		w.failed = true
		w.redis[1] = w.redis[0]
		s.emit(w, "Redis fails over with its data; the old primary still answers")
		w.redis[1] = [2]cell{}
		s.emit(w, "Redis fails over and LOSES its data; the old primary still answers")
	}
	if s.loss && s.w.server == "A" {
		if !s.w.backed {
			w := *s.w
			w.backup, w.backed = w.db, true
			s.emit(w, "the arbiter's replica is at this state (%v)", short(w.db.mode))
		} else {
			w := *s.w
			w.db, w.server, w.backup = w.backup, "B", arbiter{}
			s.emit(w, "the arbiter fails over to %v: later commits are LOST", short(w.db.mode))
		}
	}
	if s.w.late.Kind != 0 {
		w, i, a := *s.w, int(s.w.lateOf), s.w.late
		// It was written when it was sent: with the fences of then.
		now := w.p[i].fence
		w.p[i].fence = w.lateFence
		r := s.exec(&w, i, a)
		w.p[i].fence = now
		w.late, w.lateOf, w.lateFence = degrade.Action{}, 0, [2]uint8{}
		s.emit(w, "LATE: P%d's %s is executed: %s", i, say(a), sayReply(a, r))
	}
}

// begin has process i begin whatever its machine lets it. The request is executed
// at once with the reply under way, or is lost, or is late.
func (s *steps) begin(i int) {
	for _, a := range s.actions(i) {
		if !s.w.p[i].m.Can(s.w.p[i].clock, a) {
			continue
		}
		w := s.of(i)
		p := &w.p[i]
		a, ok := p.m.Begin(p.clock, a)
		if !ok {
			panic("can, but does not begin")
		}
		if a.Kind == degrade.Leave {
			p.left = true
		}
		given := w // given up on
		given.p[i].m = p.m.Clone()
		given.p[i].m.Done(p.clock, a, degrade.Reply{Lost: true})

		s.emit(given, "P%d sends %s, which is LOST", i, say(a))
		if s.late.has(a.Kind) && s.w.late.Kind == 0 {
			later := given
			later.late, later.lateOf, later.lateFence = a, int8(i), p.fence
			later.late.Sent = 0 // its sender counts on nothing any more
			s.emit(later, "P%d sends %s, gives up on it, and it is LATE", i, say(a))
		}
		unheard := given
		r := s.exec(&unheard, i, a)
		if s.pending.has(a.Kind) {
			w.db, w.before, w.redis, w.beats = unheard.db, unheard.before, unheard.redis, unheard.beats
			p.op = call{a, r}
			s.emit(w, "P%d sends %s: %s, reply under way", i, say(a), sayReply(a, r))
		} else {
			s.emit(unheard, "P%d sends %s: %s, reply LOST", i, say(a), sayReply(a, r))
			w.db, w.before, w.redis, w.beats = unheard.db, unheard.before, unheard.redis, unheard.beats
			p.m.Done(p.clock, a, r)
			s.emit(w, "P%d sends %s: %s", i, say(a), sayReply(a, r))
		}
		if a.Kind == degrade.Adopt && len(a.Holds) == 2 {
			// Half of the batch is executed.
			half := a
			half.Holds = a.Holds[:1]
			w := s.of(i)
			p := &w.p[i]
			a, _ := p.m.Begin(p.clock, a)
			r := s.exec(&w, i, half)
			p.m.Done(p.clock, a, r)
			s.emit(w, "P%d sends %s: only the first is executed, %s", i, say(a), sayReply(half, r))
		}
		if a.Kind == degrade.Poll && s.stale && s.w.before.Known() {
			w := s.of(i)
			p := &w.p[i]
			a, _ := p.m.Begin(p.clock, a)
			p.m.Done(p.clock, a, degrade.Reply{OK: true, Mode: s.w.before, Server: s.w.server,
				Members: []degrade.Member{{ID: "a", Epoch: s.w.before.Epoch - 1}}})
			s.emit(w, "P%d polls a STALE replica: %s", i, short(s.w.before))
		}
	}
}

// actions are all that process i could want.
func (s *steps) actions(i int) []degrade.Action {
	p := &s.w.p[i]
	if p.left {
		return nil
	}
	m, mode := p.m, p.m.Mode()
	as := []degrade.Action{{Kind: degrade.Poll}}
	if s.leave {
		as = append(as, degrade.Action{Kind: degrade.Leave})
	}
	if !mode.Known() {
		return as
	}
	if !mode.Drain {
		as = append(as, degrade.Action{Kind: degrade.Refresh, From: mode})
		if mode.Epoch < s.epochs {
			as = append(as, degrade.Action{Kind: degrade.Start, From: mode, To: drain(mode, degrade.MySQL, "")})
			for inc, name := range incarnations {
				if s.toRedis && (inc == 0 || s.w.failed) {
					as = append(as, degrade.Action{Kind: degrade.Start, From: mode, To: drain(mode, degrade.Redis, name)})
				}
			}
		}
	} else {
		var holds []degrade.HoldID
		for k := range s.keys {
			if m.Belief(keyIDs[k]) > p.clock {
				holds = append(holds, keyIDs[k])
			}
		}
		if len(holds) > 0 {
			as = append(as, degrade.Action{Kind: degrade.Adopt, From: mode, Holds: holds})
		}
		as = append(as, degrade.Action{Kind: degrade.Ack, From: mode}, degrade.Action{Kind: degrade.Open, From: mode})
	}
	if a, ok := m.TakeOver(); ok && s.loss {
		as = append(as, a)
	}
	if s.remove {
		for _, r := range m.Peers() {
			if r.ID != memberIDs[i] {
				as = append(as, degrade.Action{Kind: degrade.Remove, Member: r.ID, Beat: r.Beat})
			}
		}
	}
	return as
}

func drain(m degrade.Mode, t degrade.Tier, inc string) degrade.Mode {
	m.Epoch++
	m.Drain, m.Hard, m.Tier, m.Incarnation = true, false, t, inc
	return m
}

// reply has process i hear what is under way to it, or give up.
func (s *steps) reply(i int) {
	op := s.w.p[i].op
	w := s.of(i)
	p := &w.p[i]
	p.m.Done(p.clock, op.a, op.r)
	if p.dups > 0 {
		again := w
		again.p[i].dups--
		s.emit(again, "P%d hears of its %s: %s, and will hear it AGAIN", i, say(op.a), sayReply(op.a, op.r))
	}
	p.op = call{}
	s.emit(w, "P%d hears of its %s: %s", i, say(op.a), sayReply(op.a, op.r))
	w = s.of(i)
	p = &w.p[i]
	p.m.Done(p.clock, op.a, degrade.Reply{Lost: true})
	p.op = call{}
	s.emit(w, "P%d gives up on its %s", i, say(op.a))
}
