package tierlock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

const (
	// localLook is how often a process that gives locks in its own memory looks
	// whether a store can be used again.
	localLook = time.Second
	// localAlarm is how often it says that it does.
	localAlarm = 10 * time.Second
)

// localTier is the last store of a chain: the memory of this process. It is used
// where a resource's floor allows it, and only while no other store can be. Such
// locks exclude nobody in other processes, so this is told loudly for as long as it
// goes on, and each hold is taken to a store as soon as there is one: by an acquire
// of its lease, like any other. Where another has the key by then the hold is lost.
type localTier struct {
	locker *Locker
	store  *backend

	mu    sync.Mutex
	holds map[*localHold]struct{} // not taken to a store yet
	since time.Time               // when it began, zero while it is not in use
	done  chan struct{}           // closed when the goroutine that looks has ended; nil without one
}

// localHold is a hold that was granted in this process's memory. It is worth
// ProcessLocal to its end, wherever it is kept.
type localHold struct {
	tier *localTier
	hold *hold
	call call

	mu    sync.Mutex
	at    route
	lost  bool       // another has the key
	tried []undoTask // what acquires at stores may have left
	over  bool
}

// needed reports whether no store can be used for a lock, as far as is known.
func (t *localTier) needed(n Name) bool {
	for _, b := range t.locker.stores {
		if b != t.store && t.locker.usable(b, n) {
			return false
		}
	}
	return true
}

// usable reports whether a store is worth a try for a lock.
func (l *Locker) usable(b *backend, n Name) bool {
	if b.part(n).breaker.Open() {
		return false
	}
	if l.chain == nil {
		return true
	}
	st := l.chain.run.State()
	return !(b == l.chain.redis && st.RedisDown || b == l.chain.mysql && st.Silent)
}

// begin says that locks are given here now, and starts to look for a store.
func (t *localTier) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done != nil || t.locker.isClosing() {
		return
	}
	t.since, t.done = time.Now(), make(chan struct{})
	t.locker.notify.say(slog.LevelError, "tierlock: no store can be used: locks are given within this process only", Token{})
	t.tellLocked(false)
	go t.look(t.done)
}

func (t *localTier) tellLocked(over bool) {
	emit(t.locker.notify, t.locker.cfg.Observer.LocalAlarm, LocalAlarmEvent{App: t.locker.cfg.App, At: time.Now(),
		Since: t.since, Holds: len(t.holds), Over: over})
}

// look goes on until a store can be used and no hold is left here, or the Locker
// closes.
func (t *localTier) look(done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(localLook)
	defer tick.Stop()
	told := time.Now()
	for {
		select {
		case <-tick.C:
		case <-t.locker.closing:
			return
		}
		back := t.probe()
		for _, h := range t.all() {
			h.take()
		}
		t.mu.Lock()
		if back && len(t.holds) == 0 {
			t.tellLocked(true)
			t.locker.notify.say(slog.LevelInfo, "tierlock: locks are kept in a store again", Token{}, slog.Duration("after", time.Since(t.since)))
			t.since, t.done = time.Time{}, nil
			t.mu.Unlock()
			return
		}
		if time.Since(told) >= localAlarm {
			told = time.Now()
			t.locker.notify.say(slog.LevelError, "tierlock: still no store can be used: locks are given within this process only", Token{},
				slog.Int("holds", len(t.holds)), slog.Duration("since", time.Since(t.since)))
			t.tellLocked(false)
		}
		t.mu.Unlock()
	}
}

func (t *localTier) all() []*localHold {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*localHold, 0, len(t.holds))
	for h := range t.holds {
		all = append(all, h)
	}
	return all
}

// probe asks the stores that do not answer, each once, and reports whether one can
// be used. Meanwhile nobody else asks them for a lock that may be given here.
func (t *localTier) probe() (back bool) {
	l := t.locker
	var group sync.WaitGroup
	for _, b := range l.stores {
		if b == t.store {
			continue
		}
		b.openParts(func(p *part) {
			group.Go(func() {
				ctx := bound.By(context.Background(), time.Now().Add(l.cfg.CallTimeout))
				defer ctx.End()
				if c, ok := b.Store.(Chained); ok {
					sent := time.Now()
					res, err := c.Probe(ctx, ProbeRequest{Namespace: l.cfg.Namespace})
					if err == nil {
						p.answered()
					}
					if err == nil && l.chain != nil && b == l.chain.redis {
						l.chain.examine(sent, res) // what is told once must not be lost here
					}
				} else if failed := p.failed.Load(); failed != nil {
					if _, err := b.Inspect(ctx, *failed); err == nil {
						p.answered()
					}
				}
			})
		})
	}
	group.Wait()
	for _, b := range l.stores {
		if b != t.store && b.available() && l.usable(b, Name{}) {
			return true
		}
	}
	return false
}

// enter makes a granted hold one of this tier's.
func (t *localTier) enter(h *hold, c call) {
	lh := &localHold{tier: t, hold: h, call: c, at: route{backend: t.store}}
	h.local = lh
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds == nil {
		t.holds = map[*localHold]struct{}{}
	}
	t.holds[lh] = struct{}{}
}

func (h *localHold) route() route {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

// cap ends belief when another has the key.
func (h *localHold) cap() watchdog.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return watchdog.Instant{}
	}
	return h.hold.sent.Add(1<<62 - 1)
}

// take tries to take the hold to a store. One call is under way at a time.
func (h *localHold) take() {
	l, r := h.tier.locker, h.hold.resource
	if h.tier.needed(h.hold.name) {
		return
	}
	at := l.direct()
	if r.chained {
		t, _ := l.chain.run.BestEffort()
		at = l.chain.at(t, false)
	}
	if at.backend == nil || !l.usable(at.backend, h.hold.name) {
		return
	}
	now := time.Now()
	ttl := h.call.ttl
	if h.call.limit > 0 {
		ttl = min(ttl, (h.call.limit - watchdog.At(now).Sub(h.hold.sent)).Truncate(time.Millisecond))
	}
	if ttl < MinTTL {
		return // it is about to end
	}
	budget := min(l.cfg.CallTimeout, (ttl-watchdog.Margin(ttl))/2)
	linger := max(at.backend.linger(), 2*budget+50*time.Millisecond)
	token := h.hold.token
	token.Tier = at.backend.Tier()
	// Noted before it is sent: the hold may be released at any moment.
	task := undoTask{req: ReleaseRequest{Name: h.hold.name, Lease: token.Lease, Explicit: h.hold.explicit, Place: at.place}, token: token,
		settled: now.Add(linger), until: now.Add(linger + ttl + l.cfg.CallTimeout)}
	if !h.note(at, task) {
		return
	}
	ctx := bound.By(context.Background(), now.Add(budget))
	defer ctx.End()
	part := at.backend.part(h.hold.name)
	sent := watchdog.At(now)
	res, err := at.backend.Acquire(ctx, AcquireRequest{Name: h.hold.name, TTL: ttl, Budget: min(budget, watchdog.Margin(ttl)/2),
		Token: token, Explicit: h.hold.explicit, Place: at.place})
	part.report(h.hold.name, err)
	lease := h.hold.watched()
	switch {
	case err != nil || lease == nil:
	case res.Granted:
		if h.move(at) {
			lease.Move(sent, ttl)
			h.hold.tellMoved(Local, at.backend.Tier())
		}
	default:
		h.mu.Lock()
		h.lost = true
		h.mu.Unlock()
		lease.Recheck()
	}
}

// note keeps what is to be undone if the hold ends, unless it has.
func (h *localHold) note(at route, task undoTask) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.lost {
		return false
	}
	for i := range h.tried {
		if h.tried[i].key() == task.key() && h.tried[i].token.Tier == task.token.Tier {
			h.tried[i] = task
			return true
		}
	}
	h.tried = append(h.tried, task)
	return true
}

// move makes a store the hold's, unless it has ended.
func (h *localHold) move(at route) bool {
	h.mu.Lock()
	if h.over || h.lost {
		h.mu.Unlock()
		return false
	}
	h.at = at
	h.mu.Unlock()
	h.tier.forget(h)
	h.tier.store.undo.add(undoTask{req: ReleaseRequest{Name: h.hold.name, Lease: h.hold.token.Lease, Explicit: h.hold.explicit},
		token: h.hold.token, settled: time.Now(), until: time.Now().Add(h.call.ttl)})
	return true
}

func (t *localTier) forget(h *localHold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.holds, h)
}

// stop says that the hold is over: it is taken nowhere any more. It gives where the
// lease is.
func (h *localHold) stop() route {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	return h.at
}

// end says that belief is over: the hold is taken nowhere any more. What it has in
// stores stays there until the holder unlocks or it ends by itself, since the body
// may still run.
func (h *localHold) end() {
	if h != nil {
		h.stop()
		h.tier.forget(h)
	}
}

// leave follows the release: what was sent to stores is undone, in the
// background; keepUntil is as in an undoTask. It is idempotent.
func (h *localHold) leave(keepUntil time.Time) {
	if h == nil {
		return
	}
	h.stop()
	h.mu.Lock()
	tried := h.tried
	h.tried = nil
	h.mu.Unlock()
	h.tier.forget(h)
	for _, t := range tried {
		for _, b := range h.tier.locker.stores {
			if b.Tier() == t.token.Tier {
				t.settled, t.keepUntil = laterOf(time.Now(), t.settled), keepUntil
				t.until = laterOf(t.until, t.settled.Add(h.call.ttl))
				b.undo.add(t)
			}
		}
	}
}

func (t *localTier) inUse() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done != nil
}

// close waits for the goroutine that looks; the Locker is closing.
func (t *localTier) close(ctx context.Context) {
	if t == nil {
		return
	}
	t.mu.Lock()
	done := t.done
	t.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}
