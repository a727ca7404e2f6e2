package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Faults are what one client's way to one server does to its calls. The zero value
// is no way at all: every call is executed at once.
type Faults struct {
	// Delay, and up to Jitter more, is what each way takes.
	Delay, Jitter time.Duration
	// LoseRequest and LoseReply are the shares of calls that are lost on the one
	// way or the other, Double of those that are executed twice.
	LoseRequest, LoseReply, Double float64
	// Late is the share of requests that arrive up to LateBy later than they
	// should, whether anybody still waits or not.
	Late   float64
	LateBy time.Duration
	// CutRequests and CutReplies are partitions: nothing gets through that way.
	CutRequests, CutReplies bool
}

// link is one client's way to its server.
type link struct {
	limit time.Duration // of a call, however long its ctx has

	mu     sync.Mutex
	rng    *rand.Rand
	faults Faults
	closed bool
	timers map[*time.Timer]struct{}
}

func newLink(seed uint64, o ClientOptions) *link {
	if o.Limit == 0 {
		o.Limit = 2 * time.Second
	}
	return &link{
		limit: o.Limit, rng: rand.New(rand.NewPCG(seed, o.Seed)), faults: o.Faults,
		timers: make(map[*time.Timer]struct{}),
	}
}

// ClientOptions configures a client of a simulated server.
type ClientOptions struct {
	// Seed makes its faults different from other clients'.
	Seed   uint64
	Faults Faults
	// Limit bounds each call (2 s).
	Limit time.Duration
}

// SetFaults changes what happens to later requests, and to the replies of earlier
// ones where a way is cut.
func (l *link) SetFaults(f Faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
}

// Close ends the client: what it has under way is dropped, and later calls fail.
// Requests that have arrived stay arrived.
func (l *link) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for t := range l.timers {
		t.Stop()
	}
	clear(l.timers)
}

// fate is what becomes of one request.
type fate struct {
	arrives []time.Duration // none: it is lost
	back    time.Duration
	noReply bool
}

func (l *link) fate() (fate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fate{}, fmt.Errorf("%w: client is closed", tierlock.ErrUnavailable)
	}
	f := &l.faults
	// All are drawn always, so that one more fault does not change the rest.
	way := func() time.Duration { return f.Delay + time.Duration(l.rng.Float64()*float64(f.Jitter)) }
	hit := func(share float64) bool { return l.rng.Float64() < share }
	there, back, again := way(), way(), way()
	lost, noReply, double := hit(f.LoseRequest), hit(f.LoseReply), hit(f.Double)
	late, lateBy := hit(f.Late), time.Duration(l.rng.Float64()*float64(f.LateBy))
	if late {
		there += lateBy
	}
	r := fate{back: back, noReply: noReply}
	if !lost && !f.CutRequests {
		r.arrives = []time.Duration{there}
		if double {
			r.arrives = append(r.arrives, there+again+lateBy/2)
		}
	}
	return r, nil
}

// after runs f later, or now if that is at once. f does not run after Close.
func (l *link) after(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		l.mu.Lock()
		_, due := l.timers[t] // not if Close came in between
		delete(l.timers, t)
		l.mu.Unlock()
		if due {
			f()
		}
	})
	l.timers[t] = struct{}{}
}

func (l *link) repliesCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faults.CutReplies
}

// call has exec run on the server, at the fate's time, and waits for what it
// gives. deliver hands exec to the server, which may keep it for a while.
func call[R any](ctx context.Context, l *link, deliver func(exec func()), exec func() R) (R, error) {
	var none R
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: %w", tierlock.ErrUnavailable, contract.Ended(ctx))
	}
	fate, err := l.fate()
	if err != nil {
		return none, err
	}
	reply := make(chan R, 1)
	for _, d := range fate.arrives {
		l.after(d, func() {
			deliver(func() {
				r := exec()
				if fate.noReply {
					return
				}
				l.after(fate.back, func() {
					if l.repliesCut() {
						return
					}
					select {
					case reply <- r:
					default: // the one that was executed twice
					}
				})
			})
		})
	}
	select {
	case r := <-reply: // what was executed at once needs no timer
		return r, nil
	default:
	}
	limit := time.NewTimer(l.limit)
	defer limit.Stop()
	select {
	case r := <-reply:
		return r, nil
	case <-ctx.Done():
		return none, fmt.Errorf("%w: %w", tierlock.ErrUnavailable, contract.Ended(ctx))
	case <-limit.C:
		return none, fmt.Errorf("%w: no answer within %v", tierlock.ErrUnavailable, l.limit)
	}
}
