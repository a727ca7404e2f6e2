package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

func acquireFree(b *bench) {
	name := b.name("42")
	b.isFree(b.b, name)
	h := b.lock(b.a, name, long)
	b.heldBy(b.a, h, 1)
	b.heldBy(b.b, h, 1)
}

func acquireHeld(b *bench) {
	name := b.name("42")
	h := b.lock(b.a, name, long)
	b.refuse(b.b, b.request(b.b, name, long), h)
	// Another lease of the same process is another holder.
	b.refuse(b.a, b.request(b.a, name, long), h)
	// A refused request does not touch the hold, whatever its TTL.
	b.refuse(b.b, b.request(b.b, name, 2*long), h)
	b.refuse(b.b, b.request(b.b, name, 100*time.Millisecond), h)
	b.heldBy(b.b, h, 1)
}

// acquireIdempotent: the second request of a lease is a repeat after a lost
// reply. It may come over another connection.
func acquireIdempotent(b *bench) {
	name := b.name("42")
	first := b.lock(b.a, name, long)
	last := first
	b.advance(300 * time.Millisecond)
	for _, s := range []*side{b.a, b.b} {
		again := b.grant(s, first.req)
		if again.token.Fence != first.token.Fence || again.token.Seq != first.token.Seq {
			b.Errorf("Acquire %s again: got fence %d, want that of the first grant: %d", name, again.token.Fence, first.token.Fence)
		}
		if again.re {
			b.Errorf("Acquire %s again: got Reentered, want the first grant again", name)
		}
		rec, asked := b.inspect(b.b, name)
		if rec.Token.Lease != first.token.Lease || rec.Token.Fence != first.token.Fence || rec.Holds != 1 {
			b.Errorf("Inspect %s after the repeat: got {%v} with %d holds, want {%v} with 1", name, rec.Token, rec.Holds, first.token)
		}
		// Its time left is that of the repeat, not of the first request.
		b.checkLeft("Inspect after the repeat", rec.Left, again, asked)
		last = again
	}
	// It never shortens: the time left is at least the TTL of the repeat.
	shorter := first.req
	shorter.TTL, shorter.Token.TTL = 100*time.Millisecond, 100*time.Millisecond
	if res, _ := b.acquire(b.a, shorter); !res.Granted {
		b.Fatalf("Acquire %s again with a shorter TTL: got held by {%v}, want granted", name, res.Token)
	}
	rec, asked := b.inspect(b.b, name)
	b.checkLeft("Inspect after a repeat with a shorter TTL", rec.Left, last, asked)
	b.release(b.a, first.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.b, name)
}

// acquireIdempotentAtOnce: a repeat may overtake the request that it repeats.
func acquireIdempotentAtOnce(b *bench) {
	for round := range 10 {
		name := b.name(fmt.Sprint("at once ", round))
		req := b.request(b.a, name, long)
		results := make([]tierlock.AcquireResult, 8)
		errs := make([]error, len(results))
		b.atOnce(len(results), func(i int, s *side) {
			ctx, cancel := b.ctx()
			defer cancel()
			results[i], errs[i] = s.Acquire(ctx, req)
		})
		for i, res := range results {
			if errs[i] != nil || !res.Granted || res.Token.Fence != results[0].Token.Fence {
				b.Fatalf("Acquire %s, 8 times at once by one lease: got granted %v, fence %d, error %v, want all granted with one fence (%d)",
					name, res.Granted, res.Token.Fence, errs[i], results[0].Token.Fence)
			}
		}
		b.release(b.b, tierlock.ReleaseRequest{Name: name, Lease: req.Token.Lease}, tierlock.LeaseOwned)
		b.isFree(b.a, name)
	}
}

func acquireOneWinner(b *bench) {
	for round := range 20 {
		name := b.name(fmt.Sprint("contended ", round))
		reqs := make([]tierlock.AcquireRequest, 16)
		results := make([]tierlock.AcquireResult, len(reqs))
		errs := make([]error, len(reqs))
		for i := range reqs {
			reqs[i] = b.request(b.side(i), name, long)
		}
		b.atOnce(len(reqs), func(i int, s *side) {
			ctx, cancel := b.ctx()
			defer cancel()
			results[i], errs[i] = s.Acquire(ctx, reqs[i])
		})
		var winners []string
		for i, res := range results {
			if errs[i] != nil {
				b.Fatalf("Acquire %s, 16 at once: got error %v, want an answer", name, errs[i])
			}
			if res.Granted {
				winners = append(winners, reqs[i].Token.Lease)
			}
		}
		if len(winners) != 1 {
			b.Fatalf("Acquire %s, 16 leases at once: got winners %v, want exactly one", name, winners)
		}
		rec, _ := b.inspect(b.a, name)
		if rec.Token.Lease != winners[0] {
			b.Fatalf("Inspect %s: got held by {%v}, want by the winner %s", name, rec.Token, winners[0])
		}
		for i, res := range results {
			if !res.Granted && res.Token.Lease != winners[0] {
				b.Errorf("Acquire %s by %s: got held by {%v}, want by the winner %s", name, reqs[i].Token.Lease, res.Token, winners[0])
			}
		}
	}
}

// side alternates between the two stores.
func (b *bench) side(i int) *side {
	if i%2 == 0 {
		return b.a
	}
	return b.b
}

// atOnce runs n calls at the same time, on both stores in turn.
func (b *bench) atOnce(n int, call func(i int, s *side)) {
	var wg sync.WaitGroup
	start, stop := context.WithCancel(context.Background())
	for i := range n {
		wg.Go(func() {
			<-start.Done()
			call(i, b.side(i))
		})
	}
	stop()
	wg.Wait()
}
