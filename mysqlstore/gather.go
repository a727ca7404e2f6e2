package mysqlstore

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Calls that come at the same time go in one statement, which is one round trip,
// one commit and one write to the disk for all of them. Nobody waits in order to
// gather: a call that comes while few are under way goes at once, by itself, and
// those that come while these are executed are the next statement.
//
// Rows that somebody's transaction has locked must cost nobody but their own
// callers. So a statement of several never waits for a row. Where one is locked
// it has done nothing, and is sent again in halves, until the call is found that
// has to wait; that one goes by itself.

const (
	// turns is how many statements of a kind are under way before calls gather. With
	// two, those of a busy process hold half as many calls each, which costs client and
	// server more than the wait for the other's answer; with two to four calls at once
	// they would be a tenth faster.
	turns = 1
	// longTurn is how long one counts as that. What lasts longer waits for
	// something, a row perhaps, and others are not to wait for it as well: then
	// only the store's places bound them.
	longTurn = 20 * time.Millisecond
	// maxGathered is how many calls go in one statement. It locks their rows
	// until it is committed.
	maxGathered = 32
)

// gather is the calls of one kind: a question Q, to be answered by an A.
type gather[Q, A any] struct {
	s *Store
	// send asks several questions in one statement. It returns what each comes
	// to; with an error the statement as a whole has failed.
	send func(context.Context, []*gathered[Q, A]) ([]outcome[A], error)

	mu     sync.Mutex
	busy   int               // turns that are taken
	queue  []*gathered[Q, A] // while all are
	always bool              // for tests: not even a call that is alone goes by itself
}

// gathered is a call that waits to be sent with others, or is under way.
type gathered[Q, A any] struct {
	q     Q
	name  tierlock.Name
	until time.Time
	alone func(context.Context) (A, error)
	done  chan outcome[A] // has room for the one that comes

	// Guarded by the mutex of its gather:
	sent     bool // out of the queue
	left     bool // nobody waits for the answer
	answered bool
}

// outcome is what a gathered call comes to: an answer, or that it has to go by
// itself.
type outcome[A any] struct {
	answer[A]
	alone bool
}

func outcomeOf[A any](v A, err error) outcome[A] { return outcome[A]{answer: answer[A]{v, err}} }

func failedAs[A any](err error) outcome[A] { return outcome[A]{answer: answer[A]{err: err}} }

// call asks q, about one lock, by itself or with others. It is as the function
// call: alone is what asks it by itself.
func (g *gather[Q, A]) call(ctx context.Context, until time.Time, name tierlock.Name, q Q, alone func(context.Context) (A, error)) (A, error) {
	var none A
	if ctx.Err() != nil {
		return none, contract.Ended(ctx)
	}
	if !g.s.rows.enter(name) {
		return g.single(ctx, until, name, func() {}, alone)
	}
	g.mu.Lock()
	if g.busy < turns && !g.always {
		g.busy++
		g.mu.Unlock()
		return g.single(ctx, until, name, g.turn(), alone)
	}
	c := &gathered[Q, A]{q: q, name: name, until: until, alone: alone, done: make(chan outcome[A], 1)}
	g.queue = append(g.queue, c)
	g.nextLocked()
	g.mu.Unlock()
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	var o outcome[A]
	select {
	case o = <-c.done:
	case <-ctx.Done():
		if !g.leave(c) {
			return none, contract.Ended(ctx)
		}
		o = <-c.done
	case <-limit.C:
		if !g.leave(c) {
			return none, fmt.Errorf("%w: %w within %v", tierlock.ErrUnavailable, errNoAnswer, g.s.timeout)
		}
		o = <-c.done
	}
	if o.alone {
		return g.single(ctx, until, name, func() {}, alone)
	}
	return o.value, o.err
}

// leave takes back a call, unless it is answered by now: what is known counts.
func (g *gather[Q, A]) leave(c *gathered[Q, A]) (answered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.answered {
		return true
	}
	c.left = true
	if !c.sent {
		g.queue = slices.DeleteFunc(g.queue, func(other *gathered[Q, A]) bool { return other == c })
		g.s.rows.leave(c.name)
	}
	return false
}

// answer gives a call its outcome. Its row is no longer busy, unless it goes on.
func (g *gather[Q, A]) answer(c *gathered[Q, A], o outcome[A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answerLocked(c, o)
}

func (g *gather[Q, A]) answerLocked(c *gathered[Q, A], o outcome[A]) {
	if c.left || !o.alone {
		g.s.rows.leave(c.name)
	}
	c.answered = true
	c.done <- o
}

// single asks by itself, in a turn that is given back by free.
func (g *gather[Q, A]) single(ctx context.Context, until time.Time, name tierlock.Name, free func(), alone func(context.Context) (A, error)) (A, error) {
	end := sync.OnceFunc(func() {
		free()
		g.s.rows.leave(name)
	})
	var begun atomic.Bool
	v, err := call(g.s, g.s.places, ctx, until, func(ctx context.Context) (A, error) {
		begun.Store(true)
		defer end() // may be after the caller has left
		long := time.AfterFunc(longTurn, free)
		defer long.Stop()
		return alone(ctx)
	})
	if !begun.Load() {
		end()
	}
	return v, err
}

// turn is the end of a turn that was taken; only the first call counts.
func (g *gather[Q, A]) turn() (free func()) {
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.busy--
		g.nextLocked()
	})
}

// nextLocked begins a statement, where calls wait and a turn is free.
func (g *gather[Q, A]) nextLocked() {
	if len(g.queue) == 0 || g.busy >= turns {
		return
	}
	if err := g.s.begin(); err != nil { // closed
		for _, c := range g.queue {
			g.answerLocked(c, failedAs[A](err))
		}
		g.queue = nil
		return
	}
	g.busy++
	go g.work()
}

// work sends what waits, when it has a place for a statement: until then more may
// come.
func (g *gather[Q, A]) work() {
	defer g.s.calls.Done()
	free := g.turn()
	defer free()
	err := g.s.enter(g.s.places, context.Background(), context.Background())
	if err == nil {
		defer g.s.leave(g.s.places)
	}
	g.mu.Lock()
	calls := slices.Clone(g.queue[:min(len(g.queue), maxGathered)])
	g.queue = slices.Delete(g.queue, 0, len(calls))
	for _, c := range calls {
		c.sent = true
	}
	always := g.always
	g.mu.Unlock()
	if err != nil { // closed
		for _, c := range calls {
			g.answer(c, failedAs[A](err))
		}
		return
	}
	if len(calls) == 0 {
		return
	}
	long := time.AfterFunc(longTurn, free)
	defer long.Stop()
	var until time.Time
	for _, c := range calls {
		if c.until.After(until) {
			until = c.until
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	if len(calls) == 1 && !always {
		v, err := calls[0].alone(ctx)
		if err != nil && cut(err) {
			g.s.era.Add(1)
		}
		g.answer(calls[0], outcomeOf(v, g.s.told(ctx, err)))
		return
	}
	// In the order of the primary key, as all lock their rows.
	slices.SortFunc(calls, func(a, b *gathered[Q, A]) int {
		return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Resource, b.name.Resource), cmp.Compare(a.name.Key, b.name.Key))
	})
	for _, c := range g.together(ctx, calls) {
		g.answer(c, outcome[A]{alone: true})
	}
}

// together asks in one statement, or in more where a row is locked. It returns the
// calls that have to wait for theirs: they begin to when the others have ended, as
// who waits for a row may keep others from making one beside it.
func (g *gather[Q, A]) together(ctx context.Context, calls []*gathered[Q, A]) (waiting []*gathered[Q, A]) {
	calls = g.present(calls)
	if len(calls) == 0 {
		return nil
	}
	outcomes, err := g.send(ctx, calls)
	if err != nil && cut(err) {
		g.s.era.Add(1)
	}
	_, wrong := misconfigured(err)
	switch {
	case err == nil:
		for i, c := range calls {
			g.answer(c, outcomes[i])
		}
	case wrong, errors.Is(err, driver.ErrBadConn):
		return calls // nothing was sent, or what is refused to several may be done for one
	case !locked(err) && !repeatable(err):
		for _, c := range calls {
			g.answer(c, failedAs[A](g.s.told(ctx, err)))
		}
	case len(calls) == 1:
		g.s.rows.bar(calls[0].name)
		return calls
	default:
		half := len(calls) / 2
		return append(g.together(ctx, calls[:half]), g.together(ctx, calls[half:])...)
	}
	return nil
}

// present leaves out the calls that nobody waits for any more.
func (g *gather[Q, A]) present(calls []*gathered[Q, A]) []*gathered[Q, A] {
	g.mu.Lock()
	defer g.mu.Unlock()
	there := calls[:0:0]
	for _, c := range calls {
		if c.left {
			g.s.rows.leave(c.name)
			continue
		}
		there = append(there, c)
	}
	return there
}

// rows knows which rows have a statement under way, or were found locked lately:
// a call for one of these does not go with others, which would have to be sent
// again.
type rows struct {
	mu     sync.Mutex
	busy   map[tierlock.Name]int
	barred map[tierlock.Name]time.Time // since when
}

const (
	// barredFor is how long a row that was found locked counts as that.
	barredFor = 2 * time.Second
	// maxBarred bounds how many are known; of others the statement tells.
	maxBarred = 256
)

// enter counts a call for a row, which leave takes back, and tells whether it may
// go with others.
func (r *rows) enter(n tierlock.Name) (free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy == nil {
		r.busy, r.barred = make(map[tierlock.Name]int), make(map[tierlock.Name]time.Time)
	}
	r.busy[n]++
	since, barred := r.barred[n]
	if barred && time.Since(since) > barredFor {
		delete(r.barred, n)
		barred = false
	}
	return !barred && r.busy[n] == 1
}

func (r *rows) leave(n tierlock.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[n]--; r.busy[n] == 0 {
		delete(r.busy, n)
	}
}

// bar notes that a row is locked.
func (r *rows) bar(n tierlock.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.barred) >= maxBarred {
		for other, since := range r.barred {
			if time.Since(since) > barredFor || len(r.barred) >= maxBarred {
				delete(r.barred, other)
			}
		}
	}
	r.barred[n] = time.Now()
}
