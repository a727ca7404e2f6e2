package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// placeAcquire: every kind of grant over every kind of what may be there.
func placeAcquire(b *bench) {
	p := b.place(3)
	for _, exclusive := range []bool{true, false} {
		for _, who := range []string{"own lease", "other lease", "same explicit holder", "other explicit holder"} {
			tag := fmt.Sprintf("exclusive %v, %s", exclusive, who)
			explicit := who == "same explicit holder" || who == "other explicit holder"
			for _, r := range b.remains(p, tag, explicit, alive, released, expired) {
				req := b.request(b.b, r.hold.req.Name, long)
				switch who {
				case "own lease":
					req = r.hold.req
					req.TTL, req.Token.TTL = long, long
				case "same explicit holder":
					req = b.explicit(b.b, r.hold.req.Name, "job", long)
				case "other explicit holder":
					req = b.explicit(b.b, r.hold.req.Name, "job 2", long)
				}
				req.Place = p
				req.Place.Exclusive = exclusive
				b.placeAcquire(r, req, who)
			}
		}
	}
}

func (b *bench) placeAcquire(r remains, req tierlock.AcquireRequest, who string) {
	b.Helper()
	what := fmt.Sprintf("Acquire %s at epoch 3 over epoch %d", req.Name, r.epoch)
	exclusive := req.Place.Exclusive
	there := r.state == alive && !(exclusive && r.epoch < 3)
	if exclusive && r.epoch > 3 {
		_, err := b.try(b.b, req)
		b.epochError(what, err)
		b.untouched(r.hold, r.state != alive)
		if r.state == alive {
			// And it is still what it was for those of its own epoch.
			b.renew(b.a, r.hold, 2*long, tierlock.LeaseOwned)
			b.release(b.a, r.hold.giveUp(0), tierlock.LeaseOwned)
		}
		return
	}
	if !there {
		epoch := uint16(3)
		if !exclusive {
			epoch = max(3, r.epoch)
		}
		h := b.lockAt(b.b, req, epoch)
		b.checkRise(r.hold.token, h.token)
		b.heldBy(b.a, h, 1)
		return
	}
	if who == "other lease" || who == "other explicit holder" {
		b.refuse(b.b, req, r.hold)
		b.heldBy(b.a, r.hold, 1)
		return
	}
	res, err := b.try(b.b, req)
	if err != nil || !res.Granted {
		b.Fatalf("%s: got granted %v and error %v, want granted", what, res.Granted, err)
	}
	holds := 1
	if who == "same explicit holder" {
		holds = 2
	}
	if res.Token.Fence != r.hold.token.Fence || res.Token.Lease != req.Token.Lease || res.Reentered != (holds == 2) {
		b.Errorf("%s: got {%v}, reentered %v, want the fence of the hold: {%v}", what, res.Token, res.Reentered, r.hold.token)
	}
	b.holds(r.hold, holds)
}

// placeAcquireOver: who was overwritten by a later epoch has no part in the key
// any more, and who overwrote has all of it.
func placeAcquireOver(b *bench) {
	p := b.place(3)
	for _, explicit := range []bool{false, true} {
		name := b.name(fmt.Sprint("explicit ", explicit))
		req := func(s *side, holder string) tierlock.AcquireRequest {
			if explicit {
				return b.explicit(s, name, holder, long)
			}
			return b.request(s, name, long)
		}
		old := b.lockAt(b.a, at(req(b.a, "job"), ofEpoch(p, 2)), 2)
		// The same holder id in another epoch is another hold.
		young := b.lockAt(b.b, at(req(b.b, "job"), p), 3)
		b.checkRise(old.token, young.token)
		again, err := b.try(b.b, old.req)
		b.epochError(fmt.Sprintf("Acquire %s again by the one who was overwritten (%v)", name, again.Token), err)
		_, _, err = b.renewing(b.a, old.renewal(2*long))
		b.epochError("Renew by the one who was overwritten", err)
		_, _, err = b.releasing(b.a, old.giveUp(0))
		b.epochError("Release by the one who was overwritten", err)
		_, _, err = b.releasing(b.a, old.giveUp(time.Millisecond))
		b.epochError("Release with Keep by the one who was overwritten", err)
		b.heldBy(b.a, young, 1)
		// Its lease id, in the new epoch or in none, is just another's.
		for _, p := range []tierlock.Place{p, shared(p), shared(ofEpoch(p, 2)), {}} {
			old.req.Place = p
			b.renew(b.a, old, 2*long, tierlock.LeaseTaken)
			b.release(b.a, old.giveUp(0), tierlock.LeaseTaken)
		}
		b.heldBy(b.a, young, 1)
		young = b.renew(b.a, young, 2*long, tierlock.LeaseOwned)
		b.heldBy(b.b, young, 1)
		b.release(b.a, young.giveUp(0), tierlock.LeaseOwned)
		b.isFree(b.b, name)
	}
}

// placeAcquireLate: an exclusive grant that comes too late takes nothing from an
// earlier epoch either.
func placeAcquireLate(b *bench) {
	p := b.place(3)
	for i := range 10 {
		old := b.lockAt(b.a, at(b.request(b.a, b.name(fmt.Sprint("old ", i)), long), ofEpoch(p, 2)), 2)
		req := at(b.request(b.b, old.req.Name, long), p)
		req.Budget = 1
		res, err := b.try(b.b, req)
		switch {
		case errors.Is(err, tierlock.ErrLate):
			b.heldBy(b.a, old, 1)
		case err != nil:
			b.class("Acquire with a budget of 1 ns", err, tierlock.ErrLate, tierlock.ErrUnavailable)
		case !res.Granted:
			b.Fatalf("Acquire %s at epoch 3 over epoch 2, with a budget of 1 ns: got held by {%v}, want granted or refused as late", req.Name, res.Token)
		}
	}
}

// placeOneWinner: where epochs meet, each has one winner at most, the latest has
// one, and that one has the key.
func placeOneWinner(b *bench) {
	p := b.place(3)
	for round := range 10 {
		name := b.name(fmt.Sprint("contended ", round))
		b.lockAt(b.a, at(b.request(b.a, name, long), ofEpoch(p, 2)), 2)
		reqs := make([]tierlock.AcquireRequest, 18)
		results := make([]tierlock.AcquireResult, len(reqs))
		errs := make([]error, len(reqs))
		for i := range reqs {
			reqs[i] = at(b.request(b.side(i), name, long), ofEpoch(p, 3+uint16(i%3/2))) // 3, 3, 4
		}
		b.atOnce(len(reqs), func(i int, s *side) {
			ctx, cancel := b.ctx()
			defer cancel()
			results[i], errs[i] = s.Acquire(ctx, reqs[i])
		})
		winners := map[uint16][]tierlock.Token{}
		for i, res := range results {
			epoch := reqs[i].Place.Epoch
			switch {
			case errs[i] != nil && epoch == 3:
				b.epochError(fmt.Sprintf("Acquire %s at epoch 3, with others at epoch 4", name), errs[i])
			case errs[i] != nil:
				b.Fatalf("Acquire %s at epoch 4, the latest: got error %v, want an answer", name, errs[i])
			case res.Granted:
				winners[epoch] = append(winners[epoch], res.Token)
			}
		}
		if len(winners[4]) != 1 || len(winners[3]) > 1 {
			b.Fatalf("Acquire %s, by 12 of epoch 3 and 6 of epoch 4 at once: got winners %v, want one of epoch 4 and at most one of 3", name, winners)
		}
		if rec, _ := b.inspect(b.a, name); rec.Token.Lease != winners[4][0].Lease {
			b.Fatalf("Inspect %s: got held by {%v}, want by the winner of the latest epoch {%v}", name, rec.Token, winners[4][0])
		}
		if len(winners[3]) == 1 {
			b.checkRise(winners[3][0], winners[4][0])
		}
	}
}

// placeZero: calls without a place go by the lease id alone, whatever a chain has
// left, and never give a fence that is not larger.
func placeZero(b *bench) {
	p := b.place(7)
	h := b.lockAt(b.a, at(b.request(b.a, b.name("42"), long), p), 7)
	b.refuse(b.b, b.request(b.b, h.req.Name, long), h)
	h.req.Place = tierlock.Place{}
	h = b.renew(b.b, h, 2*long, tierlock.LeaseOwned)
	b.heldBy(b.a, h, 1)
	b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.a, h.req.Name)
	// A store may refuse what it cannot number, but must not number it wrong.
	req := b.request(b.b, h.req.Name, long)
	switch res, err := b.try(b.b, req); {
	case err != nil && !errors.Is(err, tierlock.ErrEpoch) && !errors.Is(err, tierlock.ErrMisconfigured):
		b.Fatalf("Acquire %s without a place after epoch 7: got error %v, want a grant, or ErrEpoch or ErrMisconfigured", req.Name, err)
	case err == nil && !res.Granted:
		b.Fatalf("Acquire %s without a place after epoch 7: got held by {%v}, want granted", req.Name, res.Token)
	case err == nil:
		b.checkRise(h.token, res.Token)
	}
}
