package degrade_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// chain is several machines that go by their own policy and the real periods, with
// an arbiter that answers 5 ms after each request and a Redis that may be away.
// The arbiter is the checker's; time goes in steps of 5 ms.
type chain struct {
	t     *testing.T
	scope scope
	w     world
	votes [maxProcs]degrade.Vote
	dead  [maxProcs]bool // does nothing any more
	blind [maxProcs]bool // does not reach Redis
	redis bool
	calls [maxProcs][]pending
	now   time.Duration
	ended []string
	left  int // rows removed by their owners
}

type pending struct {
	a  degrade.Action
	at time.Duration
}

const (
	chainStep = 5 * time.Millisecond
	lease     = 27 * time.Second // what is believed of a lease of 30 s
)

func newChain(t *testing.T, procs int) *chain {
	c := &chain{t: t, redis: true}
	c.scope = scope{procs: procs, keys: 1, epochs: 100, grants: 7, lease: int(lease / chainStep), slack: int(3 * time.Second / chainStep)}
	c.w.server = "A"
	for i := range procs {
		c.w.p[i].m = degrade.New(degrade.Config{Member: memberIDs[i]})
	}
	return c
}

// run lets time pass until done says so; it fails after limit.
func (c *chain) run(limit time.Duration, what string, done func() bool) time.Duration {
	c.t.Helper()
	from := c.now
	for !done() {
		if c.now-from > limit {
			c.t.Fatalf("after %v there is still not: %s; the arbiter is in %v", limit, what, short(c.w.db.mode))
		}
		c.step()
	}
	return c.now - from
}

func (c *chain) step() {
	c.now += chainStep
	for i := range c.scope.procs {
		p := &c.w.p[i]
		p.clock = degrade.Instant(c.now)
		if c.dead[i] {
			continue
		}
		calls := c.calls[i]
		c.calls[i] = nil
		for _, call := range calls {
			if c.now < call.at {
				c.calls[i] = append(c.calls[i], call)
			} else {
				c.answer(i, call.a)
			}
		}
		for _, a := range p.m.Due(p.clock) {
			if a, ok := p.m.Begin(p.clock, a); ok {
				c.calls[i] = append(c.calls[i], pending{a, c.now + chainStep})
			}
		}
		if next := p.m.Next(p.clock); next <= p.clock {
			c.t.Fatalf("P%d: all that was due is begun, and it wants to be asked again at once", i)
		}
		c.renew(i)
		for _, e := range p.m.Events() {
			if e.Kind == degrade.HoldEnded {
				c.ended = append(c.ended, fmt.Sprintf("%v P%d %s reason %d", c.now, i, e.Hold, e.Reason))
			}
		}
	}
}

func (c *chain) answer(i int, a degrade.Action) {
	p := &c.w.p[i]
	var r degrade.Reply
	switch {
	case a.Kind == degrade.Probe:
		r = degrade.Reply{OK: c.redis && !c.blind[i], Incarnation: "0"}
	case a.Kind == degrade.Create:
		if !c.w.db.mode.Known() {
			c.w.db.mode, r.OK = a.To, true
		}
	case a.Kind == degrade.Adopt && a.From.Tier == degrade.Redis && (!c.redis || c.blind[i]):
		r = degrade.Reply{Lost: true}
	default:
		r = c.scope.exec(&c.w, i, a)
		switch a.Kind {
		case degrade.Leave:
			c.left++
		case degrade.Refresh, degrade.Ack:
			c.votes[i] = a.Vote
		case degrade.Poll:
			for j := range r.Members {
				r.Members[j].Vote = c.votes[r.Members[j].ID[0]-'a']
			}
		}
	}
	p.m.Done(p.clock, a, r)
}

// renew keeps the process's lease in the store that it is from, where that is
// reached; the watchdog would do so every third of it.
func (c *chain) renew(i int) {
	p := &c.w.p[i]
	if c.now%(10*time.Second) != 0 || p.m.Belief(keyIDs[0]) <= p.clock {
		return
	}
	t := p.m.At(keyIDs[0])
	if t.Tier == degrade.Redis && (!c.redis || c.blind[i]) {
		return
	}
	p.m.Renewed(p.clock, keyIDs[0], t.Epoch, p.clock.Add(lease))
}

func (c *chain) take(i int) {
	c.t.Helper()
	p := &c.w.p[i]
	ticket, ok := p.m.MayGrant(p.clock)
	if !ok || !p.m.Granted(p.clock, ticket, degrade.Hold{ID: keyIDs[0], Lease: lease, Until: p.clock.Add(lease), Exclusive: true}) {
		c.t.Fatalf("P%d cannot take a lock in %v", i, short(p.m.Mode()))
	}
	p.fence[0] = c.scope.acquire(&c.w, i, 0, ticket)
}

func (c *chain) held(i int) bool { return c.w.p[i].m.Belief(keyIDs[0]) > c.w.p[i].clock }

// granting reports whether all that live may grant on a tier.
func (c *chain) granting(tier degrade.Tier) func() bool {
	return func() bool {
		for i := range c.scope.procs {
			t, ok := c.w.p[i].m.MayGrant(c.w.p[i].clock)
			if !c.dead[i] && (!ok || t.Tier != tier) {
				return false
			}
		}
		return true
	}
}

// The first process creates the mode row, with what it sees of Redis; two that try
// at once do not disturb each other.
func TestFirstMode(t *testing.T) {
	for tier, redis := range map[degrade.Tier]bool{degrade.Redis: true, degrade.MySQL: false} {
		c := newChain(t, 2)
		c.redis = redis
		c.run(3*time.Second, fmt.Sprint("grants on ", tier), c.granting(tier))
		if m := c.w.db.mode; m.Epoch != 1 || m.Server != "A" || m.Term != time.Minute || m.Drift != 10 {
			t.Fatalf("the first mode is %+v", m)
		}
	}
	m := degrade.New(degrade.Config{})
	a, _ := m.Begin(0, degrade.Action{Kind: degrade.Poll})
	m.Done(0, a, degrade.Reply{OK: true, Server: "A"})
	for _, a := range m.Due(0) {
		if a.Kind == degrade.Create {
			t.Fatal("a mode is created before Redis was probed")
		}
	}
}

// Redis dies under three processes, one of which holds a lock: all are on MySQL
// within what the periods allow, new grants pause for about two polls, and the
// hold is kept. Redis comes back, and so do they, with the hold.
func TestOutageAndReturn(t *testing.T) {
	c := newChain(t, 3)
	c.run(15*time.Second, "grants on Redis", c.granting(degrade.Redis))
	c.take(1)
	c.run(20*time.Second, "time", func() bool { return c.now >= 20*time.Second })
	c.redis = false
	noticed := c.run(12*time.Second, "a drain", func() bool { return c.w.db.mode.Drain })
	pause := c.run(4*time.Second, "grants on MySQL", c.granting(degrade.MySQL))
	if !c.held(1) || len(c.ended) > 0 {
		t.Fatalf("the hold was lost: %v", c.ended)
	}
	t.Logf("noticed after %v, no grants for %v", noticed, pause)
	if noticed > 10*time.Second || pause > 2500*time.Millisecond {
		t.Fatalf("noticed after %v, no grants for %v", noticed, pause)
	}
	c.redis = true
	back := c.run(3*time.Minute, "grants on Redis again", c.granting(degrade.Redis))
	if !c.held(1) || len(c.ended) > 0 {
		t.Fatalf("the hold was lost on the way back: %v", c.ended)
	}
	if back < time.Minute-4*time.Second || back > 75*time.Second {
		t.Fatalf("back after %v, want the dwell of a minute and a little", back)
	}
}

// A member that died at the moment of the switch costs the wait W and no more, and
// its row is removed afterwards.
func TestDeadMemberCostsW(t *testing.T) {
	c := newChain(t, 3)
	c.run(15*time.Second, "grants on Redis", c.granting(degrade.Redis))
	c.dead[2] = true
	c.redis = false
	c.run(12*time.Second, "a drain", func() bool { return c.w.db.mode.Drain })
	pause := c.run(2*time.Minute, "grants on MySQL", c.granting(degrade.MySQL))
	if w := 61213 * time.Millisecond; pause > w+2*time.Second {
		t.Fatalf("no grants for %v, W is %v", pause, w)
	}
	c.run(2*time.Minute, "removal of the dead member", func() bool { return !c.w.db.members[2].here })
	if !c.w.db.members[0].here || !c.w.db.members[1].here {
		t.Fatal("a living member was removed")
	}
}

// Who alone does not reach Redis drags nobody.
func TestOneBlindMemberIsNoOutage(t *testing.T) {
	c := newChain(t, 3)
	c.run(15*time.Second, "grants on Redis", c.granting(degrade.Redis))
	c.blind[0] = true
	c.run(3*time.Minute, "time", func() bool { return c.now > 2*time.Minute })
	if c.w.db.mode.Epoch != 1 {
		t.Fatalf("the chain is in %v", short(c.w.db.mode))
	}
	if !c.votes[0].Down || c.votes[1].Down || c.votes[2].Down {
		t.Fatalf("votes: %+v", c.votes)
	}
}

// A process that closes removes its row after its last hold, and then nobody waits
// for it.
func TestLeaving(t *testing.T) {
	c := newChain(t, 2)
	c.run(15*time.Second, "grants on Redis", c.granting(degrade.Redis))
	c.take(0)
	c.w.p[0].m.Close()
	c.run(40*time.Second, "time", func() bool { return c.now > 30*time.Second })
	if !c.held(0) || !c.w.db.members[0].here {
		t.Fatal("it left while it held a lock")
	}
	c.w.p[0].m.Release(keyIDs[0])
	c.run(time.Second, "the row's removal", func() bool { return !c.w.db.members[0].here })
	c.redis = false
	other := func() bool {
		if c.w.db.members[0].here {
			t.Fatal("its row is back")
		}
		mode, ok := c.w.p[1].m.MayGrant(c.w.p[1].clock)
		return ok && mode.Tier == degrade.MySQL
	}
	c.run(20*time.Second, "grants on MySQL by the other", other)
	if c.left != 1 {
		t.Fatalf("it left %d times", c.left)
	}
}
