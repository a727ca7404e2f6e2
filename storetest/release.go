package storetest

import (
	"time"

	"github.com/tierlock/tierlock"
)

func releaseOwned(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, long)
	b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, name)
	b.release(b.a, h.giveUp(0), tierlock.LeaseGone) // a repeat after a lost reply
	next := b.lock(b.b, name, long)
	b.release(b.a, h.giveUp(0), tierlock.LeaseTaken) // and one that came too late
	b.heldBy(b.a, next, 1)
	// The lease id is what counts, not the connection.
	b.release(b.a, next.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, name)
}

func releaseGone(b *bench) {
	never := hold{req: b.request(b.a, b.name("never"), long)}
	b.release(b.a, never.giveUp(0), tierlock.LeaseGone)
	b.release(b.a, never.giveUp(time.Second), tierlock.LeaseGone)
	b.isFree(b.b, never.req.Name)

	expired := b.lock(b.a, b.name("expired"), 100*time.Millisecond)
	b.freeWithin(b.b, expired.req.Name, expired.ttl+patience)
	b.release(b.a, expired.giveUp(time.Second), tierlock.LeaseGone)
	b.release(b.a, expired.giveUp(0), tierlock.LeaseGone)
	b.isFree(b.b, expired.req.Name)
}

// releaseStale: whoever lost a key to another cannot touch it. scenario 36
func releaseStale(b *bench) {
	name := b.name("42")
	stale := b.lock(b.a, name, 100*time.Millisecond)
	b.freeWithin(b.b, name, stale.ttl+patience)
	owner := b.lock(b.b, name, long)

	b.release(b.a, stale.giveUp(0), tierlock.LeaseTaken)
	b.heldBy(b.b, owner, 1)
	b.release(b.a, stale.giveUp(100*time.Millisecond), tierlock.LeaseTaken)
	b.heldBy(b.b, owner, 1)
	b.renew(b.a, stale, 2*long, tierlock.LeaseTaken)
	b.heldBy(b.b, owner, 1)
	b.refuse(b.a, stale.req, owner)
	b.heldBy(b.b, owner, 1)

	// A lease id is compared whole.
	for _, lease := range []string{owner.token.Lease[:len(owner.token.Lease)-1], owner.token.Lease + "0", "%", "x"} {
		b.release(b.a, tierlock.ReleaseRequest{Name: name, Lease: lease}, tierlock.LeaseTaken)
	}
	b.heldBy(b.b, owner, 1)
}

// releaseKeep: the key stays for the time asked for. scenario 75
func releaseKeep(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, long)
	const keep = time.Second
	kept := h
	kept.ttl, kept.window = keep, b.release(b.a, h.giveUp(keep), tierlock.LeaseOwned)
	b.heldBy(b.b, kept, 1)
	b.refuse(b.b, b.request(b.b, name, long), kept)

	// The repeat of a lost reply says the same, and counts from itself at the
	// latest: it cannot lengthen.
	b.advance(200 * time.Millisecond)
	own, w, err := b.releasing(b.b, h.giveUp(keep))
	if err != nil || own != tierlock.LeaseOwned && !kept.over(w) {
		b.Fatalf("Release %s again, Keep %v: got %v and error %v, want owned", name, keep, own, err)
	}
	if own == tierlock.LeaseOwned {
		rec, asked := b.inspect(b.b, name)
		if high := keep - (asked.sent - kept.got) + slack; rec.Left > high {
			b.Errorf("Inspect %s after the repeat: got %v left, want at most %v", name, rec.Left, high)
		}
	}
	b.freeBetween(name, kept)
	b.lock(b.b, name, long)
}

func releaseKeepNeverLengthens(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, time.Second)
	if own, w, err := b.releasing(b.a, h.giveUp(long)); err != nil || own != tierlock.LeaseOwned && !h.over(w) {
		b.Fatalf("Release %s, Keep %v: got %v and error %v, want owned", name, long, own, err)
	}
	b.freeBetween(name, h)
}

// freeBetween waits for the end of a hold, which must come neither before its
// TTL nor long after it.
func (b *bench) freeBetween(name tierlock.Name, h hold) {
	b.Helper()
	b.freeWithin(b.b, name, h.ttl+patience)
	if took := b.now() - h.sent; took < h.ttl-slack {
		b.Errorf("%s became free %v after the request of %v, want not before that", name, took, h.ttl)
	}
	if took := b.now() - h.got; took > h.ttl+patience {
		b.Errorf("%s became free only %v after the grant of %v", name, took, h.ttl)
	}
}
