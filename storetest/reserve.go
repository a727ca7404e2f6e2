package storetest

import (
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// Fences reserved for holds that follow each other on one lease, and their tokens.

// last is the last fence that a hold's lease may hand out.
func (h hold) last() tierlock.Token {
	t := h.token
	t.Fence += uint64(h.more)
	t.Seq += uint64(h.more)
	return t
}

// reserve is request with further fences.
func (b *bench) reserve(s *side, name tierlock.Name, n int) tierlock.AcquireRequest {
	req := b.request(s, name, long)
	req.Fences = n
	return req
}

// fencesReserved: no later hold gets one of them, in whatever way it is taken and
// the lease before it ended.
func fencesReserved(b *bench) {
	name := b.name("42")
	last := b.lock(b.a, name, long)
	if last.more != 0 {
		b.Errorf("Acquire %s: got %d further fences, want none without asking", name, last.more)
	}
	b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)
	next := func(s *side, req tierlock.AcquireRequest) {
		b.Helper()
		h := b.grant(s, req)
		if b.fenced() {
			b.checkRise(last.last(), h.token)
		}
		last = h
	}
	for i, n := range []int{64, 64, 1, 0, 64, 3} {
		s := b.side(i)
		next(s, b.reserve(s, name, n))
		b.release(b.side(i+1), last.giveUp(0), tierlock.LeaseOwned)
	}
	short := b.reserve(b.a, name, 64)
	short.TTL, short.Token.TTL = 100*time.Millisecond, 100*time.Millisecond
	next(b.a, short)
	b.freeWithin(b.a, name, last.ttl+patience)
	next(b.b, b.reserve(b.b, name, 64)) // after an expiry
	b.release(b.b, last.giveUp(0), tierlock.LeaseOwned)
	job := b.explicit(b.a, name, "job", long)
	job.Fences = 64
	next(b.a, job) // by an explicit holder, who gets none
	b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)
	next(b.b, b.reserve(b.b, name, 64))
	b.release(b.b, last.giveUp(0), tierlock.LeaseOwned)

	// Also without a pause between them, and in a key that is new each time.
	for i := range 100 {
		s := b.side(i / 2)
		next(s, b.reserve(s, name, i%70))
		b.release(s, last.giveUp(0), tierlock.LeaseOwned)
	}
	for i := range 5 {
		other := b.name(fmt.Sprint("new ", i))
		h := b.grant(b.a, b.reserve(b.a, other, 64))
		b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
		again := b.lock(b.b, other, long)
		if b.fenced() {
			b.checkRise(h.last(), again.token)
		}
	}
}

// fencesReservedOnce: a repeat after a lost reply gives the same range, or as much
// of it as it asks for.
func fencesReservedOnce(b *bench) {
	name := b.name("42")
	b.release(b.a, b.lock(b.a, name, long).giveUp(0), tierlock.LeaseOwned)
	for _, n := range []int{64, 0} {
		first := b.grant(b.a, b.reserve(b.a, name, n))
		for _, want := range []int{64, 10, 0, 64} {
			req := first.req
			req.Fences = want
			again := b.grant(b.b, req)
			if again.token.Fence != first.token.Fence {
				b.Errorf("Acquire %s again: got fence %d, want that of the first grant: %d", name, again.token.Fence, first.token.Fence)
			}
			// Where fences are none, nothing is reserved that could run out.
			if most := min(want, first.more); b.fenced() && again.more > most {
				b.Errorf("Acquire %s again with %d further fences, after a grant of %d: got %d, want %d at most", name, want, first.more, again.more, most)
			} else if again.more < most {
				b.Errorf("Acquire %s again with %d further fences, after a grant of %d: got %d, want as many", name, want, first.more, again.more)
			}
		}
		b.release(b.a, first.giveUp(0), tierlock.LeaseOwned)
	}
}

// following is the token of the hold that comes n after that of h on its lease.
func (b *bench) following(h hold, n uint64) tierlock.UpdateRequest {
	t := h.token
	t.ID, t.RequestID = fmt.Sprint("following-", n), fmt.Sprint(`a "request" `, n)
	t.ClientTime = t.ClientTime.Add(time.Duration(n) * time.Microsecond)
	if b.fenced() {
		t.Fence, t.Seq = t.Fence+n, t.Seq+n
	}
	return tierlock.UpdateRequest{Name: h.req.Name, Token: t}
}

func (b *bench) update(s *side, req tierlock.UpdateRequest, want tierlock.Ownership) {
	b.Helper()
	ctx, cancel := b.ctx()
	defer cancel()
	own, err := s.Store.(tierlock.Updater).Update(ctx, req)
	if err != nil || own != want {
		b.Fatalf("Update %s of %s: got %v and error %v, want %v", req.Name, req.Token.Lease, own, err, want)
	}
}

// canUpdate tells whether there is anything to check. A wrapper that finds
// nothing to wrap answers with ErrUnavailable.
func (b *bench) canUpdate() bool {
	_, ok := b.a.Store.(tierlock.Updater)
	return ok
}

// updateForward: the token of a lease is replaced, but never by an older one, and
// all else goes on.
func updateForward(b *bench) {
	if !b.canUpdate() {
		return
	}
	name := b.name("42")
	b.release(b.a, b.lock(b.a, name, long).giveUp(0), tierlock.LeaseOwned)
	h := b.grant(b.a, b.reserve(b.a, name, 64))
	now := h // as it is to be seen
	steps := []uint64{1, 7, 3, 7, 8}
	if !b.fenced() {
		steps = []uint64{1, 7, 8} // nothing tells which is older
	}
	newest := uint64(0)
	for _, n := range steps {
		req := b.following(h, n)
		b.update(b.side(int(n)), req, tierlock.LeaseOwned)
		if n > newest {
			newest, now.token = n, req.Token
		}
		b.heldBy(b.b, now, 1)
		b.refuse(b.b, b.request(b.b, name, long), now)
	}
	now = b.renew(b.b, now, 2*long, tierlock.LeaseOwned)
	b.heldBy(b.a, now, 1)
	again := b.grantAgain(b.a, h.req)
	if again.Lease != h.token.Lease {
		b.Errorf("Acquire %s again: got lease %s, want %s", name, again.Lease, h.token.Lease)
	}
	b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.a, name)
}

// grantAgain repeats a request whose lease may carry another token by now.
func (b *bench) grantAgain(s *side, req tierlock.AcquireRequest) tierlock.Token {
	b.Helper()
	res, _ := b.acquire(s, req)
	if !res.Granted {
		b.Fatalf("Acquire %s by %s again: got held by {%v}, want granted", req.Name, req.Token.Lease, res.Token)
	}
	return res.Token
}

// updateOthers: what does not carry the lease is left alone, and no key comes into
// being.
func updateOthers(b *bench) {
	if !b.canUpdate() {
		return
	}
	name := b.name("42")
	b.update(b.a, b.following(hold{req: b.request(b.a, name, long), token: b.request(b.a, name, long).Token}, 1), tierlock.LeaseGone)
	b.isFree(b.b, name)

	old := b.lock(b.a, name, long)
	b.release(b.a, old.giveUp(0), tierlock.LeaseOwned)
	b.update(b.a, b.following(old, 1<<20), tierlock.LeaseGone)
	b.isFree(b.b, name)

	present := b.lock(b.b, name, long)
	b.update(b.a, b.following(old, 1<<20), tierlock.LeaseTaken)
	prefix := b.following(present, 1)
	prefix.Token.Lease = prefix.Token.Lease[:len(prefix.Token.Lease)-1]
	b.update(b.a, prefix, tierlock.LeaseTaken)
	b.heldBy(b.a, present, 1)
	b.release(b.b, present.giveUp(0), tierlock.LeaseOwned)

	// A lease that is kept after its release is somebody's no more, or runs out
	// as it would have.
	kept := b.lock(b.a, name, long)
	b.release(b.a, kept.giveUp(100*time.Millisecond), tierlock.LeaseOwned)
	ctx, cancel := b.ctx()
	defer cancel()
	if _, err := b.a.Store.(tierlock.Updater).Update(ctx, b.following(kept, 1)); err != nil {
		b.Fatalf("Update %s, kept: got error %v, want an answer", name, err)
	}
	b.freeWithin(b.b, name, 100*time.Millisecond+patience)

	job := b.grant(b.a, b.explicit(b.a, name, "job", long))
	b.update(b.b, b.following(job, 1), tierlock.LeaseTaken)
	b.heldBy(b.b, job, 1)
	b.release(b.a, job.giveUp(0), tierlock.LeaseOwned)
}
