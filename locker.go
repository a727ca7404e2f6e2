package tierlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/watchdog"
)

// Locker takes locks for one process. It is the facade over the store: it
// queues callers, waits, renews, notices losses and cleans up. Make one with
// [New] and share it; all methods are safe for concurrent use.
type Locker struct {
	cfg       Config
	store     *backend   // the first
	stores    []*backend // all, in the order of the chain
	chain     *chain     // nil where no arbiter is needed
	local     *localTier // nil where there is no store after which it comes
	resources map[string]*ResourceHandle
	lines     *lines
	dog       *watchdog.Watchdog
	notify    *notifier

	member, host, holder string
	pid                  int
	leases               atomic.Uint64

	leave []func(context.Context) // off the lists of processes of the stores that keep one

	holds   holdSet
	calls   activity // acquisitions
	queued  atomic.Int64
	closing chan struct{} // closed when Close begins
	closed  chan struct{} // closed when Close has ended
	once    sync.Once
	closeOK error // valid once closed is closed
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
		resources: make(map[string]*ResourceHandle, len(cfg.Resources)),
		lines:     newLines(),
		notify:    newNotifier(cfg.App, cfg.Observer, cfg.Logger),
		member:    hex.EncodeToString(id[:]),
		host:      host,
		pid:       os.Getpid(),
		closing:   make(chan struct{}),
		closed:    make(chan struct{}),
	}
	for _, s := range cfg.Stores {
		l.stores = append(l.stores, l.newBackend(s))
	}
	l.store = l.stores[0]
	l.holder = fmt.Sprintf("%s@%s#%d", cfg.App, host, l.pid)
	l.dog = watchdog.New(watchdog.Config{Renew: l.renew, CallTimeout: cfg.CallTimeout})
	if last := l.stores[len(l.stores)-1]; last != l.store && last.Tier() == Local {
		l.local = &localTier{locker: l, store: last}
	}
	if cfg.needsArbiter() {
		l.chain = l.newChain()
	}
	for _, r := range cfg.Resources {
		l.resources[r.Name] = l.newResource(r)
		l.warnShort(r)
	}
	for _, s := range cfg.Stores {
		if r, ok := s.(Registrar); ok {
			l.leave = append(l.leave, r.Register(Member{ID: l.member, Namespace: cfg.Namespace, App: cfg.App, Host: host, PID: l.pid, Holds: l.holds.count}))
		}
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

	chained bool      // its locks go by the mode of the chain
	local   bool      // they may be given in this process's memory
	floor   Tier      // the lowest tier that its locks may go to
	best    Guarantee // the most that its holds can be worth
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
//   - ErrUnavailable: the store gave no answer, or locks are moving to another, or
//     the options Floor and RequireGuarantee rule out what there is (matching ctx's error as well,
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

// Inspect reads who holds a key now, from the store where the resource's locks are
// kept, and changes nothing.
func (r *ResourceHandle) Inspect(ctx context.Context, key string) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, err
	}
	name := r.name(key)
	callCtx := bound.By(ctx, time.Now().Add(r.locker.cfg.CallTimeout))
	defer callCtx.End()
	rec, err := r.inspect(callCtx, name)
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
	// Chain is the mode in force, nil where no resource goes by one.
	Chain *ChainStatus
	// Local: no store can be used, and locks of resources whose Floor is Local are
	// given in the memory of this process, or some that were are not in a store yet.
	Local bool
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

// ChainStatus is where the locks of a chain are kept, as far as this process knows.
type ChainStatus struct {
	// Tier is the one in force or, where Draining, the coming one; 0 while nothing
	// is known.
	Tier  Tier
	Epoch uint16
	// Draining: locks are moving there, and none of an Exclusive resource is given.
	Draining bool
	// Permit is how long exclusive locks may be believed in without a further
	// word from the arbiter; 0 if not at all.
	Permit time.Duration
	// ArbiterSilent: MySQL has not answered for three periods of Degrade.Poll.
	ArbiterSilent bool
	// RedisDown: three probes of Redis in a row have failed.
	RedisDown bool
	// Differing are the resources of this process for which a live member has
	// another policy (Exclusive, Floor, Reentrant), in order; all of them where one
	// has other stores. Their holds are FencedOnly at most.
	Differing []string
}

// Status reads the present state. It does no I/O.
func (l *Locker) Status() Status {
	s := Status{
		Holds:         l.holds.count(),
		Waiters:       int(l.queued.Load()),
		DroppedEvents: l.notify.dropped(),
	}
	for _, b := range l.stores {
		st := StoreStatus{Tier: b.Tier(), Guarantee: b.Guarantee(), Available: b.available()}
		if err := b.lastErr.Load(); err != nil {
			st.LastError = *err
		}
		s.Stores = append(s.Stores, st)
		s.Undos += b.undo.count()
	}
	s.Local = l.local.inUse()
	if l.chain != nil {
		st := l.chain.run.State()
		s.Chain = &ChainStatus{Tier: tierOf(st.Mode.Tier), Epoch: st.Mode.Epoch, Draining: st.Mode.Drain, Permit: st.Permit,
			ArbiterSilent: st.Silent, RedisDown: st.RedisDown, Differing: slices.Sorted(maps.Keys(l.chain.disputed()))}
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

// newToken makes the identity of one acquisition. A lease id is the member id
// and a number, of fixed length: 44 characters.
func (l *Locker) newToken(name Name, c call, r Resource, tier Tier) Token {
	n := strconv.FormatUint(l.leases.Add(1), 16)
	lease := l.member + "000000000000"[min(len(n), 12):] + n
	t := Token{
		Lease: lease, ID: lease[24:], Resource: name.Resource, Key: name.Key, Holder: c.holder,
		App: l.cfg.App, Host: l.host, PID: l.pid, Tier: tier, Reentrant: r.Reentrant,
		MaxRenewals: r.MaxRenewals, TTL: c.ttl, RequestID: c.requestID,
	}
	if t.Holder == "" {
		t.Holder = l.holder
	}
	return t
}
