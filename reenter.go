package tierlock

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// reenter looks for a hold of the key among those that ctx carries. It is done
// when there is nothing left to contend for: the hold was entered, or the call
// would wait for itself.
func (r *ResourceHandle) reenter(ctx context.Context, name Name, c call) (k *Lock, done bool, err error) {
	outer := lockOf(ctx)
	for outer != nil && (outer.hold.locker != r.locker || outer.hold.name != name) {
		outer = outer.outer
	}
	if outer == nil {
		return nil, false, nil
	}
	h := outer.hold
	if h.ended() != nil {
		return nil, false, nil // ctx outlives the hold (context.WithoutCancel)
	}
	if !r.cfg.Reentrant || c.holder != "" && (!h.explicit || h.token.Holder != c.holder) {
		return nil, true, fmt.Errorf("%w: %s", ErrReentrant, h.token)
	}
	h.mu.Lock()
	dead := h.live == 0 && !h.releasing
	h.mu.Unlock()
	if dead {
		// Its lease is renewed no more; to enter it would be to lose it soon.
		return nil, true, fmt.Errorf("%w: the hold's own context has ended: %s", ErrReentrant, h.token)
	}
	var limit time.Duration
	if c.limit > 0 && c.limit != r.cfg.MaxHold {
		limit = c.limit
	}
	if k = h.open(ctx, limit); k == nil {
		return nil, false, nil // it was unlocked meanwhile
	}
	h.mu.Lock()
	handles := len(h.handles)
	h.mu.Unlock()
	n := r.locker.notify
	emit(n, r.locker.cfg.Observer.Reentered, ReenteredEvent{Labels: n.labels(h.token), At: time.Now(), Token: h.token, Handles: handles})
	n.say(slog.LevelDebug, "tierlock: re-entered", h.token, slog.Int("handles", handles))
	return k, true, nil
}
