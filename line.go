package tierlock

import (
	"hash/maphash"
	"sync"
	"time"
)

// lines keeps, for each key that this process wants or has, one queue: so one
// caller at a time asks the store for the key, and the others wait for their
// turn in the order in which they came. A line exists only while somebody
// stands in it.
type lines struct {
	seed   maphash.Seed
	shards [64]lineShard
}

type lineShard struct {
	mu sync.Mutex
	m  map[Name]*line
}

func newLines() *lines {
	ls := &lines{seed: maphash.MakeSeed()}
	for i := range ls.shards {
		ls.shards[i].m = make(map[Name]*line)
	}
	return ls
}

func (ls *lines) shard(name Name) *lineShard {
	return &ls.shards[maphash.Comparable(ls.seed, name)%uint64(len(ls.shards))]
}

// line is the queue of one key. Its fields are guarded by the shard's mutex.
//
// Whoever is not queued is active: a contender, which asks the store, or a
// holder. There is one active place at a time, except that callers with the
// explicit holder id of the present holders, in this process or, as far as
// known, in another, become active at once: whoever they would wait for may
// wait for them.
type line struct {
	active   int
	holds    int
	explicit string // of the latest hold in this process, "" if anonymous
	holder   *Token // of the latest hold in this process
	// The queue, linked by next and prev.
	first, last *place

	// What the store said to the present contender, and to those who
	// stood in line behind it.
	heldAt   time.Time // last time that the key was known to be held
	held     *Token    // by whom, as far as known; never nil where answered
	answered bool      // the present contender was told "held" last
	restTill time.Time // others have their turn before the next asks; counts as held until then
	failed   error     // the store's last failure since then
	change   chan struct{}
}

type placeState uint8

const (
	placeQueued placeState = iota
	placeActive            // contends for the key
	placeHolds
	placeLeft
)

// place is one caller's place in a line.
type place struct {
	shard    *lineShard
	line     *line
	name     Name
	explicit string
	since    time.Time
	// ttl is that of a lease that the caller would take over, 0 for none: see
	// hold.handOver.
	ttl   time.Duration
	baton *baton        // given to an active place that has not taken it yet
	turn  chan struct{} // closed when the place becomes active
	state placeState

	next, prev *place // while queued
}

// enter gives the caller that place: an active one if the line is free for it,
// else the last in the queue.
func (ls *lines) enter(p *place, name Name, explicit string, now time.Time) (queued bool) {
	s := ls.shard(name)
	p.shard, p.name, p.explicit, p.since = s, name, explicit, now
	s.mu.Lock()
	defer s.mu.Unlock()
	ln := s.m[name]
	if ln == nil {
		ln = &line{}
		s.m[name] = ln
	}
	p.line = ln
	if ln.active == 0 && ln.first == nil || ln.joinableLocked(explicit) {
		ln.activateLocked(p)
		return false
	}
	p.turn = make(chan struct{})
	ln.pushLocked(p)
	return true
}

func (ln *line) pushLocked(p *place) {
	if p.prev = ln.last; p.prev != nil {
		p.prev.next = p
	} else {
		ln.first = p
	}
	ln.last = p
}

func (ln *line) removeLocked(p *place) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		ln.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		ln.last = p.prev
	}
	p.next, p.prev = nil, nil
}

func (ln *line) joinableLocked(explicit string) bool {
	switch {
	case explicit == "":
		return false
	case ln.holds > 0:
		return ln.explicit == explicit
	}
	return ln.answered && ln.held.Holder == explicit
}

// joinLocked lets those in the queue go on who may enter the present hold.
func (ln *line) joinLocked() {
	for q := ln.first; q != nil; {
		next := q.next
		if ln.joinableLocked(q.explicit) {
			ln.removeLocked(q)
			ln.activateLocked(q)
		}
		q = next
	}
}

// activateLocked is for places that are not in the queue.
func (ln *line) activateLocked(p *place) {
	if ln.active == 0 {
		ln.answered, ln.failed = false, nil
	}
	ln.active++
	p.state = placeActive
	if p.turn != nil {
		close(p.turn)
	}
}

// changedLocked wakes the callers that look at what the line knows without
// queueing for the key.
func (ln *line) changedLocked() {
	if ln.change != nil {
		close(ln.change)
		ln.change = nil
	}
}

// active reports whether the place may contend.
func (p *place) active() bool {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	return p.state == placeActive
}

// answer records what the store said to the contender.
func (p *place) answer(held bool, holder Token, failed error) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	ln := p.line
	ln.answered, ln.failed = held, failed
	if held {
		ln.heldAt, ln.held = time.Now(), &holder
	}
	ln.joinLocked()
	ln.changedLocked()
}

// hold turns a contender into a holder at now, and lets those in who may enter
// the same hold. The token does not change any more.
func (p *place) hold(t *Token, now time.Time) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	ln := p.line
	p.state = placeHolds
	ln.holds++
	ln.holder, ln.explicit = t, p.explicit
	ln.heldAt, ln.held, ln.failed = now, t, nil
	// That was before, but for a contender who goes by it until its next look: one
	// that stands there while others enter by their explicit id.
	ln.answered = ln.answered && ln.active > ln.holds
	ln.joinLocked()
	ln.changedLocked()
}

// leave gives the place up, whatever it is, and passes the turn on. It is
// idempotent, and safe to call at the very moment at which the turn comes. Where a
// baton has come with it, that is returned and the place kept, until it is called
// again.
func (p *place) leave() *baton {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	ln := p.line
	if b := p.baton; b != nil {
		p.baton = nil
		return b
	}
	switch p.state {
	case placeLeft:
		return nil
	case placeQueued:
		ln.removeLocked(p)
	case placeHolds:
		ln.holds--
		ln.heldNowLocked()
		ln.active--
	case placeActive:
		if ln.answered {
			ln.heldNowLocked()
		}
		ln.active--
	}
	p.state = placeLeft
	if ln.active == 0 {
		ln.changedLocked()
		if q := ln.first; q != nil {
			ln.removeLocked(q)
			ln.activateLocked(q)
		} else {
			delete(p.shard.m, p.name)
		}
	}
	return nil
}

// heldNowLocked notes for those who are still there that the key was held until
// now.
func (ln *line) heldNowLocked() {
	if ln.first != nil || ln.active > 1 {
		ln.heldAt = time.Now()
	}
}

// knowledge is what a line knows about its key.
type knowledge struct {
	active bool          // the asking place has the turn
	held   bool          // known to be held since the place was entered
	rested bool          // else: was left to others since then
	holder Token         // by whom, as far as known
	failed error         // the store's last failure, if that is younger
	change chan struct{} // closed when there is more to know
}

// knows tells the caller in place p what the line knows, without its asking
// the store.
func (p *place) knows() knowledge {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	ln := p.line
	k := knowledge{active: p.state == placeActive, failed: ln.failed}
	if ln.held != nil {
		k.holder = *ln.held
	}
	switch {
	case ln.holds > 0:
		k.held, k.holder = true, *ln.holder
	case ln.answered:
		// Perhaps from before the place was entered. But the contender in
		// front goes by it until its next look, and contention must not pass
		// for a store that does not answer.
		k.held = true
	case !ln.heldAt.IsZero() && !ln.heldAt.Before(p.since):
		k.held = true
	default:
		// Where the key is left to others nobody asks the store, so that it is not
		// known who has it, if anybody has.
		k.rested = !ln.restTill.IsZero() && !ln.restTill.Before(p.since)
	}
	if ln.change == nil {
		ln.change = make(chan struct{})
	}
	k.change = ln.change
	return k
}
