package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// Tier is that of the wrapped store.
func (f *Faulty) Tier() tierlock.Tier { return f.inner.Tier() }

// Guarantee is that of the wrapped store.
func (f *Faulty) Guarantee() tierlock.Guarantee { return f.inner.Guarantee() }

// answer is an answer with its error, to fit meet.
type answer[R any] struct {
	res R
	err error
}

func failed[R any](err error) answer[R] { return answer[R]{err: err} }

// Acquire meets the fault of OpAcquire.
func (f *Faulty) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	a := meet(ctx, f, OpAcquire,
		func(ctx context.Context, delayed time.Duration) answer[tierlock.AcquireResult] {
			req := req
			// The wrapped store counts its budget from this call on, so it
			// may have only what the delay has left of the caller's.
			if req.Budget -= delayed; delayed > 0 && req.Budget <= 0 {
				return failed[tierlock.AcquireResult](fmt.Errorf("storetest: acquire %s: %w: by %v", req.Name, tierlock.ErrLate, -req.Budget))
			}
			res, err := f.inner.Acquire(ctx, req)
			return answer[tierlock.AcquireResult]{res, err}
		},
		failed[tierlock.AcquireResult],
		func(tierlock.Ownership) answer[tierlock.AcquireResult] { return answer[tierlock.AcquireResult]{} })
	return a.res, a.err
}

// Renew meets the fault of OpRenew, with the batch as a whole.
func (f *Faulty) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	all := func(r tierlock.RenewResult) []tierlock.RenewResult {
		res := make([]tierlock.RenewResult, len(reqs))
		for i := range res {
			res[i] = r
		}
		return res
	}
	// A late effect outlives the call, and the slice is the caller's.
	sent := append([]tierlock.RenewRequest(nil), reqs...)
	return meet(ctx, f, OpRenew,
		func(ctx context.Context, _ time.Duration) []tierlock.RenewResult { return f.inner.Renew(ctx, sent) },
		func(err error) []tierlock.RenewResult { return all(tierlock.RenewResult{Err: err}) },
		func(own tierlock.Ownership) []tierlock.RenewResult { return all(tierlock.RenewResult{State: own}) })
}

// Release meets the fault of OpRelease.
func (f *Faulty) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	a := meet(ctx, f, OpRelease,
		func(ctx context.Context, _ time.Duration) answer[tierlock.Ownership] {
			own, err := f.inner.Release(ctx, req)
			return answer[tierlock.Ownership]{own, err}
		},
		failed[tierlock.Ownership],
		func(own tierlock.Ownership) answer[tierlock.Ownership] { return answer[tierlock.Ownership]{res: own} })
	return a.res, a.err
}

// Inspect meets the fault of OpInspect.
func (f *Faulty) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	a := meet(ctx, f, OpInspect,
		func(ctx context.Context, _ time.Duration) answer[tierlock.Record] {
			rec, err := f.inner.Inspect(ctx, name)
			return answer[tierlock.Record]{rec, err}
		},
		failed[tierlock.Record],
		func(tierlock.Ownership) answer[tierlock.Record] { return answer[tierlock.Record]{} })
	return a.res, a.err
}

// Update is that of the wrapped store, without faults. Where that is no
// [tierlock.Updater] the answer is [tierlock.ErrUnavailable].
func (f *Faulty) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	if u, ok := f.inner.(tierlock.Updater); ok {
		return u.Update(ctx, req)
	}
	return 0, fmt.Errorf("storetest: update %s: %w: the wrapped store is no Updater", req.Name, tierlock.ErrUnavailable)
}

// Watch is that of the wrapped store. Where that is no [tierlock.Watcher] the
// answer is [tierlock.ErrUnavailable], at which a waiter polls, as it does
// where there is no Watch. (To hide it: struct{ tierlock.Store }{f}.)
func (f *Faulty) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	if w, ok := f.inner.(tierlock.Watcher); ok {
		return w.Watch(ctx, name)
	}
	return nil, fmt.Errorf("storetest: watch %s: %w: the wrapped store has no push", name, tierlock.ErrUnavailable)
}
