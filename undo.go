package tierlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"
)

// undoer repeats releases in a store in the background: of leases that a store may have
// granted without our seeing it, and of releases that were not confirmed. Its
// goroutine exists only while there is something to undo.
type undoer struct {
	backend *backend

	mu      sync.Mutex
	tasks   map[undoKey]*undoTask
	resume  time.Time // nothing is tried before that: the store did not answer
	running bool
	wake    chan struct{} // capacity 1
	done    chan struct{} // closed when the goroutine ends
	closed  bool
}

// undoKey names a task: a lease may have to be given up in two modes of a chain.
type undoKey struct {
	lease string
	epoch uint16
}

func (t *undoTask) key() undoKey { return undoKey{t.req.Lease, t.req.Place.Epoch} }

// undoTask is one lease to give up.
type undoTask struct {
	req       ReleaseRequest
	token     Token
	keepUntil time.Time // for MinHold; else in the past
	// settled is the moment after which the store executes nothing that was
	// sent for this lease before: an answer to a release sent later is final.
	// One sent sooner may have overtaken the acquire that it undoes.
	settled time.Time
	// until is when the key has expired in any case.
	until time.Time
	// refused says that the store refused the acquire as misconfigured: if it
	// refuses the release likewise, there is nothing more to try.
	refused bool

	next time.Time
}

const (
	undoFirst    = 20 * time.Millisecond
	undoMax      = 250 * time.Millisecond
	undoParallel = 32
)

// add takes a task. After close nothing is taken: the key is left to its TTL.
func (u *undoer) add(t undoTask) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	if u.tasks == nil {
		u.tasks = make(map[undoKey]*undoTask)
		u.wake = make(chan struct{}, 1)
	}
	if old := u.tasks[t.key()]; old != nil {
		// What was sent for either may still be executed.
		t.settled, t.until = laterOf(t.settled, old.settled), laterOf(t.until, old.until)
		t.refused = t.refused && old.refused
	}
	u.tasks[t.key()] = &t
	if !u.running {
		u.running = true
		u.done = make(chan struct{})
		go u.run(u.done)
		return
	}
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *undoer) isClosed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed
}

func (u *undoer) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.tasks)
}

func (u *undoer) run(done chan struct{}) {
	defer close(done)
	// The store is the same for all: what fails for one fails for all, so one
	// backoff paces the lot, also what is added meanwhile.
	pace := backoff.NewExponentialBackOff(backoff.WithInitialInterval(undoFirst),
		backoff.WithMaxInterval(undoMax), backoff.WithMaxElapsedTime(0))
	for {
		due, wait, ok := u.due()
		if !ok {
			return
		}
		if len(due) == 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-u.wake:
			}
			timer.Stop()
			continue
		}
		if !u.try(due[0]) {
			u.rest(pace.NextBackOff())
			continue
		}
		pace.Reset()
		var group errgroup.Group
		group.SetLimit(undoParallel)
		for _, t := range due[1:] {
			group.Go(func() error {
				if !u.isClosed() && !u.try(t) {
					u.postpone(t, undoFirst)
				}
				return nil
			})
		}
		_ = group.Wait() // try reports by itself
	}
}

// due gives the tasks that are due, or how long until one is. It is not ok
// when there is none, or no more work is wanted; the goroutine then has to end.
func (u *undoer) due() (due []*undoTask, wait time.Duration, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	wait = time.Hour
	for key, t := range u.tasks {
		switch {
		case now.After(t.until):
			delete(u.tasks, key)
		case now.Before(t.next):
			wait = min(wait, t.next.Sub(now))
		case now.Before(u.resume):
			wait = min(wait, u.resume.Sub(now))
		default:
			due = append(due, t)
		}
	}
	if len(u.tasks) == 0 || u.closed {
		u.running = false
		return nil, 0, false
	}
	return due, wait, true
}

// try releases once. It reports whether the store answered.
func (u *undoer) try(t *undoTask) bool {
	l := u.backend.locker
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.CallTimeout)
	defer cancel()
	sent := time.Now()
	req := t.req
	req.Keep = max(0, t.keepUntil.Sub(sent))
	part := u.backend.part(req.Name)
	state, err := u.backend.Release(ctx, req)
	if err != nil || state == LeaseOwned {
		// That there is nothing to release a replica says as well: no proof that
		// a lock can be taken.
		part.report(req.Name, err)
	}
	if errors.Is(err, ErrMisconfigured) {
		// An answer about this key, and not a store that is down.
		u.mu.Lock()
		defer u.mu.Unlock()
		if t.refused {
			u.doneLocked(t)
		}
		t.next = time.Now().Add(undoMax)
		return true
	}
	if err != nil {
		return false
	}
	u.mu.Lock()
	final := !sent.Before(t.settled)
	if final {
		u.doneLocked(t)
	} else {
		t.next = t.settled
	}
	u.mu.Unlock()
	if !final {
		return true
	}
	l.notify.say(slog.LevelDebug, "tierlock: undone", t.token, slog.String("was", state.String()))
	return true
}

// doneLocked forgets a task, unless another has taken its place while it was tried.
func (u *undoer) doneLocked(t *undoTask) {
	if u.tasks[t.key()] == t {
		delete(u.tasks, t.key())
	}
}

func (u *undoer) rest(d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.resume = time.Now().Add(d)
}

func (u *undoer) postpone(t *undoTask, d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	t.next = time.Now().Add(d)
}

// close waits until all is undone, at most until ctx ends, and takes no more.
// It returns how many leases are left to their TTL.
func (u *undoer) close(ctx context.Context) int {
	u.mu.Lock()
	done, running := u.done, u.running
	u.mu.Unlock()
	if running {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	u.mu.Lock()
	u.closed = true
	left := len(u.tasks)
	done, running = u.done, u.running
	if running {
		select {
		case u.wake <- struct{}{}:
		default:
		}
	}
	u.mu.Unlock()
	if running {
		<-done // one call at most is under way: CallTimeout
	}
	return left
}
