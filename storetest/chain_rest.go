package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// placeFences: fences rise through all epochs there are, each over the one before,
// whether that is alive or not.
func placeFences(b *bench) {
	p := b.place(1)
	for _, end := range []string{"overwritten", "released", "best effort"} {
		name := b.name(end)
		var last hold
		for i, epoch := range []uint16{1, 2, 3, 15, 16, 17, 255, 256, 1023, 1024, 4095, 4096, 8191, 8192, 12345, 16382, 16383} {
			for j := range 2 {
				if i+j > 0 && (j == 1 || end != "overwritten") {
					b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)
				}
				place := ofEpoch(p, epoch)
				place.Exclusive = end != "best effort"
				h := b.lockAt(b.side(i+j), at(b.request(b.side(i+j), name, long), place), epoch)
				if i+j > 0 {
					b.checkRise(last.token, h.token)
				}
				b.heldBy(b.b, h, 1)
				last = h
			}
		}
	}
	// Best effort in an epoch that is over goes on in the latest there was.
	name := b.name("back")
	last := b.lockAt(b.a, at(b.request(b.a, name, long), ofEpoch(p, 9000)), 9000)
	for epoch := uint16(8999); epoch > 8990; epoch-- {
		b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)
		h := b.lockAt(b.b, at(b.request(b.b, name, long), shared(ofEpoch(p, epoch))), 9000)
		b.checkRise(last.token, h.token)
		last = h
	}
}

// placeFencesQuickly: also where fences are larger than a double counts, and holds
// shorter than a tick of any clock.
func placeFencesQuickly(b *bench) {
	for _, p := range []tierlock.Place{b.place(16383), shared(b.place(9001)), b.place(17)} {
		name := b.name(fmt.Sprint(p.Epoch))
		var last hold
		for i := range 100 {
			s := b.side(i / 2)
			h := b.lockAt(s, at(b.request(s, name, long), p), p.Epoch)
			if i > 0 {
				b.checkRise(last.token, h.token)
			}
			last = h
			b.release(s, h.giveUp(0), tierlock.LeaseOwned)
		}
	}
}

// placeWatch: a release is signalled, whatever place it has.
func placeWatch(b *bench) {
	b.chained(b.a)
	if !b.pushes() {
		return
	}
	p := b.place(3)
	for i, place := range []tierlock.Place{p, shared(p), shared(ofEpoch(p, 2))} {
		name := b.name(fmt.Sprint("42/", i))
		for _, keep := range []time.Duration{0, 100 * time.Millisecond} {
			h := b.lockAt(b.a, at(b.request(b.a, name, long), p), 3)
			w := b.watch(b.b, name)
			settle(w)
			h.req.Place = place
			b.release(b.a, h.giveUp(keep), tierlock.LeaseOwned)
			b.signalled(w, fmt.Sprintf("a release at %v, Keep %v", place, keep))
			b.freeWithin(b.b, name, patience)
			w.Close()
		}
		// A hold that was adopted is one like any other.
		h := b.adopted(b.a, b.stranger(b.a, name, 1, 77), p, long)
		w := b.watch(b.b, name)
		settle(w)
		h.req.Place = place
		b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
		b.signalled(w, "a release of an adopted hold")
		w.Close()
	}
}

// probeTells: both see the same data, at any time.
func probeTells(b *bench) {
	inc := b.probe(b.a)
	for i := range 10 {
		if got := b.probe(b.side(i)); got != inc {
			b.Fatalf("Probe again: got incarnation %q, want the same as before: %q", got, inc)
		}
	}
	h := b.lockAt(b.a, at(b.request(b.a, b.name("42"), long), b.place(3)), 3)
	for _, ns := range []string{b.ns + ".x", "n", b.ns + "-.:_"} {
		if was, is := b.probing(b.a, ns, 0).Incarnation, b.probing(b.b, ns, 0).Incarnation; was != is || is == "" {
			b.Errorf("Probe of namespace %q: got %q, then %q, want the same", ns, was, is)
		}
	}
	b.heldBy(b.b, h, 1)
	if arb, ok := b.a.Store.(tierlock.Arbiter); ok {
		if got := b.poll(arb, b.ns).Server; got != inc {
			b.Errorf("Probe: got incarnation %q, want the server that the arbiter names: %q", inc, got)
		}
	}
}

// probeEpoch: the largest epoch that was named stays, for each namespace, whoever
// asks. A store that keeps none says 0 always.
func probeEpoch(b *bench) {
	keeps := b.chained(b.a).Tier() != tierlock.MySQL
	largest := uint16(0)
	for i, epoch := range []uint16{0, 3, 0, 2, 16383, 1} {
		largest = max(largest, epoch)
		want := largest
		if !keeps {
			want = 0
		}
		if got := b.probing(b.side(i), b.ns, epoch).Epoch; got != want {
			b.Errorf("Probe with epoch %d: got epoch %d, want %d", epoch, got, want)
		}
	}
	if got := b.probing(b.b, b.ns+".x", 0).Epoch; got != 0 {
		b.Errorf("Probe of another namespace: got epoch %d, want 0", got)
	}
}

// probeLoss: keys that go while the server goes on make it other data, before the
// next probe already, which tells it, and only to those who have seen them.
func probeLoss(b *bench) {
	p := b.place(3)
	if b.h.Lose == nil {
		return
	}
	h := b.lockAt(b.a, at(b.request(b.a, b.name("42"), long), p), 3)
	before := b.probing(b.a, h.req.Name.Namespace, 3)
	p.Incarnation = before.Incarnation
	b.h.Lose()
	refused := func(when string) {
		b.Helper()
		_, err := b.try(b.b, at(b.request(b.b, h.req.Name, long), p))
		b.epochError("Acquire "+when+", for the former data", err)
		_, _, err = b.renewing(b.a, tierlock.RenewRequest{Name: h.req.Name, Lease: h.req.Token.Lease, TTL: long, Place: p})
		b.epochError("Renew "+when+", for the former data", err)
	}
	refused("after the loss")
	after := b.probing(b.a, h.req.Name.Namespace, 0)
	if !after.Lost || after.Incarnation == before.Incarnation || after.Epoch != 0 {
		b.Fatalf("Probe after the loss: got %+v, want it lost, other than %q, and no epoch", after, before.Incarnation)
	}
	if again := b.probing(b.a, h.req.Name.Namespace, 0); again.Lost || again.Incarnation != after.Incarnation {
		b.Errorf("Probe again: got %+v, want the same data, and nothing lost", again)
	}
	if other := b.probing(b.b, h.req.Name.Namespace, 0); other.Lost || other.Incarnation != after.Incarnation {
		b.Errorf("first probe of another store: got %+v, want the same data, and nothing lost", other)
	}
	refused("after a probe")
	p.Incarnation = after.Incarnation
	b.adopted(b.a, b.stranger(b.a, h.req.Name, 3, 77), ofEpoch(p, 4), long)
}

// chainContextEnded: as for the other calls.
func chainContextEnded(b *bench) {
	p := b.place(3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := b.chained(b.a).Probe(ctx, tierlock.ProbeRequest{Namespace: b.ns})
	b.class("Probe with an ended context", err, tierlock.ErrUnavailable)
	reqs := []tierlock.AdoptRequest{
		adoption(b.stranger(b.a, b.name("1"), 2, 1), p, long),
		adoption(b.stranger(b.a, b.name("2"), 2, 1), p, long),
	}
	res := b.chained(b.a).Adopt(ctx, reqs)
	if len(res) != len(reqs) {
		b.Fatalf("Adopt of 2 with an ended context: got %d results, want 2", len(res))
	}
	for _, r := range res {
		b.class("Adopt with an ended context", r.Err, tierlock.ErrUnavailable)
	}
	_, err = b.a.Acquire(ctx, at(b.request(b.a, b.name("3"), long), p))
	b.class("Acquire at a place with an ended context", err, tierlock.ErrUnavailable)
	b.advance(200 * time.Millisecond)
	for _, key := range []string{"1", "2", "3"} {
		b.isFree(b.b, b.name(key))
	}
}
