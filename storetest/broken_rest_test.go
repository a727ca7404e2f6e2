package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
)

func brokenHolders() []brokenStore {
	return []brokenStore{
		{"HolderEnters", "stays out", onRequest(func(_ *broken, req *tierlock.AcquireRequest) { req.Explicit = false }), "want granted"},
		{"HolderEnters", "does not say so", onAcquire(func(_ *broken, _ tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			res.Reentered = false
		}), "got Reentered false"},
		{"HolderEnters", "gets a new fence", onAcquire(func(s *broken, _ tierlock.AcquireRequest, res *tierlock.AcquireResult) {
			if res.Reentered {
				res.Token.Seq, res.Token.Fence = res.Token.Seq+1, res.Token.Fence+1
			}
		}), "want the hold's"},
		{"HolderEnters", "by any name", onRequest(func(_ *broken, req *tierlock.AcquireRequest) {
			req.Token.Holder = strings.TrimSpace(strings.ToLower(req.Token.Holder))
		}), `got granted, want held by "job 7"`},
		{"HolderCountsOnce", "counts each request", func(s *broken) {
			var n atomic.Int64
			onRequest(func(_ *broken, req *tierlock.AcquireRequest) {
				if rec := s.look(req.Name); rec.Held && req.Explicit {
					req.Token.Lease = fmt.Sprint(req.Token.Lease, "#", n.Add(1))
				}
			})(s)
		}, "granted token differs"},
		{"HolderCountsOnce", "counts wrong", onRecord(func(_ *broken, _ tierlock.Name, rec *tierlock.Record) { rec.Holds *= 2 }), "4 times"},
		{"HolderLastFrees", "frees with the first", func(s *broken) {
			onRequest(func(_ *broken, req *tierlock.AcquireRequest) { s.leases.Store(req.Token.Lease, req.Name) })(s)
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				own, err := s.fenced.Release(ctx, req)
				s.leases.Range(func(lease, name any) bool {
					s.fenced.Release(ctx, tierlock.ReleaseRequest{Name: name.(tierlock.Name), Lease: lease.(string)})
					return true
				})
				return own, err
			}
		}, "got held false, 0 times"},
		{"HolderLastFrees", "never frees", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				if rec := s.look(req.Name); rec.Holds == 1 && rec.Token.Lease != req.Lease {
					return tierlock.LeaseOwned, nil
				}
				return s.fenced.Release(ctx, req)
			}
		}, "want a free key"},
		{"HolderMemberExpires", "an expired member keeps the key", onRequest(func(_ *broken, req *tierlock.AcquireRequest) {
			if req.Explicit {
				req.TTL = max(req.TTL, time.Minute)
			}
		}), "still held"},
		{"HolderMemberExpires", "the key ends with a member", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				res, err := s.fenced.Acquire(ctx, req)
				if name := req.Name; res.Reentered && req.TTL < time.Minute && strings.Contains(name.Key, "entrant") {
					s.fenced.Release(ctx, tierlock.ReleaseRequest{Name: name, Lease: s.look(name).Token.Lease, Keep: req.TTL})
				}
				return res, err
			}
		}, "left, want more than 0"},
		{"HolderKindsApart", "anonymous enters", onRequest(func(_ *broken, req *tierlock.AcquireRequest) { req.Explicit = true }), "got granted, want held"},
		{"HolderKindsApart", "explicit enters anonymous", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if rec := s.look(req.Name); req.Explicit && rec.Held && rec.Token.Holder == req.Token.Holder {
					return tierlock.AcquireResult{Granted: true, Reentered: true, Token: rec.Token}, nil
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "got granted, want held"},
		{"HolderRenews", "only by the first", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				if rec := s.look(req.Name); rec.Held && rec.Token.Lease != req.Lease {
					return tierlock.LeaseTaken
				}
				return s.goodRenew(req)
			})
		}, "got taken and error"},
		{"HolderRenews", "a stranger of the same id may", func(s *broken) {
			s.renewEach(func(req tierlock.RenewRequest) tierlock.Ownership {
				own := s.goodRenew(req)
				if own == tierlock.LeaseTaken && req.Explicit {
					return tierlock.LeaseOwned
				}
				return own
			})
		}, "got owned and error"},
	}
}

func brokenRest() []brokenStore {
	stuck := func(next func(uint64) uint64) func(*broken) {
		return func(s *broken) { s.fences.next = next }
	}
	expireBy := func(change func(time.Duration) time.Duration) func(*broken) {
		return onRequest(func(_ *broken, req *tierlock.AcquireRequest) { req.TTL = change(req.TTL) })
	}
	rename := func(change func(tierlock.Name) tierlock.Name) func(*broken) {
		return func(s *broken) { s.rename = change }
	}
	rekey := func(change func(string) string) func(*broken) {
		return rename(func(n tierlock.Name) tierlock.Name { n.Key = change(n.Key); return n })
	}
	// keep writes texts as a careless store would have kept them.
	keep := func(change func(string) string) func(*broken) {
		return onRecord(func(_ *broken, _ tierlock.Name, rec *tierlock.Record) {
			rec.Token.RequestID = change(rec.Token.RequestID)
		})
	}
	lateErr := fmt.Errorf("broken: %w", tierlock.ErrLate)
	return []brokenStore{
		{"Expiry", "rounds the TTL up to seconds", expireBy(func(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }), "left, want more than 0"},
		{"Expiry", "loses 100 ms", expireBy(func(d time.Duration) time.Duration { return max(d-100*time.Millisecond, time.Millisecond) }), "left, want more than 0"},
		{"Expiry", "does not expire", func(s *broken) {
			expireBy(func(d time.Duration) time.Duration { return time.Hour })(s)
			onRecord(func(_ *broken, _ tierlock.Name, rec *tierlock.Record) {
				*rec = tierlock.Record{Held: true, Left: time.Second}
			})(s)
		}, "left, want"},
		{"InspectStates", "prolongs", onRecord(func(s *broken, name tierlock.Name, rec *tierlock.Record) {
			s.goodRenew(tierlock.RenewRequest{Name: name, Lease: rec.Token.Lease, TTL: time.Second})
		}), "still held"},
		{"InspectStates", "remembers the last holder", func(s *broken) {
			var last tierlock.Record
			onRecord(func(_ *broken, _ tierlock.Name, rec *tierlock.Record) {
				if !rec.Held {
					rec.Token = last.Token
				}
				last = *rec
			})(s)
		}, "want a free key: the zero Record"},
		{"TokenRoundTrip", "loses what follows a NUL", keep(func(s string) string { s, _, _ = strings.Cut(s, "\x00"); return s }), "RequestID is"},
		{"TokenRoundTrip", "escapes for HTML", keep(func(s string) string { return strings.ReplaceAll(s, "<", `\u003c`) }), "RequestID is"},
		{"TokenRoundTrip", "replaces wide characters", keep(func(s string) string { return strings.ReplaceAll(s, "🔒", "?") }), "RequestID is"},
		{"NamesApart", "trims", rekey(strings.TrimSpace), "it is another name"},
		{"NamesApart", "pads", rekey(func(k string) string { return strings.TrimRight(k, " ") }), "it is another name"},
		{"NamesApart", "folds case", rekey(strings.ToLower), "it is another name"},
		{"NamesApart", "cuts at a NUL", rekey(func(k string) string { k, _, _ = strings.Cut(k, "\x00"); return k }), "it is another name"},
		{"NamesApart", "cuts after 127 characters", rekey(func(k string) string { r := []rune(k); return string(r[:min(len(r), 127)]) }), "it is another name"},
		{"NamesApart", "takes what stands in braces", rekey(func(k string) string {
			if _, in, ok := strings.Cut(k, "{"); ok {
				if tag, _, ok := strings.Cut(in, "}"); ok && tag != "" {
					return tag
				}
			}
			return k
		}), "it is another name"},
		{"NamesApart", "joins with a colon", rename(func(n tierlock.Name) tierlock.Name {
			return tierlock.Name{Key: n.Namespace + ":" + n.Resource + ":" + n.Key}
		}), "it is another name"},
		{"NamesApart", "ignores the namespace's case", rename(func(n tierlock.Name) tierlock.Name { n.Namespace = strings.ToLower(n.Namespace); return n }), "it is another name"},
		{"FencesRise", "a constant", stuck(func(uint64) uint64 { return 7 }), "younger hold got fence"},
		{"FencesRise", "falls", stuck(func(last uint64) uint64 { return (last - 1) & (1<<40 - 1) }), "younger hold got fence"},
		{"FencesRiseQuickly", "a clock of milliseconds", stuck(func(uint64) uint64 { return uint64(time.Now().UnixMilli()) }), "younger hold got fence"},
		{"LateRefused", "says late and grants", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				res, err := s.fenced.Acquire(ctx, req)
				if err == nil && req.Budget < time.Microsecond {
					return tierlock.AcquireResult{}, lateErr
				}
				return res, err
			}
		}, "want a free key"},
		{"LateRefused", "says late and frees what is there", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if req.Budget < time.Microsecond {
					s.drop(req.Name)
					return tierlock.AcquireResult{}, lateErr
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "after a late repeat"},
		{"LateRefused", "says held", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if req.Budget < time.Microsecond {
					return tierlock.AcquireResult{}, nil
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want granted or refused as late"},
		{"LateRefused", "grants after the undo", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if req.Budget < time.Microsecond {
					wait(100*time.Millisecond, func() {
						req.Budget = time.Second
						s.fenced.Acquire(context.WithoutCancel(ctx), req)
					})
					return tierlock.AcquireResult{}, fmt.Errorf("broken: %w", tierlock.ErrUnavailable)
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want a free key"},
		{"ContextEnded", "gives the context's error alone", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if err := ctx.Err(); err != nil {
					return tierlock.AcquireResult{}, err
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want one that wraps"},
		{"ContextEnded", "gives two classes", func(s *broken) {
			s.inspect = func(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
				rec, err := s.fenced.Inspect(ctx, name)
				if err != nil {
					err = errors.Join(err, tierlock.ErrMisconfigured)
				}
				return rec, err
			}
		}, "no other class"},
		{"ContextEnded", "acquires all the same", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if ctx.Err() != nil {
					wait(50*time.Millisecond, func() { s.fenced.Acquire(context.WithoutCancel(ctx), req) })
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "want a free key"},
		{"ContextEnded", "forgets results", func(s *broken) {
			s.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
				if ctx.Err() != nil {
					return nil
				}
				return s.fenced.Renew(ctx, reqs)
			}
		}, "got 0 results"},
		{"ContextCut", "leaves a key behind that nobody ends", func(s *broken) {
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if d, ok := ctx.Deadline(); ok && time.Until(d) < time.Second {
					wait(time.Second/2, func() {
						req.TTL = time.Hour
						s.fenced.Acquire(context.WithoutCancel(ctx), req)
					})
					return tierlock.AcquireResult{}, fmt.Errorf("broken: %w", tierlock.ErrUnavailable)
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "still held"},
		{"Exclusion", "lets one in fifty in", func(s *broken) {
			var n atomic.Int64
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if n.Add(1)%50 == 0 {
					s.drop(req.Name)
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "holders at the same time"},
		{"Exclusion", "fails one in ten", func(s *broken) {
			var n atomic.Int64
			s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
				if n.Add(1)%10 == 0 {
					return tierlock.AcquireResult{}, fmt.Errorf("broken: %w", tierlock.ErrUnavailable)
				}
				return s.fenced.Acquire(ctx, req)
			}
		}, "calls failed"},
		{"Exclusion", "fences repeat now and then", func(s *broken) {
			s.fences.next = func(last uint64) uint64 { return last + uint64(time.Now().UnixMicro()%3) }
		}, "younger hold got fence"},
	}
}
