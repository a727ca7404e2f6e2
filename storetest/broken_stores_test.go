package storetest_test

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
)

type brokenStore struct {
	check, what string
	wrong       func(*broken)
	want        string // stands in a complaint
}

func brokenStores() []brokenStore {
	return slices.Concat(brokenAcquires(), brokenRenews(), brokenReleases(), brokenHolders(), brokenRest(), brokenFences(), brokenWatches())
}

// onAcquire changes the result of good acquires.
func onAcquire(change func(s *broken, req tierlock.AcquireRequest, res *tierlock.AcquireResult)) func(*broken) {
	return func(s *broken) {
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			res, err := s.fenced.Acquire(ctx, req)
			if err == nil {
				change(s, req, &res)
			}
			return res, err
		}
	}
}

// onRequest changes requests before they reach the good store.
func onRequest(change func(s *broken, req *tierlock.AcquireRequest)) func(*broken) {
	return func(s *broken) {
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			change(s, &req)
			return s.fenced.Acquire(ctx, req)
		}
	}
}

// onRecord changes what Inspect answers.
func onRecord(change func(s *broken, name tierlock.Name, rec *tierlock.Record)) func(*broken) {
	return func(s *broken) {
		s.inspect = func(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
			rec, err := s.fenced.Inspect(ctx, name)
			if err == nil {
				change(s, name, &rec)
			}
			return rec, err
		}
	}
}

func brokenAcquires() []brokenStore {
	heldOverOwn := func(s *broken) {
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			if rec := s.look(req.Name); rec.Held && rec.Token.Lease == req.Token.Lease {
				return tierlock.AcquireResult{Token: rec.Token, Left: rec.Left}, nil
			}
			return s.fenced.Acquire(ctx, req)
		}
	}
	return []brokenStore{
		{"AcquireFree", "says held", func(s *broken) {
			s.acquire = func(context.Context, tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				return tierlock.AcquireResult{}, nil
			}
		}, "want granted"},
		{"AcquireFree", "gives the request's token", onAcquire(func(_ *broken, req tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			res.Token = req.Token
		}), "no ServerTime"},
		{"AcquireFree", "has no memory", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				defer s.drop(req.Name)
				return s.fenced.Acquire(ctx, req)
			}
		}, "got free, want held"},
		{"AcquireHeld", "grants to all", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				s.drop(req.Name)
				return s.fenced.Acquire(ctx, req)
			}
		}, "got granted, want held"},
		{"AcquireHeld", "does not know the holder", onAcquire(func(_ *broken, _ tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			if !res.Granted {
				res.Token = tierlock.Token{}
			}
		}), "token of the holder differs"},
		{"AcquireHeld", "gives the time left in seconds", onAcquire(func(_ *broken, _ tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			res.Left /= time.Second
		}), "left, want more than 0"},
		{"AcquireHeld", "prolongs for the refused", onAcquire(func(s *broken, req tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			if !res.Granted {
				s.goodRenew(tierlock.RenewRequest{Name: req.Name, Lease: res.Token.Lease, TTL: req.TTL})
			}
		}), "left, want more than 0"},
		{"AcquireIdempotent", "says held over the own lease", heldOverOwn, "want granted"},
		{"AcquireIdempotent", "does not prolong", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if rec := s.look(req.Name); rec.Token.Lease == req.Token.Lease {
					return tierlock.AcquireResult{Granted: true, Token: rec.Token}, nil
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "left, want more than 0"},
		{"AcquireIdempotent", "is a new hold each time", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if rec := s.look(req.Name); rec.Token.Lease == req.Token.Lease {
					s.drop(req.Name)
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want that of the first grant"},
		{"AcquireIdempotent", "shortens", onAcquire(func(s *broken, req tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			s.fenced.Release(context.Background(), tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Keep: req.TTL})
		}), "left, want more than 0"},
		{"AcquireIdempotentAtOnce", "says held over the own lease", heldOverOwn, "want all granted with one fence"},
		{"AcquireOneWinner", "checks, then acts", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if s.look(req.Name).Held {
					return s.fenced.Acquire(ctx, req)
				}
				time.Sleep(time.Millisecond)
				s.drop(req.Name)
				return s.fenced.Acquire(ctx, req)
			}
		}, "want exactly one"},
		{"AcquireOneWinner", "refuses all where two meet", func(s *broken) {
			var inside atomic.Int32
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				inside.Add(1)
				time.Sleep(time.Millisecond)
				met := inside.Load() > 1
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				if met {
					return tierlock.AcquireResult{}, nil
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want exactly one"},
	}
}
