package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// stranger is a hold that another store has granted, with a fence of that epoch.
func (b *bench) stranger(s *side, name tierlock.Name, epoch, seq uint64) hold {
	req := b.request(s, name, long)
	tok := req.Token
	tok.Tier = tierlock.Redis
	tok.Epoch, tok.Seq, tok.Fence = epoch, seq, epoch<<49|seq
	tok.ServerTime = time.Now().UTC().Truncate(time.Microsecond).Add(-3 * time.Second)
	tok.ExpireAt = tok.ServerTime.Add(long)
	return hold{req: req, token: tok}
}

func adoption(h hold, p tierlock.Place, ttl time.Duration) tierlock.AdoptRequest {
	return tierlock.AdoptRequest{Name: h.req.Name, Token: h.token, Explicit: h.req.Explicit, TTL: ttl, Place: p}
}

func (b *bench) adopt(s *side, reqs []tierlock.AdoptRequest) ([]tierlock.RenewResult, window) {
	b.Helper()
	var res []tierlock.RenewResult
	w := b.in(func(ctx context.Context) {
		b.chained(s)
		res = s.Adopt(ctx, reqs)
	})
	if len(res) != len(reqs) {
		b.Fatalf("Adopt of %d: got %d results", len(reqs), len(res))
	}
	return res, w
}

func (b *bench) adoptOne(s *side, req tierlock.AdoptRequest) (tierlock.Ownership, error) {
	b.Helper()
	res, _ := b.adopt(s, []tierlock.AdoptRequest{req})
	return res[0].State, res[0].Err
}

// adopted has a hold adopted, and gives it as it is from then on.
func (b *bench) adopted(s *side, h hold, p tierlock.Place, ttl time.Duration) hold {
	b.Helper()
	res, w := b.adopt(s, []tierlock.AdoptRequest{adoption(h, p, ttl)})
	if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
		b.Fatalf("Adopt %s by %s at epoch %d: got %v and error %v, want owned", h.req.Name, h.token.Lease, p.Epoch, res[0].State, res[0].Err)
	}
	h.token.Epoch = uint64(p.Epoch)
	h.req.Place, h.ttl, h.window = p, ttl, w
	return h
}

// adoptedBy inspects a key that has to be held by an adopted hold. Its times may be
// those of the grant or of the adoption.
func (b *bench) adoptedBy(s *side, h hold, holds int) {
	b.Helper()
	rec, w := b.inspect(s, h.req.Name)
	h.token.ServerTime, h.token.ExpireAt = rec.Token.ServerTime, rec.Token.ExpireAt
	if d := differ(h.token, rec.Token); d != "" || !rec.Held || rec.Holds != holds {
		b.Errorf("Inspect %s after its adoption: got held %v, %d times, want %d; the token differs: %s", h.req.Name, rec.Held, rec.Holds, holds, d)
	}
	b.checkLeft("Inspect after the adoption", rec.Left, h, w)
}

// adoptFree: an adopted hold keeps all that it is, and lives like any other.
func adoptFree(b *bench) {
	p := b.place(3)
	for i, place := range []tierlock.Place{p, shared(p)} {
		name := b.name(fmt.Sprint("42/", i))
		h := b.adopted(b.a, b.stranger(b.a, name, 2, 12345), place, long)
		b.adoptedBy(b.b, h, 1)
		other, _ := b.acquire(b.b, at(b.request(b.b, name, long), place))
		if other.Granted || other.Token.Lease != h.token.Lease || other.Token.Fence != h.token.Fence {
			b.Fatalf("Acquire %s, adopted: got granted %v, {%v}, want held by {%v}", name, other.Granted, other.Token, h.token)
		}
		// A repeat of its own acquire is a grant of the same.
		again := h.req
		again.Token = h.token
		if res, _ := b.acquire(b.b, again); !res.Granted || res.Token.Fence != h.token.Fence || res.Reentered {
			b.Errorf("Acquire %s by the adopted lease: got granted %v, reentered %v, {%v}, want the same again: {%v}", name, res.Granted, res.Reentered, res.Token, h.token)
		}
		h = b.renew(b.b, h, 2*long, tierlock.LeaseOwned)
		b.adoptedBy(b.a, h, 1)
		if place.Exclusive {
			old := h
			old.req.Place = ofEpoch(p, 2)
			_, _, err := b.renewing(b.a, old.renewal(long))
			b.epochError("Renew of an adopted hold in its old epoch", err)
			_, _, err = b.releasing(b.a, old.giveUp(0))
			b.epochError("Release of an adopted hold in its old epoch", err)
			_, err = b.try(b.a, at(b.request(b.a, name, long), ofEpoch(p, 2)))
			b.epochError("Acquire in the old epoch of what was adopted", err)
			b.adoptedBy(b.b, h, 1)
		}
		b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
		b.isFree(b.a, name)
		next := b.lockAt(b.b, at(b.request(b.b, name, long), place), 3)
		b.checkRise(h.token, next.token)
	}
	brief := b.adopted(b.a, b.stranger(b.a, b.name("brief"), 2, 5), p, time.Second)
	b.freeBetween(brief.req.Name, brief)
}

// adoptOver: over what is of an earlier epoch, of the own lease, or of a fence that
// is not larger. Nothing else is touched.
func adoptOver(b *bench) {
	p := b.place(3)
	for _, epoch := range []uint16{2, 3, 4} {
		for _, who := range []string{"own", "granted", "adopted with a smaller fence", "adopted with a larger fence", "expired", "released"} {
			name := b.name(fmt.Sprintf("%s, epoch %d", who, epoch))
			ours := b.stranger(b.b, name, 1, 1000)
			there := ofEpoch(p, epoch)
			ttl := 2 * long
			if who == "expired" {
				ttl = expiresSoon
			}
			// Fences are of epoch 1, what is there of a later one: as if adopted
			// earlier. Only a granted one has a fence of its own.
			old := b.stranger(b.a, name, 1, 1000)
			old.req.Token = old.token
			switch who {
			case "own":
				old = ours
			case "adopted with a smaller fence":
				old.token.Seq, old.token.Fence = 999, old.token.Fence-1
			case "adopted with a larger fence":
				old.token.Seq, old.token.Fence = 1001, old.token.Fence+1
			}
			if who == "granted" {
				old = b.lockAt(b.a, at(b.request(b.a, name, ttl), there), epoch)
			} else {
				old = b.adopted(b.a, old, there, ttl)
			}
			switch who {
			case "expired":
				b.freeWithin(b.b, name, expiresSoon+patience)
			case "released":
				b.release(b.a, old.giveUp(0), tierlock.LeaseOwned)
			}
			what := fmt.Sprintf("Adopt %s at epoch 3", name)
			over := who == "expired" || who == "released"
			if over && epoch == 4 {
				continue // what is left of it may be just a fence
			}
			state, err := b.adoptOne(b.b, adoption(ours, p, long))
			if epoch == 4 || epoch == 3 && (who == "granted" || who == "adopted with a larger fence") {
				if errors.Is(err, tierlock.ErrEpoch) && epoch == 4 {
					b.epochError(what, err)
				} else if err != nil || state != tierlock.LeaseTaken {
					b.Fatalf("%s: got %v and error %v, want taken", what, state, err)
				}
				if who == "granted" {
					b.heldBy(b.b, old, 1)
				} else {
					b.adoptedBy(b.b, old, 1)
				}
				b.renew(b.a, old, 3*long, tierlock.LeaseOwned)
				b.release(b.a, old.giveUp(0), tierlock.LeaseOwned)
				continue
			}
			if err != nil || state != tierlock.LeaseOwned {
				b.Fatalf("%s: got %v and error %v, want owned", what, state, err)
			}
			rec, _ := b.inspect(b.a, name)
			if rec.Token.Lease != ours.token.Lease || rec.Token.Fence != ours.token.Fence || rec.Token.Epoch != 3 || rec.Holds != 1 {
				b.Errorf("Inspect %s after the adoption: got {%v}, epoch %d, %d holds, want {%v} in epoch 3", name, rec.Token, rec.Token.Epoch, rec.Holds, ours.token)
			}
			ours.req.Place = p
			if who != "own" {
				old.req.Place = p
				b.renew(b.a, old, 3*long, tierlock.LeaseTaken)
				b.release(b.a, old.giveUp(0), tierlock.LeaseTaken)
			}
			b.release(b.b, ours.giveUp(0), tierlock.LeaseOwned)
			b.isFree(b.a, name)
		}
	}
}

// adoptIdempotent: a repeat changes nothing but the time, and that only upwards.
func adoptIdempotent(b *bench) {
	p := b.place(3)
	h := b.adopted(b.a, b.stranger(b.a, b.name("42"), 2, 5), p, long)
	for _, ttl := range []time.Duration{time.Millisecond, time.Second, long / 2} {
		again, err := b.adoptOne(b.b, adoption(h, p, ttl))
		if err != nil || again != tierlock.LeaseOwned {
			b.Fatalf("Adopt %s again for %v: got %v and error %v, want owned", h.req.Name, ttl, again, err)
		}
		b.adoptedBy(b.a, h, 1) // with the time of the first
	}
	h = b.adopted(b.b, h, p, 2*long)
	b.adoptedBy(b.a, h, 1)
	// Nor does it take from a renewal, or from a lease in another mode.
	h = b.renew(b.a, h, 3*long, tierlock.LeaseOwned)
	if _, err := b.adoptOne(b.b, adoption(h, p, long)); err != nil {
		b.Fatalf("Adopt %s after a renewal: got error %v, want owned", h.req.Name, err)
	}
	b.adoptedBy(b.a, h, 1)
	b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, h.req.Name)

	// At once, over several connections.
	many := b.stranger(b.a, b.name("at once"), 2, 5)
	errs := make([]error, 8)
	b.atOnce(len(errs), func(i int, s *side) {
		ctx, cancel := b.ctx()
		defer cancel()
		res := s.Adopt(ctx, []tierlock.AdoptRequest{adoption(many, p, long)})
		if len(res) != 1 || res[0].State != tierlock.LeaseOwned {
			errs[i] = fmt.Errorf("got %+v", res)
		}
	})
	if err := errors.Join(errs...); err != nil {
		b.Fatalf("Adopt %s, 8 times at once by one lease: %v, want owned", many.req.Name, err)
	}
	many.req.Place = p
	b.release(b.a, many.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, many.req.Name)
}

// adoptRecord: what fences are counted from is raised by an adoption, never
// lowered.
func adoptRecord(b *bench) {
	p := b.place(3)
	next := func(after hold, place tierlock.Place) {
		b.Helper()
		h := b.grant(b.b, at(b.request(b.b, after.req.Name, long), place))
		b.checkRise(after.token, h.token)
	}
	// Lowered: over a released hold of the same epoch.
	young := b.lockAt(b.a, at(b.request(b.a, b.name("lowered"), long), p), 3)
	b.release(b.a, young.giveUp(0), tierlock.LeaseOwned)
	old := b.adopted(b.b, b.stranger(b.b, young.req.Name, 2, 5), p, long)
	b.release(b.b, old.giveUp(0), tierlock.LeaseOwned)
	next(young, p)

	// Raised: a fence of another store whose clock is an hour ahead, and a lock of
	// best effort in the epoch of that fence.
	ahead := b.lockAt(b.a, at(b.request(b.a, b.name("raised"), long), ofEpoch(p, 2)), 2)
	seq := ahead.token.Seq + uint64(time.Hour/(2*time.Microsecond))
	far := b.adopted(b.b, b.stranger(b.b, ahead.req.Name, 2, seq), p, long)
	b.release(b.b, far.giveUp(0), tierlock.LeaseOwned)
	next(far, shared(ofEpoch(p, 2)))

	// A lease serves several holds in turn: one that is there with a larger fence
	// is not forgotten.
	later := b.stranger(b.a, b.name("forward"), 2, seq)
	b.adopted(b.a, later, p, long)
	earlier := later
	earlier.token.Seq, earlier.token.Fence = seq-7, later.token.Fence-7
	if own, err := b.adoptOne(b.b, adoption(earlier, p, long)); err != nil || own != tierlock.LeaseOwned {
		b.Fatalf("Adopt %s by a lease that is there with a larger fence: got %v and error %v, want owned", later.req.Name, own, err)
	}
	later.req.Place = p
	b.release(b.b, later.giveUp(0), tierlock.LeaseOwned)
	next(later, shared(ofEpoch(p, 2)))
}

// adoptExplicit: several leases of one explicit holder share the key, as they did
// where they come from.
func adoptExplicit(b *bench) {
	p := b.place(3)
	job := func(s *side, name tierlock.Name, holder string, seq uint64) hold {
		h := b.stranger(s, name, 2, seq)
		h.req.Explicit, h.token.Holder, h.req.Token.Holder = true, holder, holder
		return h
	}
	name := b.name("42")
	first := b.adopted(b.a, job(b.a, name, "job", 5), p, long)
	b.adoptedBy(b.b, first, 1)
	second := b.adopted(b.b, job(b.b, name, "job", 5), p, long)
	b.holds(first, 2)
	for range 2 { // counted once
		second = b.adopted(b.b, second, p, long)
		first = b.adopted(b.a, first, p, long)
	}
	b.holds(first, 2)
	// A third one enters by an acquire, others do not.
	if res, _ := b.acquire(b.a, at(b.explicit(b.a, name, "job", long), p)); !res.Granted || !res.Reentered || res.Token.Fence != first.token.Fence {
		b.Errorf("Acquire %s by the adopted explicit holder: got granted %v, reentered %v, {%v}, want fence %d", name, res.Granted, res.Reentered, res.Token, first.token.Fence)
	}
	b.holds(first, 3)
	if res, _ := b.acquire(b.a, at(b.explicit(b.a, name, "job 2", long), p)); res.Granted {
		b.Errorf("Acquire %s by another explicit holder: got granted, want held", name)
	}
	b.renew(b.b, second, 2*long, tierlock.LeaseOwned)
	b.release(b.a, first.giveUp(0), tierlock.LeaseOwned)
	b.holds(second, 2)
	b.renew(b.a, first, long, tierlock.LeaseTaken)
	b.release(b.b, second.giveUp(0), tierlock.LeaseOwned)
	b.holds(second, 1)

	// Another holder's hold with a larger fence stays; a smaller one goes, all of it.
	if own, err := b.adoptOne(b.b, adoption(job(b.b, name, "job 2", 4), p, long)); err != nil || own != tierlock.LeaseTaken {
		b.Errorf("Adopt %s by another explicit holder with a smaller fence: got %v and error %v, want taken", name, own, err)
	}
	b.holds(second, 1)
	third := b.adopted(b.b, job(b.b, name, "job 2", 6), p, long)
	b.adoptedBy(b.a, third, 1)
	b.renew(b.a, second, long, tierlock.LeaseTaken)
	b.release(b.b, third.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.a, name)

	// Over an earlier epoch: who is not adopted has no part in it.
	name = b.name("earlier")
	a := b.lockAt(b.a, at(b.explicit(b.a, name, "job", long), ofEpoch(p, 2)), 2)
	c := b.enter(b.b, at(b.explicit(b.b, name, "job", long), ofEpoch(p, 2)), a)
	a = b.adopted(b.a, a, p, long)
	b.release(b.a, a.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, name)
	c.req.Place = p
	if own, _, err := b.renewing(b.b, c.renewal(long)); err != nil || own == tierlock.LeaseOwned {
		b.Errorf("Renew %s by a lease of the epoch before: got %v and error %v, want gone or taken", name, own, err)
	}
}

// adoptBatch: the answers stand in the order of the requests, whatever they are.
func adoptBatch(b *bench) {
	const n = 300
	p := b.place(3)
	if res, _ := b.adopt(b.a, nil); len(res) != 0 {
		b.Errorf("Adopt of nothing: got %d results", len(res))
	}
	reqs := make([]tierlock.AdoptRequest, n)
	want := make([]tierlock.Ownership, n)
	for i := range reqs {
		name := b.name(fmt.Sprint("key ", i))
		h := b.stranger(b.a, name, 2, uint64(100+i))
		h.req.Explicit = i%5 == 0
		want[i] = tierlock.LeaseOwned
		switch {
		case i%7 == 3 || i == n-1: // irregular, as in renewBatchLarge
			b.lockAt(b.b, at(b.request(b.b, name, long), p), 3)
			want[i] = tierlock.LeaseTaken
		case i%11 == 5:
			b.lockAt(b.b, at(b.request(b.b, name, long), ofEpoch(p, 2)), 2)
		}
		reqs[i] = adoption(h, p, long)
	}
	for round := range 2 {
		res, _ := b.adopt(b.side(round), reqs)
		for i, r := range res {
			if r.Err != nil || r.State != want[i] {
				b.Fatalf("Adopt of %d: result %d: got %v and error %v, want %v", n, i, r.State, r.Err, want[i])
			}
		}
	}
	for i := range 20 {
		rec, _ := b.inspect(b.b, reqs[i].Name)
		if mine := rec.Token.Lease == reqs[i].Token.Lease; !rec.Held || mine != (want[i] == tierlock.LeaseOwned) {
			b.Errorf("Inspect %s after the batch: got held %v by {%v}, want by {%v}: %v", reqs[i].Name, rec.Held, rec.Token, reqs[i].Token, want[i] == tierlock.LeaseOwned)
		}
	}
}
