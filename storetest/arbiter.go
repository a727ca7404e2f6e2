package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
)

// RunArbiter runs the suite for stores that decide which mode of a chain is in
// force: what [degrade.Kind] says of each action but Adopt and Probe. Each store of
// the harness has to be a [tierlock.Arbiter].
//
// The backend is one healthy primary. A failover to another one is played by a mode
// row that names another server.
func RunArbiter(t *testing.T, newHarness func(t *testing.T) Harness) {
	runAll(t, arbiterChecks, newHarness)
}

// RunArbiterInBubble is [RunArbiter] as [RunInBubble] is [Run].
func RunArbiterInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	runAllInBubble(t, arbiterChecks, newHarness)
}

var arbiterChecks = []check{
	{"ArbiterPoll", arbiterPoll},
	{"ArbiterCreate", arbiterCreate},
	{"ArbiterRefresh", arbiterRefresh},
	{"ArbiterStart", arbiterStart},
	{"ArbiterAck", arbiterAck},
	{"ArbiterOpen", arbiterOpen},
	{"ArbiterTakeover", arbiterTakeover},
	{"ArbiterRemove", arbiterRemove},
	{"ArbiterLeave", arbiterLeave},
	{"ArbiterBeats", arbiterBeats},
	{"ArbiterNamespaces", arbiterNamespaces},
	{"ArbiterTexts", arbiterTexts},
	{"ArbiterContextEnded", arbiterContextEnded},
	{"ArbiterOneCreates", arbiterOneCreates},
	{"ArbiterOneStarts", arbiterOneStarts},
	{"ArbiterSwitches", arbiterSwitches},
}

// foreign is a server that no backend is.
const foreign = "storetest-another-server"

// peer is one member, at one of the two stores.
type peer struct {
	b    *bench
	arb  tierlock.Arbiter
	self degrade.Self
}

func (b *bench) arbiter(s *side) tierlock.Arbiter {
	b.Helper()
	arb, ok := s.Store.(tierlock.Arbiter)
	if !ok {
		b.Fatalf("harness: a %T is no tierlock.Arbiter", s.Store)
	}
	return arb
}

// peers are n members of a namespace of their own, on both stores in turn.
func (b *bench) peers(tag string, n int) []*peer {
	b.Helper()
	ps := make([]*peer, n)
	for i := range ps {
		ps[i] = &peer{b: b, arb: b.arbiter(b.side(i)), self: degrade.Self{
			Namespace: b.ns + tag, Member: random(16), Digest: fmt.Sprint("digest ", i),
			App: "storetest", Host: "here", PID: 1000 + i,
		}}
	}
	return ps
}

// do carries out one action, which has to be answered.
func (p *peer) do(a degrade.Action) degrade.Reply {
	p.b.Helper()
	var r degrade.Reply
	var err error
	p.b.in(func(ctx context.Context) { r, err = p.arb.Arbitrate(ctx, p.self, a) })
	if err != nil {
		p.b.Fatalf("Arbitrate %s by %s: got error %v, want an answer", describe(a), p.self.Member, err)
	}
	return r
}

// done and refused carry out what has to be executed, or not.
func (p *peer) done(a degrade.Action) degrade.Reply {
	p.b.Helper()
	r := p.do(a)
	if !r.OK {
		p.b.Fatalf("Arbitrate %s by %s: got refused, want done; the mode is %+v", describe(a), p.self.Member, p.poll().Mode)
	}
	return r
}

// refused also checks that nothing has changed.
func (p *peer) refused(why string, a degrade.Action) {
	p.b.Helper()
	before := p.poll()
	if r := p.do(a); r.OK {
		p.b.Fatalf("Arbitrate %s, %s: got OK, want refused; the mode is %+v", describe(a), why, before.Mode)
	}
	if after := p.poll(); fmt.Sprint(before) != fmt.Sprint(after) {
		p.b.Errorf("Arbitrate %s, %s, refused: the tables were %+v and are %+v, want no change", describe(a), why, before, after)
	}
}

// poll reads the tables, the members in the order of their ids.
func (p *peer) poll() degrade.Reply {
	p.b.Helper()
	return p.b.poll(p.arb, p.self.Namespace)
}

func (b *bench) poll(arb tierlock.Arbiter, ns string) degrade.Reply {
	b.Helper()
	var r degrade.Reply
	var err error
	b.in(func(ctx context.Context) {
		r, err = arb.Arbitrate(ctx, degrade.Self{Namespace: ns, Member: strings.Repeat("0", 32)}, degrade.Action{Kind: degrade.Poll})
	})
	if err != nil {
		b.Fatalf("Arbitrate poll: got error %v, want an answer", err)
	}
	sortMembers(r.Members)
	return r
}

// row is the own member row.
func (p *peer) row() (degrade.Member, bool) {
	p.b.Helper()
	for _, m := range p.poll().Members {
		if m.ID == p.self.Member {
			return m, true
		}
	}
	return degrade.Member{}, false
}

// mode checks the mode row.
func (p *peer) mode(after string, want degrade.Mode) {
	p.b.Helper()
	if got := p.poll().Mode; got != want {
		p.b.Fatalf("the mode after %s is %+v, want %+v", after, got, want)
	}
}

// server is the identity of the backend.
func (p *peer) server() string {
	p.b.Helper()
	s := p.poll().Server
	if s == "" {
		p.b.Fatalf("Arbitrate poll: got no identity of the server")
	}
	return s
}

// first is an open mode of epoch 7 at a server.
func first(server string) degrade.Mode {
	return degrade.Mode{Epoch: 7, Tier: degrade.Redis, Incarnation: strings.Repeat("ab", 20), Server: server,
		Term: 61*time.Second + 7*time.Microsecond, Drift: 13}
}

// drainOf is the drain that leads from an open mode to MySQL.
func drainOf(m degrade.Mode) degrade.Mode {
	m.Epoch++
	m.Drain, m.Tier, m.Incarnation = true, degrade.MySQL, ""
	return m
}

func openOf(m degrade.Mode) degrade.Mode {
	m.Drain, m.Hard = false, false
	return m
}

// create makes a mode in peers' namespace.
func (p *peer) create(m degrade.Mode) degrade.Mode {
	p.b.Helper()
	p.done(degrade.Action{Kind: degrade.Create, To: m})
	p.mode("its creation", m)
	return m
}

// bring makes m the mode of the namespace in the way that it comes about.
func (p *peer) bring(m degrade.Mode) degrade.Mode {
	p.b.Helper()
	if !m.Drain {
		return p.create(m)
	}
	before := m
	before.Epoch, before.Drain, before.Server = m.Epoch-1, false, p.server()
	p.create(before)
	p.done(start(before, m))
	p.mode("a start", m)
	return m
}

// disowned makes m, of another server, the mode. That is possible for a drain, since
// a start writes what it is told; an arbiter may refuse to create one.
func (p *peer) disowned(m degrade.Mode) bool {
	p.b.Helper()
	m.Server = foreign
	if m.Drain {
		p.bring(m)
		return true
	}
	if !p.do(degrade.Action{Kind: degrade.Create, To: m}).OK {
		p.b.Logf("the arbiter creates no mode of another server: some conditions are not checked")
		return false
	}
	return true
}

func refresh(m degrade.Mode) degrade.Action { return degrade.Action{Kind: degrade.Refresh, From: m} }
func start(m, to degrade.Mode) degrade.Action {
	return degrade.Action{Kind: degrade.Start, From: m, To: to}
}
func ack(m degrade.Mode) degrade.Action  { return degrade.Action{Kind: degrade.Ack, From: m} }
func open(m degrade.Mode) degrade.Action { return degrade.Action{Kind: degrade.Open, From: m} }

var kindNames = map[degrade.Kind]string{
	degrade.Poll: "poll", degrade.Create: "create", degrade.Refresh: "refresh", degrade.Start: "start",
	degrade.Ack: "ack", degrade.Open: "open", degrade.Takeover: "takeover", degrade.Remove: "remove", degrade.Leave: "leave",
}

func describe(a degrade.Action) string {
	s := kindNames[a.Kind]
	if a.From.Known() {
		s += fmt.Sprintf(" in epoch %d (drain %v) of %s", a.From.Epoch, a.From.Drain, a.From.Server)
	}
	return s
}

// others are modes that differ from m in their epochs, with why.
func others(m degrade.Mode) map[string]degrade.Mode {
	earlier, later := m, m
	earlier.Epoch--
	later.Epoch++
	return map[string]degrade.Mode{"meant for the epoch before": earlier, "meant for the next epoch": later}
}

// guarded tries an action on the mode m at its own server: refused for any other
// mode, where there is none, and where another server wrote it.
func (b *bench) guarded(tag string, m degrade.Mode, action func(from degrade.Mode) degrade.Action) {
	b.Helper()
	p := b.peers(tag+"-none", 1)[0]
	p.refused("with no mode row", action(m))
	p = b.peers(tag+"-foreign", 1)[0]
	if p.disowned(m) {
		elsewhere := m
		elsewhere.Server = foreign
		p.refused("with a row that another server wrote", action(elsewhere))
		p.refused("with a row that another server wrote, and meant for this one", action(m))
	}
	p = b.peers(tag+"-turned", 1)[0]
	turned := m
	turned.Drain = !m.Drain
	p.bring(turned)
	p.refused(fmt.Sprintf("with the row a drain: %v", turned.Drain), action(m))
	p = b.peers(tag+"-other", 1)[0]
	p.bring(m)
	for why, from := range others(m) {
		p.refused(why, action(from))
	}
	p.done(action(m)) // and the action itself is none that is refused always
}
