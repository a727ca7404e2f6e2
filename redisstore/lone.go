package redisstore

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/internal/contract"
)

// lone is how a call that is alone in the store does without a worker: its own
// goroutine uses the client. On an idle machine waking another one, twice, is a
// good part of a round trip.
//
// That goroutine cannot leave the client before the client lets it go, so it may
// enter only where a ctx is certain to be heeded: in a call over a connection
// that exists, with nothing else in the queue. What does not heed a ctx is
// waiting for a dial that another call began. Hence three rules:
//
//   - A lone call never dials: the dial function refuses it at once, before
//     anything was sent, and the call goes to a worker.
//   - It begins only in the era in which a worker's call was last answered. Each
//     connection that ends, and each dial, begins another era.
//   - No dial for calls begins while a lone call is inside the client: it is
//     refused, and the worker tries again when that one has gone, which is soon,
//     since its connection has ended.
//
// A dial first begins its era and then looks for a lone call; a lone call first
// shows itself and then looks at the era. So one of the two sees the other.
type lone struct {
	possible bool // by the client's options
	inside   atomic.Bool
	calls    atomic.Int32  // given to workers, and still in the client
	era      atomic.Uint64 // in which a worker's call was last answered
	limit    loneLimit     // of the one inside
}

// noEra is never the present one.
const noEra = math.MaxUint64

// errNoDial is the refusal of a dial. Nothing was sent.
var errNoDial = errors.New("no dial while a call waits for nothing else")

// loneOptions tells whether a client with these options has one connection for
// all calls and heeds a ctx in them: it dials for no call that a server sends
// elsewhere, and for none that is long.
func loneOptions(opt *rueidis.ClientOption) bool {
	return opt != nil && opt.AlwaysPipelining && !opt.DisableAutoPipelining &&
		opt.PipelineMultiplex < 0 && opt.ConnLifetime == 0 && !opt.Standalone.EnableRedirect &&
		(opt.BlockingPipeline <= 0 || opt.BlockingPipeline > maxBatch)
}

// caller says who dials, as a value of the ctx that the client hands on.
type caller struct {
	context.Context
	kind callerKind
}

type callerKind uint8

const (
	aWorker callerKind = iota + 1
	aLoneCall
)

type callerKey struct{}

func (c caller) Value(key any) any {
	if key == (callerKey{}) {
		return c.kind
	}
	return c.Context.Value(key)
}

// workerCtx is the ctx of all calls by workers: they may dial.
var workerCtx context.Context = caller{context.Background(), aWorker}

// mayDial is asked before each dial, when its era has begun.
func (l *lone) mayDial(ctx context.Context) bool {
	switch ctx.Value(callerKey{}) {
	case aLoneCall:
		return false
	case aWorker:
		return !l.inside.Load()
	}
	return true // for a connection that is not for calls
}

// loneLimit ends the ctx of a lone call. There is one such call at a time, so its
// timer and, unless it was needed, its channel serve them all.
type loneLimit struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{}
	ended bool // done is closed
	until time.Time
	// turn counts the calls, so that what is late to end one ends no other.
	turn uint64
}

// begin starts the limit of another call.
func (l *loneLimit) begin(until time.Time) (done chan struct{}, turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil || l.ended {
		l.done, l.ended = make(chan struct{}), false
	}
	l.turn++
	l.until = until
	if left := time.Until(until); l.timer == nil {
		l.timer = time.AfterFunc(left, l.expire)
	} else {
		l.timer.Reset(left)
	}
	return l.done, l.turn
}

func (l *loneLimit) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.until) { // else it was for the last call
		l.endLocked()
	}
}

func (l *loneLimit) end(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == turn {
		l.endLocked()
	}
}

func (l *loneLimit) endLocked() {
	if !l.ended {
		l.ended = true
		close(l.done)
	}
}

// loneCtx is the ctx of a lone call.
type loneCtx struct {
	within context.Context
	done   chan struct{}
}

func (c loneCtx) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c loneCtx) Done() <-chan struct{}       { return c.done }

func (c loneCtx) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

func (c loneCtx) Value(key any) any {
	if key == (callerKey{}) {
		return aLoneCall
	}
	return c.within.Value(key)
}

// doAlone makes the call if it is alone. If it is not done, nothing was sent.
func (s *Store) doAlone(ctx context.Context, until time.Time, cmd rueidis.Completed) (res rueidis.RedisResult, done bool, err error) {
	l := &s.lone
	if !l.possible || l.calls.Load() > 0 || l.era.Load() != s.clocks.era.Load() || !l.inside.CompareAndSwap(false, true) {
		return res, false, nil
	}
	defer l.inside.Store(false)
	if l.era.Load() != s.clocks.era.Load() || ctx.Err() != nil {
		return res, false, nil
	}
	within, deadline := bound.Split(ctx)
	byCtx := !deadline.IsZero() && deadline.Before(until)
	if byCtx {
		until = deadline
	}
	limit, turn := l.limit.begin(until)
	if within.Done() != nil {
		defer context.AfterFunc(within, func() { l.limit.end(turn) })()
	}
	res = s.client.Do(loneCtx{within, limit}, cmd)
	broken := res.NonRedisError()
	switch {
	case broken == nil:
		s.learnFrom([]rueidis.RedisResult{res})
	case errors.Is(broken, errNoDial):
		return rueidis.RedisResult{}, false, nil
	case broken == context.Canceled: // as loneCtx tells
		l.era.Store(noEra) // until a worker's call shows that there are answers
		if within.Err() != nil {
			return res, true, contract.Ended(within)
		}
		return res, true, s.over(byCtx)
	default:
		s.broke(broken)
	}
	return res, true, nil
}

// asWorker uses the client until it is not told to wait for a lone call.
func (s *Store) asWorker(use func(ctx context.Context) (first rueidis.RedisResult)) {
	for {
		era := s.clocks.era.Load()
		res := use(workerCtx)
		broken := res.NonRedisError()
		if broken == nil && s.clocks.era.Load() == era {
			s.lone.era.Store(era)
		}
		if broken == nil || !errors.Is(broken, errNoDial) {
			return
		}
		for s.lone.inside.Load() {
			select {
			case <-s.quit:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
}
