package storetest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// broken is a good store with one thing wrong.
type broken struct {
	fenced
	acquire func(context.Context, tierlock.AcquireRequest) (tierlock.AcquireResult, error)
	renew   func(context.Context, []tierlock.RenewRequest) []tierlock.RenewResult
	release func(context.Context, tierlock.ReleaseRequest) (tierlock.Ownership, error)
	update  func(context.Context, tierlock.UpdateRequest) (tierlock.Ownership, error)
	inspect func(context.Context, tierlock.Name) (tierlock.Record, error)
	watch   func(context.Context, tierlock.Name) (tierlock.Watch, error)
	rename  func(tierlock.Name) tierlock.Name
}

func (s *broken) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	req.Name = s.rename(req.Name)
	return s.acquire(ctx, req)
}

func (s *broken) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Name = s.rename(reqs[i].Name)
	}
	return s.renew(ctx, reqs)
}

func (s *broken) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	req.Name = s.rename(req.Name)
	return s.release(ctx, req)
}

func (s *broken) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	req.Name = s.rename(req.Name)
	return s.update(ctx, req)
}

func (s *broken) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	return s.inspect(ctx, s.rename(name))
}

func (s *broken) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	return s.watch(ctx, s.rename(name))
}

// look is what the good store says of a key.
func (s *broken) look(name tierlock.Name) tierlock.Record {
	rec, _ := s.fenced.Inspect(context.Background(), name)
	return rec
}

// drop frees a key, whoever has it.
func (s *broken) drop(name tierlock.Name) {
	for rec := s.look(name); rec.Held; rec = s.look(name) {
		s.fenced.Release(context.Background(), tierlock.ReleaseRequest{Name: name, Lease: rec.Token.Lease})
	}
}

// renewEach replaces the answer to each request of a batch.
func (s *broken) renewEach(one func(tierlock.RenewRequest) tierlock.Ownership) {
	s.renew = func(_ context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
		res := make([]tierlock.RenewResult, len(reqs))
		for i, req := range reqs {
			res[i].State = one(req)
		}
		return res
	}
}

// goodRenew renews one lease as it should be.
func (s *broken) goodRenew(req tierlock.RenewRequest) tierlock.Ownership {
	return s.fenced.Renew(context.Background(), []tierlock.RenewRequest{req})[0].State
}

func newBrokenHarness(wrong func(*broken)) storetest.Harness {
	space, f := localstore.NewSpace(), newFences()
	return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
		s := &broken{fenced: fenced{localstore.New(localstore.Options{Space: space}), f}}
		s.acquire, s.renew, s.release = s.fenced.Acquire, s.fenced.Renew, s.fenced.Release
		s.update, s.inspect, s.watch = s.fenced.Update, s.fenced.Inspect, s.fenced.Watch
		s.rename = func(n tierlock.Name) tierlock.Name { return n }
		wrong(s)
		return s
	}}
}

// Each broken store fails the check that is there for it, for the reason that
// it has. That the check passes for the same store unbroken is shown by the
// case without anything wrong.
func TestBrokenStoresFail(t *testing.T) {
	covered := make(map[string]bool)
	for _, c := range brokenStores() {
		covered[c.check] = true
		t.Run(c.check+"/"+c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := storetest.Failures(t, newBrokenHarness(func(*broken) {}), c.check); len(got) != 0 {
					t.Fatalf("the store with nothing wrong: got complaints %q", got)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				got := storetest.Failures(t, newBrokenHarness(c.wrong), c.check)
				if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want) }) {
					t.Errorf("got complaints %.2000q, want one with %q", got, c.want)
				}
			})
		})
	}
	for _, check := range storetest.CheckNames() {
		if !covered[check] {
			t.Errorf("no broken store fails %s: the check may be unable to fail", check)
		}
	}
}

// wait lets a broken store's effects come late. The bubble waits for it.
func wait(d time.Duration, then func()) {
	go func() {
		time.Sleep(d)
		then()
	}()
}
