package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tierlock/tierlock"
)

// locks is the part of a store that both servers' clients have. at gives the host
// that the client is connected to.
type locks struct {
	*link
	name  string
	tier  tierlock.Tier
	at    func() *host
	opts  Options
	wires *wires // Redis's

	// The host of the last probe and the data that it had then, under the link's mu.
	probed *host
	data   string
}

// Options configures a simulated server.
type Options struct {
	// Seed is what its clients' faults come from.
	Seed uint64
	// Guarantee is what its stores say of themselves: FencedOnly by default.
	Guarantee tierlock.Guarantee
	Broken    Broken
}

// Tier is that of the server.
func (s *locks) Tier() tierlock.Tier { return s.tier }

// Guarantee is as in [Options].
func (s *locks) Guarantee() tierlock.Guarantee {
	if s.opts.Guarantee == 0 {
		return tierlock.FencedOnly
	}
	return s.opts.Guarantee
}

// Linger is the longest that a request may be late.
func (s *locks) Linger() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 2*s.faults.LateBy + 2*s.limit
}

// errReadOnly is what a server that takes no writes says of itself.
var errReadOnly = fmt.Errorf("%w: read-only", tierlock.ErrUnavailable)

// lost reports whether the data of a host has gone since the client's last probe.
func (s *locks) lost(h *host) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.probed == h && s.data != h.incarnation && !s.opts.Broken.FlushUntold
	s.probed, s.data = h, h.incarnation
	return lost
}

// on runs a call at the host that the client is connected to now.
func on[R any](ctx context.Context, s *locks, exec func(h *host) R) (R, error) {
	if s.opts.Broken.EndedSent && ctx.Err() != nil {
		h := s.at()
		h.mu.Lock()
		defer h.mu.Unlock()
		return exec(h), nil
	}
	h := s.at()
	return call(ctx, s.link, h.deliver, func() R {
		h.mu.Lock()
		defer h.mu.Unlock()
		return exec(h)
	})
}

type outcome[R any] struct {
	res R
	err error
	at  int64 // the server's clock
}

// Acquire is described by [tierlock.Store].
func (s *locks) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	// A real client works this moment out from what it knows of the server's
	// clock; what matters is that the server judges it.
	sent, guarded := time.Now(), req.Place.Exclusive && s.wires != nil && !s.opts.Broken.StepsBelieved
	latest := s.at().now() + req.Budget.Microseconds()
	if guarded {
		latest = s.wires.latest(req.Place.Incarnation, sent, latest, req.Budget, s.opts.Broken)
	}
	o, err := on(ctx, s, func(h *host) outcome[tierlock.AcquireResult] {
		if h.readOnly {
			return outcome[tierlock.AcquireResult]{err: errReadOnly}
		}
		res, err := h.locks.acquire(h.clock.now(), latest, h.incarnation, req)
		return outcome[tierlock.AcquireResult]{res, err, h.clock.now()}
	})
	if err = errors.Join(err, o.err); err != nil {
		return tierlock.AcquireResult{}, fmt.Errorf("%s: acquire %s: %w", s.name, req.Name, err)
	}
	if guarded {
		s.wires.learn(req.Place.Incarnation, sent, o.at)
	}
	return o.res, nil
}

// Renew is described by [tierlock.Store].
func (s *locks) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	reqs = slices.Clone(reqs) // it may be executed after the caller has it back
	return s.batch(ctx, "renew", len(reqs), func(h *host, i int) tierlock.RenewResult {
		return h.locks.renew(h.clock.now(), h.incarnation, reqs[i])
	})
}

// Adopt is described by [tierlock.Chained].
func (s *locks) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	reqs = slices.Clone(reqs)
	res := s.batch(ctx, "adopt", len(reqs), func(h *host, i int) tierlock.RenewResult {
		return h.locks.adopt(h.clock.now(), h.incarnation, reqs[i])
	})
	if s.opts.Broken.AdoptUnordered {
		slices.Reverse(res)
	}
	return res
}

// batch carries out one call for several locks. An error is everybody's.
func (s *locks) batch(ctx context.Context, what string, n int, one func(h *host, i int) tierlock.RenewResult) []tierlock.RenewResult {
	res, err := on(ctx, s, func(h *host) []tierlock.RenewResult {
		res := make([]tierlock.RenewResult, n)
		for i := range res {
			if h.readOnly {
				res[i].Err = errReadOnly
			} else {
				res[i] = one(h, i)
			}
		}
		return res
	})
	if err != nil {
		res = make([]tierlock.RenewResult, n)
		for i := range res {
			res[i].Err = err
		}
	}
	res = slices.Clone(res) // not what a second execution may still fill
	for i := range res {
		if res[i].Err != nil {
			res[i].Err = fmt.Errorf("%s: %s: %w", s.name, what, res[i].Err)
		}
	}
	return res
}

// Release is described by [tierlock.Store].
func (s *locks) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	o, err := on(ctx, s, func(h *host) outcome[tierlock.Ownership] {
		if h.readOnly {
			return outcome[tierlock.Ownership]{err: errReadOnly}
		}
		own, err := h.locks.release(h.clock.now(), h.incarnation, req)
		if own == tierlock.LeaseOwned && !(s.opts.Broken.ReleaseSilent && req.Place.Epoch > 0) {
			h.wakeLocked(req.Name)
		}
		return outcome[tierlock.Ownership]{res: own, err: err}
	})
	if err = errors.Join(err, o.err); err != nil {
		return 0, fmt.Errorf("%s: release %s: %w", s.name, req.Name, err)
	}
	return o.res, nil
}

// Inspect is described by [tierlock.Store].
func (s *locks) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	rec, err := on(ctx, s, func(h *host) tierlock.Record { return h.locks.inspect(h.clock.now(), name) })
	if err != nil {
		return tierlock.Record{}, fmt.Errorf("%s: inspect %s: %w", s.name, name, err)
	}
	return rec, nil
}

// Probe is described by [tierlock.Chained].
func (s *locks) Probe(ctx context.Context, req tierlock.ProbeRequest) (tierlock.ProbeResult, error) {
	sent := time.Now()
	o, err := on(ctx, s, func(h *host) outcome[tierlock.ProbeResult] {
		if h.readOnly {
			return outcome[tierlock.ProbeResult]{err: errReadOnly}
		}
		res := tierlock.ProbeResult{Incarnation: h.incarnation, Unsafe: h.unsafe, Lost: s.lost(h)}
		if s.tier == tierlock.Redis {
			res.Epoch = h.noteLocked(req)
		}
		if s.opts.Broken.ProbeAnything {
			res.Incarnation = fmt.Sprint(h.clock.now(), req.Namespace, time.Now().UnixNano())
		}
		return outcome[tierlock.ProbeResult]{res: res, at: h.clock.now()}
	})
	if err = errors.Join(err, o.err); err != nil {
		return tierlock.ProbeResult{}, fmt.Errorf("%s: probe: %w", s.name, err)
	}
	if s.wires != nil {
		s.wires.learn(o.res.Incarnation, sent, o.at)
	}
	return o.res, nil
}
