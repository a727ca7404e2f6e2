package localstore

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// Space holds the keys of the stores that share it, as a server would. It is
// safe for concurrent use. Create it with [NewSpace]; inside a testing/synctest
// bubble, create it in that bubble.
//
// Its memory is for the keys that are held or watched. A key that expired
// without a release is dropped by the next call on any key of the Space, or by
// the Space's timer while any key is watched.
type Space struct {
	base time.Time // carries the monotonic reading that all times here count from

	mu      sync.Mutex
	entries map[tierlock.Name]*entry
	expiry  expiryHeap                   // the same entries, first to expire first
	watches map[tierlock.Name]*list.List // of *watch, longest watching first
	timer   *time.Timer                  // one for all keys, see armLocked
	armed   time.Duration                // when the timer is due; 0: not running
}

// NewSpace makes an empty Space.
func NewSpace() *Space {
	return &Space{
		base:    time.Now(),
		entries: make(map[tierlock.Name]*entry),
		watches: make(map[tierlock.Name]*list.List),
	}
}

// now is the monotonic time since the Space was made. Those who decide by it
// read it with the mutex held: so the order of the readings is the order of
// the operations, and no key is seen expired by one call and alive by a later.
func (s *Space) now() time.Duration { return time.Since(s.base) }

// beginLocked is the head of every operation: the time at which it happens,
// with everything that has expired by then already gone.
func (s *Space) beginLocked(ctx context.Context) (time.Duration, error) {
	// Asked again only here, with the mutex held: after this line the
	// operation happens whole.
	if err := ended(ctx); err != nil {
		return 0, err
	}
	now := s.now()
	s.sweepLocked(now)
	return now, nil
}

func (s *Space) acquire(ctx context.Context, began time.Duration, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.beginLocked(ctx)
	if err != nil {
		return tierlock.AcquireResult{}, err
	}
	if late := now - began; late > req.Budget || req.Budget <= 0 {
		return tierlock.AcquireResult{}, fmt.Errorf("%w: after %v of %v", tierlock.ErrLate, late, req.Budget)
	}
	until := after(now, req.TTL)
	e := s.entries[req.Name]
	if e == nil {
		m := member{token: stamp(req), until: until}
		s.addLocked(&entry{name: req.Name, explicit: req.Explicit, token: m.token, members: []member{m}, until: until})
		return tierlock.AcquireResult{Granted: true, Token: m.token, Fences: further(req)}, nil
	}
	e.prune(now)
	if i := e.find(req.Token.Lease); i >= 0 {
		// A repeat after a lost reply: the same grant, not a second one.
		m := &e.members[i]
		m.until = max(m.until, until)
		s.settleLocked(e)
		return tierlock.AcquireResult{Granted: true, Token: m.token, Reentered: m.entered, Fences: further(req)}, nil
	}
	if e.explicit && req.Explicit && e.token.Holder == req.Token.Holder {
		m := member{token: stamp(req), until: until, entered: true}
		e.members = append(e.members, m)
		s.settleLocked(e)
		return tierlock.AcquireResult{Granted: true, Token: m.token, Reentered: true}, nil
	}
	return tierlock.AcquireResult{Token: e.token, Left: e.until - now}, nil
}

func (s *Space) renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	res := make([]tierlock.RenewResult, len(reqs))
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.beginLocked(ctx)
	for i, req := range reqs {
		switch {
		case err != nil:
			res[i].Err = err
		case req.TTL < time.Millisecond:
			res[i].Err = fmt.Errorf("%w: TTL %v, want at least 1ms", tierlock.ErrMisconfigured, req.TTL)
		default:
			res[i].State = s.renewLocked(now, req)
		}
	}
	return res
}

func (s *Space) renewLocked(now time.Duration, req tierlock.RenewRequest) tierlock.Ownership {
	e := s.entries[req.Name]
	if e == nil {
		return tierlock.LeaseGone
	}
	// A member that expired on its own is gone for good, though the key lives
	// on: to revive it would re-create what others may have seen ended.
	e.prune(now)
	i := e.find(req.Lease)
	if i < 0 {
		return tierlock.LeaseTaken
	}
	e.members[i].until = max(e.members[i].until, after(now, req.TTL))
	s.settleLocked(e)
	return tierlock.LeaseOwned
}

func (s *Space) release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.beginLocked(ctx)
	if err != nil {
		return 0, err
	}
	e := s.entries[req.Name]
	if e == nil {
		return tierlock.LeaseGone, nil
	}
	e.prune(now)
	i := e.find(req.Lease)
	if i < 0 {
		return tierlock.LeaseTaken, nil
	}
	if req.Keep > 0 {
		e.members[i].until = min(e.members[i].until, after(now, req.Keep))
	} else {
		e.remove(i)
	}
	if len(e.members) == 0 {
		s.dropLocked(e)
	} else {
		s.settleLocked(e)
	}
	// After the change and under the same mutex: whoever is woken finds it.
	s.wakeLocked(e.name)
	return tierlock.LeaseOwned, nil
}

func (s *Space) update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.beginLocked(ctx)
	if err != nil {
		return 0, err
	}
	e := s.entries[req.Name]
	if e == nil {
		return tierlock.LeaseGone, nil
	}
	e.prune(now)
	i := e.find(req.Token.Lease)
	if i < 0 || e.explicit {
		return tierlock.LeaseTaken, nil
	}
	e.members[i].token, e.token = req.Token, req.Token
	return tierlock.LeaseOwned, nil
}

func (s *Space) inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.beginLocked(ctx)
	if err != nil {
		return tierlock.Record{}, err
	}
	e := s.entries[name]
	if e == nil {
		return tierlock.Record{}, nil
	}
	e.prune(now)
	return tierlock.Record{Held: true, Token: e.token, Left: e.until - now, Holds: len(e.members)}, nil
}

func (s *Space) addLocked(e *entry) {
	s.entries[e.name] = e
	heap.Push(&s.expiry, e)
	s.armLocked()
}

func (s *Space) dropLocked(e *entry) {
	delete(s.entries, e.name)
	heap.Remove(&s.expiry, e.pos)
}

// settleLocked follows a change of e's members.
func (s *Space) settleLocked(e *entry) {
	e.until = e.latest()
	heap.Fix(&s.expiry, e.pos)
	s.armLocked()
}

// sweepLocked drops what has expired and wakes who waits for it. Every
// operation begins with it, so that keys nobody comes back to vanish as well.
func (s *Space) sweepLocked(now time.Duration) {
	for len(s.expiry) > 0 && s.expiry[0].until <= now {
		e := s.expiry[0]
		s.dropLocked(e)
		s.wakeLocked(e.name)
	}
}

// armLocked runs the timer to the first expiry of any key while any key is
// watched. A timer that is due too early is left alone: it fires for nothing
// once and is set right then.
func (s *Space) armLocked() {
	if len(s.watches) == 0 || len(s.expiry) == 0 {
		return
	}
	due := s.expiry[0].until
	if s.armed != 0 && s.armed <= due {
		return
	}
	s.armed = due
	if s.timer == nil {
		s.timer = time.AfterFunc(due-s.now(), s.fire)
	} else {
		s.timer.Reset(due - s.now())
	}
}

// fire may run twice or late, when it crossed a Reset: it only does what any
// operation does.
func (s *Space) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = 0
	s.sweepLocked(s.now())
	s.armLocked()
}
