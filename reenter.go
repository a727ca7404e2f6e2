package tierlock

import (
	"context"
	"errors"
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
	if h.ended() != nil || h.isReleasing() {
		return nil, false, nil // ctx outlives the hold (context.WithoutCancel)
	}
	if !r.cfg.Reentrant || c.holder != "" && (!h.explicit || h.token.Holder != c.holder) {
		return nil, true, fmt.Errorf("%w: %s", ErrReentrant, h.token)
	}
	if g := h.guarantee(); g < c.worth {
		return nil, true, fmt.Errorf("%w: the hold of this context is %v, and %v is required: %s", ErrUnavailable, g, c.worth, h.token)
	}
	var limit time.Duration
	if c.limit > 0 && c.limit != r.cfg.MaxHold {
		limit = c.limit
	}
	switch k, err = h.open(ctx, limit); {
	case errors.Is(err, ErrReleased):
		return nil, false, nil // it was unlocked meanwhile
	case err != nil:
		return nil, true, err
	}
	h.tellReentered()
	return k, true, nil
}

func (h *hold) isReleasing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.releasing
}

func (h *hold) tellReentered() {
	h.mu.Lock()
	handles := len(h.handles)
	h.mu.Unlock()
	n := h.locker.notify
	emit(n, h.locker.cfg.Observer.Reentered, ReenteredEvent{Labels: n.labels(h.token), At: time.Now(), Token: h.token, Handles: handles})
	n.say(slog.LevelDebug, "tierlock: re-entered", h.token, slog.Int("handles", handles))
}
