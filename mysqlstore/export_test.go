package mysqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
)

// SetPace makes the background work of a store faster, before it is registered.
func (s *Store) SetPace(beat, silent, sweep, keep time.Duration) {
	s.pace = pace{beat: beat, silent: silent, sweep: sweep, keep: keep}
}

// Sweep deletes old rows at once.
func (s *Store) Sweep(ctx context.Context) (int64, error) {
	return s.sweep(ctx, new(sweeping), func(context.Context) bool { return true })
}

// Floor is the latest time of the server that the store knows of.
func (s *Store) Floor() int64 { return s.floor.Load() }

// TakeAgainLate takes a lock, calls between, and sends the statement of the same
// attempt once more, wanted for another 100 ms. It returns both answers.
func (s *Store) TakeAgainLate(ctx context.Context, req tierlock.AcquireRequest, between func()) (first, second int64, err error) {
	srv, err := s.ready(ctx, time.Now().Add(s.timeout))
	if err != nil {
		return 0, 0, err
	}
	a := newAttempt(&req)
	a.srv, a.bound, a.budget = srv, never, time.Minute.Microseconds()
	if first, err = s.take(ctx, a); err != nil {
		return first, 0, err
	}
	between()
	if a.bound, err = s.clockNow(ctx); err != nil {
		return first, 0, err
	}
	a.bound += 100_000
	second, err = s.take(ctx, a)
	return first, second, err
}

// GatherAlways makes even a call that is alone go by the statement for several.
func (s *Store) GatherAlways() {
	s.takes.mu.Lock()
	s.takes.always = true
	s.takes.mu.Unlock()
	s.releases.mu.Lock()
	s.releases.always = true
	s.releases.mu.Unlock()
}

// RetakeAlways makes each lock be taken as if its row were there.
func (s *Store) RetakeAlways() {
	s.left.mu.Lock()
	s.left.always = true
	s.left.mu.Unlock()
}

// Gather keeps calls from being sent until go is called, and go together then.
func (s *Store) Gather() (send func()) {
	hold(&s.takes)
	hold(&s.releases)
	return func() {
		unhold(&s.takes)
		unhold(&s.releases)
	}
}

func hold[Q, A any](g *gather[Q, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy += turns
}

func unhold[Q, A any](g *gather[Q, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy -= turns
	g.nextLocked()
}

// Queued is how many calls wait to be sent with others.
func (s *Store) Queued() int { return queued(&s.takes) + queued(&s.releases) }

func queued[Q, A any](g *gather[Q, A]) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// Rows is how many rows have a call under way, and how many count as locked.
func (s *Store) Rows() (busy, barred int) {
	s.rows.mu.Lock()
	defer s.rows.mu.Unlock()
	return len(s.rows.busy), len(s.rows.barred)
}

// TakeTogether takes several locks by one statement, and returns its error.
func (s *Store) TakeTogether(ctx context.Context, reqs []tierlock.AcquireRequest) error {
	srv, err := s.ready(ctx, time.Now().Add(s.timeout))
	if err != nil {
		return err
	}
	var all []*attempt
	for i := range reqs {
		a := newAttempt(&reqs[i])
		a.bound, a.budget, a.end = never, time.Minute.Microseconds(), time.Now().Add(time.Minute)
		all = append(all, a)
	}
	won, err := s.takeRows(ctx, srv, all, false)
	if err == nil && len(won) != len(all) {
		err = fmt.Errorf("%d taken of %d", len(won), len(all))
	}
	return err
}

// ReleaseTogether releases several locks by one statement, and returns its error.
func (s *Store) ReleaseTogether(ctx context.Context, reqs []tierlock.ReleaseRequest) error {
	if _, err := s.ready(ctx, time.Now().Add(s.timeout)); err != nil {
		return err
	}
	var calls []*gathered[*tierlock.ReleaseRequest, tierlock.Ownership]
	for i := range reqs {
		calls = append(calls, &gathered[*tierlock.ReleaseRequest, tierlock.Ownership]{q: &reqs[i], name: reqs[i].Name})
	}
	outcomes, err := s.releaseAll(ctx, calls)
	for _, o := range outcomes {
		if o.err != nil || o.value != tierlock.LeaseOwned {
			return fmt.Errorf("%v, %w", o.value, o.err)
		}
	}
	return err
}

// NoteReleased makes the store know that a lock was released.
func (s *Store) NoteReleased(n tierlock.Name) { s.left.add(n) }

// KnownReleased is of how many locks it knows that.
func (s *Store) KnownReleased() int {
	s.left.mu.Lock()
	defer s.left.mu.Unlock()
	return len(s.left.since)
}
