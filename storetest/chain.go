package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// RunChain runs the suite for stores of a chain: what [tierlock.Place] says, for
// every call, and what [tierlock.Chained] says. Each store of the harness has to be
// a Chained. Such a store passes [Run] as well, where no call has a place.
//
// The harness's backend is healthy and stays the one that it is: that Probe tells
// a failover is for the store's own tests to show.
func RunChain(t *testing.T, newHarness func(t *testing.T) Harness) {
	runAll(t, chainChecks, newHarness)
}

// RunChainInBubble is [RunChain] as [RunInBubble] is [Run].
func RunChainInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	runAllInBubble(t, chainChecks, newHarness)
}

var chainChecks = []check{
	{"PlaceAcquire", placeAcquire},
	{"PlaceAcquireOver", placeAcquireOver},
	{"PlaceAcquireLate", placeAcquireLate},
	{"PlaceOneWinner", placeOneWinner},
	{"PlaceRenew", placeRenew},
	{"PlaceRenewBatch", placeRenewBatch},
	{"PlaceRelease", placeRelease},
	{"PlaceReleaseKeep", placeReleaseKeep},
	{"PlaceIncarnation", placeIncarnation},
	{"PlaceFences", placeFences},
	{"PlaceFencesQuickly", placeFencesQuickly},
	{"PlaceZero", placeZero},
	{"PlaceWatch", placeWatch},
	{"AdoptFree", adoptFree},
	{"AdoptOver", adoptOver},
	{"AdoptIdempotent", adoptIdempotent},
	{"AdoptRecord", adoptRecord},
	{"AdoptExplicit", adoptExplicit},
	{"AdoptBatch", adoptBatch},
	{"ProbeTells", probeTells},
	{"ProbeEpoch", probeEpoch},
	{"ProbeLoss", probeLoss},
	{"ChainContextEnded", chainContextEnded},
}

// chained is the side's store, which has to be one.
func (b *bench) chained(s *side) tierlock.Chained {
	b.Helper()
	c, ok := s.Store.(tierlock.Chained)
	if !ok {
		b.Fatalf("harness: a %T is no tierlock.Chained", s.Store)
	}
	return c
}

// probe asks which data the store has.
func (b *bench) probe(s *side) string {
	b.Helper()
	inc := b.probing(s, b.ns, 0).Incarnation
	if inc == "" {
		b.Fatalf("Probe: got no incarnation, want one")
	}
	return inc
}

// probing is a probe with an epoch, which has to succeed.
func (b *bench) probing(s *side, ns string, epoch uint16) (res tierlock.ProbeResult) {
	b.Helper()
	var err error
	b.in(func(ctx context.Context) {
		res, err = b.chained(s).Probe(ctx, tierlock.ProbeRequest{Namespace: ns, Epoch: epoch})
	})
	if err != nil {
		b.Fatalf("Probe of namespace %q: %v", ns, err)
	}
	return res
}

// place is an exclusive place of an epoch, on the data that there is. From then on
// each name has a namespace of its own: a namespace has one epoch at a time, and a
// store may keep one record of it for many locks.
func (b *bench) place(epoch uint16) tierlock.Place {
	b.Helper()
	b.apart = true
	b.data.of = b.probe(b.a)
	return tierlock.Place{Epoch: epoch, Incarnation: b.data.of, Exclusive: true}
}

// shared is a place that is not exclusive.
func shared(p tierlock.Place) tierlock.Place {
	p.Exclusive = false
	return p
}

// ofEpoch is the same place in another epoch.
func ofEpoch(p tierlock.Place, epoch uint16) tierlock.Place {
	p.Epoch = epoch
	return p
}

func at(req tierlock.AcquireRequest, p tierlock.Place) tierlock.AcquireRequest {
	req.Place = p
	return req
}

// lockAt grants a new lease at a place, which has to be of the epoch.
func (b *bench) lockAt(s *side, req tierlock.AcquireRequest, epoch uint16) hold {
	b.Helper()
	h := b.grant(s, req)
	if h.re {
		b.Errorf("Acquire %s by %s: got Reentered, want a hold of its own", req.Name, req.Token.Lease)
	}
	if h.token.Epoch != uint64(epoch) {
		b.Errorf("Acquire %s at %v: got a grant of epoch %d, want %d", req.Name, req.Place, h.token.Epoch, epoch)
	}
	return h
}

// epochError checks that a call was refused for its place, and for nothing else.
func (b *bench) epochError(what string, err error) {
	b.Helper()
	if !errors.Is(err, tierlock.ErrEpoch) {
		b.Fatalf("%s: got error %v, want one that wraps ErrEpoch", what, err)
	}
	for _, class := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured} {
		if errors.Is(err, class) {
			b.Fatalf("%s: got error %v, which wraps %v besides ErrEpoch", what, err, class)
		}
	}
}

// try is one call of Acquire, whatever comes of it.
func (b *bench) try(s *side, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	var res tierlock.AcquireResult
	var err error
	b.in(func(ctx context.Context) { res, err = s.Acquire(ctx, req) })
	return res, err
}

// renewing and releasing are single calls, whatever comes of them.
func (b *bench) renewing(s *side, req tierlock.RenewRequest) (tierlock.Ownership, window, error) {
	b.Helper()
	var res []tierlock.RenewResult
	w := b.in(func(ctx context.Context) { res = s.Renew(ctx, []tierlock.RenewRequest{req}) })
	if len(res) != 1 {
		b.Fatalf("Renew of 1: got %d results, want 1", len(res))
	}
	return res[0].State, w, res[0].Err
}

func (b *bench) releasing(s *side, req tierlock.ReleaseRequest) (tierlock.Ownership, window, error) {
	var own tierlock.Ownership
	var err error
	w := b.in(func(ctx context.Context) { own, err = s.Release(ctx, req) })
	return own, w, err
}

// untouched checks that a key is still as h has it, or free if h is over.
func (b *bench) untouched(h hold, over bool) {
	b.Helper()
	if over {
		b.isFree(b.b, h.req.Name)
		return
	}
	b.heldBy(b.b, h, 1)
}

// left is what is there of an earlier hold when a call comes.
type left string

const (
	alive    left = "alive"
	released left = "released"
	expired  left = "expired"
)

// expiresSoon is the TTL of holds that are to be over.
const expiresSoon = 100 * time.Millisecond

// remains is a key with a hold of an epoch, in a state. What is tried on it is of
// epoch 3.
type remains struct {
	hold  hold
	epoch uint16
	state left
}

// remains makes keys with holds of epochs 2, 3 and 4 in each of the states.
func (b *bench) remains(p tierlock.Place, tag string, explicit bool, states ...left) []remains {
	b.Helper()
	var all []remains
	for _, state := range states {
		for epoch := uint16(2); epoch <= 4; epoch++ {
			name := b.name(fmt.Sprintf("%s %s %d", tag, state, epoch))
			ttl := long
			if state == expired {
				ttl = expiresSoon
			}
			req := b.request(b.a, name, ttl)
			if explicit {
				req = b.explicit(b.a, name, "job", ttl)
			}
			h := b.lockAt(b.a, at(req, ofEpoch(p, epoch)), epoch)
			if state == released {
				b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
			}
			all = append(all, remains{h, epoch, state})
		}
	}
	for _, r := range all {
		if r.state == expired {
			b.freeWithin(b.b, r.hold.req.Name, expiresSoon+patience)
		}
	}
	return all
}
