package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotHeld is what an error of [Config.Renew] wraps when the store said
// definitely that the lease is not the caller's.
var ErrNotHeld = errors.New("watchdog: lease not held")

// Config configures a [Watchdog].
type Config struct {
	// Renew sends one batch of renewals, one attempt, and returns exactly one
	// error per renewal, in order: nil is confirmed, one that wraps ErrNotHeld
	// is definite, anything else means that there was no answer and the
	// outcome is unknown. A slice of another length is no answer for all.
	//
	// It must return when ctx ends, which is after CallTimeout or when the
	// belief of a lease in the batch ends (a quarter of the time before that
	// where there are several), whichever comes first, or at Close.
	// One that does not blocks one of the 8 calls in flight; belief ends on
	// time nevertheless. It is called concurrently, never twice at a time for
	// one lease, with no lock held, and must neither keep nor change batch.
	// A renewal must never re-create a lease nor shorten the time it has left.
	Renew func(ctx context.Context, batch []Renewal) []error
	// CallTimeout bounds one call of Renew. 0 means 500 ms.
	CallTimeout time.Duration
}

// Renewal asks for one lease to last at least TTL from when the store executes
// it. TTL is in whole milliseconds, at least 1 ms.
type Renewal struct {
	Lease *Lease
	TTL   time.Duration
	// Sent is when belief begins to count if it is confirmed: before it is sent.
	Sent Instant
}

// Spec describes a lease to be watched.
//
// Callbacks are called with no lock held, by goroutines of the Watchdog that
// others wait for, so they must be quick and not panic. They may be called
// before Watch has returned, and one may still be running when Stop returns.
// They may call Watch and any method of any lease but Ensure; a Stop on the
// own lease does not deadlock, but from OnEnd it should be given an ended ctx,
// lest it wait for a renewal in flight and delay the ends of other leases.
// They must not call Close.
type Spec struct {
	// Sent was read before the acquire was sent. Reading it after the reply
	// makes belief outlive the lease.
	Sent Instant
	// TTL is the full lease, cut to whole milliseconds. What was granted, and
	// so what belief starts from, is the smaller of TTL and Limit.
	TTL time.Duration
	// Limit bounds the hold, counted from Sent: the last renewal asks only
	// for what is left of it, so that the lease ends on time. 0 means none.
	Limit time.Duration
	// MaxRenewals bounds the number of confirmed renewals. 0 means none.
	MaxRenewals int
	// Cap, if not nil, bounds belief besides the lease: it ends at what Cap gives,
	// if that is sooner. It is asked whenever belief is looked at, with a lock of
	// the lease's held: it must not block, nor call the Watchdog. What it gives
	// may rise and fall, but an end that it has shown once must be final, as
	// belief's is. When it has fallen, Recheck tells.
	Cap func() Instant
	// Overdue is how long after Sent OnOverdue is called, once, if the lease
	// is then neither stopped nor ended. 0 means never.
	Overdue time.Duration
	// Value is the owner's, for Config.Renew; see Lease.Value.
	Value any
	// OnRenewed is called after each confirmed renewal. May be nil.
	OnRenewed func(Renewed)
	// OnOverdue belongs to Overdue. May be nil.
	OnOverdue func()
	// OnEnd is called once, when belief ends other than by Stop. May be nil.
	OnEnd func(End)
}

// Renewed describes a confirmed renewal.
type Renewed struct {
	TTL     time.Duration // as asked for
	Latency time.Duration // from sending to knowing
	Count   int           // confirmed renewals so far, from 1
}

// End describes how belief ended.
type End struct {
	Reason Reason
	// Err is the error of the last renewal, nil if it was confirmed or there
	// was none. It is never nil where Reason is Unconfirmed or NotHeld.
	Err error
	// At is when belief ended, which may be earlier than when that was
	// noticed. After a suspend its wall clock is right, and its monotonic
	// reading lies before the suspend or in it.
	At time.Time
	// Held is the time from Spec.Sent to the end.
	Held time.Duration
}

// Reason is why belief ended.
type Reason uint8

const (
	// Expired: belief ran out though no renewal had failed: the process was
	// stopped or starved, the machine suspended, the lease paused, or the
	// Watchdog closed.
	Expired Reason = iota + 1
	// Unconfirmed: belief ran out because renewals got no answer.
	Unconfirmed
	// NotHeld: the store said definitely that the lease is not ours.
	NotHeld
	// Limit: Spec.Limit or Spec.MaxRenewals was reached.
	Limit
	// Capped: belief ended by Spec.Cap, while the lease lasts.
	Capped
)

// String is the name used in logs and errors.
func (r Reason) String() string {
	switch r {
	case Expired:
		return "expired"
	case Unconfirmed:
		return "unconfirmed"
	case NotHeld:
		return "not held"
	case Limit:
		return "limit"
	case Capped:
		return "capped"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Watchdog watches leases. It is safe for concurrent use. While it watches
// none it has no goroutine, so one that is idle may be dropped unclosed.
type Watchdog struct {
	cfg     Config
	running context.Context // ends at Close, and with it the calls in flight
	cancel  context.CancelFunc
	closed  atomic.Bool // set under mu
	wg      sync.WaitGroup

	// mu may be taken with a Lease's mutex held, never the other way round,
	// and nothing is called or waited for under it. It also guards the fields
	// of Lease that say so.
	mu       sync.Mutex
	wakes    wakeHeap  // watched leases, the next to be looked at first
	ready    readyHeap // those with a renewal due, soonest end of belief first
	owed     []*Lease  // ended leases whose OnEnd the next look has to call
	count    int       // leases watched
	timer    *time.Timer
	set      bool     // the timer runs
	sleeping Instant  // until when
	looking  bool     // a look is under way
	due      []*Lease // its leases
	workers  int      // batches taken or about to be
}

// New returns a Watchdog. It panics if cfg.Renew is nil.
func New(cfg Config) *Watchdog {
	if cfg.Renew == nil {
		panic("watchdog: Config.Renew is nil")
	}
	if cfg.CallTimeout <= 0 {
		cfg.CallTimeout = 500 * time.Millisecond
	}
	w := &Watchdog{cfg: cfg}
	w.running, w.cancel = context.WithCancel(context.Background())
	return w
}

// Watch begins to watch a lease that was granted. If belief is over already
// (the grant's reply was late), it ends as any other does.
//
// After Close the lease is never renewed and none of its callbacks is called,
// but Left, End and Stop still tell the truth by the clock.
func (w *Watchdog) Watch(spec Spec) *Lease {
	l := newLease(w, spec)
	w.begin(l)
	return l
}

func (w *Watchdog) begin(l *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.mu.Lock()
	if !w.closed.Load() {
		l.watched = true
		w.count++
		if !w.set && !w.looking {
			w.setLocked(Now())
		}
	}
	w.mu.Unlock()
	l.placeLocked()
}

// Len is the number of leases watched: neither stopped nor ended.
func (w *Watchdog) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// Close ends all renewal, cancels the calls in flight and waits for the
// Watchdog's goroutines; no callback is called after it has returned. Leases
// are not stopped: belief in them ends by the clock, with Reason Expired. It
// is idempotent and may be called concurrently, but not by a callback.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed.Store(true) // from here on nobody adds to wg
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.wakes {
		l.watched = false
	}
	w.wakes, w.ready, w.owed, w.count = nil, nil, nil, 0
}
