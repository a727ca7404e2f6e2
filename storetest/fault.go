package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// Op is a method of a store.
type Op uint8

const (
	// OpAcquire is Acquire.
	OpAcquire Op = iota + 1
	// OpRenew is Renew. A fault meets a batch as a whole.
	OpRenew
	// OpRelease is Release.
	OpRelease
	// OpInspect is Inspect.
	OpInspect
)

// String is the method's name in lower case.
func (o Op) String() string {
	switch o {
	case OpAcquire:
		return "acquire"
	case OpRenew:
		return "renew"
	case OpRelease:
		return "release"
	case OpInspect:
		return "inspect"
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Kind is a way in which a call goes wrong.
type Kind uint8

const (
	// Before: an error, without effect: the request was lost.
	Before Kind = iota + 1
	// After: the effect, then an error: the reply was lost.
	After
	// Late: an error at once, and the effect Delay later: the caller gave up,
	// the server did not.
	Late
	// Slow: nothing for Delay, then the effect and its answer. If the context
	// ends first the answer is an error, and the effect comes when the delay
	// is over all the same, as on a real server.
	Slow
	// Refuse: an answer without effect. Renew and Release answer with Answer;
	// Acquire answers that an unknown holder has the key; Inspect answers that
	// the key is free.
	Refuse
)

// String is the name in lower case.
func (k Kind) String() string {
	switch k {
	case Before:
		return "before"
	case After:
		return "after"
	case Late:
		return "late"
	case Slow:
		return "slow"
	case Refuse:
		return "refuse"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Fault says how calls go wrong.
type Fault struct {
	// Kind is required.
	Kind Kind
	// Delay is how much later the effect comes, for Late and Slow.
	Delay time.Duration
	// Times is how many calls meet the fault, which is then cleared. Zero
	// means every call until it is cleared.
	Times int
	// Err is the error of Before, After and Late. Nil means one that wraps
	// [tierlock.ErrUnavailable].
	Err error
	// Answer is what Refuse answers for Renew and Release. Zero means Gone.
	Answer tierlock.Ownership
}

// Faulty is a store whose calls can be made to fail. Without a fault set it
// is the store that it wraps. It is safe for concurrent use, also while calls
// run: a fault counts from the next call on.
//
// A call whose context has already ended meets no fault, and uses none up, as
// nothing of it is ever sent: it is for the wrapped store to refuse.
//
// An acquire that is delayed reaches the wrapped store with that much less of
// its budget, and with the budget used up it is refused here with
// [tierlock.ErrLate]: so the guard against late requests is met as it would
// be by one that was long on its way.
type Faulty struct {
	inner tierlock.Store

	mu      sync.Mutex
	idle    sync.Cond // pending has become 0
	faults  [OpInspect + 1]Fault
	calls   [OpInspect + 1]int
	pending int // effects that are still to come
}

var (
	_ tierlock.Store   = (*Faulty)(nil)
	_ tierlock.Watcher = (*Faulty)(nil)
)

// WithFaults wraps s. Whoever opened s closes it, after Wait.
func WithFaults(s tierlock.Store) *Faulty {
	f := &Faulty{inner: s}
	f.idle.L = &f.mu
	return f
}

// Set makes calls of op meet the fault, instead of any fault set before. It
// panics on an unknown op or kind.
func (f *Faulty) Set(op Op, fault Fault) {
	if op < OpAcquire || op > OpInspect || fault.Kind < Before || fault.Kind > Refuse || fault.Times < 0 {
		panic(fmt.Sprintf("storetest: Set(%v, %+v): unknown op or kind, or negative Times", op, fault))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = fault
}

// Clear ends the fault of op. Effects that are on their way still come.
func (f *Faulty) Clear(op Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = Fault{}
}

// ClearAll ends all faults. Effects that are on their way still come.
func (f *Faulty) ClearAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.faults[:])
}

// Calls is how many calls of op there have been, failed ones and those with an
// ended context included. A batch is one call.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Wait returns when no effect is on its way: those of Late and of Slow calls
// that were given up have happened. In a bubble of testing/synctest call it
// before the test returns: no time passes there afterwards.
func (f *Faulty) Wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.pending > 0 {
		f.idle.Wait()
	}
}

// take counts a call and gives the fault that it meets. ended says that its
// context is over, so that it meets none.
func (f *Faulty) take(op Op, ended bool) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	fault := f.faults[op]
	if ended {
		return Fault{}
	}
	if fault.Times > 0 {
		f.faults[op].Times--
		if fault.Times == 1 {
			f.faults[op] = Fault{}
		}
	}
	return fault
}

// later runs effect after d in a goroutine that Wait waits for. It is counted
// before later returns: who waits afterwards does not miss it.
func (f *Faulty) later(d time.Duration, effect func()) {
	f.mu.Lock()
	f.pending++
	f.mu.Unlock()
	go func() {
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.pending--; f.pending == 0 {
				f.idle.Broadcast()
			}
		}()
		time.Sleep(d)
		effect()
	}()
}

// meet makes one call. call has the effect; delayed says how long it was on
// its way. fail makes the answer that carries an error, refuse a definite one.
func meet[R any](ctx context.Context, f *Faulty, op Op,
	call func(ctx context.Context, delayed time.Duration) R, fail func(error) R, refuse func(tierlock.Ownership) R) R {
	began := time.Now()
	fault := f.take(op, ctx.Err() != nil)
	err := fault.Err
	if err == nil {
		err = fmt.Errorf("storetest: %v: injected fault, %v: %w", op, fault.Kind, tierlock.ErrUnavailable)
	}
	// What is on its way no longer depends on the caller. The time it took is
	// measured, not taken from Delay: a busy machine makes it longer.
	sent := context.WithoutCancel(ctx)
	delayed := func() R { return call(sent, time.Since(began)) }

	switch fault.Kind {
	case Before:
		return fail(err)
	case After:
		call(ctx, 0)
		return fail(err)
	case Late:
		f.later(fault.Delay, func() { delayed() })
		return fail(err)
	case Slow:
		answer := make(chan R, 1) // so that nobody need be there to take it
		f.later(fault.Delay, func() { answer <- delayed() })
		select {
		case r := <-answer:
			return r
		case <-ctx.Done():
			return fail(given(ctx, op))
		}
	case Refuse:
		if fault.Answer == 0 {
			fault.Answer = tierlock.LeaseGone
		}
		return refuse(fault.Answer)
	}
	return call(ctx, 0)
}

// given is the error of a call that was given up.
func given(ctx context.Context, op Op) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("storetest: %v: %w: %w", op, tierlock.ErrUnavailable, err)
}
