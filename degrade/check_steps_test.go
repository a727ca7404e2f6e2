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
	marks     [maxProcs + 1]int // in next: where faults and the processes' steps begin
	violation string
	wrong     int // the step that is
}

func (s *steps) emit(w world, format string, args ...any) {
	back := s.returned(&w)
	s.next = append(s.next, w)
	if v := s.overlap(&w); v != "" {
		s.fail(v)
	} else if back != "" {
		s.fail(back)
	}
	if s.tracing {
		s.names = append(s.names, fmt.Sprintf(format, args...))
	}
}

// fail notes that the last step is wrong; the first one counts.
func (s *steps) fail(what string) {
	if s.violation == "" {
		s.violation, s.wrong = what, len(s.next)-1
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

// returned says which hold is believed again after it had ended, and notes those
// that have ended.
func (s *steps) returned(w *world) string {
	for i := range s.procs {
		p := &w.p[i]
		for k := range s.keys {
			if p.fence[k] == 0 {
				continue
			}
			believed := p.m.Belief(keyIDs[k]) > p.clock
			if believed && p.ended[k] {
				return fmt.Sprintf("P%d believes again in fence %d of key %d", i, p.fence[k], k)
			}
			p.ended[k] = !believed
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
	s.marks[0] = len(s.next)
	s.faults()
	for i := range s.procs {
		s.marks[i+1] = len(s.next)
		if w.p[i].op == nil {
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
			w.db.rows[k].tick()
			w.redis[0][k].tick()
			w.redis[1][k].tick()
		}
		if w.backup != nil {
			b := *w.backup
			for k := range s.keys {
				b.rows[k].tick()
			}
			w.backup = &b
		}
		s.emit(w, "a tick (lost by %03b)", lost)
	}
}

func (c *cell) tick() {
	if c.ttl > 0 {
		if c.ttl--; c.ttl == 0 {
			c.owner = 0
		}
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
		w := *s.w
		if w.backup == nil && !s.rewind {
			b := w.db
			w.backup = &b
			s.emit(w, "the arbiter's replica is at this state (%v)", short(b.mode))
		} else {
			w.db, w.server, w.backup = *w.backup, "B", nil
			s.emit(w, "the arbiter fails over to %v: later commits are LOST", short(w.db.mode))
		}
	}
	if l := s.w.late; l != nil {
		w := *s.w
		now := w.p[l.of].fence
		w.p[l.of].fence = l.fence
		r := s.exec(&w, l.of, l.a)
		w.p[l.of].fence = now
		w.late = nil
		s.emit(w, "LATE: P%d's %v is executed: %v", l.of, say(l.a), sayReply(l.a, r))
	}
}

// begin has process i begin whatever its machine lets it. The request is executed
// at once with the reply under way, or is lost, or is late.
func (s *steps) begin(i int) {
	for _, a := range s.actions(i) {
		if !s.w.p[i].m.Can(s.w.p[i].clock, a) {
			continue
		}
		if s.idle(i, a) {
			continue
		}
		w := s.of(i)
		p := &w.p[i]
		a, ok := p.m.Begin(p.clock, a)
		if !ok {
			panic("can, but does not begin")
		}
		lost := w // and given up on
		if a.Kind != degrade.Poll || s.late.has(a.Kind) {
			lost.p[i].m = p.m.Clone()
			lost.p[i].m.Done(p.clock, a, degrade.Reply{Lost: true})
		}
		if a.Kind == degrade.Ack || a.Kind == degrade.Adopt || a.Kind == degrade.Leave {
			s.emit(lost, "P%d sends %v, which is LOST", i, say(a)) // else nothing changes
		}
		if s.late.has(a.Kind) && s.w.late == nil {
			later := lost
			later.late = &late{a, i, p.fence}
			s.emit(later, "P%d sends %v, gives up on it, and it is LATE", i, say(a))
		}
		r := s.exec(&w, i, a)
		if s.pending.has(a.Kind) {
			p.op = &call{a, r}
			s.emit(w, "P%d sends %v: %v, reply under way", i, say(a), sayReply(a, r))
		} else {
			lost.db, lost.before, lost.redis, lost.beats = w.db, w.before, w.redis, w.beats
			if a.Kind != degrade.Poll {
				s.emit(lost, "P%d sends %v: %v, reply LOST", i, say(a), sayReply(a, r))
			}
			p.m.Done(p.clock, a, r)
			s.emit(w, "P%d sends %v: %v", i, say(a), sayReply(a, r))
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
		if a.Kind == degrade.Poll && s.stale && s.w.before != nil {
			w := s.of(i)
			p := &w.p[i]
			a, _ := p.m.Begin(p.clock, a)
			p.m.Done(p.clock, a, degrade.Reply{OK: true, Mode: *s.w.before, Server: s.w.server,
				Members: []degrade.Member{{ID: "a", Epoch: s.w.before.Epoch - 1}}})
			s.emit(w, "P%d polls a STALE replica: %s", i, short(*s.w.before))
		}
	}
}

// idle reports whether an action would change nothing that matters.
func (s *steps) idle(i int, a degrade.Action) bool {
	p := &s.w.p[i]
	switch {
	case a.Kind == degrade.Poll:
		if s.remove {
			if len(p.m.Peers()) != s.here() {
				return false
			}
			for _, r := range p.m.Peers() {
				if m := s.w.db.members[r.ID[0]-'a']; !m.here || uint64(m.beat) != r.Beat {
					return false
				}
			}
		}
		mode := p.m.Mode()
		_, stray := p.m.TakeOver()
		return mode == s.w.db.mode && mode.Server == s.w.server && !stray && !s.stale &&
			!(mode.Drain && s.clear(s.w))
	case a.Kind == degrade.Refresh:
		return !s.remove && p.m.Permit().Sub(p.clock) == dur(s.term) && s.w.db.members[i].epoch == uint8(a.From.Epoch)
	}
	return false
}

// here is the number of member rows.
func (s *steps) here() int {
	n := 0
	for _, m := range s.w.db.members {
		if m.here {
			n++
		}
	}
	return n
}

// clear reports whether a poll would find that a drain can be opened.
func (s *steps) clear(w *world) bool {
	for _, m := range s.exec(w, 0, degrade.Action{Kind: degrade.Poll}).Members {
		if max(m.Epoch, m.Acked) == w.db.mode.Epoch-1 {
			return false
		}
	}
	return true
}

// actions are all that process i could want.
func (s *steps) actions(i int) []degrade.Action {
	p := &s.w.p[i]
	m, mode := p.m, p.m.Mode()
	as := []degrade.Action{{Kind: degrade.Poll}}
	if p.closing {
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
		s.emit(again, "P%d hears of its %v: %v, and will hear it AGAIN", i, say(op.a), sayReply(op.a, op.r))
	}
	p.op = nil
	s.emit(w, "P%d hears of its %v: %v", i, say(op.a), sayReply(op.a, op.r))
	w = s.of(i)
	w.p[i].m.Done(p.clock, op.a, degrade.Reply{Lost: true})
	w.p[i].op = nil
	s.emit(w, "P%d gives up on its %v", i, say(op.a))
}
