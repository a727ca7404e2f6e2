package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// together has each peer do its action at the same time.
func together(b *bench, ps []*peer, action func(i int) degrade.Action) []degrade.Reply {
	b.Helper()
	replies := make([]degrade.Reply, len(ps))
	errs := make([]error, len(ps))
	b.atOnce(len(ps), func(i int, _ *side) {
		ctx, cancel := b.ctx()
		defer cancel()
		replies[i], errs[i] = ps[i].arb.Arbitrate(ctx, ps[i].self, action(i))
	})
	for i, err := range errs {
		if err != nil {
			b.Fatalf("Arbitrate %s, %d at once: got error %v, want an answer", describe(action(i)), len(ps), err)
		}
	}
	return replies
}

// one is which of the replies is OK; there has to be exactly one.
func one(b *bench, what string, replies []degrade.Reply) int {
	b.Helper()
	winner, n := 0, 0
	for i, r := range replies {
		if r.OK {
			winner = i
			n++
		}
	}
	if n != 1 {
		b.Fatalf("%s by %d at once: %d were OK, want exactly one", what, len(replies), n)
	}
	return winner
}

// different are modes of the same epoch that can be told apart.
func different(m degrade.Mode, i int) degrade.Mode {
	m.Tier, m.Incarnation = degrade.Redis, "candidate"+string(rune('a'+i))
	return m
}

func arbiterOneCreates(b *bench) {
	for round := range 5 {
		ps := b.peers("-"+string(rune('a'+round)), 16)
		server := ps[0].server()
		to := func(i int) degrade.Mode { return different(first(server), i) }
		won := one(b, "create", together(b, ps, func(i int) degrade.Action { return degrade.Action{Kind: degrade.Create, To: to(i)} }))
		ps[0].mode("creations at once", to(won))
	}
}

func arbiterOneStarts(b *bench) {
	ps := b.peers("", 16)
	m := ps[0].create(first(ps[0].server()))
	for range 5 {
		to := func(i int) degrade.Mode { return different(drainOf(m), i) }
		won := one(b, "start", together(b, ps, func(i int) degrade.Action { return start(m, to(i)) }))
		ps[0].mode("starts at once", to(won))
		one(b, "open", together(b, ps, func(int) degrade.Action { return open(to(won)) }))
		m = openOf(to(won))
		ps[0].mode("openings at once", m)
	}
}

// write is a refresh or an ack, as seen by who sent it.
type write struct {
	window
	kind  degrade.Kind
	epoch uint16
	ok    bool
}

// turn is an epoch's life as its switcher saw it.
type turn struct {
	opened  window  // the opening that began it
	started *window // the start that ended it
}

// arbiterSwitches: 16 members refresh without a pause while the mode is switched
// under them. Each refresh that was OK was executed while its epoch was open, so
// that in a drain nobody becomes a member of the epoch before; each that was sent
// and answered while it was open was OK.
func arbiterSwitches(b *bench) {
	const members, switches = 16, 8
	ps := b.peers("", members+1)
	switcher, ps := ps[members], ps[:members]
	m := ps[0].create(first(ps[0].server()))
	turns := map[uint16]*turn{m.Epoch: {}}
	for _, p := range ps {
		p.done(refresh(m))
	}
	var now atomic.Value // the mode, as all know it by and by
	now.Store(m)
	var lost atomic.Int64
	writes := make([][]write, members)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for i, p := range ps {
		wg.Go(func() {
			acked := uint16(0)
			for n := 0; !stop.Load(); n++ {
				known := now.Load().(degrade.Mode)
				a := refresh(known)
				switch {
				case known.Drain && acked == known.Epoch:
					// Who has acked would like to refresh the epoch before.
					a.From.Epoch, a.From.Drain = known.Epoch-1, false
				case known.Drain:
					a = ack(known)
				case n%5 == 4:
					a = ack(known) // too late
					a.From.Drain = true
				}
				w := write{kind: a.Kind, epoch: a.From.Epoch}
				var err error
				var r degrade.Reply
				w.window = b.in(func(ctx context.Context) { r, err = p.arb.Arbitrate(ctx, p.self, a) })
				if err != nil {
					lost.Add(1)
					b.Logf("Arbitrate %s, 16 at full speed: %v", describe(a), err)
					continue
				}
				w.ok = r.OK
				if w.ok && w.kind == degrade.Ack {
					acked = w.epoch
				}
				writes[i] = append(writes[i], w)
				time.Sleep(200 * time.Microsecond) // in a bubble, time has to pass
			}
		})
	}
	for range switches {
		b.switched(switcher, &now, turns, members)
		time.Sleep(20 * time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	b.judge(ps, turns, writes, int(lost.Load()))
}

// switched is one whole switch.
func (b *bench) switched(p *peer, now *atomic.Value, turns map[uint16]*turn, members int) {
	b.Helper()
	m := now.Load().(degrade.Mode)
	to := different(drainOf(m), int(m.Epoch)%26)
	started := b.in(func(ctx context.Context) {
		if r, err := p.arb.Arbitrate(ctx, p.self, start(m, to)); err != nil || !r.OK {
			b.Errorf("Arbitrate start among refreshes: got %v and error %v, want OK", r.OK, err)
		}
	})
	turns[m.Epoch].started = &started
	frozen := map[string]degrade.Member{}
	for _, row := range p.poll().Members {
		frozen[row.ID] = row
	}
	time.Sleep(2 * time.Millisecond)
	now.Store(to)
	acked := func() int {
		n := 0
		for _, row := range p.poll().Members {
			if row.Acked == to.Epoch {
				n++
			} else if was := frozen[row.ID]; was != row {
				b.Errorf("a row that has not acked the drain into %d was %+v and is %+v, want it unchanged since the start", to.Epoch, was, row)
			}
		}
		return n
	}
	for end := b.now() + callLimit; acked() < members; {
		if b.now() > end {
			b.Fatalf("not all have acked within %v", callLimit)
		}
		time.Sleep(time.Millisecond)
	}
	w := b.in(func(ctx context.Context) {
		if r, err := p.arb.Arbitrate(ctx, p.self, open(to)); err != nil || !r.OK {
			b.Errorf("Arbitrate open among acks: got %v and error %v, want OK", r.OK, err)
		}
	})
	turns[to.Epoch] = &turn{opened: w}
	now.Store(openOf(to))
}

// judge holds what each writer saw against what the switcher did.
func (b *bench) judge(ps []*peer, turns map[uint16]*turn, writes [][]write, lost int) {
	b.Helper()
	const ever = time.Duration(1<<63 - 1)
	started := func(epoch uint16) window {
		if t := turns[epoch]; t != nil && t.started != nil {
			return *t.started
		}
		return window{ever, ever}
	}
	total := 0
	for i, p := range ps {
		for _, w := range writes[i] {
			total++
			// What it is for was so from the earliest to the latest, and surely in
			// between.
			var from, to window
			if w.kind == degrade.Refresh {
				from, to = turns[w.epoch].opened, started(w.epoch)
			} else {
				from, to = started(w.epoch-1), window{ever, ever}
				if t := turns[w.epoch]; t != nil {
					to = t.opened
				}
			}
			if w.ok && (w.got < from.sent || w.sent > to.got) {
				b.Fatalf("%s of epoch %d by %s was OK between %v and %v, want that only between %v and %v", kindNames[w.kind], w.epoch, p.self.Member, w.sent, w.got, from.sent, to.got)
			}
			if !w.ok && w.sent > from.got && w.got < to.sent {
				b.Fatalf("%s of epoch %d by %s was refused between %v and %v, want OK between %v and %v", kindNames[w.kind], w.epoch, p.self.Member, w.sent, w.got, from.got, to.sent)
			}
		}
		if _, there := p.row(); !there {
			b.Errorf("the row of %s is gone", p.self.Member)
		}
	}
	if lost*20 > total {
		b.Errorf("%d of %d writes failed, want at most one in twenty on a healthy backend", lost, total)
	}
}
