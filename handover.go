package tierlock

import (
	"context"
	"errors"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

// A lease that is unlocked while others of this process wait for the key goes to
// the first of them, and no round trip is made. Each hold has its own id, fence
// and bounds; the store knows one lease. So that other processes have their turn,
// too, this goes on for a while only, and then the lease is released.
const (
	// maxHandOvers and maxHandOverTime bound that: whichever is reached first.
	// They count from the grant, which reserves no more fences than that.
	maxHandOvers    = 64
	maxHandOverTime = 50 * time.Millisecond
	// After that the next of this process asks a little later than it could: for
	// half the time that the others were kept out, and no longer than the round
	// trips that were saved would have left the key free. Where the store is known
	// to wake waiters, they need only a moment. What is shorter than a timer is exact is
	// left out: the key is then free for a good part of the time anyway.
	minRest     = time.Millisecond
	maxRest     = maxHandOverTime / 2
	maxRestPush = 2 * time.Millisecond
	// The store is told of a hold by hand-over that lasts for longer than this.
	// It is more than maxHandOverTime: a lease of which it was told is not handed
	// over again, so there is one token to tell, if any.
	updateAfter = 100 * time.Millisecond
	updateAgain = time.Second // after a failure
)

// leaseRun is what a lease has served for since it was granted.
type leaseRun struct {
	began   time.Time     // the grant
	latency time.Duration // of the store's answer
	count   int           // hand-overs
	fences  int           // that are left of the range
}

// baton is a lease between two holds. It belongs to the place that it was given to
// (place.baton), then to the call that took it from there.
type baton struct {
	token   Token           // of the former hold
	lease   *watchdog.Lease // yielded
	settled time.Time       // as in hold
	run     leaseRun
	chained *chainHold // nil outside a chain
	moves   int        // of the lease in it so far
}

// takesOver is the TTL of the leases that the call may take over, 0 for none. An
// explicit hold has a lease for each handle, and MinHold belongs to one holder.
// With the same TTL the rest of what was granted is within any bound of the call's,
// since a bound shortens the TTL: see ResourceHandle.call.
func (a *acquisition) takesOver() time.Duration {
	if a.hold.explicit || a.resource.cfg.MinHold > 0 {
		return 0
	}
	if a.call.worth > 0 || a.call.floor < a.resource.floor {
		return 0 // what was granted for another may not do
	}
	return a.call.ttl
}

// fences is how many further holds the lease may have to serve: none where nobody
// else wants the key, which costs the store nothing then.
func (a *acquisition) fences() int {
	if a.takesOver() == 0 || !a.queued && !a.hold.place.followed() {
		return 0
	}
	return maxHandOvers
}

// handOver passes the lease on when the last handle is closed and its context has
// ended, and reports whether it did: then the hold is over.
func (h *hold) handOver() bool {
	l, now := h.locker, time.Now()
	if h.run.fences == 0 || h.local != nil || now.Sub(h.run.began) >= maxHandOverTime ||
		h.place.ttl != h.token.TTL || l.isClosing() || !h.place.followed() {
		return false
	}
	moves, ok := h.chained.mayPass()
	if !ok {
		return false
	}
	h.mu.Lock()
	if h.cause != nil || !h.lease.Yield(h.token.TTL/2) { // else it has to be renewed first
		h.mu.Unlock()
		return false
	}
	next := h.place.pass(&baton{token: h.token, lease: h.lease, settled: h.settled, run: h.run,
		chained: h.chained, moves: moves})
	if next != nil {
		h.cause = ErrReleased
	}
	h.mu.Unlock()
	if next == nil {
		return false // the renewal has ended, as it would have for the release
	}
	// All that belongs to this hold is done before the next begins, which may have
	// seen the baton by now, and waits for the turn.
	h.stopUpdate()
	l.holds.remove(h)
	h.resource.holds.Add(-1)
	h.tellReleased(now, 0, nil)
	close(next.turn)
	return true
}

// followed reports whether others wait behind the place.
func (p *place) followed() bool {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	return p.line.first != nil
}

// pass leaves the place, a holder's or one that a baton was given to, and gives
// the baton and the turn to the next, whose turn channel the caller then closes.
// It does nothing, and gives nil, where the lease does not fit the next.
func (p *place) pass(b *baton) *place {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	ln := p.line
	q := ln.first
	if q == nil || q.ttl != b.token.TTL || ln.active != 1 {
		return nil
	}
	switch p.state {
	case placeHolds:
		ln.holds--
	case placeActive:
	default:
		return nil // lost meanwhile
	}
	// Whoever looks before the next has its hold is told that the key is held.
	ln.heldAt = time.Now()
	ln.answered, ln.failed = true, nil
	p.state = placeLeft
	ln.removeLocked(q)
	q.state, q.baton = placeActive, b
	return q
}

// take gives the baton that came with the turn, if one did. Whoever takes it has
// to pass it on or to see that it is released.
func (p *place) take() *baton {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	b := p.baton
	p.baton = nil
	return b
}

// succeed begins a hold on the lease that came with the turn. It gives nil and no
// error where there is none, and the store has to be asked.
func (a *acquisition) succeed(ctx context.Context) (*Lock, error) {
	b := a.hold.place.take()
	if b == nil {
		return nil, nil
	}
	<-a.hold.place.turn // the former hold may not be done yet: see handOver
	l, h, now := a.locker, a.hold, time.Now()
	if err := a.stopped(ctx, now); err != nil {
		a.decline(b)
		return nil, err
	}
	if b.lease.Left() == 0 { // this process was stopped in between
		l.giveUp(a.name, b)
		return nil, nil
	}
	t := l.newToken(a.name, a.call, a.resource.cfg, b.token.Tier)
	t.Lease, t.Tier, t.Epoch, t.ServerTime, t.ExpireAt = b.token.Lease, b.token.Tier, b.token.Epoch, b.token.ServerTime, b.token.ExpireAt
	t.ClientTime = time.UnixMicro(now.UnixMicro()).UTC()
	if b.token.Fence > 0 { // there are none in a process
		t.Fence, t.Seq = b.token.Fence+1, b.token.Seq+1
	}
	h.token, h.sent, h.settled = t, watchdog.At(now), b.settled
	if h.chained = b.chained; h.chained != nil {
		a.at = h.chained.pass(h, a.call.limit)
	} else {
		a.at = l.direct()
	}
	h.run = b.run
	h.run.count++
	h.run.fences--
	a.settled = laterOf(a.settled, b.settled)
	k, err := a.begin(ctx, now, b.lease)
	if err != nil {
		return nil, err
	}
	h.chained.passed(b.moves)
	emit(l.notify, l.cfg.Observer.HandedOver, HandedOverEvent{Labels: l.notify.labels(t), At: now, Token: t, From: b.token, Count: h.run.count})
	h.updateSoon()
	return k, nil
}

// leave gives the place up when the call fails. The turn, and a lease with it, may
// come at this very moment.
func (a *acquisition) leave() {
	if b := a.hold.place.leave(); b != nil {
		<-a.hold.place.turn
		a.decline(b)
	}
}

// decline passes a baton on that the call has no use for.
func (a *acquisition) decline(b *baton) {
	if next := a.hold.place.pass(b); next != nil {
		close(next.turn)
		return
	}
	a.locker.giveUp(a.name, b)
	a.hold.place.leave()
}

// giveUp releases the lease of a baton, in the background.
func (l *Locker) giveUp(n Name, b *baton) {
	now := time.Now()
	settled := laterOf(now, b.settled)
	if b.chained != nil {
		b.chained.leave()
		b.chained.giveAll(settled)
		return
	}
	at := l.direct()
	at.backend.undo.add(undoTask{req: ReleaseRequest{Name: n, Lease: b.token.Lease, Place: at.place}, token: b.token, settled: settled,
		until: settled.Add(b.token.TTL + l.cfg.CallTimeout)})
}

// rest makes the next of this process wait a little after a lease that was handed
// over has been released.
func (h *hold) rest(now time.Time) {
	if h.run.count == 0 {
		return
	}
	d := min(now.Sub(h.run.began)/2, time.Duration(h.run.count)*h.run.latency, maxRest)
	if h.at().backend.pushes.Load() {
		d = min(d, maxRestPush)
	}
	if d < minRest {
		return
	}
	p := &h.place
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	p.line.restTill = now.Add(d)
}

// giveWay waits until other processes have had their turn, but for no more than half
// of what is left of the caller's wait: perhaps nobody else wants the key.
func (a *acquisition) giveWay(ctx context.Context) error {
	p := &a.hold.place
	p.shard.mu.Lock()
	till := p.line.restTill
	p.shard.mu.Unlock()
	now := time.Now()
	d := till.Sub(now)
	if till.IsZero() || d <= 0 || a.call.noWait {
		return nil
	}
	if left, bounded := a.waitLeft(now); bounded {
		d = min(d, left/2)
	}
	if end, ok := ctx.Deadline(); ok {
		d = min(d, end.Sub(now)/2)
	}
	if !a.held {
		a.learn() // its turn may have come before it had to wait
	}
	return a.pause(ctx, d, nil)
}

// updateSoon sees that the store's token becomes that of a hold by hand-over, if
// it lasts.
func (h *hold) updateSoon() {
	if _, ok := h.locker.store.Store.(Updater); !ok || h.chained != nil {
		return // in a chain the token that is kept carries the mode, and is left alone
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil && !h.releasing {
		h.update = time.AfterFunc(updateAfter, h.updateNow)
	}
}

func (h *hold) stopUpdate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.update != nil {
		h.update.Stop()
	}
}

// updateNow tells the store. It may be executed late: a lease that was released is
// not touched, and the token of one that goes on is this one's. Nobody depends on it
// but who looks at the key, so a failure is only tried again. That the lease is gone
// is no failure.
func (h *hold) updateNow() {
	l := h.locker
	l.calls.begin() // Close waits for it
	defer l.calls.end()
	if l.isClosing() || h.ended() != nil || h.isReleasing() {
		return
	}
	ctx := bound.By(context.Background(), time.Now().Add(l.cfg.CallTimeout))
	defer ctx.End()
	state, err := l.store.Store.(Updater).Update(ctx, UpdateRequest{Name: h.name, Token: h.token})
	if err == nil && state != LeaseOwned {
		h.lease.Deny(&notHeldError{state})
	}
	if err == nil || errors.Is(err, ErrMisconfigured) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause == nil && !h.releasing {
		h.update.Reset(updateAgain)
	}
}
