package tierlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

// Locker takes locks for one process. It is the facade over the store: it
// queues callers, waits, renews, notices losses and cleans up. Make one with
// [New] and share it; all methods are safe for concurrent use.
type Locker struct {
	cfg       Config
	store     *backend
	resources map[string]*ResourceHandle
	lines     *lines
	dog       *watchdog.Watchdog
	undo      *undoer
	notify    *notifier

	member, host, holder string
	pid                  int
	leases               atomic.Uint64

	leave func(context.Context) // off the store's list of processes; nil if it keeps none

	holds   holdSet
	calls   activity // acquisitions
	queued  atomic.Int64
	closing chan struct{} // closed when Close begins
	closed  chan struct{} // closed when Close has ended
	once    sync.Once
	closeOK error // valid once closed is closed
}

// backend is a store and what is known of its health.
type backend struct {
	Store
	split Partitioned // the store, if it has parts
	whole part        // all of a store without parts, and what is in no known part
	parts sync.Map    // by name, of *part

	pushes  atomic.Bool // the last watch could be had
	lastErr atomic.Pointer[error]
	open    atomic.Int32 // breakers, of the whole and the parts

	mu     sync.Mutex
	change chan struct{} // closed, and replaced, when a breaker opens or closes
}

// part is what fails as a whole.
type part struct {
	name    string
	breaker degrade.Breaker
	lastErr atomic.Pointer[error]
	failed  atomic.Pointer[Name] // the lock that it failed for last
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
		p, _ = b.parts.LoadOrStore(name, &part{name: name})
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
	return res, ofCall(err)
}

func (b *backend) Renew(ctx context.Context, reqs []RenewRequest) []RenewResult {
	res := b.Store.Renew(ctx, reqs)
	for i := range res {
		res[i].Err = ofCall(res[i].Err)
	}
	return res
}

func (b *backend) Release(ctx context.Context, req ReleaseRequest) (Ownership, error) {
	state, err := b.Store.Release(ctx, req)
	return state, ofCall(err)
}

func (b *backend) Inspect(ctx context.Context, name Name) (Record, error) {
	rec, err := b.Store.Inspect(ctx, name)
	return rec, ofCall(err)
}

// New makes a Locker. It checks the whole configuration and returns all
// problems joined, each an *[InvalidError]. It does no I/O: a store may be
// down. Close ends it.
func New(cfg Config) (*Locker, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	var id [16]byte
	rand.Read(id[:]) // never fails: crypto/rand ends the process if it does
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	l := &Locker{
		cfg:       cfg,
		store:     &backend{Store: cfg.Stores[0], change: make(chan struct{})},
		resources: make(map[string]*ResourceHandle, len(cfg.Resources)),
		lines:     newLines(),
		notify:    newNotifier(cfg.App, cfg.Observer, cfg.Logger),
		member:    hex.EncodeToString(id[:]),
		host:      host,
		pid:       os.Getpid(),
		closing:   make(chan struct{}),
		closed:    make(chan struct{}),
	}
	l.store.split, _ = cfg.Stores[0].(Partitioned)
	l.holder = fmt.Sprintf("%s@%s#%d", cfg.App, host, l.pid)
	l.undo = &undoer{locker: l}
	l.dog = watchdog.New(watchdog.Config{Renew: l.renew, CallTimeout: cfg.CallTimeout})
	for _, r := range cfg.Resources {
		l.resources[r.Name] = &ResourceHandle{locker: l, cfg: r}
	}
	if r, ok := cfg.Stores[0].(Registrar); ok {
		l.leave = r.Register(Member{ID: l.member, Namespace: cfg.Namespace, App: cfg.App, Host: host, PID: l.pid, Holds: l.holds.count})
	}
	return l, nil
}

// Resource gives the handle of a registered resource, so that a misspelt name
// fails at start and not at the first lock.
func (l *Locker) Resource(name string) (*ResourceHandle, error) {
	if r, ok := l.resources[name]; ok {
		return r, nil
	}
	return nil, invalid("resource", name, "a registered resource")
}

// Lock is [ResourceHandle.Lock] on the resource of that name.
func (l *Locker) Lock(ctx context.Context, resource, key string, opts ...Option) (*Lock, error) {
	r, err := l.Resource(resource)
	if err != nil {
		return nil, err
	}
	return r.Lock(ctx, key, opts...)
}

// TryLock is [ResourceHandle.TryLock] on the resource of that name.
func (l *Locker) TryLock(ctx context.Context, resource, key string, opts ...Option) (*Lock, error) {
	r, err := l.Resource(resource)
	if err != nil {
		return nil, err
	}
	return r.TryLock(ctx, key, opts...)
}

// Do is [ResourceHandle.Do] on the resource of that name.
func (l *Locker) Do(ctx context.Context, resource, key string, fn func(context.Context) error, opts ...Option) error {
	r, err := l.Resource(resource)
	if err != nil {
		return err
	}
	return r.Do(ctx, key, fn, opts...)
}

// Inspect is [ResourceHandle.Inspect] on the resource of that name.
func (l *Locker) Inspect(ctx context.Context, resource, key string) (Record, error) {
	r, err := l.Resource(resource)
	if err != nil {
		return Record{}, err
	}
	return r.Inspect(ctx, key)
}

// ResourceHandle takes the locks of one resource. Get it once, at start, from
// [Locker.Resource]. All methods are safe for concurrent use.
type ResourceHandle struct {
	locker  *Locker
	cfg     Resource
	waiters atomic.Int64
	holds   atomic.Int64
}

// Name is the resource's name.
func (r *ResourceHandle) Name() string { return r.cfg.Name }

// Lock takes the lock of a key, which is valid UTF-8 of 1 to 128 characters,
// and waits for it up to Resource.Wait, or as the options Wait, NoWait and
// UntilDone say. The caller must call [Lock.Unlock].
//
// ctx bounds the wait and the hold: when it ends later, so does
// [Lock.Context], and the lease is no longer renewed. To bound the wait alone
// use the option Wait.
//
// After any error no key stays behind: where an answer was lost, the grant is
// undone in the background. The errors are:
//   - *HeldError, matching ErrHeld: held by another until the wait was over. If
//     ctx ended the wait it matches ctx's error as well.
//   - ErrUnavailable: the store gave no answer (matching ctx's error as well,
//     if that ended the wait). It never comes from contention.
//   - ErrMisconfigured, ErrReentrant, ErrQueueFull, ErrClosed, ErrInvalid.
//   - ctx's own error and cause, if it had ended before.
func (r *ResourceHandle) Lock(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	return r.lock(ctx, key, opts, false)
}

// TryLock is Lock with the option NoWait: it asks the store once at most.
func (r *ResourceHandle) TryLock(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	return r.lock(ctx, key, opts, true)
}

// Do runs fn under the lock of a key. It waits as [ResourceHandle.Lock] does,
// and unlocks when fn returns, panics or calls runtime.Goexit. fn gets the
// hold's context, which ends when the lock is lost; [TokenFrom] gives its
// token.
//
// Do returns fn's error. If the hold ended before fn returned, that error is
// joined: it matches ErrLost or ErrLeaseExceeded, and what fn did may have
// met another holder's work. If the hold was intact and only its release
// could not be confirmed, Do returns fn's error alone (done work must not be
// repeated); the failure is logged and goes to the Observer, and the release
// is repeated in the background until the key has expired.
func (r *ResourceHandle) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...Option) (err error) {
	lock, err := r.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	// Deferred, and without recover: so it runs on panic and Goexit, too, and
	// both go on their way.
	defer func() {
		if uerr := lock.Unlock(); errors.Is(uerr, ErrLost) || errors.Is(uerr, ErrLeaseExceeded) {
			err = errors.Join(err, uerr)
		}
	}()
	return fn(lock.Context())
}

// Inspect reads who holds a key now, from the store, and changes nothing.
func (r *ResourceHandle) Inspect(ctx context.Context, key string) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, err
	}
	name := r.name(key)
	callCtx := bound.By(ctx, time.Now().Add(r.locker.cfg.CallTimeout))
	defer callCtx.End()
	rec, err := r.locker.store.Inspect(callCtx, name)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", contextError(ctx), err)
		}
		return Record{}, fmt.Errorf("tierlock: inspect %s: %w", name, err)
	}
	return rec, nil
}

func (r *ResourceHandle) name(key string) Name {
	return Name{Namespace: r.locker.cfg.Namespace, Resource: r.cfg.Name, Key: key}
}

// Status is the state of a Locker, for health checks and debugging.
type Status struct {
	Stores []StoreStatus
	// Holds counts the leases that are believed in or being released, Waiters
	// the calls that wait behind others of this process, Undos the releases
	// that go on in the background.
	Holds, Waiters, Undos int
	// DroppedEvents counts events and log lines that were dropped because the
	// observer or the logger was too slow.
	DroppedEvents uint64
	Closed        bool
}

// StoreStatus is the state of one store.
type StoreStatus struct {
	Tier      Tier
	Guarantee Guarantee
	// Available is false after three failures in a row, of any part of the
	// store, until an answer comes, or another part has taken over.
	Available bool
	// LastError is the last failure, also if the store has answered since.
	LastError error
}

// Status reads the present state. It does no I/O.
func (l *Locker) Status() Status {
	st := StoreStatus{Tier: l.store.Tier(), Guarantee: l.store.Guarantee(), Available: l.store.available()}
	if err := l.store.lastErr.Load(); err != nil {
		st.LastError = *err
	}
	s := Status{
		Stores:        []StoreStatus{st},
		Holds:         l.holds.count(),
		Waiters:       int(l.queued.Load()),
		Undos:         l.undo.count(),
		DroppedEvents: l.notify.dropped(),
	}
	select {
	case <-l.closing:
		s.Closed = true
	default:
	}
	return s
}

func (l *Locker) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// report tells the breaker of a part how a call for a lock went. The part is the
// one that was to serve the lock when the call began: it may be another by the
// end. A failure that the caller's own time limit may have caused proves nothing
// and is not to be reported.
func (l *Locker) report(p *part, n Name, err error) {
	b := l.store
	if err == nil || errors.Is(err, ErrMisconfigured) || errors.Is(err, ErrLate) {
		l.answered(p)
		if b.split != nil {
			b.openParts(func(p *part) {
				if b.replaced(p) {
					l.answered(p)
				}
			})
		}
		return
	}
	last, failed := err, n // err and n must not escape: there is no error nearly always
	p.lastErr.Store(&last)
	p.failed.Store(&failed)
	b.lastErr.Store(&last)
	if p.breaker.Failure(time.Now()) {
		b.open.Add(1)
		l.storeChanged(err)
	}
}

func (l *Locker) answered(p *part) {
	if p.breaker.Success() {
		l.store.open.Add(-1)
		l.storeChanged(nil)
	}
}

func (l *Locker) storeChanged(err error) {
	l.store.mu.Lock()
	close(l.store.change)
	l.store.change = make(chan struct{})
	l.store.mu.Unlock()
	tier := l.store.Tier()
	if err != nil {
		l.notify.say(slog.LevelError, "tierlock: store does not answer", Token{}, slog.String("tier", tier.String()), slog.Any("err", err))
	} else {
		l.notify.say(slog.LevelInfo, "tierlock: store answers again", Token{}, slog.String("tier", tier.String()))
	}
	emit(l.notify, l.cfg.Observer.StoreChanged, StoreEvent{App: l.cfg.App, Tier: tier, At: time.Now(), Err: err})
}

// newToken makes the identity of one acquisition. A lease id is the member id
// and a number, of fixed length: 44 characters.
func (l *Locker) newToken(name Name, c call, r Resource) Token {
	n := strconv.FormatUint(l.leases.Add(1), 16)
	lease := l.member + "000000000000"[min(len(n), 12):] + n
	t := Token{
		Lease: lease, ID: lease[24:], Resource: name.Resource, Key: name.Key, Holder: c.holder,
		App: l.cfg.App, Host: l.host, PID: l.pid, Tier: l.store.Tier(), Reentrant: r.Reentrant,
		MaxRenewals: r.MaxRenewals, TTL: c.ttl, RequestID: c.requestID,
	}
	if t.Holder == "" {
		t.Holder = l.holder
	}
	return t
}
