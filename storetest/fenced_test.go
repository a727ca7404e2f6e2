package storetest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// fences is what fenced stores over one space share.
type fences struct {
	mu   sync.Mutex
	last uint64
	of   map[tierlock.Name]uint64 // of the last hold
	ends map[tierlock.Name]uint64 // of the range that its lease has
	next func(last uint64) uint64

	leases sync.Map // for broken stores: names by lease id
}

// fenced adds fences to a localstore, so that the suite and the broken stores
// can be tried where fences are wanted.
type fenced struct {
	*localstore.Store
	*fences
}

func newFences() *fences {
	return &fences{of: make(map[tierlock.Name]uint64), ends: make(map[tierlock.Name]uint64), next: func(last uint64) uint64 { return last + 1 }}
}

func newFencedHarness(*testing.T) storetest.Harness {
	space, f := localstore.NewSpace(), newFences()
	return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
		return fenced{localstore.New(localstore.Options{Space: space}), f}
	}}
}

func (f fenced) Guarantee() tierlock.Guarantee { return tierlock.FencedOnly }

func (f fenced) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, err := f.Store.Inspect(ctx, req.Name)
	if err != nil {
		return tierlock.AcquireResult{}, err
	}
	res, err := f.Store.Acquire(ctx, req)
	if err != nil {
		return res, err
	}
	if res.Granted && !before.Held {
		f.last = f.next(f.last)
		f.of[req.Name] = f.last
		f.last += uint64(res.Fences)
		f.ends[req.Name] = f.last
	}
	if res.Granted {
		res.Fences = min(res.Fences, int(f.ends[req.Name]-f.of[req.Name]))
	}
	res.Token = f.stampLocked(req.Name, res.Token)
	return res, nil
}

// Release is under the mutex, too: no key becomes free between the two steps
// of Acquire.
func (f fenced) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Store.Release(ctx, req)
}

func (f fenced) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	return f.update(ctx, req, func(kept uint64) bool { return req.Token.Seq > kept })
}

func (f fenced) update(ctx context.Context, req tierlock.UpdateRequest, forward func(kept uint64) bool) (tierlock.Ownership, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec, err := f.Store.Inspect(ctx, req.Name)
	if err == nil && rec.Token.Lease == req.Token.Lease && !forward(f.of[req.Name]) {
		return tierlock.LeaseOwned, nil
	}
	own, err := f.Store.Update(ctx, req)
	if own == tierlock.LeaseOwned {
		f.of[req.Name] = req.Token.Seq
	}
	return own, err
}

func (f fenced) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec, err := f.Store.Inspect(ctx, name)
	if rec.Held {
		rec.Token = f.stampLocked(name, rec.Token)
	}
	return rec, err
}

func (f fenced) stampLocked(name tierlock.Name, t tierlock.Token) tierlock.Token {
	t.Seq = f.of[name]
	t.Fence = t.Epoch<<49 | t.Seq
	return t
}
