package degrade

import (
	"maps"
	"slices"
)

// Rules are the switches that take single protective rules away.
type Rules = rules

// NewWith makes a machine without some of its rules.
func NewWith(c Config, r Rules) *Machine {
	m := New(c)
	m.rules = r
	return m
}

// Can and TakeOver are for a checker that decides itself what is begun and when.
func (m *Machine) Can(now Instant, a Action) bool { return m.can(now, a) }
func (m *Machine) TakeOver() (Action, bool)       { return m.takeOver(), m.stray.Known() }

// At is a hold's place alone.
func (m *Machine) At(id HoldID) Ticket { return m.holds[id].place }

// Peers are the member rows of the last reading.
func (m *Machine) Peers() []Member {
	var rows []Member
	for _, p := range m.peers {
		rows = append(rows, p.Member)
	}
	return rows
}

// Clone is a machine that goes its own way from here.
func (m *Machine) Clone() *Machine {
	c := *m
	c.holds = map[HoldID]hold{}
	maps.Copy(c.holds, m.holds)
	c.peers = m.peers // replaced as a whole, never changed in place
	c.events = nil
	c.policy.returns = slices.Clone(m.policy.returns)
	return &c
}

// Canon appends all that can matter for exclusion from now on: two machines with
// the same bytes behave alike under any inputs, whatever the policy does. Times
// stand relative to now, and those that are over all look the same. With peers the
// member rows that the machine remembers are part of it: peers gives a row's place
// and whether it can still be the present one.
func (m *Machine) Canon(b []byte, now Instant, peers func(id string, beat uint64) (place int, matters bool)) []byte {
	rel := func(t Instant) byte {
		if t <= now {
			return 0
		}
		return byte(t - now)
	}
	bit := func(v bool) byte {
		if v {
			return 1
		}
		return 0
	}
	b = CanonMode(b, m.mode)
	p := rel(m.permit)
	b = append(b, p)
	if p > 0 {
		b = append(b, byte(m.permitEpoch))
	}
	if m.mode.Drain {
		b = append(b, rel(m.openAt), bit(m.clear), bit(m.ackSent))
		if m.rules != (rules{}) {
			b = append(b, bit(m.acked))
		}
	}
	b = append(b, bit(m.joined)|bit(m.closing)<<1)
	b = CanonMode(b, m.stray)
	for _, id := range [...]HoldID{"k0", "k1"} {
		h, ok := m.holds[id]
		if !ok || !m.alive(now, h) {
			b = append(b, 255)
			continue
		}
		b = append(b, rel(h.until), bit(h.exclusive), byte(h.place.Epoch), byte(h.place.Tier), bit(h.adopted), rel(h.newUntil))
		b = append(b, h.place.Incarnation...)
	}
	if m.stray.Known() {
		b = CanonMode(b, m.takeover(m.stray))
	}
	if peers != nil {
		at := len(b)
		b = append(b, make([]byte, 3)...)
		for _, p := range m.peers {
			if i, ok := peers(p.ID, p.Beat); ok {
				b[at+i] = 1 + byte(min(now.Sub(p.since), m.mode.wait(m.cfg.Grace)))
			}
		}
	}
	return b
}

// CanonMode appends a mode.
func CanonMode(b []byte, m Mode) []byte {
	f := byte(m.Tier)
	if m.Drain {
		f |= 4
	}
	if m.Hard {
		f |= 8
	}
	b = append(b, byte(m.Epoch), f)
	b = append(b, m.Incarnation...)
	return append(b, m.Server...)
}

// NewRunnerWith starts a runner whose machine lacks some of its rules.
func NewRunnerWith(c RunnerConfig, rules Rules) *Runner {
	r := NewRunner(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m.rules = rules
	return r
}
