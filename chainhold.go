package tierlock

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/watchdog"
)

// chainHold is what a hold is in a chain: the machine's view of its lease.
type chainHold struct {
	chain     *chain
	id        degrade.HoldID // the lease id
	resource  string
	exclusive bool
	ttl       time.Duration // full
	limit     time.Duration // bound of the hold, 0 for none
	worth     atomic.Uint32 // a Guarantee; it only falls

	mu     sync.Mutex
	hold   *hold // the present one of the lease
	at     route
	moved  moved     // the last confirmed adoption
	tried  time.Time // when one was sent last
	told   bool      // the machine has ended the hold, for reason
	reason degrade.Reason
	moves  int              // to another place, or within its data
	places []degrade.Ticket // where it is to be freed, once the machine has forgotten it
	over   bool             // the machine was told that it is over
	freed  bool             // and the places were given up
}

// moved is an adoption: a lease of ttl in the place to, by a request sent at sent.
type moved struct {
	to   degrade.Ticket
	sent watchdog.Instant
	ttl  time.Duration
}

// enter tells the machine of a lease that was just granted at the route, and
// reports whether it may be believed. If not, it has to be given up.
func (c *chain) enter(h *hold, at route, sent watchdog.Instant, call call) bool {
	ch := &chainHold{chain: c, hold: h, id: degrade.HoldID(h.token.Lease), resource: h.token.Resource, exclusive: at.place.Exclusive,
		ttl: call.ttl, limit: call.limit, at: at}
	ch.review()
	h.chained = ch
	// First known here, then to the machine: an adoption may ask at once.
	c.mu.Lock()
	c.holds[ch.id] = ch
	c.mu.Unlock()
	lease := call.ttl - watchdog.Margin(call.ttl)
	if c.run.Granted(at.ticket, degrade.Hold{ID: ch.id, Lease: lease, Until: c.instant(sent.Add(lease)), Exclusive: ch.exclusive}) {
		// What makes it worth less may have been seen since.
		ch.review()
		return true
	}
	h.chained = nil
	c.mu.Lock()
	delete(c.holds, ch.id)
	c.mu.Unlock()
	return false
}

func (h *chainHold) lower(g Guarantee) {
	for {
		old := h.worth.Load()
		if old != 0 && old <= uint32(g) || h.worth.CompareAndSwap(old, uint32(g)) {
			return
		}
	}
}

// cap is when belief ends by the machine. It is asked with the lease's mutex held.
//
// A hold that is not exclusive lives as long as its lease, unless the machine ends it,
// and is told so by an event: that saves each look at it the runner's mutex. Belief in
// it may last until the event is here, since it keeps nobody else away.
//
// The machine takes each adoption for one of the whole TTL. One that asked for less,
// since its hold had a bound, counts for no more than that: the lease may have gone
// to a hold with a later bound meanwhile.
func (h *chainHold) cap() watchdog.Instant {
	if !h.exclusive {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.told || h.over {
			return h.chain.origin
		}
		return h.chain.never
	}
	until := h.chain.origin.Add(time.Duration(h.chain.run.Belief(h.id)))
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := &h.moved; m.ttl > 0 && m.ttl < h.ttl && m.to != h.at.ticket {
		if end := m.sent.Add(m.ttl - watchdog.Margin(m.ttl)); end.Sub(until) < 0 {
			return end
		}
	}
	return until
}

func (h *chainHold) holder() *hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold
}

func (h *chainHold) route() route {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

// renewed tells what the store at a route said to a renewal that was sent at sent:
// nil for yes. It returns what the watchdog is to be told.
func (h *chainHold) renewed(at route, sent watchdog.Instant, ttl time.Duration, answer error) error {
	var until degrade.Instant
	if answer == nil {
		until = h.chain.instant(sent.Add(ttl - watchdog.Margin(ttl)))
	}
	believed, place := h.chain.run.Renewed(h.id, at.ticket.Epoch, until)
	switch {
	case !believed:
		return errEndedByMode
	case place.Epoch != at.ticket.Epoch:
		// By now it is elsewhere: this says nothing about it, neither yes nor no.
		h.follow()
		return errMovedOn
	case answer != nil && errors.Is(answer, watchdog.ErrNotHeld) && h.saved(at):
		return errMovedOn
	}
	return answer
}

// saved reports whether the lease was adopted by a drain from the place, so that it
// is in the coming store already, and needs no permit. A store that lost its data in
// an outage ends no hold that was saved from it.
func (h *chainHold) saved(at route) bool {
	if h == nil || h.exclusive {
		return false
	}
	mode := h.chain.run.Mode()
	h.mu.Lock()
	defer h.mu.Unlock()
	return mode.Drain && h.moved.to == mode.Ticket() && h.at.ticket == at.ticket
}

// errEndedByMode is for the watchdog: the machine has ended the hold; see ended.
var errEndedByMode = fmt.Errorf("tierlock: the hold is not part of the mode in force, or its permit has ended: %w", watchdog.ErrNotHeld)

var errMovedOn = fmt.Errorf("%w: the lease has moved to another store meanwhile", ErrUnavailable)

// follow takes the hold to the place that the machine has for it.
func (h *chainHold) follow() {
	place, ok := h.chain.run.Place(h.id)
	h.mu.Lock()
	if !ok || h.over || place == h.at.ticket {
		h.mu.Unlock()
		return
	}
	tier := h.at.ticket.Tier
	h.at = h.chain.at(place, h.exclusive)
	m := h.moved
	adopted := m.to == place
	if adopted {
		h.moves++
	}
	h.mu.Unlock()
	h.review()
	if !adopted {
		return // the same lease in the same store: the mode was not known when it was granted
	}
	// In this order: renewals that begin after Move go to the new place.
	holder := h.holder()
	if lease := holder.watched(); lease != nil {
		lease.Move(m.sent, m.ttl)
	}
	holder.tellMoved(tierOf(tier), tierOf(place.Tier))
}

func (h *chainHold) recheck() {
	if lease := h.holder().watched(); lease != nil {
		lease.Recheck()
	}
}

// adoptRequest asks for the lease in another place; it is not ok where nobody needs
// it any more.
func (h *chainHold) adoptRequest(at route) (AdoptRequest, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ttl := h.ttl
	if h.limit > 0 {
		ttl = min(ttl, (h.limit - watchdog.Since(h.hold.sent)).Truncate(time.Millisecond))
	}
	if h.over || ttl < time.Millisecond {
		return AdoptRequest{}, false
	}
	h.tried = time.Now()
	return AdoptRequest{Name: h.hold.name, Token: h.hold.token, Explicit: h.hold.explicit, TTL: ttl, Place: at.place}, true
}

func (h *chainHold) adopted(to degrade.Ticket, sent watchdog.Instant, ttl time.Duration) {
	h.mu.Lock()
	newer := h.moved.to.Epoch < to.Epoch || h.moved.to == to && h.moved.sent.Sub(sent) < 0
	if newer {
		h.moved = moved{to, sent, ttl}
	}
	same := h.at.ticket.Tier == to.Tier && h.at.ticket.Incarnation == to.Incarnation
	if newer && same {
		h.moves++
	}
	h.mu.Unlock()
	// In the same data the key is of the coming epoch now. Renewals for the old one
	// are refused, and this is one.
	if lease := h.holder().watched(); lease != nil && newer && same {
		lease.Move(sent, ttl)
	}
}

// ended is told when the machine ends the hold by itself.
func (h *chainHold) ended(e degrade.Event) {
	h.mu.Lock()
	h.told, h.reason, h.places = true, e.Reason, e.Places
	over, late, at := h.over, h.freed, h.at.ticket
	h.mu.Unlock()
	if over {
		h.forget()
	}
	if late { // where it was thought to be it has been freed
		h.free(slices.DeleteFunc(slices.Clone(e.Places), func(p degrade.Ticket) bool { return p == at }), time.Time{})
	}
	h.recheck()
}

// leave tells the machine that the hold is over. It is idempotent.
func (h *chainHold) leave() {
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return
	}
	h.over = true
	told := h.told
	h.mu.Unlock()
	places := h.chain.run.Release(h.id)
	if places == nil && !told {
		return // the event that tells its places is on its way
	}
	h.mu.Lock()
	if places != nil {
		h.places = places
	}
	h.mu.Unlock()
	h.forget()
}

func (h *chainHold) forget() {
	h.chain.mu.Lock()
	defer h.chain.mu.Unlock()
	delete(h.chain.holds, h.id)
}

// give is where the lease is to be given up, after leave; the other places, where
// it is or may be as well, are given up in the background. keepUntil is as in an
// undoTask.
func (h *chainHold) give(keepUntil time.Time) route {
	h.mu.Lock()
	at, places := h.at, h.places
	h.freed = true
	h.mu.Unlock()
	if len(places) > 0 {
		at = h.chain.at(places[0], h.exclusive)
		h.free(places[1:], keepUntil)
	}
	return at
}

// giveAll gives the lease up in the background wherever it is, after leave. What was
// sent to get it is executed until settled at the latest.
func (h *chainHold) giveAll(settled time.Time) {
	h.mu.Lock()
	places := h.places
	if len(places) == 0 { // the event that tells them is on its way, and ended frees the others
		places = []degrade.Ticket{h.at.ticket}
	}
	h.freed = true
	h.tried = laterOf(h.tried, settled)
	h.mu.Unlock()
	h.free(places, time.Time{})
}

// mayPass reports whether the lease may go to the next of this process without
// asking the store, and how often it has moved; outside a chain it may. In a drain it
// does not, and what has moved neither: its fences are of a mode that is over.
func (h *chainHold) mayPass() (moves int, ok bool) {
	if h == nil {
		return 0, true
	}
	mode := h.chain.run.Mode()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moves, h.moves == 0 && !h.told && !mode.Drain && h.at.ticket.Epoch == mode.Epoch
}

// pass makes another hold of this process the lease's, before it is watched.
func (h *chainHold) pass(to *hold, limit time.Duration) route {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold, h.limit = to, limit
	return h.at
}

// passed follows when it is watched: a move meanwhile was told to nobody.
func (h *chainHold) passed(moves int) {
	if h == nil {
		return
	}
	h.mu.Lock()
	to, m, missed := h.hold, h.moved, h.moves > moves
	h.mu.Unlock()
	if missed {
		to.watched().Move(m.sent, m.ttl)
	}
	h.recheck()
}

// free gives the lease up in places where it may be by an adoption.
func (h *chainHold) free(places []degrade.Ticket, keepUntil time.Time) {
	l := h.chain.locker
	h.mu.Lock()
	tried, holder := h.tried, h.hold
	h.mu.Unlock()
	for _, p := range places {
		at := h.chain.at(p, h.exclusive)
		if at.backend == nil {
			continue
		}
		// One that is under way ends with its CallTimeout, and may be executed
		// later.
		settled := laterOf(time.Now(), tried.Add(max(l.cfg.CallTimeout+at.backend.linger(), 2*l.cfg.CallTimeout+50*time.Millisecond)))
		at.backend.undo.add(undoTask{
			req: ReleaseRequest{Name: holder.name, Lease: string(h.id), Explicit: holder.explicit, Place: at.place}, token: holder.token,
			keepUntil: keepUntil, settled: settled, until: settled.Add(h.ttl + l.cfg.CallTimeout),
		})
	}
}

// lossReason is why the machine ended the hold, or the permit did.
func (h *chainHold) lossReason() LossReason {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.told && h.reason == degrade.Refused:
		return Taken
	case h.told && h.reason == degrade.LeftBehind:
		return Gone
	}
	return Unconfirmed
}

// watched is the lease under the watchdog, nil before it is.
func (h *hold) watched() *watchdog.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// tellMoved tells that the hold lives on in another store, or in other data.
func (h *hold) tellMoved(from, to Tier) {
	n := h.locker.notify
	labels := n.labels(h.token)
	labels.Tier = to
	n.say(slog.LevelInfo, "tierlock: hold adopted", h.token, slog.String("from", from.String()), slog.String("to", to.String()))
	emit(n, h.locker.cfg.Observer.Adopted, AdoptedEvent{Labels: labels, At: time.Now(), Token: h.token, From: from})
}
