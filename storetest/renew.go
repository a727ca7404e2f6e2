package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

func renewOwned(b *bench) {
	var h hold
	for try := 0; ; try++ {
		h = b.lock(b.a, b.name(fmt.Sprint("42/", try)), time.Second)
		own, w, err := b.renewing(b.a, h.renewal(long))
		if err == nil && own == tierlock.LeaseGone && h.over(w) && try < 10 {
			continue
		}
		if err != nil || own != tierlock.LeaseOwned {
			b.Fatalf("Renew %s by %s: got %v and error %v, want owned", h.req.Name, h.token.Lease, own, err)
		}
		h.ttl, h.window = long, w
		break
	}
	name := h.req.Name
	b.heldBy(b.b, h, 1)                // with the token as granted: a renewal rewrites nothing
	b.advance(1200 * time.Millisecond) // longer than the first TTL
	b.refuse(b.b, b.request(b.b, name, long), h)
	// The lease id is what counts, not the connection.
	h = b.renew(b.b, h, 2*long, tierlock.LeaseOwned)
	b.heldBy(b.a, h, 1)
	b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, name)
}

func renewNeverShortens(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, long)
	for _, ttl := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 5 * time.Second} {
		b.renew(b.a, h, ttl, tierlock.LeaseOwned)
		b.heldBy(b.b, h, 1) // the time left is still that of the grant
	}
	b.advance(200 * time.Millisecond)
	b.heldBy(b.b, h, 1)
}

func renewTaken(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, long)
	other := hold{req: b.request(b.b, name, long)}
	b.renew(b.b, other, long, tierlock.LeaseTaken)
	b.heldBy(b.a, h, 1)
	// A lease id is compared whole.
	for _, lease := range []string{h.token.Lease[:len(h.token.Lease)-1], h.token.Lease + "0", "x" + h.token.Lease[1:], "%"} {
		other.req.Token.Lease = lease
		b.renew(b.b, other, long, tierlock.LeaseTaken)
	}
	b.heldBy(b.a, h, 1)
}

// renewGone: a key that is not there is not made. scenario 27
func renewGone(b *bench) {
	never := hold{req: b.request(b.a, b.name("never"), long)}
	b.renew(b.a, never, long, tierlock.LeaseGone)
	b.isFree(b.b, never.req.Name)

	released := b.lock(b.a, b.name("released"), long)
	b.release(b.a, released.giveUp(0), tierlock.LeaseOwned)
	b.renew(b.a, released, long, tierlock.LeaseGone)
	b.isFree(b.b, released.req.Name)

	expired := b.lock(b.a, b.name("expired"), 100*time.Millisecond)
	b.freeWithin(b.b, expired.req.Name, expired.ttl+patience)
	b.renew(b.a, expired, long, tierlock.LeaseGone)
	b.renew(b.b, expired, long, tierlock.LeaseGone)
	b.isFree(b.b, expired.req.Name)

	// And it is as free as ever.
	for _, h := range []hold{never, released, expired} {
		b.lock(b.b, h.req.Name, long)
	}
}

func renewBatch(b *bench) {
	b.wantStates("Renew of nothing", nil, nil)

	own1, own2 := b.lock(b.a, b.name("own 1"), long), b.lock(b.a, b.name("own 2"), long)
	taken := hold{req: b.request(b.a, b.name("taken"), long)}
	theirs := b.lock(b.b, taken.req.Name, long)
	gone := hold{req: b.request(b.a, b.name("gone"), long)}
	shared := b.grant(b.a, b.explicit(b.a, b.name("shared"), "job", long))

	ttl := 2 * long
	b.wantStates("Renew of a mixed batch",
		[]tierlock.RenewRequest{gone.renewal(ttl), own1.renewal(ttl), taken.renewal(ttl), shared.renewal(ttl), own2.renewal(ttl), own1.renewal(ttl), gone.renewal(ttl)},
		[]tierlock.Ownership{tierlock.LeaseGone, tierlock.LeaseOwned, tierlock.LeaseTaken, tierlock.LeaseOwned, tierlock.LeaseOwned, tierlock.LeaseOwned, tierlock.LeaseGone})
	for _, h := range []hold{own1, own2, shared} {
		rec, _ := b.inspect(b.b, h.req.Name)
		if rec.Token.Lease != h.token.Lease || rec.Left < ttl-callLimit {
			b.Errorf("Inspect %s after the batch: got {%v} for %v, want {%v} for some %v", h.req.Name, rec.Token, rec.Left, h.token, ttl)
		}
	}
	b.heldBy(b.a, theirs, 1)
	b.isFree(b.a, gone.req.Name)
}

func renewBatchLarge(b *bench) {
	const n = 1000
	reqs := make([]tierlock.RenewRequest, n)
	want := make([]tierlock.Ownership, n)
	for i := range reqs {
		h := hold{req: b.request(b.a, b.name(fmt.Sprint("key ", i)), long)}
		want[i] = tierlock.LeaseGone
		// Irregular, so that a result in a wrong place is a wrong result.
		switch {
		case i%7 == 3 || i == n-1:
			h = b.lock(b.a, h.req.Name, long)
			want[i] = tierlock.LeaseOwned
		case i%11 == 5:
			b.lock(b.b, h.req.Name, long)
			want[i] = tierlock.LeaseTaken
		}
		reqs[i] = h.renewal(long)
	}
	b.wantStates("Renew of 1000", reqs, want)
	release := func(i int) {
		if want[i] == tierlock.LeaseOwned {
			b.release(b.b, tierlock.ReleaseRequest{Name: reqs[i].Name, Lease: reqs[i].Lease}, tierlock.LeaseOwned)
		}
	}
	for i := range reqs {
		release(i)
	}
}

func (b *bench) wantStates(what string, reqs []tierlock.RenewRequest, want []tierlock.Ownership) {
	b.Helper()
	var res []tierlock.RenewResult
	b.in(func(ctx context.Context) { res = b.a.Renew(ctx, reqs) })
	if len(res) != len(want) {
		b.Fatalf("%s: got %d results, want %d", what, len(res), len(want))
	}
	for i, r := range res {
		if r.Err != nil || r.State != want[i] {
			b.Fatalf("%s: result %d of %d: got %v and error %v, want %v", what, i, len(res), r.State, r.Err, want[i])
		}
	}
}
