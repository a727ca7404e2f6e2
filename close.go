package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Close ends the Locker. From its start no lock is given (but that a call may
// still enter the hold that its context carries) and every waiting call fails
// with ErrClosed. Close then waits until ctx ends for the present
// holds to be unlocked, renewing them meanwhile, and for the releases that go
// on in the background. The contexts of the holds that are left then end with
// ErrClosed; nothing renews their keys any more, and each is left to end on
// time, since its body may still run. After that Close waits at most another
// three CallTimeouts.
//
// The process is then taken off the members of its chain, so that no switch waits
// for it.
//
// The error, if any, joins all that was left: holds not unlocked, releases not
// confirmed, a member that is still listed. Whichever it is, no goroutine of the Locker stays, but for
// one that is inside the Observer or the Logger.
//
// Unlock works after Close, once: a failed release is not repeated. Close is
// idempotent, and a concurrent call waits for the first, or for its own ctx.
func (l *Locker) Close(ctx context.Context) error {
	first := false
	l.once.Do(func() { first = true; close(l.closing) })
	if !first {
		select {
		case <-l.closed:
			return l.closeOK
		case <-ctx.Done():
			return fmt.Errorf("tierlock: close: %w", contextError(ctx))
		}
	}
	defer close(l.closed)

	var problems []error
	if !l.holds.none(ctx) {
		left := l.holds.all()
		for _, h := range left {
			h.mu.Lock()
			lease := h.lease
			h.mu.Unlock()
			if lease != nil {
				lease.Pause()
			}
			h.finish(ErrClosed)
			l.notify.say(slog.LevelWarn, "tierlock: held at the end of the locker", h.token,
				slog.Duration("held", watchdog.Since(h.sent)))
		}
		if len(left) > 0 {
			problems = append(problems, fmt.Errorf("tierlock: close: %d holds were not unlocked, such as %s: %w", len(left), left[0].token, contextError(ctx)))
		}
	}
	// What comes now is short, and worth a moment also if ctx has ended: two
	// CallTimeouts, and a third for the calls that are then under way.
	grace, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(2*l.cfg.CallTimeout, cancel) })()
	l.calls.none(grace) // all waits have ended, attempts end with their CallTimeout
	// Before the releases, which may wait for a store that is away: nothing is
	// believed in or given any more, so no switch has to wait for this process.
	if l.chain != nil {
		// One for a write of the own row that is under way, one for the leave after it.
		off, stop := context.WithTimeout(grace, 2*l.cfg.CallTimeout)
		if err := l.chain.close(off); err != nil {
			problems = append(problems, err)
		}
		stop()
	}
	n := 0
	for _, b := range l.stores {
		n += b.undo.close(grace)
	}
	if n > 0 {
		problems = append(problems, fmt.Errorf("tierlock: close: %d releases not confirmed, their keys are left to end: %w", n, ErrUnavailable))
	}
	l.dog.Close()
	l.local.close(grace)
	if len(l.leave) > 0 {
		off, stop := context.WithTimeout(grace, l.cfg.CallTimeout)
		for _, leave := range l.leave {
			leave(off)
		}
		stop()
	}
	flush, stop := context.WithTimeout(grace, l.cfg.CallTimeout) // grace may have no end
	defer stop()
	l.notify.logs.flush(flush)
	l.notify.events.flush(flush)
	l.closeOK = errors.Join(problems...)
	return l.closeOK
}

// activity counts what goes on, so that Close can wait for its end.
type activity struct {
	mu   sync.Mutex
	n    int
	wait chan struct{} // closed when n is 0; made by who waits
}

func (a *activity) begin() {
	a.mu.Lock()
	a.n++
	a.mu.Unlock()
}

func (a *activity) end() {
	a.mu.Lock()
	a.endLocked()
	a.mu.Unlock()
}

func (a *activity) endLocked() {
	a.n--
	if a.n == 0 && a.wait != nil {
		close(a.wait)
		a.wait = nil
	}
}

func (a *activity) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

// none waits until nothing goes on, at most until ctx ends.
func (a *activity) none(ctx context.Context) bool {
	a.mu.Lock()
	if a.n == 0 {
		a.mu.Unlock()
		return true
	}
	if a.wait == nil {
		a.wait = make(chan struct{})
	}
	wait := a.wait
	a.mu.Unlock()
	select {
	case <-wait:
		return true
	case <-ctx.Done():
		return false
	}
}

// holdSet is the holds of a Locker, in a list through hold.next and hold.prev.
type holdSet struct {
	activity
	first *hold // guarded by activity.mu
}

func (s *holdSet) add(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if h.next = s.first; h.next != nil {
		h.next.prev = h
	}
	s.first = h
}

// remove is for a hold that was added, once.
func (s *holdSet) remove(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		s.first = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.next, h.prev = nil, nil
	s.endLocked()
}

func (s *holdSet) all() []*hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*hold, 0, s.n)
	for h := s.first; h != nil; h = h.next {
		all = append(all, h)
	}
	return all
}
