package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
)

func sortMembers(rows []degrade.Member) {
	slices.SortFunc(rows, func(a, b degrade.Member) int { return cmp.Compare(a.ID, b.ID) })
}

func arbiterPoll(b *bench) {
	ps := b.peers("", 2)
	r := ps[0].poll()
	if r.Mode.Known() || len(r.Members) != 0 || r.Server == "" {
		b.Fatalf("Arbitrate poll of an empty namespace: got %+v, want no mode, no members, and the server", r)
	}
	if again := ps[1].poll(); again.Server != r.Server {
		b.Errorf("Arbitrate poll by another: got server %q, want the same: %q", again.Server, r.Server)
	}
	m := ps[0].create(first(r.Server))
	if r := ps[1].poll(); r.Mode != m || len(r.Members) != 0 {
		b.Errorf("Arbitrate poll of a mode without members: got %+v, want mode %+v alone", r, m)
	}
	ps[1].done(refresh(m))
	ps[0].done(refresh(m))
	if r := ps[0].poll(); r.Mode != m || len(r.Members) != 2 {
		b.Errorf("Arbitrate poll of a mode with two members: got %+v, want mode %+v with both", r, m)
	}
	to := drainOf(m)
	ps[0].done(start(m, to))
	for i := range 4 { // at once, by whomever it is read
		ps[i%2].mode("a start", to)
	}
}

func arbiterCreate(b *bench) {
	p := b.peers("", 1)[0]
	m := p.create(first(p.server()))
	p.refused("with a mode row there", degrade.Action{Kind: degrade.Create, To: m})
	other := m
	other.Epoch, other.Tier = 1, degrade.MySQL
	p.refused("with another mode row there", degrade.Action{Kind: degrade.Create, To: other})
	p.mode("a refused creation", m)
	for i, m := range []degrade.Mode{
		{Epoch: 1, Tier: degrade.MySQL, Term: time.Minute, Drift: 10},
		{Epoch: 16383, Tier: degrade.Redis, Incarnation: "x", Term: time.Microsecond, Drift: 999},
	} {
		p := b.peers(fmt.Sprint("-", i), 1)[0]
		m.Server = p.server()
		p.create(m)
	}
}

func arbiterRefresh(b *bench) {
	ps := b.peers("", 2)
	m := ps[0].create(first(ps[0].server()))
	vote := degrade.Vote{Down: true, Incarnation: "seen"}
	a := refresh(m)
	a.Vote = vote
	ps[0].done(a)
	row, there := ps[0].row()
	want := degrade.Member{ID: ps[0].self.Member, Epoch: 7, Beat: row.Beat, Vote: vote, Digest: ps[0].self.Digest, App: "storetest", Host: "here"}
	if !there || row != want || row.Beat == 0 {
		b.Fatalf("the row after a first refresh is %+v, want %+v", row, want)
	}
	ps[1].done(refresh(m))
	for _, vote := range []degrade.Vote{{Up: true, Incarnation: "other"}, {}, {Down: true, Up: true}} {
		a.Vote, want.Vote = vote, vote
		ps[0].self.Digest += "!"
		want.Digest += "!"
		ps[0].done(a)
		row, _ := ps[0].row()
		if row.Beat == want.Beat {
			b.Errorf("the beat after another refresh is %d, as before, want another", row.Beat)
		}
		want.Beat = row.Beat
		if row != want {
			b.Errorf("the row after another refresh is %+v, want %+v", row, want)
		}
	}
	ps[0].mode("refreshes", m)

	// What was acked stays: the row is of the larger of the two.
	to := drainOf(m)
	ps[0].done(start(m, to))
	ps[0].refused("in a drain", refresh(m))
	ps[1].refused("in a drain", refresh(openOf(to)))
	ps[0].done(ack(to))
	ps[0].done(open(to))
	ps[0].done(refresh(openOf(to)))
	if row, _ := ps[0].row(); row.Epoch != 8 || row.Acked != 8 {
		b.Errorf("the row after a refresh of what was acked is %+v, want epoch 8, acked 8", row)
	}
	next := drainOf(openOf(to))
	ps[1].done(start(openOf(to), next))
	ps[1].done(open(next))
	ps[0].done(refresh(openOf(next)))
	if row, _ := ps[0].row(); row.Epoch != 9 || row.Acked != 8 {
		b.Errorf("the row after a refresh of an epoch that it has not acked is %+v, want epoch 9, acked 8", row)
	}
	b.guarded("-r", first(ps[0].server()), refresh)
}

func arbiterStart(b *bench) {
	p := b.peers("", 1)[0]
	m := p.create(first(p.server()))
	to := drainOf(m)
	p.done(start(m, to))
	p.mode("a start to MySQL", to)
	p.refused("with the drain begun", start(m, to))
	p.done(open(to))
	m = openOf(to)
	p.mode("its opening", m)
	back := drainOf(m)
	back.Tier, back.Incarnation = degrade.Redis, strings.Repeat("cd", 20)
	p.done(start(m, back))
	p.mode("a start to Redis", back)
	b.guarded("-s", first(p.server()), func(from degrade.Mode) degrade.Action { return start(from, drainOf(from)) })
}

func arbiterAck(b *bench) {
	ps := b.peers("", 3)
	m := ps[0].create(first(ps[0].server()))
	ps[0].done(refresh(m))
	ps[1].done(refresh(m))
	before, _ := ps[0].row()
	to := drainOf(m)
	ps[0].done(start(m, to))
	a := ack(to)
	a.Vote = degrade.Vote{Up: true, Incarnation: "v"}
	ps[0].done(a)
	row, _ := ps[0].row()
	want := degrade.Member{ID: ps[0].self.Member, Epoch: 7, Acked: 8, Beat: row.Beat, Vote: a.Vote, Digest: ps[0].self.Digest, App: "storetest", Host: "here"}
	if row != want || row.Beat == before.Beat {
		b.Errorf("the row after an ack is %+v, want %+v with another beat than %d", row, want, before.Beat)
	}
	ps[0].done(a) // repeated, it is the permit's renewal
	if again, _ := ps[0].row(); again.Acked != 8 || again.Beat == row.Beat || again.Beat == before.Beat {
		b.Errorf("the row after an ack again is %+v, want acked 8 and another beat than %d and %d", again, before.Beat, row.Beat)
	}
	if row, _ := ps[1].row(); row.Acked != 0 || row.Epoch != 7 {
		b.Errorf("the row of one who has not acked is %+v, want epoch 7, acked 0", row)
	}
	ps[2].done(ack(to)) // of one whose row was removed, say
	if row, there := ps[2].row(); !there || row.Acked != 8 || row.Epoch > 8 || row.Beat == 0 || row.Digest != ps[2].self.Digest {
		b.Errorf("the row after an ack without one is %+v (there: %v), want acked 8 and a beat", row, there)
	}
	ps[1].mode("acks", to)
	ps[1].done(open(to))
	ps[1].refused("with the epoch open", ack(to))
	b.guarded("-a", drainOf(first(ps[0].server())), ack)
}

// arbiterOpen: who may open is judged by the machine, not here.
func arbiterOpen(b *bench) {
	ps := b.peers("", 2)
	m := ps[0].create(first(ps[0].server()))
	ps[0].done(refresh(m))
	row, _ := ps[0].row()
	to := drainOf(m)
	ps[0].done(start(m, to))
	ps[1].done(open(to))
	ps[0].mode("an opening", openOf(to))
	if after, _ := ps[0].row(); after != row {
		b.Errorf("the row of a member after an opening is %+v, want it as it was: %+v", after, row)
	}
	ps[1].refused("with the epoch open", open(to))
	p := b.peers("-hard", 1)[0]
	a := takeover(p.create(first(p.server())), 8)
	p.done(a)
	hard := a.To
	hard.Server = p.server()
	p.done(open(hard))
	p.mode("the opening of a hard drain", openOf(hard))
	b.guarded("-o", drainOf(first(ps[0].server())), open)
}

// takeover answers a row, with the latest epoch that is known.
func takeover(from degrade.Mode, known uint16) degrade.Action {
	to := from
	to.Epoch, to.Drain, to.Hard, to.Server = max(from.Epoch, known)+16, true, true, ""
	return degrade.Action{Kind: degrade.Takeover, From: from, To: to, Known: known}
}

func arbiterTakeover(b *bench) {
	server := b.peers("", 1)[0].server()
	for i, drain := range []bool{false, true} {
		p := b.peers(fmt.Sprint("-", i), 2)
		m := first(foreign)
		m.Drain = drain
		if !p[0].disowned(m) {
			continue
		}
		for why, from := range others(m) {
			p[0].refused(why, takeover(from, 7))
		}
		turned := m
		turned.Drain = !m.Drain
		p[0].refused(fmt.Sprintf("with the row a drain: %v", drain), takeover(turned, 7))
		unlike := m
		unlike.Server = foreign + "2"
		p[0].refused("meant for a row of a third server", takeover(unlike, 7))
		a := takeover(m, 7)
		if r := p[0].done(a); r.Server != server {
			b.Errorf("Arbitrate takeover: got server %q, want that of the backend: %q", r.Server, server)
		}
		a.To.Server = server
		p[1].mode("a takeover", a.To)
		p[1].refused("with the row taken over", a)
		p[1].done(open(a.To)) // the row is this server's now
	}

	// A row that has gone back: its epoch is below one that was known.
	p := b.peers("-back", 1)[0]
	m := p.create(first(server))
	p.refused("with its own row, no later epoch known", takeover(m, 7))
	p.refused("with its own row, no epoch known", takeover(m, 0))
	a := takeover(m, 8)
	p.done(a)
	a.To.Server = server
	p.mode("a takeover of a row that has gone back", a.To)
	none := b.peers("-none", 1)[0]
	none.refused("with no mode row", takeover(first(foreign), 7))
}

func arbiterRemove(b *bench) {
	ps := b.peers("", 3)
	m := ps[0].create(first(ps[0].server()))
	for _, p := range ps {
		p.done(refresh(m))
	}
	row, _ := ps[1].row()
	remove := func(id string, beat uint64) degrade.Action {
		return degrade.Action{Kind: degrade.Remove, Member: id, Beat: beat}
	}
	ps[0].refused("with another beat", remove(row.ID, row.Beat+1))
	ps[0].refused("with another beat", remove(row.ID, row.Beat-1))
	ps[0].refused("of one who is not there", remove(random(16), row.Beat))
	ps[1].done(refresh(m))
	ps[0].refused("with a beat that is over", remove(row.ID, row.Beat))
	row, _ = ps[1].row()
	ps[0].done(remove(row.ID, row.Beat))
	ps[0].refused("again", remove(row.ID, row.Beat))
	if _, there := ps[1].row(); there {
		b.Errorf("the row is there after its removal")
	}
	if n := len(ps[0].poll().Members); n != 2 {
		b.Errorf("there are %d members after the removal of one of three, want 2", n)
	}
	// In a drain, too; but not where another server rules.
	to := drainOf(m)
	ps[0].done(start(m, to))
	row, _ = ps[2].row()
	ps[0].done(remove(row.ID, row.Beat))
	foreignRow := b.foreignMember()
	row, _ = foreignRow.row()
	foreignRow.refused("with a row that another server wrote", remove(row.ID, row.Beat))
}

// foreignMember is a member whose mode row another server wrote since. It is not
// taken over: nothing but takeovers write a server.
func (b *bench) foreignMember() *peer {
	b.Helper()
	p := b.peers("-foreign", 1)[0]
	m := p.create(first(p.server()))
	p.done(refresh(m))
	to := drainOf(m)
	to.Server = foreign // a start writes what it is told
	p.done(start(m, to))
	p.mode("a start", to)
	return p
}

func arbiterLeave(b *bench) {
	ps := b.peers("", 3)
	m := ps[0].create(first(ps[0].server()))
	for _, p := range ps {
		p.done(refresh(m))
	}
	leave := degrade.Action{Kind: degrade.Leave}
	ps[1].done(leave)
	if _, there := ps[1].row(); there {
		b.Errorf("the own row is there after leaving")
	}
	ps[1].do(leave) // again, it does no harm
	if n := len(ps[0].poll().Members); n != 2 {
		b.Errorf("there are %d members after one of three has left twice, want 2", n)
	}
	ps[0].done(start(m, drainOf(m)))
	ps[0].done(leave)
	ps[2].mode("leaving", drainOf(m))
	b.foreignMember().refused("with a row that another server wrote", leave)
}

// arbiterBeats: no beat of a member ever comes again, though its row goes.
func arbiterBeats(b *bench) {
	p := b.peers("", 1)[0]
	m := p.create(first(p.server()))
	seen := map[uint64]bool{}
	for range 5 {
		for range 20 {
			p.done(refresh(m))
			row, _ := p.row()
			if seen[row.Beat] {
				b.Fatalf("the beat is %d again, want one that never was", row.Beat)
			}
			seen[row.Beat] = true
		}
		p.done(degrade.Action{Kind: degrade.Leave})
	}
}

// arbiterNamespaces: each has its own mode and members.
func arbiterNamespaces(b *bench) {
	here, there := b.peers("", 1)[0], b.peers(".x", 1)[0]
	there.self.Member = here.self.Member // even the same one
	m := here.create(first(here.server()))
	if r := there.poll(); r.Mode.Known() {
		b.Fatalf("another namespace has the mode %+v, want none", r.Mode)
	}
	other := m
	other.Epoch, other.Tier, other.Incarnation = 1, degrade.MySQL, ""
	there.create(other)
	here.done(refresh(m))
	if _, known := there.row(); known {
		b.Errorf("a member of another namespace is there")
	}
	there.done(refresh(other))
	row, _ := here.row()
	to := drainOf(m)
	here.done(start(m, to))
	here.done(ack(to))
	there.mode("what happened in another namespace", other)
	here.done(degrade.Action{Kind: degrade.Leave})
	if theirs, known := there.row(); !known || theirs.Epoch != 1 || theirs.Acked != 0 {
		b.Errorf("the member of the other namespace is %+v (there: %v) after %+v has left, want it of epoch 1", theirs, known, row)
	}
	here.mode("leaving", to)
}

// arbiterTexts: texts are kept as they are, also long ones: a Cluster's ids stand in
// one.
func arbiterTexts(b *bench) {
	ids := make([]string, 16)
	for i := range ids {
		ids[i] = strings.Repeat(fmt.Sprintf("%02x", 16*i+i), 20)
	}
	for i, inc := range []string{"", "x", strings.Join(ids, ","), "trailing space "} {
		p := b.peers(fmt.Sprint("-", i), 1)[0]
		m := first(p.server())
		m.Incarnation = inc
		p.create(m)
		p.self.Digest = strings.Repeat("0f", degrade.MaxDigest/2)
		a := refresh(m)
		a.Vote = degrade.Vote{Incarnation: inc}
		p.done(a)
		if row, _ := p.row(); row.Vote != a.Vote || row.Digest != p.self.Digest {
			b.Errorf("the row is %+v, want vote %+v and digest %q", row, a.Vote, p.self.Digest)
		}
		to := drainOf(m)
		to.Tier, to.Incarnation = degrade.Redis, inc
		p.done(start(m, to))
		p.mode("a start", to)
		p.done(ack(to))
		p.done(open(to))
		p.mode("an opening", openOf(to))
	}
}

// arbiterContextEnded: nothing is sent.
func arbiterContextEnded(b *bench) {
	p := b.peers("", 1)[0]
	m := p.create(first(p.server()))
	p.done(refresh(m))
	row, _ := p.row()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, a := range []degrade.Action{
		{Kind: degrade.Poll}, {Kind: degrade.Create, To: m}, refresh(m), start(m, drainOf(m)),
		{Kind: degrade.Remove, Member: row.ID, Beat: row.Beat}, {Kind: degrade.Leave},
	} {
		_, err := p.arb.Arbitrate(ctx, p.self, a)
		b.class(fmt.Sprintf("Arbitrate %s with an ended context", describe(a)), err, tierlock.ErrUnavailable)
	}
	b.advance(200 * time.Millisecond)
	p.mode("calls with an ended context", m)
	if now, there := p.row(); !there || now != row {
		b.Errorf("the row after calls with an ended context is %+v, want %+v", now, row)
	}
}
