package storetest_test

import (
	"context"
	"time"

	"github.com/tierlock/tierlock"
)

func brokenFences() []brokenStore {
	fences := func(give func(asked, got int) int) func(*broken) {
		return func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				res, err := s.fenced.Acquire(ctx, req)
				if res.Granted {
					res.Fences = give(req.Fences, res.Fences)
				}
				return res, err
			}
		}
	}
	return []brokenStore{
		{"FencesReserved", "gives one more than it has reserved", fences(func(_, got int) int { return got + 1 }), "further fences, want"},
		{"FencesReserved", "reserves nothing", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				n := req.Fences
				req.Fences = 0
				res, err := s.fenced.Acquire(ctx, req)
				if res.Granted && !req.Explicit {
					res.Fences = n
				}
				return res, err
			}
		}, "the younger hold got fence"},
		{"FencesReserved", "gives a range to an explicit holder", fences(func(asked, _ int) int { return asked }), "none for an explicit holder"},
		{"FencesReservedOnce", "gives to a repeat what it asks for", fences(func(asked, _ int) int { return asked }), "after a grant of 0: got"},
		{"FencesReservedOnce", "gives a repeat none", func(s *broken) {
			seen := make(map[string]bool)
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if seen[req.Token.Lease] {
					req.Fences = 0
				}
				seen[req.Token.Lease] = true
				return s.fenced.Acquire(ctx, req)
			}
		}, "want as many"},
		{"UpdateForward", "does nothing", func(s *broken) {
			s.update = func(context.Context, tierlock.UpdateRequest) (tierlock.Ownership, error) {
				return tierlock.LeaseOwned, nil
			}
		}, "token differs from what was granted"},
		{"UpdateForward", "goes back", func(s *broken) {
			s.update = func(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
				return s.fenced.update(ctx, req, func(uint64) bool { return true })
			}
		}, "token differs from what was granted"},
		{"UpdateForward", "prolongs the lease", func(s *broken) {
			s.update = func(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Update(ctx, req)
				s.goodRenew(tierlock.RenewRequest{Name: req.Name, Lease: req.Token.Lease, TTL: time.Hour})
				return own, err
			}
		}, "left, want more than 0"},
		{"UpdateOthers", "ignores the lease", func(s *broken) {
			s.update = func(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
				if rec := s.look(req.Name); rec.Held {
					req.Token.Lease = rec.Token.Lease
				}
				return s.fenced.Update(ctx, req)
			}
		}, "got owned and error"},
		{"UpdateOthers", "makes a key", func(s *broken) {
			s.update = func(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Update(ctx, req)
				if own == tierlock.LeaseGone {
					s.fenced.Acquire(ctx, tierlock.AcquireRequest{Name: req.Name, TTL: time.Minute, Budget: time.Minute, Token: req.Token})
				}
				return own, err
			}
		}, "want a free key"},
	}
}
