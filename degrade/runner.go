package degrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// RunnerConfig is what a [Runner] is made of. All fields but Probe and the
// funcs whose names begin with On are required.
type RunnerConfig struct {
	// Machine is the machine's own configuration, with Member and Digest.
	Machine Config
	// Self goes with each statement; Member and Digest are taken from Machine.
	Self    Self
	Arbiter Arbiter
	// Probe asks Redis whether it works and for its incarnation; known is the latest
	// epoch, 0 for none. Nil means that this process has no Redis: it never is healthy.
	Probe func(ctx context.Context, known uint16) (incarnation string, err error)
	// Adopt writes holds into the store of the drain to, under the epoch of to,
	// and says what became of each, in their order.
	Adopt func(ctx context.Context, to Mode, holds []HoldID) []Adoption
	// Now reads the process's clock. It never goes back and goes on in a suspend.
	Now func() Instant
	// CallTimeout bounds one action.
	CallTimeout time.Duration

	// OnEvent gets the machine's events, one after the other, on the runner's
	// goroutine and with no lock held; it must be quick. What has happened counts
	// before it is told: see Belief.
	OnEvent func(Event)
	// OnCap is called, like OnEvent, when beliefs may have become shorter without
	// an event: whoever keeps timers for them has to look again.
	OnCap func()
	// OnDigests is called, like OnEvent, with the answer of [Machine.Digests] when
	// there are other digests or other members in it than before; there was none at
	// first. While the arbiter is silent nothing is known of others, and what was
	// told last counts.
	OnDigests func(others []Member)
	// OnError is told when the actions of a kind begin to fail and, with nil, when
	// they work again. It is called by any goroutine, with no lock held.
	OnError func(kind Kind, err error)
}

// Runner runs a [Machine]: it carries out what is due, each action on a goroutine
// of its own, so that none waits for another. It is safe for concurrent use. No
// lock is held while an action is under way, and no method but Close waits. What is
// asked for each lock, MayGrant, BestEffort, Mode and Changed, takes no lock at all
// while its answer is the usual one.
type Runner struct {
	cfg     RunnerConfig
	ctx     context.Context // of all actions; ends with the runner
	cancel  context.CancelFunc
	wake    chan struct{} // capacity 1
	done    chan struct{} // closed when the loop has ended
	actions sync.WaitGroup

	mu      sync.Mutex
	m       *Machine
	last    Instant // the latest reading of the clock
	due     Instant // when the loop takes its next turn at the latest
	events  []Event
	failing [kinds]bool
	digests []Member // as told last
	leaving Action   // the Leave that was begun; for repeating it
	left    chan struct{}
	gone    bool // left is closed
	stopped bool

	// What every call asks takes no mutex. It is replaced with the mutex held,
	// before anybody learns by another way of what has changed it.
	look atomic.Pointer[look]
}

// look is what the machine said after its last input, and for how long it does.
type look struct {
	view
	mayUntil     Instant // if may, grant is leave before then
	settledUntil Instant // if settled, best is so until then inclusive
	changed      chan struct{}
}

// view is what a caller that waits for a change goes by.
type view struct {
	mode    Mode
	grant   Ticket
	may     bool
	best    Ticket
	settled bool
}

// NewRunner starts a runner. Close ends it.
func NewRunner(c RunnerConfig) *Runner {
	c.Self.Member, c.Self.Digest = c.Machine.Member, c.Machine.Digest
	r := &Runner{
		cfg: c, m: New(c.Machine),
		wake: make(chan struct{}, 1), done: make(chan struct{}), left: make(chan struct{}),
	}
	r.look.Store(&look{changed: make(chan struct{})})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	go r.loop()
	return r
}

// nowLocked reads the clock under the mutex, so that the machine's readings never
// go back.
func (r *Runner) nowLocked() Instant {
	r.last = max(r.last, r.cfg.Now())
	// Whoever comes first after a stop of the process must not take it for silence.
	if late := r.last.Sub(r.due); late > maxLate && r.due != 0 {
		r.m.Stopped(late)
		r.due = r.last
	}
	return r.last
}

// maxLate is how late the loop's turns may be in a process that runs. Longer is
// time in which nobody was asked.
const maxLate = 250 * time.Millisecond

// loop begins what is due and hands over what has happened.
func (r *Runner) loop() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		begun, told, next := r.step()
		r.deliver(told, begun)
		for _, a := range begun {
			r.actions.Add(1) // before the loop ends, which Close waits for first
			go r.carryOut(a)
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
	_, told, _ := r.step()
	r.deliver(told, nil)
}

// news is what the loop has to hand over.
type news struct {
	events  []Event
	digests *[]Member // nil: as before
}

// step takes one turn of the machine.
func (r *Runner) step() (begun []Action, n news, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.nowLocked()
	if r.ctx.Err() == nil {
		for _, a := range r.m.Due(now) {
			if a, ok := r.m.Begin(now, a); ok {
				if a.Kind == Leave {
					r.leaving = a
				}
				begun = append(begun, a)
			}
		}
	}
	r.noteLocked(now)
	if r.m.closing && !r.m.joined && r.leaving.Kind != Leave {
		r.goneLocked() // there never was a row
	}
	n.events, r.events = r.events, nil
	if !r.m.Silent(now) {
		others := r.m.Digests(now)
		if !slices.EqualFunc(others, r.digests, func(a, b Member) bool { return a.Digest == b.Digest && a.ID == b.ID }) {
			r.digests, n.digests = others, &others
		}
	}
	// What is due at once was begun: a pause keeps a mistake from spinning.
	next = max(min(r.m.Next(now).Sub(now), time.Hour), time.Millisecond)
	r.due = now.Add(next)
	return begun, n, next
}

// noteLocked follows each input: it keeps the events for the loop and wakes those
// who wait for a change.
func (r *Runner) noteLocked(now Instant) {
	if e := r.m.Events(); len(e) > 0 {
		r.events = append(r.events, e...)
		r.poke()
	}
	old := r.look.Load()
	l := &look{view: view{mode: r.m.Mode()}, mayUntil: r.m.Permit(), settledUntil: r.m.silentAt(), changed: old.changed}
	l.grant, l.may = r.m.MayGrant(now)
	l.best, l.settled = r.m.BestEffort(now)
	if l.view == old.view {
		r.look.Store(l)
		return
	}
	l.changed = make(chan struct{})
	r.look.Store(l) // before those are woken who will ask for it
	close(old.changed)
}

func (r *Runner) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Runner) goneLocked() {
	if !r.gone {
		r.gone = true
		close(r.left)
	}
}

func (r *Runner) deliver(n news, begun []Action) {
	if r.cfg.OnDigests != nil && n.digests != nil {
		r.cfg.OnDigests(*n.digests)
	}
	for _, e := range n.events {
		if r.cfg.OnEvent != nil {
			r.cfg.OnEvent(e)
		}
	}
	for _, a := range begun {
		// From the sending of the ack on belief is capped by the adopted lease.
		if a.Kind == Ack && r.cfg.OnCap != nil {
			r.cfg.OnCap()
		}
	}
}

// carryOut does one action. Its caller gives up after CallTimeout, whatever the
// call does; an answer that comes later still counts for what it is worth.
func (r *Runner) carryOut(a Action) {
	defer r.actions.Done()
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.CallTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return
		}
		r.finish(a, Reply{Lost: true}, fmt.Errorf("no answer within %v", r.cfg.CallTimeout))
	})
	reply, err := r.call(ctx, a)
	if err != nil {
		reply = Reply{Lost: true}
	}
	if !stop() && reply.Lost {
		return // told already
	}
	r.finish(a, reply, err)
}

func (r *Runner) call(ctx context.Context, a Action) (Reply, error) {
	switch a.Kind {
	case Probe:
		if r.cfg.Probe == nil {
			return Reply{}, nil
		}
		incarnation, err := r.cfg.Probe(ctx, r.Mode().Epoch)
		return Reply{OK: err == nil, Incarnation: incarnation}, err
	case Adopt:
		return Reply{OK: true, Adopted: r.cfg.Adopt(ctx, a.From, a.Holds)}, nil
	}
	return r.cfg.Arbiter.Arbitrate(ctx, r.cfg.Self, a)
}

// finish tells the machine what came of an action.
func (r *Runner) finish(a Action, reply Reply, err error) {
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return
	}
	now := r.nowLocked()
	r.m.Done(now, a, reply)
	r.noteLocked(now)
	if a.Kind == Leave {
		if !reply.Lost {
			r.goneLocked()
		} else if !r.gone && r.ctx.Err() == nil {
			// Nothing writes the row again, so the statement may be repeated.
			r.actions.Add(1)
			time.AfterFunc(r.cfg.CallTimeout/4, func() {
				if r.ctx.Err() != nil {
					r.actions.Done()
					return
				}
				r.carryOut(a)
			})
		}
	}
	tell := (err != nil) != r.failing[a.Kind] && r.ctx.Err() == nil
	r.failing[a.Kind] = err != nil
	r.mu.Unlock()
	r.poke()
	if tell && r.cfg.OnError != nil {
		r.cfg.OnError(a.Kind, err)
	}
}

// Close takes no new holds, waits until the last one has ended and the member row
// is removed, at most until ctx ends, and then ends the runner, whose goroutines
// end with their present call. It reports whether the row is gone; if not, others
// remove it when its permit has ended by any clock. The methods that ask go on
// giving answers, and no permit is got any more.
func (r *Runner) Close(ctx context.Context) bool {
	r.mu.Lock()
	r.m.Close()
	r.noteLocked(r.nowLocked())
	r.mu.Unlock()
	r.poke()
	select {
	case <-r.left:
	case <-ctx.Done():
	}
	r.cancel()
	<-r.done
	r.mu.Lock()
	r.stopped = true
	gone := r.gone
	r.mu.Unlock()
	r.actions.Wait()
	return gone
}

// MayGrant is [Machine.MayGrant] at present. It is asked before a call to the store;
// whether what that grants may be believed is decided by Granted.
func (r *Runner) MayGrant() (Ticket, bool) {
	if l := r.look.Load(); l.may && r.cfg.Now() < l.mayUntil {
		return l.grant, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.MayGrant(r.nowLocked())
}

// BestEffort is [Machine.BestEffort] at present.
func (r *Runner) BestEffort() (t Ticket, settled bool) {
	// Later than that there may have been a stop of the process, and no silence.
	if l := r.look.Load(); l.settled && r.cfg.Now() <= l.settledUntil {
		return l.best, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.BestEffort(r.nowLocked())
}

// Granted is [Machine.Granted] at present.
func (r *Runner) Granted(t Ticket, h Hold) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.nowLocked()
	ok := r.m.Granted(now, t, h)
	if ok && r.m.mode.Drain {
		r.poke() // best effort, granted in a drain
	}
	return ok
}

// Renewed is [Machine.Renewed] at present. It also gives the place that the hold
// has now: an answer of another place says nothing about it.
func (r *Runner) Renewed(id HoldID, epoch uint16, until Instant) (believed bool, place Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	believed = r.m.Renewed(r.nowLocked(), id, epoch, until)
	return believed, r.m.holds[id].place
}

// Release is [Machine.Release].
func (r *Runner) Release(id HoldID) []Ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	places := r.m.Release(id)
	if r.m.mode.Drain || r.m.closing {
		r.poke() // the ack, or the end, may have waited for it
	}
	return places
}

// Belief is [Machine.Belief].
func (r *Runner) Belief(id HoldID) Instant {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.Belief(id)
}

// Place is [Machine.Place].
func (r *Runner) Place(id HoldID) (Ticket, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.Place(id)
}

// Suspect is [Machine.Suspect] at present.
func (r *Runner) Suspect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.nowLocked(); !r.m.watch.suspect {
		r.m.Suspect(now)
		r.poke()
	}
}

// Doubt is [Machine.Doubt] at present.
func (r *Runner) Doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.m.policy.nextProbe
	if r.m.Doubt(r.nowLocked()); r.m.policy.nextProbe != was {
		r.poke()
	}
}

// Changed is closed at the next change of the mode, of the answer of MayGrant or
// of that of BestEffort. Ask for it before asking them.
func (r *Runner) Changed() <-chan struct{} { return r.look.Load().changed }

// State is what a runner knows at one moment.
type State struct {
	Mode Mode
	// Permit is how long the permit lasts, 0 if it has ended; it is for
	// PermitEpoch.
	Permit      time.Duration
	PermitEpoch uint16
	// Silent: the arbiter has not answered for a while.
	Silent bool
	// RedisDown: three probes in a row have failed.
	RedisDown bool
	// Former is the tier of the last open mode, NoTier if none was seen.
	Former Tier
}

// State gives the present state.
func (r *Runner) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.nowLocked()
	return State{Mode: r.m.Mode(), Permit: max(0, r.m.permit.Sub(now)), PermitEpoch: r.m.permitEpoch,
		Silent: r.m.Silent(now), RedisDown: r.m.watch.failed >= threshold, Former: r.m.policy.inForce}
}

// Mode is [Machine.Mode].
func (r *Runner) Mode() Mode { return r.look.Load().mode }
