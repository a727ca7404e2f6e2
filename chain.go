package tierlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/watchdog"
)

// chain is this process's part in a chain with an arbiter: a degrade.Runner, the
// stores of its tiers, and the holds that the runner knows, by lease.
//
// What may be believed is decided by the runner's machine alone. The chain tells it
// what stores have answered, in this order: a grant before the watchdog is asked to
// watch it, a renewal before the watchdog takes it in, an end before the release is
// sent. So whatever the watchdog believes, the machine knows of.
type chain struct {
	locker       *Locker
	run          *degrade.Runner
	origin       watchdog.Instant // of the runner's clock
	never        watchdog.Instant // later than any lease ends
	redis, mysql *backend         // nil where not among the stores
	warmAt       time.Time        // the chain has had the time to begin
	disputes     atomic.Pointer[disputes]
	safety       safety // of Redis

	mu    sync.Mutex
	holds map[degrade.HoldID]*chainHold
	wrong map[degrade.Kind]error // the calls of the chain itself that fail now
}

func (l *Locker) newChain() *chain {
	c := &chain{locker: l, origin: watchdog.Now(), holds: map[degrade.HoldID]*chainHold{}, wrong: map[degrade.Kind]error{}}
	for _, b := range l.stores {
		switch b.Tier() {
		case Redis:
			c.redis = b
		case MySQL:
			c.mysql = b
		}
	}
	c.never = c.origin.Add(1 << 62) // over a century
	c.warmAt = time.Now().Add(2 * l.cfg.CallTimeout)
	d := l.cfg.Degrade
	rc := degrade.RunnerConfig{
		Machine: degrade.Config{Member: l.member, Digest: l.cfg.digest(), Refresh: d.Refresh, Poll: d.Poll, Probe: d.Probe,
			Suspect: d.Suspect, Up: d.Up, Dwell: d.Dwell, Term: d.Permit},
		Self:    degrade.Self{Namespace: l.cfg.Namespace, App: l.cfg.App, Host: l.host, PID: l.pid},
		Arbiter: c.mysql.Store.(Arbiter),
		Adopt:   c.adopt, Now: func() degrade.Instant { return c.instant(watchdog.Now()) }, CallTimeout: l.cfg.CallTimeout,
		OnEvent: c.event, OnCap: c.recheck, OnDigests: c.review, OnError: c.failed,
	}
	if c.redis != nil {
		rc.Probe = c.probe
	}
	c.run = degrade.NewRunner(rc)
	return c
}

func (c *chain) instant(i watchdog.Instant) degrade.Instant { return degrade.Instant(i.Sub(c.origin)) }

// backend is the store of a tier, nil where this process has none.
func (c *chain) backend(t degrade.Tier) *backend {
	switch t {
	case degrade.Redis:
		return c.redis
	case degrade.MySQL:
		return c.mysql
	}
	return nil
}

// at is where the calls about a hold with that ticket go.
func (c *chain) at(t degrade.Ticket, exclusive bool) route {
	p := Place{Epoch: t.Epoch, Exclusive: exclusive}
	if p.Epoch == 0 {
		p.Epoch = c.epoch()
	}
	if exclusive {
		p.Incarnation = t.Incarnation
	}
	return route{backend: c.backend(t.Tier), place: p, ticket: t}
}

// epoch is that of calls which go by no mode: the present one or, while the process
// has not reached the arbiter, the one that Redis has noted; 1 is to say any.
func (c *chain) epoch() uint16 {
	if e := c.run.Mode().Epoch; e != 0 {
		return e
	}
	return max(c.safety.latest(), 1)
}

// probe asks Redis whether it works, and has it note the mode. All of it works if it
// succeeds: so does each part of it, whatever calls have said.
func (c *chain) probe(ctx context.Context, known uint16) (string, error) {
	sent := time.Now()
	res, err := c.redis.Store.(Chained).Probe(ctx, ProbeRequest{Namespace: c.locker.cfg.Namespace, Epoch: max(known, c.safety.latest())})
	if err == nil {
		c.redis.openParts((*part).answered)
		c.examine(sent, res)
	}
	return res.Incarnation, ofCall(err)
}

// suspect tells that a call to b has failed.
func (c *chain) suspect(b *backend) {
	if c != nil && b == c.redis {
		c.run.Suspect()
	}
}

// refused tells that b has refused a call for its mode or data.
func (c *chain) refused(b *backend) {
	if c != nil && b == c.redis {
		c.run.Doubt()
	}
}

// failed logs when the calls of the chain itself begin to fail, and when they work
// again.
func (c *chain) failed(kind degrade.Kind, err error) {
	err = ofCall(err)
	c.mu.Lock()
	if c.wrong[kind] = err; err == nil {
		delete(c.wrong, kind)
	}
	c.mu.Unlock()
	say := c.locker.notify.say
	what := slog.String("call", kind.String())
	switch {
	case err == nil:
		say(slog.LevelInfo, "tierlock: the chain's call works again", Token{}, what)
	case errors.Is(err, ErrMisconfigured):
		say(slog.LevelError, "tierlock: the chain's call is refused", Token{}, what, slog.Any("err", err))
	default:
		say(slog.LevelWarn, "tierlock: the chain's call fails", Token{}, what, slog.Any("err", err))
	}
}

// trouble is what keeps the process from its permit, as far as is known: nil for
// nothing that failed.
func (c *chain) trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range []degrade.Kind{degrade.Poll, degrade.Create, degrade.Refresh} {
		if err := c.wrong[kind]; err != nil {
			return fmt.Errorf(", since the call %v fails: %w", kind, err)
		}
	}
	return nil
}

// event takes in what the machine has to tell, on the runner's goroutine.
func (c *chain) event(e degrade.Event) {
	l, say := c.locker, c.locker.notify.say
	mode := []slog.Attr{slog.String("tier", e.Mode.Tier.String()), slog.Int("epoch", int(e.Mode.Epoch))}
	switch e.Kind {
	case degrade.Draining:
		c.settle()
		say(slog.LevelWarn, "tierlock: locks are moving to another store, or to other data of it", Token{}, mode...)
		emit(l.notify, l.cfg.Observer.Draining, c.chainEvent(e.Mode))
	case degrade.Opened:
		c.settle()
		say(slog.LevelInfo, "tierlock: mode in force", Token{}, mode...)
		emit(l.notify, l.cfg.Observer.TierChanged, c.chainEvent(e.Mode))
	case degrade.HoldEnded:
		if h := c.hold(e.Hold); h != nil {
			h.ended(e)
		}
	case degrade.Stray:
		say(slog.LevelError, "tierlock: the arbiter is another server than before, or has lost data: a long pause begins", Token{}, mode...)
	case degrade.Exhausted:
		say(slog.LevelError, "tierlock: the numbers of modes are nearly used up", Token{}, mode...)
	}
}

func (c *chain) chainEvent(m degrade.Mode) ChainEvent {
	return ChainEvent{App: c.locker.cfg.App, Tier: tierOf(m.Tier), Epoch: m.Epoch, At: time.Now()}
}

func tierOf(t degrade.Tier) Tier {
	switch t {
	case degrade.Redis:
		return Redis
	case degrade.MySQL:
		return MySQL
	}
	return 0
}

func (c *chain) hold(id degrade.HoldID) *chainHold {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holds[id]
}

func (c *chain) all() []*chainHold {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*chainHold, 0, len(c.holds))
	for _, h := range c.holds {
		all = append(all, h)
	}
	return all
}

// settle lets each hold follow the machine to the place that it has there.
func (c *chain) settle() {
	for _, h := range c.all() {
		h.follow()
	}
}

// recheck is called when an ack is about to be sent, which may end beliefs sooner.
func (c *chain) recheck() {
	for _, h := range c.all() {
		h.recheck()
	}
}

// adopt writes holds into the store of a drain.
func (c *chain) adopt(ctx context.Context, to degrade.Mode, ids []degrade.HoldID) []degrade.Adoption {
	all := make([]degrade.Adoption, len(ids)) // Unknown
	b := c.backend(to.Tier)
	if b == nil {
		return all
	}
	var reqs []AdoptRequest
	var holds []*chainHold
	var index []int
	for i, id := range ids {
		h := c.hold(id)
		if h == nil {
			continue // ended meanwhile
		}
		if req, ok := h.adoptRequest(c.at(to.Ticket(), h.exclusive)); ok {
			reqs, holds, index = append(reqs, req), append(holds, h), append(index, i)
		}
	}
	if len(reqs) == 0 {
		return all
	}
	sent := watchdog.Now()
	results := b.Store.(Chained).Adopt(ctx, reqs)
	for k := range reqs {
		switch {
		case k >= len(results) || results[k].Err != nil:
		case results[k].State == LeaseOwned:
			all[index[k]] = degrade.Taken
			holds[k].adopted(to.Ticket(), sent, reqs[k].TTL)
		default:
			all[index[k]] = degrade.NotTaken
		}
	}
	return all
}

// close takes this process off the chain, after its last hold.
func (c *chain) close(ctx context.Context) error {
	if !c.run.Close(ctx) {
		return fmt.Errorf("tierlock: close: the process is still listed as a member of the chain, and the next switch waits for it for up to a minute or two: %w", ErrUnavailable)
	}
	return nil
}
