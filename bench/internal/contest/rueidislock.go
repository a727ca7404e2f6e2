package contest

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var rueidislockContestant = Contestant{
	Name:   "rueidislock",
	About:  "KeyMajority 1, NoLoopTracking, over the same client options (no client-side cache: waiters poll every TryNextAfter, 20 ms)",
	Renews: true,
	Open: func(s Settings) (Locker, error) {
		return openRueidislock(s, recommended(s))
	},
}

var rueidislockReadmeContestant = Contestant{
	Name:   "rueidislock-readme",
	About:  "as its README says: KeyMajority 1, NoLoopTracking, rueidis' own defaults; TryNextAfter 1 s instead of 20 ms",
	Renews: true,
	Open: func(s Settings) (Locker, error) {
		return openRueidislock(s, rueidis.ClientOption{InitAddress: []string{s.Addr}, MaxFlushDelay: s.FlushDelay})
	},
}

type rueidislockLocker struct{ rueidislock.Locker }

func openRueidislock(s Settings, opt rueidis.ClientOption) (Locker, error) {
	o := rueidislock.LockerOption{
		ClientOption: opt, KeyMajority: 1, NoLoopTracking: true, KeyValidity: s.TTL,
	}
	switch {
	case !opt.DisableCache:
		// Here it bounds an acquire and is no pause. A busy machine passes the
		// default of 20 ms, and whom that happens to on a key that nobody else
		// uses then waits for a message that never comes.
		o.TryNextAfter = time.Second
	case s.Poll > 0:
		o.TryNextAfter = s.Poll
	}
	l, err := rueidislock.NewLocker(o)
	if err != nil {
		return nil, err
	}
	return rueidislockLocker{l}, nil
}

func (l rueidislockLocker) Lock(ctx context.Context, key string) (Held, error) {
	return rueidislockHeldOf(l.WithContext(ctx, key))
}

func (l rueidislockLocker) TryLock(ctx context.Context, key string) (Held, error) {
	return rueidislockHeldOf(l.TryWithContext(ctx, key))
}

type rueidislockHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func rueidislockHeldOf(ctx context.Context, cancel context.CancelFunc, err error) (Held, error) {
	if err != nil {
		if errors.Is(err, rueidislock.ErrNotLocked) {
			err = ErrHeld
		}
		return nil, err
	}
	return &rueidislockHeld{ctx, cancel}, nil
}

// Unlock cannot tell whether the release succeeded.
func (h *rueidislockHeld) Unlock() error {
	err := h.ctx.Err()
	h.cancel()
	return err
}

func (h *rueidislockHeld) Renew(context.Context) error { return h.ctx.Err() }
