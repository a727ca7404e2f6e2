package storetest

import (
	"time"

	"github.com/tierlock/tierlock"
)

// checkRise compares the fences of two holds of one key, older first.
func (b *bench) checkRise(older, younger tierlock.Token) {
	b.Helper()
	if b.fenced() && younger.Fence <= older.Fence {
		b.Fatalf("%s/%s: the younger hold got fence %d, want more than the older one's %d", younger.Resource, younger.Key, younger.Fence, older.Fence)
	}
	if !b.fenced() && (younger.Fence != 0 || older.Fence != 0) {
		b.Fatalf("%s/%s: got fences %d and %d, want 0 in a process-local store", younger.Resource, younger.Key, older.Fence, younger.Fence)
	}
}

// fencesRise: with every hold, in whatever way the one before it ended.
// scenario 76
func fencesRise(b *bench) {
	name := b.name("42")
	last := b.lock(b.a, name, long)
	next := func(s *side, ttl time.Duration) {
		b.Helper()
		h := b.lock(s, name, ttl)
		b.checkRise(last.token, h.token)
		last = h
	}
	b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)
	next(b.b, long) // by the other store after a release
	b.release(b.b, last.giveUp(0), tierlock.LeaseOwned)
	next(b.b, 100*time.Millisecond) // by the same
	b.freeWithin(b.a, name, last.ttl+patience)
	next(b.a, long) // by the other after an expiry
	b.release(b.a, last.giveUp(100*time.Millisecond), tierlock.LeaseOwned)
	b.freeWithin(b.a, name, last.ttl+patience)
	next(b.a, long) // after a key that was kept
	b.release(b.a, last.giveUp(0), tierlock.LeaseOwned)

	// By a lease that held it before, too: it is a new hold.
	older := last
	next(b.b, long)
	b.release(b.b, last.giveUp(0), tierlock.LeaseOwned)
	again := b.grant(b.a, older.req)
	b.checkRise(last.token, again.token)
	b.release(b.a, again.giveUp(0), tierlock.LeaseOwned)

	// And by explicit holders.
	job := b.grant(b.b, b.explicit(b.b, name, "job", long))
	b.checkRise(again.token, job.token)
	b.release(b.b, job.giveUp(0), tierlock.LeaseOwned)
	same := b.grant(b.a, b.explicit(b.a, name, "job", long))
	b.checkRise(job.token, same.token)
}

// fencesRiseQuickly: also where holds are shorter than a tick of any clock.
func fencesRiseQuickly(b *bench) {
	name := b.name("42")
	var last tierlock.Token
	for i := range 200 {
		h := b.lock(b.side(i/2), name, long) // each store twice in a row
		if i > 0 {
			b.checkRise(last, h.token)
		}
		last = h.token
		b.release(b.side(i/2), h.giveUp(0), tierlock.LeaseOwned)
	}
}
