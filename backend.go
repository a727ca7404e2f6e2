package tierlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// backend is a store and what is known of its health.
type backend struct {
	Store
	locker *Locker
	undo   *undoer
	split  Partitioned // the store, if it has parts
	whole  part        // all of a store without parts, and what is in no known part
	parts  sync.Map    // by name, of *part

	pushes  atomic.Bool // the last watch could be had
	lastErr atomic.Pointer[error]
	open    atomic.Int32 // breakers, of the whole and the parts

	mu     sync.Mutex
	change chan struct{} // closed, and replaced, when a breaker opens or closes
}

// part is what fails as a whole.
type part struct {
	name    string
	backend *backend
	breaker degrade.Breaker
	lastErr atomic.Pointer[error]
	failed  atomic.Pointer[Name] // the lock that it failed for last
}

func (l *Locker) newBackend(s Store) *backend {
	b := &backend{Store: s, locker: l, change: make(chan struct{})}
	b.split, _ = s.(Partitioned)
	b.whole.backend = b
	b.undo = &undoer{backend: b}
	return b
}

// linger is how long after it was given up a call may still be executed, where
// the store says so.
func (b *backend) linger() time.Duration {
	if l, ok := b.Store.(Lingering); ok {
		return l.Linger()
	}
	return 0
}

// part finds the part of a lock.
func (b *backend) part(n Name) *part {
	if b.split == nil {
		return &b.whole
	}
	name := b.split.Part(n)
	if name == "" {
		return &b.whole
	}
	p, ok := b.parts.Load(name)
	if !ok {
		p, _ = b.parts.LoadOrStore(name, &part{name: name, backend: b})
	}
	return p.(*part)
}

// available reports whether all parts are worth a try.
func (b *backend) available() bool {
	ok := true
	b.openParts(func(p *part) { ok = ok && b.replaced(p) })
	return ok
}

// openParts calls f with each part whose breaker is open.
func (b *backend) openParts(f func(*part)) {
	if b.open.Load() == 0 {
		return
	}
	if b.whole.breaker.Open() {
		f(&b.whole)
	}
	b.parts.Range(func(_, p any) bool {
		if p := p.(*part); p.breaker.Open() {
			f(p)
		}
		return true
	})
}

// replaced reports whether another part serves now what p failed for: then
// nobody may ask p again, and it says nothing about the store any more.
func (b *backend) replaced(p *part) bool {
	failed := p.failed.Load()
	if b.split == nil || failed == nil {
		return false
	}
	now := b.split.Part(*failed)
	return now != "" && now != p.name
}

// changed is closed at the next change of the store's health.
func (b *backend) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.change
}

// Acquire, Renew, Release and Inspect are the store's, but for errors that
// match the end of a context: see ofCall.

func (b *backend) Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error) {
	res, err := b.Store.Acquire(ctx, req)
	return res, b.ofMode(err)
}

func (b *backend) Renew(ctx context.Context, reqs []RenewRequest) []RenewResult {
	res := b.Store.Renew(ctx, reqs)
	for i := range res {
		res[i].Err = b.ofMode(res[i].Err)
	}
	return res
}

// ofMode tells the chain of a refusal for the mode or the data.
func (b *backend) ofMode(err error) error {
	if refusedByMode(err) {
		b.locker.chain.refused(b)
	}
	return ofCall(err)
}

func (b *backend) Release(ctx context.Context, req ReleaseRequest) (Ownership, error) {
	state, err := b.Store.Release(ctx, req)
	if refusedByMode(err) {
		// What is there is not ours, or no longer counts: there is nothing to free,
		// and no loss in that.
		return LeaseOwned, nil
	}
	return state, ofCall(err)
}

func (b *backend) Inspect(ctx context.Context, name Name) (Record, error) {
	rec, err := b.Store.Inspect(ctx, name)
	return rec, ofCall(err)
}

// report tells the breaker of a part how a call for a lock went. The part is the
// one that was to serve the lock when the call began: it may be another by the
// end. A failure that the caller's own time limit may have caused proves nothing
// and is not to be reported.
func (p *part) report(n Name, err error) {
	b := p.backend
	if err == nil || errors.Is(err, ErrMisconfigured) || errors.Is(err, ErrLate) || refusedByMode(err) {
		p.answered()
		if b.split != nil {
			b.openParts(func(p *part) {
				if b.replaced(p) {
					p.answered()
				}
			})
		}
		return
	}
	last, failed := err, n // err and n must not escape: there is no error nearly always
	p.lastErr.Store(&last)
	p.failed.Store(&failed)
	b.lastErr.Store(&last)
	b.locker.chain.suspect(b)
	if p.breaker.Failure(time.Now()) {
		b.open.Add(1)
		b.changeTo(err)
	}
}

func (p *part) answered() {
	if p.breaker.Success() {
		p.backend.open.Add(-1)
		p.backend.changeTo(nil)
	}
}

// changeTo tells that a breaker has opened, for err, or closed.
func (b *backend) changeTo(err error) {
	b.mu.Lock()
	close(b.change)
	b.change = make(chan struct{})
	b.mu.Unlock()
	l, tier := b.locker, b.Tier()
	if err != nil {
		l.notify.say(slog.LevelError, "tierlock: store does not answer", Token{}, slog.String("tier", tier.String()), slog.Any("err", err))
	} else {
		l.notify.say(slog.LevelInfo, "tierlock: store answers again", Token{}, slog.String("tier", tier.String()))
	}
	emit(l.notify, l.cfg.Observer.StoreChanged, StoreEvent{App: l.cfg.App, Tier: tier, At: time.Now(), Err: err})
}
