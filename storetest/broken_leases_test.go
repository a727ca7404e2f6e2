package storetest_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

func brokenRenews() []brokenStore {
	return []brokenStore{
		{"RenewOwned", "does nothing", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				if s.look(req.Name).Held {
					return tierlock.LeaseOwned
				}
				return tierlock.LeaseGone
			})
		}, "left, want more than 0"},
		{"RenewOwned", "writes a new token", func(s *broken) {
			onRecord(func(_ *broken, name tierlock.Name, rec *tierlock.Record) {
				rec.Token.ExpireAt = time.Now().Add(rec.Left)
			})(s)
		}, "token differs from what was granted"},
		{"RenewOwned", "knows the leases of its own client only", func(s *broken) {
			var own sync.Map
			onRequest(func(_ *broken, req *tierlock.AcquireRequest) { own.Store(req.Token.Lease, true) })(s)
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				if _, ok := own.Load(req.Lease); !ok {
					return tierlock.LeaseTaken
				}
				return s.goodRenew(req)
			})
		}, "got taken and error"},
		{"RenewNeverShortens", "sets the TTL", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				own := s.goodRenew(req)
				s.fenced.Release(context.Background(), tierlock.ReleaseRequest{Name: req.Name, Lease: req.Lease, Keep: req.TTL})
				return own
			})
		}, "left, want more than 0"},
		{"RenewTaken", "ignores the lease", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				req.Lease = s.look(req.Name).Token.Lease
				return s.goodRenew(req)
			})
		}, "got owned and error"},
		{"RenewTaken", "compares the beginning of the lease", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				if whole := s.look(req.Name).Token.Lease; strings.HasPrefix(whole, req.Lease) {
					req.Lease = whole
				}
				return s.goodRenew(req)
			})
		}, "got owned and error"},
		{"RenewTaken", "says gone", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership { return max(s.goodRenew(req), tierlock.LeaseGone) })
		}, "got gone and error"},
		{"RenewGone", "re-creates the key", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				own := s.goodRenew(req)
				if own == tierlock.LeaseGone {
					s.fenced.Acquire(context.Background(), tierlock.AcquireRequest{Name: req.Name, TTL: req.TTL, Budget: time.Second, Token: tierlock.Token{Lease: req.Lease}})
				}
				return own
			})
		}, "want a free key"},
		{"RenewGone", "says taken", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				if own := s.goodRenew(req); own == tierlock.LeaseOwned {
					return own
				}
				return tierlock.LeaseTaken
			})
		}, "got taken and error"},
		{"RenewBatch", "answers in its own order", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				res := s.fenced.Renew(ctx, reqs)
				for i, j := 0, len(res)-2; i < j; i, j = i+1, j-1 {
					res[i], res[j] = res[j], res[i]
				}
				return res
			}
		}, "mixed batch: result"},
		{"RenewBatch", "stops at the first that is not owned", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				for i, req := range reqs {
					if own := s.goodRenew(req); own != tierlock.LeaseOwned {
						return append(make([]tierlock.RenewResult, i), tierlock.RenewResult{State: own})
					}
				}
				return s.fenced.Renew(ctx, reqs)
			}
		}, "mixed batch: got 1 results"},
		{"RenewBatch", "answers one to nothing", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				if len(reqs) == 0 {
					return make([]tierlock.RenewResult, 1)
				}
				return s.fenced.Renew(ctx, reqs)
			}
		}, "Renew of nothing: got 1"},
		{"RenewBatchLarge", "takes 512 at most", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				return s.fenced.Renew(ctx, reqs[:min(len(reqs), 512)])
			}
		}, "got 512 results"},
		{"RenewBatchLarge", "mixes up its chunks", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				res := s.fenced.Renew(ctx, reqs)
				half := len(res) / 2
				return append(append([]tierlock.RenewResult{}, res[half:]...), res[:half]...)
			}
		}, "Renew of 1000: result"},
	}
}

func brokenReleases() []brokenStore {
	ignoreLease := func(s *broken) {
		s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
			if rec := s.look(req.Name); rec.Held {
				req.Lease = rec.Token.Lease
			}
			return s.fenced.Release(ctx, req)
		}
	}
	answer := func(wrong, instead tierlock.Ownership) func(*broken) {
		return func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Release(ctx, req)
				if own == wrong {
					own = instead
				}
				return own, err
			}
		}
	}
	return []brokenStore{
		{"ReleaseOwned", "ignores the lease", ignoreLease, "want taken"},
		{"ReleaseOwned", "says owned for what is gone", answer(tierlock.LeaseGone, tierlock.LeaseOwned), "want gone"},
		{"ReleaseOwned", "does nothing", func(s *broken) {
			s.release = func(context.Context, tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				return tierlock.LeaseOwned, nil
			}
		}, "want a free key"},
		{"ReleaseGone", "says taken for what is gone", answer(tierlock.LeaseGone, tierlock.LeaseTaken), "want gone"},
		{"ReleaseGone", "keeps what is not there", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Release(ctx, req)
				if own == tierlock.LeaseGone && req.Keep > 0 {
					s.fenced.Acquire(ctx, tierlock.AcquireRequest{Name: req.Name, TTL: req.Keep, Budget: time.Second, Token: tierlock.Token{Lease: req.Lease}})
				}
				return own, err
			}
		}, "want a free key"},
		{"ReleaseStale", "ignores the lease", ignoreLease, "want taken"},
		{"ReleaseStale", "says taken and releases", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Release(ctx, req)
				if own == tierlock.LeaseTaken {
					s.drop(req.Name)
				}
				return own, err
			}
		}, "got free, want held"},
		{"ReleaseKeep", "frees at once", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				req.Keep = 0
				return s.fenced.Release(ctx, req)
			}
		}, "got free, want held"},
		{"ReleaseKeep", "leaves the TTL", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				if req.Keep > 0 && s.look(req.Name).Held {
					return tierlock.LeaseOwned, nil
				}
				return s.fenced.Release(ctx, req)
			}
		}, "left, want more than 0"},
		{"ReleaseKeepNeverLengthens", "sets the TTL", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				if req.Keep > 0 {
					return s.goodRenew(tierlock.RenewRequest{Name: req.Name, Lease: req.Lease, TTL: req.Keep}), nil
				}
				return s.fenced.Release(ctx, req)
			}
		}, "still held"},
	}
}
