package tierlock

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Observer gets what happens to locks as typed events, for metrics and traces.
// Every func is optional. Fields may be added to Observer and to the events.
//
// All but AcquireStart are called one after the other, in the order of the
// events, on a goroutine of the Locker's: a slow one delays only the events
// behind it, and more than 8192 of those are dropped and counted in Status. A
// panic is caught and logged. An event's At is the time of what it tells, not
// of the call.
type Observer struct {
	// AcquireStart is called before a call contends for a key, on the
	// caller's goroutine. It may return a context, derived from the one it
	// got, from which the rest of the call and the hold derive. It has 5 ms;
	// then the call goes on without its context.
	AcquireStart func(context.Context, AcquireStart) context.Context
	// AcquireEnd is called at the end of that call, with the context that
	// AcquireStart returned.
	AcquireEnd func(context.Context, AcquireEnd)
	// Queued: a call waits behind others of this process.
	Queued func(QueuedEvent)
	// Reentered: a call entered a hold instead of taking the key.
	Reentered func(ReenteredEvent)
	// Renewed: a lease was renewed.
	Renewed func(RenewedEvent)
	// Lost: a hold was lost; once for each.
	Lost func(LostEvent)
	// BoundReached: a hold ended at its bound.
	BoundReached func(BoundEvent)
	// Overdue: a hold lasts three times as long as expected; once for each.
	Overdue func(OverdueEvent)
	// TooManyHolds: this process holds more keys of a resource than MaxHolds.
	TooManyHolds func(TooManyHoldsEvent)
	// Released: a hold was unlocked.
	Released func(ReleasedEvent)
	// HandedOver: the lease of a hold that was unlocked went to the next in this
	// process, without a call to the store.
	HandedOver func(HandedOverEvent)
	// StoreChanged: a store stopped or resumed answering.
	StoreChanged func(StoreEvent)
	// Draining: locks begin to move to the tier of the event, or to other data of
	// it; until TierChanged no lock of an Exclusive resource is given.
	Draining func(ChainEvent)
	// TierChanged: locks are kept in the tier of the event now. It is also told
	// when the process has first learned where they are.
	TierChanged func(ChainEvent)
	// Adopted: a hold lives on in another store, or in other data of it.
	Adopted func(AdoptedEvent)
	// LocalAlarm: no store can be used, and locks are given in the memory of this
	// process. It is told at once, then every 10 s, and when it is over.
	LocalAlarm func(LocalAlarmEvent)
}

// Labels are the bounded values that fit a metric's labels.
type Labels struct {
	App, Resource string
	Tier          Tier
}

// AcquireStart tells that a call begins.
type AcquireStart struct {
	Labels
	Key string
	At  time.Time
}

// AcquireEnd tells how a call ended.
type AcquireEnd struct {
	Labels
	Key string
	At  time.Time
	// Token is the granted one, zero where Err is not nil.
	Token Token
	Err   error
	// Waited is the whole call, Latency the store's last answer, 0 where there
	// was none, as for a lease that was handed over.
	Waited, Latency time.Duration
}

// Result is the label for Err: ok, held, unavailable, misconfigured,
// queue-full, closed, canceled or error.
func (e AcquireEnd) Result() string { return resultOf(e.Err) }

// QueuedEvent tells the length of a resource's queues in this process.
type QueuedEvent struct {
	Labels
	Key    string
	At     time.Time
	Length int
}

// ReenteredEvent tells that a hold has one more handle.
type ReenteredEvent struct {
	Labels
	At    time.Time
	Token Token
	// Handles is the number of open handles of the hold in this process.
	Handles int
}

// RenewedEvent tells of a confirmed renewal.
type RenewedEvent struct {
	Labels
	At      time.Time
	Token   Token
	TTL     time.Duration // as asked for
	Latency time.Duration
	Count   int // of this hold, this one included
}

// LostEvent tells of a lost hold.
type LostEvent struct {
	Labels
	At    time.Time
	Token Token
	Err   *LostError
}

// BoundEvent tells of a hold that reached its bound.
type BoundEvent struct {
	Labels
	At    time.Time
	Token Token
	Held  time.Duration
}

// OverdueEvent tells of a hold that lasts too long.
type OverdueEvent struct {
	Labels
	At           time.Time
	Token        Token
	Held, Expect time.Duration
}

// TooManyHoldsEvent tells of too many holds.
type TooManyHoldsEvent struct {
	Labels
	At          time.Time
	Holds, Want int
}

// ReleasedEvent tells of an unlocked hold. Err is what Unlock returned; Latency is
// the store's answer, 0 where the lease was handed over.
type ReleasedEvent struct {
	Labels
	At            time.Time
	Token         Token
	Held, Latency time.Duration
	Err           error
}

// HandedOverEvent tells of a lease that serves the next hold.
type HandedOverEvent struct {
	Labels
	At time.Time
	// Token is of the hold that begins, From of the one that was unlocked.
	Token, From Token
	Count       int // times in a row, this one included
}

// StoreEvent tells that a store stopped answering (three failures in a row;
// Err is the last) or answers again (Err is nil).
type StoreEvent struct {
	App  string
	Tier Tier
	At   time.Time
	Err  error
}

// ChainEvent tells of the mode of the chain.
type ChainEvent struct {
	App   string
	Tier  Tier
	Epoch uint16
	At    time.Time
}

// AdoptedEvent tells of a hold that has moved. Its token stays as it was; Tier in
// the labels is the new one.
type AdoptedEvent struct {
	Labels
	At    time.Time
	Token Token
	From  Tier
}

// LocalAlarmEvent tells of locks that exclude within this process only.
type LocalAlarmEvent struct {
	App       string
	At, Since time.Time
	Holds     int // that are not in a store yet
	Over      bool
}

const maxEvents = 8192

// observeStartLimit is what AcquireStart may take.
const observeStartLimit = 5 * time.Millisecond

// notifier tells the logger and the observer, each on a goroutine that exists
// only while there is something to tell, so that neither delays a lock.
type notifier struct {
	app      string
	observer Observer
	log      *slog.Logger
	made     time.Time
	debug    atomic.Bool  // whether the logger wants Debug, as of checked
	checked  atomic.Int64 // time since made
	logs     eventQueue
	events   eventQueue
}

func newNotifier(app string, o Observer, log *slog.Logger) *notifier {
	n := &notifier{app: app, observer: o, log: log, made: time.Now()}
	n.logs.panicked = func(any) {} // a logger that panics cannot be told of
	n.events.panicked = func(v any) {
		n.say(slog.LevelError, "tierlock: observer panicked", Token{}, slog.Any("panic", v))
	}
	n.logs.call(n.checkDebug)
	return n
}

// checkDebug asks the logger whether it wants Debug lines. Each lock has some,
// and most loggers do not; asking for each would run the logger's code, which
// may be slow or panic, on the path of the lock.
func (n *notifier) checkDebug() { n.debug.Store(n.log.Enabled(context.Background(), slog.LevelDebug)) }

const debugAge = time.Second

// wants reports whether a line of that level is to be handed to the logger. The
// answer about Debug may be a second old at now.
func (n *notifier) wants(level slog.Level, now time.Time) bool {
	if level > slog.LevelDebug {
		return true // rare: asked on the logger's goroutine
	}
	at, last := int64(now.Sub(n.made)), n.checked.Load()
	if at-last > int64(debugAge) && n.checked.CompareAndSwap(last, at) {
		n.logs.push(n.checkDebug)
	}
	return n.debug.Load()
}

func (n *notifier) labels(t Token) Labels {
	return Labels{App: n.app, Resource: t.Resource, Tier: t.Tier}
}

// say logs a line about a lock, with its token.
func (n *notifier) say(level slog.Level, msg string, t Token, attrs ...slog.Attr) {
	at := time.Now()
	if !n.wants(level, at) {
		return
	}
	n.logs.push(func() {
		if !n.log.Enabled(context.Background(), level) {
			return
		}
		r := slog.NewRecord(at, level, msg, 0)
		if !t.IsZero() {
			r.AddAttrs(slog.Any("token", t))
		}
		r.AddAttrs(attrs...)
		_ = n.log.Handler().Handle(context.Background(), r)
	})
}

// emit calls f with an event, where there is such an f.
func emit[E any](n *notifier, f func(E), e E) {
	if f != nil {
		push(n, f, e)
	}
}

// push is apart from emit so that an event nobody wants costs no allocation.
func push[E any](n *notifier, f func(E), e E) { n.events.push(func() { f(e) }) }

// acquireStart calls the observer's func of that name within its limit.
func (n *notifier) acquireStart(ctx context.Context, e AcquireStart) context.Context {
	f := n.observer.AcquireStart
	if f == nil {
		return ctx
	}
	got := make(chan context.Context, 1) // buffered: a late func still ends
	started := make(chan struct{})
	go func() {
		close(started)
		defer func() {
			if v := recover(); v != nil {
				n.events.panicked(v)
				got <- nil
			}
		}()
		got <- f(ctx, e)
	}()
	// The limit is for the func. That its goroutine comes late to a processor is
	// not its fault, and delays this one as well.
	<-started
	limit := time.NewTimer(observeStartLimit)
	defer limit.Stop()
	select {
	case c := <-got:
		if c != nil {
			return c
		}
	case <-limit.C:
	}
	return ctx
}

// eventQueue runs funcs in order on one goroutine, which ends when there is
// none left.
type eventQueue struct {
	panicked func(any)

	mu      sync.Mutex
	pending []func()
	running bool
	idle    chan struct{} // closed when the goroutine ends; set while it runs
	dropped uint64
}

func (q *eventQueue) push(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) >= maxEvents {
		q.dropped++
		return
	}
	q.pending = append(q.pending, f)
	if !q.running {
		q.running = true
		q.idle = make(chan struct{})
		go q.run(q.idle)
	}
}

func (q *eventQueue) run(idle chan struct{}) {
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		// Something is left where it was pushed just now, or where f ended
		// this goroutine by runtime.Goexit.
		if len(q.pending) > 0 {
			go q.run(idle)
			return
		}
		q.running = false
		close(idle)
	}()
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.mu.Unlock()
			return
		}
		f := q.pending[0]
		q.pending[0] = nil
		q.pending = q.pending[1:]
		q.mu.Unlock()
		q.call(f)
	}
}

func (q *eventQueue) call(f func()) {
	defer func() {
		if v := recover(); v != nil {
			q.panicked(v)
		}
	}()
	f()
}

// flush waits until all that was pushed before has run, at most until ctx ends.
func (q *eventQueue) flush(ctx context.Context) {
	q.mu.Lock()
	idle, running := q.idle, q.running
	q.mu.Unlock()
	if !running {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

func (n *notifier) dropped() uint64 {
	var sum uint64
	for _, q := range []*eventQueue{&n.logs, &n.events} {
		q.mu.Lock()
		sum += q.dropped
		q.mu.Unlock()
	}
	return sum
}
