package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
	"github.com/tierlock/tierlock/watchdog"
)

// Options configures a Store. The zero value is good for most.
type Options struct {
	// CallTimeout bounds each call, also where its ctx has no deadline.
	// 0 means 500 ms.
	CallTimeout time.Duration
	// NoPush makes Watch report that it is unavailable, so that waiters poll.
	// It is for proxies that cannot subscribe.
	NoPush bool
}

// check returns what is wrong with o.
func (o Options) check() error {
	if o.CallTimeout < 0 {
		return fmt.Errorf("Options.CallTimeout is negative: %v", o.CallTimeout)
	}
	return nil
}

// Store is a [tierlock.Store] and [tierlock.Watcher] over Redis. It is made by
// [Open] or [New] and is safe for concurrent use.
//
// No method outlasts its ctx or Options.CallTimeout. An error wraps
// [tierlock.ErrUnavailable], [tierlock.ErrLate] or
// [tierlock.ErrMisconfigured], or [tierlock.ErrEpoch] in their stead; one that was caused by the ctx also wraps the
// ctx's error and cause.
type Store struct {
	timeout time.Duration
	noPush  bool
	made    time.Time // where local time begins
	clocks  clocks
	wires   tripwires
	hub     hub

	calls   chan *call // to idle workers; nil for those that have gathered
	gathers bool       // all calls go to one server
	gather  sync.Mutex
	// gathered calls wait for a worker, which is called, if called is true.
	// emptied is a slice for the next ones.
	gathered, emptied []*call
	called            bool
	spare             sync.Pool    // of *call; not global: a timer belongs to one synctest bubble
	noYield           atomic.Int64 // until when, since made: see yield
	idle              atomic.Int32
	stuck             atomic.Int32
	quit              chan struct{}
	workers           sync.WaitGroup

	lone lone

	// trouble is why no call can be made now; nil while there is no known
	// reason. It is written under mu.
	trouble atomic.Pointer[trouble]

	mu      sync.Mutex
	closed  bool
	markers map[string]markers // by namespace, see remember

	// client, single and own do not change once trouble has been nil.
	client rueidis.Client
	single bool // client talks to one server
	own    *rueidis.ClientOption

	// The connections of a client that Open made, see redial.
	conns    sync.Map     // of *seenConn to nil
	redialed atomic.Int64 // when, since made; 0 is never

	keyed atomic.Bool // questions about no lock name a key, see probeKeys
}

type trouble struct{ err error }

var (
	_ tierlock.Store   = (*Store)(nil)
	_ tierlock.Watcher = (*Store)(nil)

	_ tierlock.Partitioned = (*Store)(nil)
	_ tierlock.Chained     = (*Store)(nil)
	_ tierlock.Updater     = (*Store)(nil)
)

// New makes a store over a client that the caller keeps: it must stay open
// until the store is closed, and the caller closes it after that. The client
// should have DisableRetry and AlwaysPipelining, a Dialer.Timeout of 500 ms and
// a ConnWriteTimeout of 1 s: with the client's own defaults the store keeps its
// bounds too, but notices a dead connection later. Its ReplicaOnly and
// SendToReplicas must not be used. New itself waits for nothing; the server is
// asked for its clock in the background.
//
// A nil client or bad options make every call return an error that says so.
func New(client rueidis.Client, opt Options) *Store {
	s := newStore(opt)
	err := opt.check()
	if client == nil {
		err = errors.Join(err, errors.New("the client is nil"))
	}
	if err != nil {
		s.trouble.Store(&trouble{fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, err)})
		return s
	}
	s.adopt(client)
	s.askClock()
	return s
}

func newStore(opt Options) *Store {
	s := &Store{
		timeout: opt.CallTimeout, noPush: opt.NoPush, made: time.Now(),
		wires: tripwires{began: watchdog.Now(), of: make(map[clocked]*contract.Tripwire)},
		calls: make(chan *call), quit: make(chan struct{}),
	}
	if s.timeout <= 0 {
		s.timeout = 500 * time.Millisecond
	}
	s.lone.era.Store(noEra)
	s.hub.init(s)
	return s
}

func (s *Store) adopt(client rueidis.Client) {
	if client.Mode() == rueidis.ClientModeCluster {
		s.clocks.slots = make([]atomic.Pointer[contract.Clock], slots)
	}
	s.single = client.Mode() == rueidis.ClientModeStandalone
	s.gathers = s.clocks.slots == nil
	s.lone.possible = s.single && loneOptions(s.own)
	s.client = client
}

// ready returns the client, or why there is none to use.
func (s *Store) ready() (rueidis.Client, error) {
	if t := s.trouble.Load(); t != nil {
		return nil, t.err
	}
	return s.client, nil
}

// Close ends all watches and goroutines of the store, and closes the client if
// Open made it. Calls that are under way end within CallTimeout. It is
// idempotent, and returns when everything has ended, at the latest after two
// seconds and CallTimeout where a server does not answer.
func (s *Store) Close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.trouble.Store(&trouble{classed(errClosed)})
	client := s.client
	s.mu.Unlock()

	ended := make(chan struct{})
	if first {
		close(s.quit)
		s.hub.close()
	}
	go func() {
		defer close(ended)
		if first && s.own != nil && client != nil {
			client.Close()
		}
		s.workers.Wait()
		if first {
			s.closeConns() // no call is under way on them any more
		}
	}()
	limit := time.NewTimer(s.timeout + 2*time.Second)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
}

// Tier is tierlock.Redis.
func (s *Store) Tier() tierlock.Tier { return tierlock.Redis }

// Guarantee is tierlock.FencedOnly.
func (s *Store) Guarantee() tierlock.Guarantee { return tierlock.FencedOnly }

// local is t in microseconds since the store was made.
func (s *Store) local(t time.Time) int64 { return t.Sub(s.made).Microseconds() }

// Acquire implements [tierlock.Store]. Where the server's clock is not known
// (over a new connection, until it was asked in the background, and after a
// minute without an acquire) it takes a second round trip. A budget that is
// shorter than one round trip is always refused.
func (s *Store) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	sent := time.Now()
	if err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), contract.CheckLease(req.Token.Lease), checkPlace(req.Place)); err != nil {
		return tierlock.AcquireResult{}, invalid("acquire", req.Name, err)
	}
	if req.Explicit && !utf8.ValidString(req.Token.Holder) {
		return tierlock.AcquireResult{}, invalid("acquire", req.Name, fmt.Errorf("holder %q is not valid UTF-8", req.Token.Holder))
	}
	req.Token = contract.Storable(req.Token, tierlock.Redis)
	res, err := s.acquire(ctx, sent, &req)
	if err != nil {
		return tierlock.AcquireResult{}, failed("acquire", req.Name, err)
	}
	return res, nil
}

func (s *Store) acquire(ctx context.Context, sent time.Time, req *tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	var none tierlock.AcquireResult
	until := sent.Add(s.timeout)
	budget := min(req.Budget, s.timeout) // nobody waits longer for the answer
	if end, ok := ctx.Deadline(); ok {
		budget = min(budget, end.Sub(sent))
	}
	var msg message
	msg.acquire(req)
	// First of all: until a client is there, nothing else is settled either.
	if _, err := s.ready(); err != nil {
		return none, err
	}
	var err error
	if msg.keys, err = s.appendMarker(msg.keys, req.Name.Namespace, req.Place); err != nil {
		return none, err
	}
	clock, wire := s.clocks.of(msg.slot), s.guard(sent, req.Place, msg.slot)
	era := s.clocks.era.Load()
	began := sent
	offset, known := clock.Offset(s.local(sent), era)
	for asked := 0; !known; asked++ {
		if asked == 3 {
			return none, errors.New("the connection was made anew again and again")
		}
		// It may make a connection itself, and is not of its era then.
		if err := s.learnClock(ctx, until, msg.keys[0]); err != nil {
			return none, err
		}
		era = s.clocks.era.Load()
		began = time.Now()
		wire.again()
		offset, known = clock.Offset(s.local(sent), era)
	}
	for try := 1; ; try++ {
		if began.Sub(sent) >= budget {
			if ctx.Err() != nil {
				return none, contract.Ended(ctx)
			}
			return none, fmt.Errorf("%w: not sent within %v", tierlock.ErrLate, budget)
		}
		// The bound counts from the beginning of the call, not of this try.
		latest := wire.latest(s.local(sent)+offset+budget.Microseconds(), budget)
		msg.args[1] = strconv.FormatInt(latest, 10)
		answer, err := s.run(ctx, until, msg.script, msg.keys, msg.args)
		if err != nil {
			return none, err
		}
		if !answer.IsInt64() {
			return s.readAcquired(answer, req, func(server int64) {
				clock.Learn(s.local(began), s.local(time.Now()), server, era)
				wire.learn(server)
			})
		}
		server, err := answer.AsInt64()
		if err != nil {
			return none, err
		}
		received := time.Now()
		if server > 0 {
			clock.Learn(s.local(began), s.local(received), server, era)
			wire.learn(server)
			n := contract.Fences(req)
			return tierlock.AcquireResult{Granted: true, Fences: n,
				Token: contract.Ahead(granted(req, server), n)}, nil
		}
		clock.Learn(s.local(began), s.local(received), -server, era)
		if err := wire.refused(-server); err != nil {
			if s.clocks.slots != nil {
				s.hub.lookOnce() // the slot may have moved
			}
			return none, err
		}
		// Late by the offset we know, which may be too low: the refusal tells
		// more, and a second try cannot be refused for that reason. Where it
		// does not tell more, a second try would be later still.
		before := offset
		offset, known = clock.Offset(s.local(received), era)
		again := offset > before
		if wire.bound {
			// The tripwire leaves each try its own time. But there is no point in one
			// whose answer nobody would wait for, and it would look as an outage does;
			// and where all are late for too much to do, more of it helps nobody.
			again = received.Sub(began) <= budget-received.Sub(sent)
		}
		if !known || !again || try == 2 {
			return none, wire.late(budget)
		}
		began = received
		wire.again()
	}
}

// readAcquired reads the answers that carry a token.
func (s *Store) readAcquired(msg rueidis.RedisMessage, req *tierlock.AcquireRequest, learn func(server int64)) (tierlock.AcquireResult, error) {
	var none tierlock.AcquireResult
	if !msg.IsArray() {
		text, err := msg.ToString()
		if err != nil {
			return none, err
		}
		left, value, _ := strings.Cut(text, " ")
		return tierlock.AcquireResult{Token: contract.ReadToken(value), Left: readLeft(left)}, nil
	}
	parts, err := msg.ToArray()
	if err != nil || len(parts) != 2 {
		return none, fmt.Errorf("unexpected answer to an acquire: %w", err)
	}
	value, err := parts[0].ToString()
	if err != nil {
		return none, err
	}
	server, err := parts[1].AsInt64()
	if err != nil {
		return none, err
	}
	learn(server)
	// Our lease is in it or beside it, so it is ours even where it cannot be
	// read; but without its fence the hold is worth nothing.
	stored := contract.ReadToken(value)
	if stored.IsZero() {
		return none, fmt.Errorf("the stored token cannot be read: %.200q", value)
	}
	if stored.Lease == req.Token.Lease {
		return tierlock.AcquireResult{Granted: true, Token: stored, Fences: furtherFences(req, stored)}, nil
	}
	t := req.Token
	t = contract.Stamped(t, req.TTL, server)
	// A hold that was adopted has an epoch that is not in its fence.
	t.Fence, t.Epoch, t.Seq = stored.Fence, stored.Epoch, stored.Seq
	return tierlock.AcquireResult{Granted: true, Reentered: true, Token: t}, nil
}

// furtherFences is how many the grant has reserved of which a token is: see
// grant.lua.
func furtherFences(req *tierlock.AcquireRequest, stored tierlock.Token) int {
	last := (stored.ServerTime.UnixMicro()-contract.SeqOrigin)/2 + contract.SeqLead
	return int(max(0, min(last-int64(stored.Seq), int64(contract.Fences(req)))))
}

// Release implements [tierlock.Store]. It publishes also what it keeps: the
// time left may have become shorter.
func (s *Store) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	until := time.Now().Add(s.timeout)
	if err := errors.Join(contract.CheckName(req.Name), contract.CheckLease(req.Lease), checkPlace(req.Place)); err != nil {
		return 0, invalid("release", req.Name, err)
	}
	keep := ""
	if req.Keep > 0 {
		// Rounded up; and no lease is longer than contract.MaxTTL, so a longer time to
		// keep it would shorten none either.
		keep = millis(min(req.Keep, contract.MaxTTL) + time.Millisecond - 1)
	}
	var m message
	m.release(&req, keep)
	var err error
	if m.keys, err = s.appendMarker(m.keys, req.Name.Namespace, req.Place); err != nil {
		return 0, failed("release", req.Name, err)
	}
	msg, err := s.run(ctx, until, m.script, m.keys, m.args)
	if err != nil {
		return 0, failed("release", req.Name, err)
	}
	state, err := readOwnership(msg)
	if err != nil {
		return 0, failed("release", req.Name, err)
	}
	return state, nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func readOwnership(msg rueidis.RedisMessage) (tierlock.Ownership, error) {
	n, err := msg.AsInt64()
	if err != nil {
		return 0, err
	}
	switch n {
	case 1:
		return tierlock.LeaseOwned, nil
	case 2:
		return tierlock.LeaseTaken, nil
	case 3:
		return tierlock.LeaseGone, nil
	}
	return 0, fmt.Errorf("unexpected answer %d", n)
}
