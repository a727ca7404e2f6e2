package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// namespace is the mode row and the member rows of one namespace.
type namespace struct {
	mode    degrade.Mode
	before  degrade.Mode // for PollStale
	members map[string]degrade.Member
	log     *[]ModeChange // of all servers
}

// ModeChange is a mode that came into the row.
type ModeChange struct {
	degrade.Mode
	At time.Time
}

// Arbitrate is described by [degrade.Arbiter].
func (s *MySQLStore) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	o, err := on(ctx, &s.locks, func(h *host) outcome[degrade.Reply] {
		if h.readOnly {
			return outcome[degrade.Reply]{err: errReadOnly}
		}
		return outcome[degrade.Reply]{res: h.arbitrate(self, a)}
	})
	if err = errors.Join(err, o.err); err != nil {
		return degrade.Reply{}, fmt.Errorf("simmysql: arbitrate: %w", err)
	}
	return o.res, nil
}

// arbitrate is one statement. It is called with the mutex held.
func (h *host) arbitrate(self degrade.Self, a degrade.Action) degrade.Reply {
	x := &h.locks.broken
	if x.NamespacesMixed {
		self.Namespace = ""
	}
	ns := h.arbiter[self.Namespace]
	if ns == nil {
		ns = &namespace{members: make(map[string]degrade.Member), log: new([]ModeChange)}
		h.arbiter[self.Namespace] = ns
	}
	here := ns.mode.Known() && (ns.mode.Server == h.incarnation || x.ServerUnchecked)
	is := func(drain bool) bool {
		return here && ns.mode.Epoch == a.From.Epoch && ns.mode.Drain == drain
	}
	me, known := ns.members[self.Member]
	write := func(epoch, acked uint16) {
		beat := rand.Uint64() // of no consequence, so not by the seed
		if x.BeatFromOne {
			beat = me.Beat + 1
		}
		m := degrade.Member{ID: self.Member, Epoch: epoch, Acked: acked, Beat: beat, Vote: a.Vote, Digest: self.Digest, App: self.App, Host: self.Host}
		if x.VoteForgotten {
			m.Vote = me.Vote
		}
		h.setMember(self.Namespace, m)
	}
	ok := degrade.Reply{OK: true}
	switch a.Kind {
	case degrade.Poll:
		r := degrade.Reply{OK: true, Mode: ns.mode, Server: h.incarnation}
		if x.PollStale && ns.before.Known() {
			r.Mode = ns.before
		}
		for _, id := range slices.Sorted(maps.Keys(ns.members)) {
			r.Members = append(r.Members, ns.members[id])
		}
		return r
	case degrade.Create:
		if !ns.mode.Known() || x.CreateAgain {
			h.setMode(self.Namespace, a.To)
			return ok
		}
	case degrade.Refresh:
		if is(false) || x.RefreshInDrain && here && ns.mode.Drain && ns.mode.Epoch == a.From.Epoch+1 || x.RefreshUnguarded {
			if x.RefreshForgets {
				me.Acked = 0
			}
			write(a.From.Epoch, me.Acked)
			return ok
		}
	case degrade.Start:
		if is(false) || x.StartUnguarded {
			to := a.To
			if x.StartKeepsTier {
				to.Tier = ns.mode.Tier
			}
			h.setMode(self.Namespace, to)
			return ok
		}
	case degrade.Ack:
		if is(true) || x.AckUnguarded {
			if x.AckIsRefresh {
				me.Epoch = a.From.Epoch
			}
			beat := me.Beat
			write(me.Epoch, a.From.Epoch)
			if x.BeatKept && known {
				m := ns.members[self.Member]
				m.Beat = beat
				h.setMember(self.Namespace, m)
			}
			return ok
		}
	case degrade.Open:
		if is(true) || x.OpenUnguarded {
			to := ns.mode
			to.Drain, to.Hard = false, false
			h.setMode(self.Namespace, to)
			return ok
		}
	case degrade.Takeover:
		row := ns.mode
		if x.TakeoverRefused {
			break
		}
		if row.Known() && row.Epoch == a.From.Epoch && row.Drain == a.From.Drain && row.Server == a.From.Server &&
			(row.Server != h.incarnation || a.From.Epoch < a.Known) || x.TakeoverUnguarded {
			to := a.To
			if !x.TakeoverNames {
				to.Server = h.incarnation
			}
			h.setMode(self.Namespace, to)
			return degrade.Reply{OK: true, Server: h.incarnation}
		}
	case degrade.Remove:
		m, there := ns.members[a.Member]
		if here && there && (m.Beat == a.Beat || x.RemoveIgnoresBeat) {
			h.dropMember(self.Namespace, a.Member)
			return ok
		}
		if x.RemoveIgnoresRow {
			return ok
		}
	case degrade.Leave:
		if here && x.LeaveAll {
			for _, id := range slices.Collect(maps.Keys(ns.members)) {
				h.dropMember(self.Namespace, id)
			}
		}
		if here && known {
			h.dropMember(self.Namespace, self.Member)
			return ok
		}
	}
	return degrade.Reply{}
}

func (h *host) setMode(of string, m degrade.Mode) {
	ns := h.arbiter[of]
	old := ns.mode
	ns.mode, ns.before = m, old
	*ns.log = append(*ns.log, ModeChange{m, time.Now()})
	h.journal.note(func(h *host) { h.arbiter[of].mode = old })
}

func (h *host) setMember(of string, m degrade.Member) {
	ns := h.arbiter[of]
	old, was := ns.members[m.ID]
	ns.members[m.ID] = m
	h.journal.note(func(h *host) {
		if was {
			h.arbiter[of].members[m.ID] = old
		} else {
			delete(h.arbiter[of].members, m.ID)
		}
	})
}

func (h *host) dropMember(of, id string) {
	ns := h.arbiter[of]
	old := ns.members[id]
	delete(ns.members, id)
	h.journal.note(func(h *host) { h.arbiter[of].members[id] = old })
}

// Mode is the mode row of a namespace; the zero Mode if there is none.
func (m *MySQL) Mode(of string) degrade.Mode {
	h := m.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	if ns := h.arbiter[of]; ns != nil {
		return ns.mode
	}
	return degrade.Mode{}
}

// Modes are all modes of a namespace so far, also those that a failover has lost.
func (m *MySQL) Modes(of string) []ModeChange {
	h := m.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	if ns := h.arbiter[of]; ns != nil {
		return slices.Clone(*ns.log)
	}
	return nil
}

// Members are the ids of the member rows of a namespace, sorted.
func (m *MySQL) Members(of string) []string {
	h := m.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	if ns := h.arbiter[of]; ns != nil {
		return slices.Sorted(maps.Keys(ns.members))
	}
	return nil
}
