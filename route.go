package tierlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// route is where a call about a lock goes. Outside a chain it is a store alone.
type route struct {
	backend *backend
	place   Place
	ticket  degrade.Ticket
}

// drainPatience is how long a best-effort call that waits stays for the end of a
// drain. An ordinary one is over in two polls and two statements; one that waits
// for a dead member takes a minute, and then the lock is taken without.
const drainPatience = 5 * time.Second

// at is where the lease of the hold is now.
func (h *hold) at() route {
	if h.local != nil {
		return h.local.route()
	}
	if h.chained != nil {
		return h.chained.route()
	}
	return h.locker.direct()
}

// direct is the route of the locks that go by no mode: the first store. Where others
// of the same store do, these name the present epoch all the same: a record of fences
// is shared by many locks, and whoever meets a later epoch there goes on in it, until
// the record has been forgotten. Without it fences would fall then.
func (l *Locker) direct() route {
	if l.chain != nil {
		return route{backend: l.store, place: Place{Epoch: l.chain.epoch()}}
	}
	return route{backend: l.store}
}

// guarantee is what the hold is worth.
func (h *hold) guarantee() Guarantee {
	if h.local != nil {
		return ProcessLocal
	}
	if h.chained != nil {
		return Guarantee(h.chained.worth.Load())
	}
	return min(h.locker.store.Guarantee(), FencedOnly)
}

// turn is what an acquisition has to know of where it goes next.
type turn uint8

const (
	turnOn        turn = iota // where it went before
	turnElsewhere             // to another store, or for another mode
	turnAgain                 // nowhere: it has waited for a change, and has to look again
)

// steer finds out where the acquisition asks next, at now.
func (a *acquisition) steer(ctx context.Context, now time.Time) (turn, error) {
	l, r := a.locker, a.resource
	if r.local {
		if a.call.floor == Local && a.call.worth <= ProcessLocal && l.local.needed(a.name) {
			l.local.begin()
			a.moved = nil
			return a.turnTo(route{backend: l.local.store}), nil
		}
		if !r.chained && l.chain == nil {
			return a.turnTo(l.direct()), nil
		}
	}
	c := l.chain
	if !r.chained && c != nil {
		return a.steerDirect(ctx, c, now)
	}
	if !r.chained {
		return turnOn, nil
	}
	a.moved = c.run.Changed() // before the look
	to, wait, err := a.choose(c, now)
	if err == nil {
		return a.turnTo(to), nil
	}
	a.failed, a.cut = err, false
	if !c.cold(now) { // else it is a matter of a few calls
		a.hold.place.answer(false, Token{}, err) // for those behind
		if a.call.noWait {
			return turnAgain, errWaitOver
		}
	}
	if err := a.pause(ctx, min(wait, pollWithPush), nil); err != nil && err != errSignal {
		return turnAgain, err
	}
	return turnAgain, nil
}

// steerDirect is steer for a lock that goes by no mode, beside others that do. It needs
// the arbiter for nothing but the number of the epoch, so it waits for that only while
// the process has just started, and then goes on without.
func (a *acquisition) steerDirect(ctx context.Context, c *chain, now time.Time) (turn, error) {
	a.moved = nil
	changed := c.run.Changed() // before the look
	if wait := c.warmAt.Sub(now); wait > 0 && !c.run.Mode().Known() {
		if err := a.pause(ctx, wait, changed); err != nil && err != errSignal {
			return turnAgain, err
		}
		return turnAgain, nil
	}
	return a.turnTo(a.locker.direct()), nil
}

// choose gives the route for now, or why there is none and how long at most to wait
// before the next look.
func (a *acquisition) choose(c *chain, now time.Time) (to route, wait time.Duration, err error) {
	var t degrade.Ticket
	if a.resource.cfg.Exclusive {
		var ok bool
		if t, ok = c.run.MayGrant(); !ok {
			return to, time.Second, c.noTicket()
		}
	} else {
		var settled bool
		if t, settled = c.run.BestEffort(); !settled {
			if wait := a.unsettled(c, now); wait > 0 {
				return to, wait, c.noTicket()
			}
		}
	}
	to = c.at(t, a.resource.cfg.Exclusive)
	switch tier := tierOf(t.Tier); {
	case to.backend == nil:
		err = fmt.Errorf("%w: the locks are kept in %v now, which this process does not have", ErrUnavailable, tier)
	case tier > a.call.floor:
		err = fmt.Errorf("%w: the locks are kept in %v now, and the lowest allowed is %v", ErrUnavailable, tier, a.call.floor)
	case a.resource.cfg.Exclusive && t.Tier == degrade.Redis && !c.safety.known() && now.Before(c.warmAt):
		return to, 10 * time.Millisecond, fmt.Errorf("%w: Redis has not been probed yet", ErrUnavailable)
	default:
		if g := c.worth(a.resource.cfg.Name, a.resource.cfg.Exclusive, t.Tier); g < a.call.worth {
			err = a.worthLess(g, t.Tier)
		}
	}
	return to, time.Second, err
}

// unsettled is how much longer a best-effort call waits for a settled mode; 0 means
// that it goes on without.
func (a *acquisition) unsettled(c *chain, now time.Time) time.Duration {
	switch st := c.run.State(); {
	case !st.Mode.Known():
		// Only at the start. What goes on then might ask another store than all
		// others do, and be lost when the mode is known.
		return c.warmAt.Sub(now)
	case st.Silent || !st.Mode.Drain || a.call.noWait:
		return 0
	case a.drain != st.Mode.Epoch:
		a.drain, a.drainSince = st.Mode.Epoch, now
	}
	wait := drainPatience - now.Sub(a.drainSince)
	if left, bounded := a.waitLeft(now); bounded {
		wait = min(wait, left-a.fullBudget()) // one try has to be left
	}
	return wait
}

// cold reports whether the process has just started and has not got its first permit
// yet, or the first answer of Redis. Then a call that does not wait does all the same, for as long as two calls may
// take, rather than fail because it is the first.
func (c *chain) cold(now time.Time) bool {
	if !now.Before(c.warmAt) {
		return false
	}
	st := c.run.State()
	return st.PermitEpoch == 0 || st.Mode.Tier == degrade.Redis && !c.safety.known()
}

// noTicket says why nobody grants.
func (c *chain) noTicket() error {
	st, why := c.run.State(), ""
	switch {
	case st.Mode.Drain:
		return fmt.Errorf("%w: locks are moving to %v", ErrUnavailable, tierOf(st.Mode.Tier))
	case !st.Mode.Known():
		why = "the arbiter has not said yet where locks are kept"
	case st.Permit == 0:
		why = "no permit from the arbiter"
	default:
		why = "no permit from the arbiter for the present mode"
	}
	if err := c.trouble(); err != nil {
		return fmt.Errorf("%w: %s%w", ErrUnavailable, why, err)
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, why)
}

// turnTo takes the acquisition to a route. What it may have left where it was is
// undone, and it goes on under another lease id: an undo by lease alone would free
// the new grant as well, where both are in one store.
func (a *acquisition) turnTo(to route) turn {
	if to == a.at {
		return turnOn
	}
	a.undo()
	a.dirty, a.refusedOnly, a.settled = false, false, time.Time{}
	a.hold.token = Token{}
	a.at = to
	return turnElsewhere
}

// Inspect reads a key where locks of the resource are kept now. In a drain a lock
// may be in either store: the coming one is asked, and then the former.
func (r *ResourceHandle) inspect(ctx context.Context, name Name) (Record, error) {
	c := r.locker.chain
	if r.local && r.locker.local.needed(name) {
		return r.locker.local.store.Inspect(ctx, name)
	}
	if !r.chained {
		return r.locker.store.Inspect(ctx, name)
	}
	st := c.run.State()
	t, _ := c.run.BestEffort()
	if r.cfg.Exclusive && !st.Mode.Known() {
		return Record{}, c.noTicket()
	}
	if r.cfg.Exclusive {
		t = st.Mode.Ticket()
	}
	b := c.backend(t.Tier)
	if b == nil {
		return Record{}, fmt.Errorf("%w: the locks are kept in %v now, which this process does not have", ErrUnavailable, tierOf(t.Tier))
	}
	rec, err := b.Inspect(ctx, name)
	former := c.backend(st.Former)
	if err != nil || rec.Held || !st.Mode.Drain || former == nil || former == b {
		return rec, err
	}
	if old, err := former.Inspect(ctx, name); err == nil {
		return old, nil
	}
	return rec, nil
}

// refusedByMode reports whether a store has refused a call because of the mode or
// the data that it was meant for: an answer, and nothing was changed.
func refusedByMode(err error) bool { return errors.Is(err, ErrEpoch) }
