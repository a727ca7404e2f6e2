package tests_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

// A peer is a second process with a Locker of its own. It takes one order a
// line and answers with events; all times are the wall clock's, which the
// processes of one machine (and Redis) share.

type peerConfig struct {
	Addr        string // of Redis
	Locks       string // DSN of the MySQL that keeps the locks; with Addr, where they go from Redis
	Degrade     tierlock.Degrade
	NoPush      bool
	CallTimeout time.Duration // 0: the default
	Resources   []tierlock.Resource
	DSN         string // of the business database, for look, begin and commit
}

type order struct {
	ID       int
	Op       string // lock, unlock, step, loop, and those of [business]
	Resource string
	Key      string
	Wait     time.Duration // of lock; 0 does not wait
	Holder   string
	For      time.Duration // of loop
	Pause    time.Duration // of loop: at most that long between an unlock and the next lock
	Amount   int64         // of begin
}

type event struct {
	ID     int
	What   string // see runPeer
	At     int64  // Unix nanoseconds
	Token  *tierlock.Token
	Err    string
	Is     []string // the sentinels that the error matches
	Reason string   // of a loss
	Loop   *loopResult
}

func (e event) at() time.Time { return time.Unix(0, e.At) }

// is reports whether the event's error matches the sentinel of that name.
func (e event) is(name string) bool {
	for _, s := range e.Is {
		if s == name {
			return true
		}
	}
	return false
}

var sentinels = map[string]error{
	"held": tierlock.ErrHeld, "unavailable": tierlock.ErrUnavailable, "lost": tierlock.ErrLost,
	"exceeded": tierlock.ErrLeaseExceeded, "released": tierlock.ErrReleased,
	"fenced": mysqlstore.ErrFenced,
}

// runPeer is the peer's own side. Events are:
//
//	ready     the Locker is made
//	locked    with the token
//	refused   the lock was not given, with the error
//	ended     the hold's context ended, with its cause
//	step      one step of work under the lock, begun at At, was allowed
//	stopped   no more steps: Lock.Err said why
//	unlocked  with the error, if any
//	looped    with the result
//	looked, begun, committed    see [business]
func runPeer(args []string) {
	var cfg peerConfig
	if err := json.Unmarshal([]byte(args[0]), &cfg); err != nil {
		die(err)
	}
	var stores []tierlock.Store
	if cfg.Addr != "" {
		store, err := openStore(cfg.Addr, redisstore.Options{NoPush: cfg.NoPush, CallTimeout: cfg.CallTimeout})
		if err != nil {
			die(err)
		}
		stores = append(stores, store)
	}
	if cfg.Locks != "" {
		db, err := sqlx.Open("mysql", cfg.Locks)
		if err != nil {
			die(err)
		}
		stores = append(stores, mysqlstore.New(db, mysqlstore.Options{Logger: discard, Durable: cfg.Addr != "", CallTimeout: cfg.CallTimeout}))
	}
	all := config(nil, cfg.Resources...)
	all.Stores, all.Degrade, all.CallTimeout = stores, cfg.Degrade, cfg.CallTimeout
	l, err := tierlock.New(all)
	if err != nil {
		die(err)
	}
	p := &peerSide{locker: l, locks: make(map[int]*tierlock.Lock), out: json.NewEncoder(os.Stdout)}
	if cfg.DSN != "" {
		if p.business, err = openBusiness(cfg.DSN); err != nil {
			die(err)
		}
	}
	p.tell(event{What: "ready"}, nil)
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		var o order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			die(err)
		}
		go p.obey(o)
	}
}

func die(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

type peerSide struct {
	locker *tierlock.Locker
	mu     sync.Mutex // guards locks and out
	locks  map[int]*tierlock.Lock
	out    *json.Encoder

	business *business
}

func (p *peerSide) tell(e event, err error) {
	if e.At == 0 {
		e.At = time.Now().UnixNano()
	}
	if err != nil {
		e.Err = err.Error()
		for name, s := range sentinels {
			if errors.Is(err, s) {
				e.Is = append(e.Is, name)
			}
		}
		var lost *tierlock.LostError
		if errors.As(err, &lost) {
			e.Reason = lost.Reason.String()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.out.Encode(e); err != nil {
		die(err)
	}
}

func (p *peerSide) lock(id int) *tierlock.Lock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.locks[id]
}

func (p *peerSide) obey(o order) {
	switch o.Op {
	case "lock":
		var opts []tierlock.Option
		if o.Wait > 0 {
			opts = append(opts, tierlock.Wait(o.Wait))
		} else {
			opts = append(opts, tierlock.NoWait())
		}
		if o.Holder != "" {
			opts = append(opts, tierlock.Holder(o.Holder))
		}
		k, err := p.locker.Lock(bg, o.Resource, o.Key, opts...)
		at := time.Now().UnixNano()
		if err != nil {
			p.tell(event{ID: o.ID, What: "refused", At: at}, err)
			return
		}
		p.mu.Lock()
		p.locks[o.ID] = k
		p.mu.Unlock()
		t := k.Token()
		p.tell(event{ID: o.ID, What: "locked", At: at, Token: &t}, nil)
		<-k.Context().Done()
		p.tell(event{ID: o.ID, What: "ended"}, context.Cause(k.Context()))
	case "unlock":
		p.tell(event{ID: o.ID, What: "unlocked"}, p.lock(o.ID).Unlock())
	case "step":
		k := p.lock(o.ID)
		for {
			// Read before the look at the lock: a process stopped between the
			// two begins no new step.
			at := time.Now().UnixNano()
			if err := k.Err(); err != nil {
				p.tell(event{ID: o.ID, What: "stopped", At: at}, err)
				return
			}
			p.tell(event{ID: o.ID, What: "step", At: at}, nil)
			time.Sleep(5 * time.Millisecond)
		}
	case "loop":
		r := loop(p.locker, o.Resource, o.Key, o.For, o.Pause)
		p.tell(event{ID: o.ID, What: "looped", Loop: &r}, nil)
	case "look":
		p.tell(event{ID: o.ID, What: "looked"}, p.lock(o.ID).Err())
	case "begin":
		p.tell(event{ID: o.ID, What: "begun"}, p.business.begin(p.lock(o.ID).Token(), o.Amount))
	case "commit":
		p.tell(event{ID: o.ID, What: "committed"}, p.business.commit())
	default:
		die(fmt.Errorf("no order %q", o.Op))
	}
}

// loopResult is what a loop of lock and unlock has seen.
type loopResult struct {
	Rounds  int
	Longest time.Duration // wait
	Slow    int           // waits of 900 ms or more: such as only the poll ends
	Errors  []string
}

func loop(l *tierlock.Locker, resource, key string, d, pause time.Duration) (r loopResult) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		start := time.Now()
		k, err := l.Lock(bg, resource, key, tierlock.Wait(patience))
		wait := time.Since(start)
		r.Longest = max(r.Longest, wait)
		if wait >= 900*time.Millisecond {
			r.Slow++
		}
		if err == nil {
			err = k.Unlock()
		}
		if err != nil {
			r.Errors = append(r.Errors, err.Error())
			if len(r.Errors) > 5 {
				return r
			}
		}
		r.Rounds++
		if pause > 0 {
			time.Sleep(rand.N(pause))
		}
	}
	return r
}

// peer is the test's side. Its methods fail the test, so one goroutine at a
// time uses it.
type peer struct {
	t      testing.TB
	p      *rig.Process
	events []event // read, and not asked for yet
	last   int
}

func newPeer(t testing.TB, cfg peerConfig) *peer {
	t.Helper()
	arg, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, p: rig.Spawn(t, "peer", string(arg))}
	p.wait(0, "ready")
	return p
}

// send gives an order and returns its number; one that names a lock keeps it.
func (p *peer) send(o order) int {
	p.t.Helper()
	if o.ID == 0 {
		p.last++
		o.ID = p.last
	}
	line, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.p.Send(string(line))
	return o.ID
}

// next takes the next event in the order in which they were written.
func (p *peer) next(within time.Duration) event {
	p.t.Helper()
	var e event
	line := p.p.Line(within)
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		p.t.Fatalf("peer wrote %q: %v", line, err)
	}
	return e
}

// wait takes the next event of that kind about order id, and keeps others for
// later. It skips steps, unless they are what is waited for.
func (p *peer) wait(id int, what string) event {
	p.t.Helper()
	return p.waitFor(id, what, patience)
}

func (p *peer) waitFor(id int, what string, within time.Duration) event {
	p.t.Helper()
	for i, e := range p.events {
		if e.ID == id && e.What == what {
			p.events = append(p.events[:i], p.events[i+1:]...)
			return e
		}
	}
	for end := time.Now().Add(within); ; {
		e := p.next(time.Until(end))
		switch {
		case e.ID == id && e.What == what:
			return e
		case e.ID == id && e.What == "refused" && what == "locked":
			p.t.Fatalf("peer: lock %d refused: %s", id, e.Err)
		case e.What == "step" && what != "step":
		default:
			p.events = append(p.events, e)
		}
	}
}

// lock takes a lock and returns its number and token.
func (p *peer) lock(resource, key string, wait time.Duration) (int, tierlock.Token) {
	p.t.Helper()
	id := p.send(order{Op: "lock", Resource: resource, Key: key, Wait: wait})
	return id, *p.waitFor(id, "locked", wait+patience).Token
}

func (p *peer) unlock(id int) event {
	p.t.Helper()
	p.send(order{ID: id, Op: "unlock"})
	return p.wait(id, "unlocked")
}

// mustUnlock unlocks what must still be held.
func (p *peer) mustUnlock(id int) {
	p.t.Helper()
	if e := p.unlock(id); e.Err != "" {
		p.t.Errorf("peer: unlock: %s", e.Err)
	}
}
