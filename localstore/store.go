package localstore

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

var (
	_ tierlock.Store   = (*Store)(nil)
	_ tierlock.Watcher = (*Store)(nil)
	_ tierlock.Updater = (*Store)(nil)
)

// Options configures a Store. The zero value is a store by itself.
type Options struct {
	// Space holds the keys. Stores with the same Space exclude each other, as
	// two clients of one server do. Nil means a Space of the store's own.
	Space *Space
}

// Store is a [tierlock.Store] over a [Space], and a [tierlock.Watcher]. It is
// safe for concurrent use and needs no closing. Create it with [New].
//
// No method waits for anything but the Space's mutex, which is never held
// across a call that can block. A context that has already ended makes every
// method return an error that wraps both [tierlock.ErrUnavailable] and the
// context's error, with nothing changed. A TTL below one millisecond or an
// empty lease id is refused with [tierlock.ErrMisconfigured].
type Store struct{ space *Space }

// New makes a Store.
func New(opts Options) *Store {
	if opts.Space == nil {
		opts.Space = NewSpace()
	}
	return &Store{space: opts.Space}
}

// Tier is [tierlock.Local].
func (s *Store) Tier() tierlock.Tier { return tierlock.Local }

// Guarantee is [tierlock.ProcessLocal].
func (s *Store) Guarantee() tierlock.Guarantee { return tierlock.ProcessLocal }

// Acquire takes the lease if the key is free, as [tierlock.Store] says. The
// granted token has Fence 0, Seq 0 and Epoch 1; its ServerTime and ExpireAt are
// wall-clock times for people, and nothing is decided by them.
func (s *Store) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	// Read before the mutex: the wait for it, and a stop of this goroutine at
	// any point up to the grant, counts against the budget.
	began := s.space.now()
	if req.Token.Lease == "" || req.TTL < time.Millisecond {
		return tierlock.AcquireResult{}, fmt.Errorf("localstore: acquire %s: %w: lease id %q with TTL %v, want a lease id and at least 1ms",
			req.Name, tierlock.ErrMisconfigured, req.Token.Lease, req.TTL)
	}
	res, err := s.space.acquire(ctx, began, req)
	if err != nil {
		return tierlock.AcquireResult{}, fmt.Errorf("localstore: acquire %s: %w", req.Name, err)
	}
	return res, nil
}

// Renew makes the time left of each lease at least its TTL. The whole batch is
// one step: no other call comes in between.
func (s *Store) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	res := s.space.renew(ctx, reqs)
	for i, r := range res {
		if r.Err != nil {
			res[i].Err = fmt.Errorf("localstore: renew %s: %w", reqs[i].Name, r.Err)
		}
	}
	return res
}

// Release gives up the lease and wakes the first watcher of the key. Under an
// explicit holder, Keep shortens only the lease that is released; the key
// lives as long as the longest of them.
func (s *Store) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	own, err := s.space.release(ctx, req)
	if err != nil {
		return 0, fmt.Errorf("localstore: release %s: %w", req.Name, err)
	}
	return own, nil
}

// Update gives a lease another token. There are no fences to compare, so the last
// call counts.
func (s *Store) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	own, err := s.space.update(ctx, req)
	if err != nil {
		return 0, fmt.Errorf("localstore: update %s: %w", req.Name, err)
	}
	return own, nil
}

// Inspect reads the present holder of a key. Under an explicit holder the
// token is that of the lease that began the hold, also after that one ended.
func (s *Store) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	rec, err := s.space.inspect(ctx, name)
	if err != nil {
		return tierlock.Record{}, fmt.Errorf("localstore: inspect %s: %w", name, err)
	}
	return rec, nil
}

// Watch begins to watch a key. Releases and expiries wake one watcher at a
// time: the one that has watched longest and has no unread signal. A watch
// that is closed with its signal unread, or while the key is free, hands the
// wake-up to the next, so that none is lost. A waiter that got the key should
// close its watch: while it stays open it is first in line for the next signal.
func (s *Store) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	w, err := s.space.watch(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("localstore: watch %s: %w", name, err)
	}
	return w, nil
}

// ended is nil while ctx lives. The cause goes along with the context's error:
// a custom cause alone would no longer match context.DeadlineExceeded.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != err {
		return fmt.Errorf("%w: %w: %w", tierlock.ErrUnavailable, err, cause)
	}
	return fmt.Errorf("%w: %w", tierlock.ErrUnavailable, err)
}
