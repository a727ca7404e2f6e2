package degrade_test

import (
	"fmt"

	"github.com/tierlock/tierlock/degrade"
)

// locks are grants, renewals and releases of process i. A renewal is executed and
// heard of in one step: the worst case for exclusion is the longest belief.
func (s *steps) locks(i int) {
	now := s.w.p[i]
	if s.leave && !now.closing {
		w := s.of(i)
		w.p[i].m.Close()
		w.p[i].closing = true
		s.emit(w, "P%d closes", i)
	}
	for k := range s.keys {
		id := keyIDs[k]
		held := now.m.Belief(id) > now.clock
		if t, ok := now.m.MayGrant(now.clock); ok && !held && now.grant == nil {
			s.grant(i, k, t)
		}
		if held {
			s.renew(i, k)
			s.unlock(i, k)
		} else if s.late != 0 && now.grant == nil && now.op == nil {
			s.undo(i, k)
		}
	}
	if now.grant != nil {
		w := s.of(i)
		bad := s.granted(&w, i)
		s.emit(w, "P%d hears of its grant of fence %d", i, now.grant.fence)
		if bad != "" {
			s.fail(bad)
		}
		w = *s.w
		w.p[i].grant = nil
		s.emit(w, "P%d gives up on its grant", i)
	}
}

// grant asks the store that t names and, where the stores do not look at what
// data Redis has, the other Redis as well.
func (s *steps) grant(i, k int, t degrade.Ticket) {
	places := []degrade.Ticket{t}
	if s.broken.anyIncarnation && t.Tier == degrade.Redis && s.w.failed {
		other := t
		other.Incarnation = incarnations[1-int(t.Incarnation[0]-'0')]
		places = append(places, other)
	}
	for _, at := range places {
		w := s.of(i)
		p := &w.p[i]
		fence := s.acquire(&w, i, k, at)
		if fence == 0 {
			continue
		}
		p.m.Release(keyIDs[k]) // an old hold that has ended unnoticed
		p.grant = &grant{key: k, fence: fence, sent: p.clock, t: t}
		if s.slowGrant {
			s.emit(w, "P%d is granted fence %d on %v %s e%d, reply under way", i, fence, at.Tier, at.Incarnation, at.Epoch)
			continue
		}
		lost := w
		lost.p[i].m, lost.p[i].grant = p.m.Clone(), nil
		bad := s.granted(&w, i)
		s.emit(w, "P%d is granted fence %d of key %d on %v %s e%d", i, fence, k, at.Tier, at.Incarnation, at.Epoch)
		if bad != "" {
			s.fail(bad)
		}
		s.emit(lost, "P%d is granted fence %d on %v e%d, reply LOST", i, fence, at.Tier, at.Epoch)
	}
}

// granted has process i hear of its grant. It says what is wrong with the fence.
func (s *steps) granted(w *world, i int) string {
	p := &w.p[i]
	g := p.grant
	p.grant = nil
	ok := p.m.Granted(p.clock, g.t, degrade.Hold{
		ID: keyIDs[g.key], Lease: dur(s.lease), Until: g.sent.Add(dur(s.lease)), Exclusive: true,
	})
	if !ok {
		return ""
	}
	p.fence[g.key], p.ended[g.key] = g.fence, false
	if g.fence <= w.highest[g.key] {
		return fmt.Sprintf("fence %d of key %d is believed after %d", g.fence, g.key, w.highest[g.key])
	}
	w.highest[g.key] = g.fence
	return ""
}

// mine reports whether c is process i's present hold of key k.
func (s *steps) mine(c *cell, i, k int) bool {
	return c != nil && c.owner == uint8(i+1) && c.fence == s.w.p[i].fence[k]
}

func (s *steps) renew(i, k int) {
	w := s.of(i)
	p := &w.p[i]
	t := p.m.At(keyIDs[k])
	c := s.cell(&w, t, k)
	until := p.clock.Add(dur(s.lease))
	if !s.mine(c, i, k) || uint16(c.epoch) != t.Epoch {
		return
	}
	c.ttl = s.ttl()
	p.m.Renewed(p.clock, keyIDs[k], t.Epoch, until)
	s.emit(w, "P%d renews key %d on %v %s e%d", i, k, t.Tier, t.Incarnation, t.Epoch)
}

func (s *steps) unlock(i, k int) {
	w := s.of(i)
	w.p[i].m.Release(keyIDs[k])
	for _, c := range []*cell{&w.db.rows[k], &w.redis[0][k], &w.redis[1][k]} {
		if s.mine(c, i, k) {
			c.owner, c.ttl = 0, 0
		}
	}
	s.emit(w, "P%d unlocks key %d", i, k)
}

// undo frees what a lost or late request has left behind.
func (s *steps) undo(i, k int) {
	w := *s.w
	some := false
	for _, c := range []*cell{&w.db.rows[k], &w.redis[0][k], &w.redis[1][k]} {
		if c.owner == uint8(i+1) {
			c.owner, c.ttl, some = 0, 0, true
		}
	}
	if some {
		s.emit(w, "P%d undoes what it left of key %d", i, k)
	}
}

var kindNames = map[degrade.Kind]string{
	degrade.Poll: "poll", degrade.Refresh: "refresh", degrade.Start: "start", degrade.Adopt: "adopt",
	degrade.Ack: "ack", degrade.Open: "open", degrade.Takeover: "takeover", degrade.Remove: "remove", degrade.Leave: "leave",
}

func say(a degrade.Action) lazy { return lazy{a} }

// lazy is an action or mode that is put into words only if a trace is printed.
type lazy struct{ a degrade.Action }

func (l lazy) String() string {
	s := kindNames[l.a.Kind]
	if l.a.From.Known() {
		s += " in " + short(l.a.From)
	}
	if l.a.To.Known() {
		s += " to " + short(l.a.To)
	}
	if l.a.Member != "" {
		s += " " + l.a.Member
	}
	return s
}

func sayReply(a degrade.Action, r degrade.Reply) lazyReply { return lazyReply{a, r} }

type lazyReply struct {
	a degrade.Action
	r degrade.Reply
}

func (l lazyReply) String() string {
	switch {
	case l.a.Kind == degrade.Poll:
		return fmt.Sprint(short(l.r.Mode), l.r.Members)
	case l.a.Kind == degrade.Adopt:
		return fmt.Sprint(l.r.Adopted)
	case l.r.OK:
		return "done"
	}
	return "refused"
}

func short(m degrade.Mode) string {
	s := fmt.Sprintf("e%d %v%s", m.Epoch, m.Tier, m.Incarnation)
	if m.Hard {
		s = "HARD " + s
	}
	if m.Drain {
		s = "drain to " + s
	}
	return s + "@" + m.Server
}
