package storetest

import (
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// enter acquires what has to join the hold of an explicit holder.
func (b *bench) enter(s *side, req tierlock.AcquireRequest, into hold) hold {
	b.Helper()
	h := b.grant(s, req)
	b.entered(h, into)
	return h
}

func (b *bench) entered(h, into hold) {
	b.Helper()
	if !h.re {
		b.Errorf("Acquire %s by the same explicit holder: got Reentered false, want true", h.req.Name)
	}
	if h.token.Fence != into.token.Fence || h.token.Epoch != into.token.Epoch {
		b.Errorf("Acquire %s by the same explicit holder: got fence %d in epoch %d, want the hold's: %d in %d",
			h.req.Name, h.token.Fence, h.token.Epoch, into.token.Fence, into.token.Epoch)
	}
}

// twice is a key with two leases of one explicit holder. Where the first had ended
// before the second came, on a slow machine, it is another key.
func (b *bench) twice(key string, ttls ...time.Duration) [2]hold {
	b.Helper()
	for try := 0; ; try++ {
		first := b.grant(b.a, b.explicit(b.a, b.name(fmt.Sprint(key, " ", try)), "job", ttls[0]))
		second := b.grant(b.b, b.explicit(b.b, first.req.Name, "job", ttls[1]))
		if !second.re && first.over(second.window) && try < 10 {
			continue
		}
		b.entered(second, first)
		return [2]hold{first, second}
	}
}

// holds inspects a key that has to be held n times with the fence of h.
func (b *bench) holds(h hold, n int) tierlock.Record {
	b.Helper()
	rec, _ := b.inspect(b.b, h.req.Name)
	if !rec.Held || rec.Holds != n || rec.Token.Fence != h.token.Fence || rec.Token.Holder != h.token.Holder {
		b.Fatalf("Inspect %s: got held %v, %d times, by {%v}, want %d times by holder %q with fence %d",
			h.req.Name, rec.Held, rec.Holds, rec.Token, n, h.token.Holder, h.token.Fence)
	}
	return rec
}

func holderEnters(b *bench) {
	name := b.name("42")
	first := b.grant(b.a, b.explicit(b.a, name, "job 7", long))
	if first.re {
		b.Errorf("Acquire %s, free, by an explicit holder: got Reentered true, want false", name)
	}
	b.heldBy(b.b, first, 1)
	b.enter(b.b, b.explicit(b.b, name, "job 7", long), first)
	b.holds(first, 2)
	b.enter(b.a, b.explicit(b.a, name, "job 7", long), first)
	rec := b.holds(first, 3)
	if rec.Left > long+slack || rec.Left < long-callLimit {
		b.Errorf("Inspect %s: got %v left, want some %v", name, rec.Left, long)
	}
	// Others stay out, and leave no trace.
	for _, holder := range []string{"job 8", "job 7 ", "JOB 7", "job"} {
		if res, _ := b.acquire(b.b, b.explicit(b.b, name, holder, long)); res.Granted {
			b.Errorf("Acquire %s by explicit holder %q: got granted, want held by %q", name, holder, "job 7")
		} else if res.Token.Holder != "job 7" || res.Token.Fence != first.token.Fence {
			b.Errorf("Acquire %s by explicit holder %q: got held by {%v}, want by {%v}", name, holder, res.Token, first.token)
		}
	}
	b.holds(first, 3)
}

// holderCountsOnce: a repeat after a lost reply is not one more hold.
func holderCountsOnce(b *bench) {
	name := b.name("42")
	first := b.grant(b.a, b.explicit(b.a, name, "job", long))
	second := b.enter(b.b, b.explicit(b.b, name, "job", long), first)
	for range 2 {
		if again := b.grant(b.a, first.req); again.token.Fence != first.token.Fence {
			b.Errorf("Acquire %s again: got fence %d, want %d", name, again.token.Fence, first.token.Fence)
		}
		b.enter(b.b, second.req, first)
	}
	b.holds(first, 2)
	b.release(b.b, second.giveUp(0), tierlock.LeaseOwned)
	b.release(b.b, second.giveUp(0), tierlock.LeaseTaken) // the key carries the other lease
	b.holds(first, 1)
	b.release(b.a, first.giveUp(0), tierlock.LeaseOwned)
	b.release(b.a, first.giveUp(0), tierlock.LeaseGone)
	b.isFree(b.b, name)
}

func holderLastFrees(b *bench) {
	for firstGoesFirst := range 2 {
		name := b.name(fmt.Sprint("42/", firstGoesFirst))
		a := b.grant(b.a, b.explicit(b.a, name, "job", long))
		c := b.enter(b.b, b.explicit(b.b, name, "job", long), a)
		if firstGoesFirst == 1 {
			a, c = c, a
		}
		b.release(b.a, a.giveUp(0), tierlock.LeaseOwned)
		b.holds(a, 1)
		if res, _ := b.acquire(b.b, b.request(b.b, name, long)); res.Granted {
			b.Fatalf("Acquire %s with one of two explicit leases released: got granted, want held", name)
		}
		b.renew(b.a, a, long, tierlock.LeaseTaken)
		// One may come back while the other is there: it is the same hold.
		d := b.enter(b.b, b.explicit(b.b, name, "job", long), a)
		b.release(b.b, c.giveUp(0), tierlock.LeaseOwned)
		b.holds(a, 1)
		b.release(b.b, d.giveUp(0), tierlock.LeaseOwned)
		b.isFree(b.a, name)
		next := b.lock(b.b, name, long)
		b.checkRise(a.token, next.token)
	}
}

// holderMemberExpires: a lease that ended is no member any more, whoever
// began the hold.
func holderMemberExpires(b *bench) {
	const short = time.Second
	all := b.twice("all expire", short, short+300*time.Millisecond)
	founder := b.twice("the founder expires", short, long)
	entrant := b.twice("the entrant expires", long, short)

	b.freeBetween(all[0].req.Name, all[1]) // later than short
	b.isFree(b.a, all[0].req.Name)
	b.lock(b.a, all[0].req.Name, long)

	b.advance(max(0, max(founder[0].got, entrant[1].got)+short-b.now()) + slack)
	for i, both := range [][2]hold{founder, entrant} {
		gone, stays := both[i], both[1-i]
		rec, asked := b.inspect(b.b, gone.req.Name)
		b.checkLeft("Inspect, with the lease that stays", rec.Left, stays, asked)
		b.holds(both[0], 1)
		b.renew(b.a, gone, long, tierlock.LeaseTaken)
		b.release(b.a, gone.giveUp(0), tierlock.LeaseTaken)
		b.holds(both[0], 1)
		b.release(b.b, stays.giveUp(0), tierlock.LeaseOwned)
		b.isFree(b.a, gone.req.Name) // the expired one does not keep it
	}
}

// holderKindsApart: only who said that an id is theirs enters by it.
func holderKindsApart(b *bench) {
	name := b.name("explicit")
	h := b.grant(b.a, b.explicit(b.a, name, "job", long))
	req := b.request(b.b, name, long)
	req.Token.Holder = "job"
	b.refuse(b.b, req, h)
	b.heldBy(b.b, h, 1)

	name = b.name("anonymous")
	req = b.request(b.a, name, long)
	req.Token.Holder = "job"
	h = b.grant(b.a, req)
	b.refuse(b.b, b.explicit(b.b, name, "job", long), h)
	req = b.request(b.b, name, long)
	req.Token.Holder = "job"
	b.refuse(b.b, req, h)
	b.heldBy(b.b, h, 1)
}

func holderRenews(b *bench) {
	const short = time.Second
	both := b.twice("42", short, long)
	first, second := both[0], both[1]
	name := first.req.Name
	second = b.renew(b.b, second, 2*long, tierlock.LeaseOwned)
	// The key lives as long as its longest lease: neither an entry nor a
	// renewal with a shorter one takes anything off.
	third := b.enter(b.a, b.explicit(b.a, name, "job", short), first)
	if own, w, err := b.renewing(b.a, third.renewal(time.Millisecond)); err != nil || own != tierlock.LeaseOwned && !third.over(w) {
		b.Fatalf("Renew %s by %s: got %v and error %v, want owned", name, third.token.Lease, own, err)
	}
	rec, asked := b.inspect(b.b, name)
	b.checkLeft("Inspect", rec.Left, second, asked)
	b.advance(short + slack)
	b.holds(first, 1)
	b.renew(b.a, first, long, tierlock.LeaseTaken)
	b.renew(b.a, third, long, tierlock.LeaseTaken)
	b.renew(b.b, hold{req: b.explicit(b.b, name, "job", long)}, long, tierlock.LeaseTaken) // never entered
	rec, asked = b.inspect(b.b, name)
	b.checkLeft("Inspect", rec.Left, second, asked)

	// Kept after the last release.
	kept := second
	kept.ttl = short
	kept.window = b.release(b.b, second.giveUp(short), tierlock.LeaseOwned)
	if res, _ := b.acquire(b.a, b.request(b.a, name, long)); res.Granted && b.now()-kept.sent < short-slack {
		b.Fatalf("Acquire %s right after a release with Keep %v: got granted, want held", name, short)
	}
}
