package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// class checks that an error is classed, and classed once.
func (b *bench) class(what string, err error, allowed ...error) {
	b.Helper()
	n, fits := 0, false
	for _, class := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured} {
		if errors.Is(err, class) {
			n++
		}
	}
	for _, class := range allowed {
		fits = fits || errors.Is(err, class)
	}
	if n != 1 || !fits {
		b.Fatalf("%s: got error %v, want one that wraps one of %q and no other class", what, err, allowed)
	}
}

// undo releases a lease of which nobody knows whether it was granted.
func (b *bench) undo(s *side, req tierlock.AcquireRequest) {
	b.Helper()
	var err error
	b.in(func(ctx context.Context) {
		_, err = s.Release(ctx, tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit})
	})
	if err != nil {
		b.Fatalf("Release %s: got error %v, want an answer", req.Name, err)
	}
}

// lateRefused: a budget that is over when the request arrives. A store that
// answers in no time may grant; one that refuses changes nothing.
func lateRefused(b *bench) {
	late := func(s *side, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
		req.Budget = 1
		var res tierlock.AcquireResult
		var err error
		b.in(func(ctx context.Context) { res, err = s.Acquire(ctx, req) })
		if err != nil {
			b.class("Acquire with a budget of 1 ns", err, tierlock.ErrLate, tierlock.ErrUnavailable)
		}
		return res, err
	}

	var names []tierlock.Name
	for i := range 20 {
		req := b.request(b.side(i), b.name(fmt.Sprint("free ", i)), long)
		names = append(names, req.Name)
		switch res, err := late(b.side(i), req); {
		case errors.Is(err, tierlock.ErrLate):
			b.isFree(b.side(i+1), req.Name)
		case err != nil:
			b.undo(b.side(i), req)
		case !res.Granted:
			b.Fatalf("Acquire %s, free, with a budget of 1 ns: got held by {%v}, want granted or refused as late", req.Name, res.Token)
		default:
			b.release(b.side(i), tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease}, tierlock.LeaseOwned)
		}
	}
	b.advance(200 * time.Millisecond) // nothing comes after the refusal
	for i, name := range names {
		b.isFree(b.side(i), name)
	}

	// A late repeat takes nothing from the hold that is there.
	own := b.lock(b.a, b.name("own"), long)
	if res, err := late(b.b, own.req); err == nil && !res.Granted {
		b.Fatalf("Acquire %s again with a budget of 1 ns: got held by {%v}, want granted or refused as late", own.req.Name, res.Token)
	}
	if rec, _ := b.inspect(b.b, own.req.Name); rec.Token.Lease != own.token.Lease || rec.Token.Fence != own.token.Fence {
		b.Fatalf("Inspect %s after a late repeat: got {%v}, want {%v}", own.req.Name, rec.Token, own.token)
	}

	// A late entry is none.
	job := b.grant(b.a, b.explicit(b.a, b.name("job"), "job", long))
	entry := b.explicit(b.b, job.req.Name, "job", long)
	if _, err := late(b.b, entry); errors.Is(err, tierlock.ErrUnavailable) || err == nil {
		b.undo(b.b, entry)
	}
	b.holds(job, 1)
}

// contextEnded: a call whose context is over says so at once, and sends
// nothing.
func contextEnded(b *bench) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	held := b.lock(b.b, b.name("held"), long)
	for i, ctx := range []context.Context{cancelled, expired} {
		name := b.name(fmt.Sprint("free ", i))
		_, err := b.a.Acquire(ctx, b.request(b.a, name, long))
		b.class("Acquire with an ended context", err, tierlock.ErrUnavailable)
		b.isFree(b.b, name)
		b.advance(200 * time.Millisecond)
		b.isFree(b.b, name)

		_, err = b.a.Acquire(ctx, b.request(b.a, held.req.Name, long))
		b.class("Acquire of a held key with an ended context", err, tierlock.ErrUnavailable)
		_, err = b.a.Inspect(ctx, held.req.Name)
		b.class("Inspect with an ended context", err, tierlock.ErrUnavailable)
		res := b.a.Renew(ctx, []tierlock.RenewRequest{held.renewal(long), {Name: name, Lease: "none", TTL: long}})
		if len(res) != 2 {
			b.Fatalf("Renew of 2 with an ended context: got %d results, want 2", len(res))
		}
		for _, r := range res {
			b.class("Renew with an ended context", r.Err, tierlock.ErrUnavailable)
		}
		_, err = b.a.Release(ctx, tierlock.ReleaseRequest{Name: name, Lease: "none"})
		b.class("Release with an ended context", err, tierlock.ErrUnavailable)
	}
	b.heldBy(b.b, held, 1)
}

// contextCut: the context ends around the time of the grant. Whatever the
// answer, after an undo the key is free, at the latest when the lease ends.
// scenario 41
func contextCut(b *bench) {
	const ttl = time.Second
	reqs := make([]tierlock.AcquireRequest, 40)
	for i := range reqs {
		reqs[i] = b.request(b.side(i), b.name(fmt.Sprint("cut ", i)), ttl)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*50*time.Microsecond)
		res, err := b.side(i).Acquire(ctx, reqs[i])
		cancel()
		if err != nil {
			b.class("Acquire with a context that ends", err, tierlock.ErrUnavailable, tierlock.ErrLate)
		} else if !res.Granted {
			b.Fatalf("Acquire %s, free: got held by {%v}, want granted or an error", reqs[i].Name, res.Token)
		}
		b.undo(b.side(i), reqs[i])
	}
	// One that was granted after its undo ends by itself.
	b.advance(ttl)
	for i, req := range reqs {
		b.freeWithin(b.side(i), req.Name, patience)
		b.lock(b.side(i+1), req.Name, long)
	}
}
