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
	"time"

	"go.uber.org/goleak"

	"github.com/tierlock/tierlock"
)

// chaosConfig is what a process under chaos is told.
type chaosConfig struct {
	Addr    string // of its proxy
	Proc    int
	Seed    uint64
	History string // the file to write at the end
	Broken  bool   // break the rules, to see that it is found
}

const (
	longestTTL   = 3 * time.Second
	chaosWorkers = 20
	chaosCampers = 6 // of them
)

// chaosResources have 50 keys together, and there are six that are camped on.
var chaosResources = []struct {
	tierlock.Resource
	keys int
}{
	{tierlock.Resource{Name: "plain", TTL: 1500 * time.Millisecond}, 20},
	{tierlock.Resource{Name: "shared", TTL: longestTTL, Reentrant: true}, 20},
	{tierlock.Resource{Name: "kept", TTL: 1200 * time.Millisecond, MinHold: 300 * time.Millisecond}, 10},
}

type chaosName struct{ resource, key string }

// campOf is what camper i of each process wants.
func campOf(i int) chaosName {
	return chaosName{chaosResources[i%len(chaosResources)].Name, fmt.Sprint("camp", i)}
}

// chaosNames are all locks that there are.
func chaosNames() (names []chaosName) {
	for _, res := range chaosResources {
		for i := range res.keys {
			names = append(names, chaosName{res.Name, fmt.Sprint(i)})
		}
	}
	for i := range chaosCampers {
		names = append(names, campOf(i))
	}
	return names
}

// chaosCounts is what a process has met.
type chaosCounts struct {
	Held        int            // handles given
	Nested      int            // of them, those that entered a hold of their own context
	Ends        map[string]int // results of Lock, Do and Unlock, by sentinel
	Stalls      int
	Outstanding []string // what the process failed to get back at the end
}

// runChaos is a process under chaos: it works until told to stop, and then has
// to come to rest. It writes:
//
//	ready      work has begun
//	worked     no lock is held any more; it waits for a line
//	rest       with the counts: all was closed, and the history written
//
// and ends at one more line.
func runChaos(args []string) {
	var cfg chaosConfig
	if err := json.Unmarshal([]byte(args[0]), &cfg); err != nil {
		die(err)
	}
	before := goleak.IgnoreCurrent()
	c := &chaosSide{proc: cfg.Proc, stop: make(chan struct{}), counts: chaosCounts{Ends: map[string]int{}}}
	beat := c.watchStalls()
	store, err := openStore(cfg.Addr)
	if err != nil {
		die(err)
	}
	var s tierlock.Store = store
	if cfg.Broken {
		s = &ruleBreaker{Store: store}
	}
	var rs []tierlock.Resource
	for _, r := range chaosResources {
		rs = append(rs, r.Resource)
	}
	if c.locker, err = tierlock.New(config(s, rs...)); err != nil {
		die(err)
	}
	var wg sync.WaitGroup
	for i := range chaosWorkers {
		r := rand.New(rand.NewPCG(cfg.Seed, uint64(1000*(cfg.Proc+1)+i)))
		wg.Go(func() {
			for !c.stopping() {
				if i < chaosCampers {
					c.camp(r, i)
				} else {
					c.round(r)
				}
			}
		})
	}
	fmt.Println("ready")
	orders := bufio.NewScanner(os.Stdin)
	orders.Scan() // any line, or the end of the test
	close(c.stop)
	wg.Wait()
	if !cfg.Broken {
		c.lockAll()
	}
	fmt.Println("worked")
	orders.Scan() // what it left in the server is looked at while it could go on

	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := c.locker.Close(ctx); err != nil && !cfg.Broken {
		c.outstanding("Close: %v", err)
	}
	store.Close()
	close(beat)
	err = goleak.Find(before)
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(before)
	}
	if err != nil {
		c.outstanding("%v", err)
	}
	c.mu.Lock() // what was noted by goroutines that have ended
	defer c.mu.Unlock()
	if err := c.writeLocked(cfg.History); err != nil {
		die(err)
	}
	line, err := json.Marshal(c.counts)
	if err != nil {
		die(err)
	}
	fmt.Println("rest", string(line))
	orders.Scan() // what it left behind is looked at while it lives
}

type chaosSide struct {
	locker *tierlock.Locker
	proc   int
	stop   chan struct{} // closed when no more work is to begin

	mu     sync.Mutex // guards what follows
	events []chaosEvent
	counts chaosCounts
}

func (c *chaosSide) stopping() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

func (c *chaosSide) note(e chaosEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	if e.Stall != nil {
		c.counts.Stalls++
	}
}

func (c *chaosSide) complain(format string, args ...any) {
	c.note(chaosEvent{Complaint: fmt.Sprintf("process %d: ", c.proc) + fmt.Sprintf(format, args...), At: machineTime()})
}

func (c *chaosSide) outstanding(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Outstanding = append(c.counts.Outstanding, fmt.Sprintf(format, args...))
}

func (c *chaosSide) writeLocked(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for _, e := range c.events {
		err = errors.Join(err, enc.Encode(e))
	}
	return errors.Join(err, w.Flush(), f.Close())
}

// watchStalls notes when the process does not run, until the channel is closed.
func (c *chaosSide) watchStalls() chan struct{} {
	const beat, limit = 5 * time.Millisecond, 25 * time.Millisecond
	stop := make(chan struct{})
	go func() {
		for last := machineTime(); ; {
			select {
			case <-stop:
				return
			case <-time.After(beat):
			}
			now := machineTime()
			if now-last > int64(limit) {
				c.note(chaosEvent{Stall: &stall{c.proc, last, now}})
			}
			last = now
		}
	}()
	return stop
}

// camp takes a lock that camper i of the other process wants as well, and works
// long: at every moment somebody waits for the first to lose it.
func (c *chaosSide) camp(r *rand.Rand, i int) {
	res := chaosResources[i%len(chaosResources)].Resource
	h := &chaosHold{c: c, r: r, work: span(r, res.TTL/2, 4*res.TTL), res: res, heldLock: heldLock{
		Proc: c.proc, Resource: res.Name, Key: campOf(i).key,
	}}
	h.lock(bg, tierlock.Wait(2*longestTTL))
}

// round takes one lock in one of the ways there are, works under it, and gives
// it back.
func (c *chaosSide) round(r *rand.Rand) {
	res := chaosResources[r.IntN(len(chaosResources))]
	// The smaller of two: some keys are asked for more often than others.
	h := &chaosHold{c: c, r: r, work: workTime(r), res: res.Resource, heldLock: heldLock{
		Proc: c.proc, Resource: res.Name, Key: fmt.Sprint(min(r.IntN(res.keys), r.IntN(res.keys))),
	}}
	var opts []tierlock.Option
	if res.Reentrant && r.IntN(3) == 0 {
		h.Holder = fmt.Sprint("h", r.IntN(3)) // of both processes
		opts = append(opts, tierlock.Holder(h.Holder))
	}
	if r.IntN(5) == 0 {
		opts = append(opts, tierlock.TTL(max(res.MinHold, span(r, res.TTL/3, res.TTL))))
	}
	if r.IntN(10) == 0 {
		opts = append(opts, tierlock.Lease(max(res.MinHold, span(r, 300*time.Millisecond, 2*time.Second))))
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	if r.IntN(4) == 0 { // in the wait, or in the hold
		stop := time.AfterFunc(span(r, 0, 700*time.Millisecond), cancel)
		defer stop.Stop()
	}
	wait := tierlock.Wait(span(r, 5*time.Millisecond, time.Second))
	switch r.IntN(6) {
	case 0:
		h.Called = machineTime()
		k, err := c.locker.TryLock(ctx, h.Resource, h.Key, opts...)
		h.locked(k, err)
	case 1:
		h.do(ctx, append(opts, wait)...)
	case 2:
		ctx, cancel := context.WithTimeout(ctx, span(r, 50*time.Millisecond, 4*time.Second))
		defer cancel()
		h.lock(ctx, append(opts, tierlock.UntilDone())...)
	default:
		h.lock(ctx, append(opts, wait)...)
	}
}

func workTime(r *rand.Rand) time.Duration {
	switch k := r.IntN(100); {
	case k < 70:
		return span(r, 0, 20*time.Millisecond)
	case k < 93:
		return span(r, 20*time.Millisecond, 300*time.Millisecond)
	}
	return span(r, 300*time.Millisecond, longestTTL*4/3) // renewed on the way
}

// chaosHold is one handle on its way through a worker.
type chaosHold struct {
	heldLock
	c    *chaosSide
	r    *rand.Rand
	res  tierlock.Resource
	work time.Duration
	nest sync.WaitGroup // of the handle that entered it
}

func (h *chaosHold) lock(ctx context.Context, opts ...tierlock.Option) {
	h.Called = machineTime()
	k, err := h.c.locker.Lock(ctx, h.Resource, h.Key, opts...)
	h.locked(k, err)
}

// locked works under a lock that was given, and unlocks it.
func (h *chaosHold) locked(k *tierlock.Lock, err error) {
	if err != nil {
		h.refused(err)
		return
	}
	h.given(k.Token())
	end := time.Now().Add(h.work)
	lingers := h.r.IntN(3) == 0 // goes on although the lock is lost
	nests := h.res.Reentrant && h.Holder == "" && h.r.IntN(3) == 0
	for (h.look(k.Err, k.Context()) || lingers) && !h.c.stopping() {
		switch left := time.Until(end); {
		case left <= 0:
		case h.r.IntN(50) == 0:
			// An answer to "may I go on for so long" either way.
			_ = k.Ensure(span(h.r, time.Millisecond, h.res.TTL/2))
			continue
		case nests:
			nests = false
			h.reenter(k)
			continue
		default:
			time.Sleep(min(left, span(h.r, time.Millisecond, 10*time.Millisecond)))
			continue
		}
		break
	}
	h.look(k.Err, k.Context())
	h.Unlock = machineTime()
	if h.r.IntN(8) == 0 { // from several goroutines
		go func() { _ = k.Unlock() }()
	}
	h.unlocked(k.Unlock())
	h.nest.Wait()
	if k.Err() == nil || k.Context().Err() == nil {
		h.c.complain("%s/%s %s is believed in after Unlock", h.Resource, h.Key, h.ID)
	}
}

// reenter enters the hold again, half the time beside the outer one, so that
// either may be unlocked first.
func (h *chaosHold) reenter(k *tierlock.Lock) {
	in := &chaosHold{c: h.c, r: rand.New(rand.NewPCG(h.r.Uint64(), 0)), work: workTime(h.r) / 4, res: h.res,
		heldLock: heldLock{Proc: h.Proc, Resource: h.Resource, Key: h.Key, Called: machineTime()}}
	inner, err := h.c.locker.Lock(k.Context(), h.Resource, h.Key)
	if err != nil {
		in.refused(err)
		return
	}
	h.c.mu.Lock()
	h.c.counts.Nested++
	h.c.mu.Unlock()
	if h.ID != inner.Token().ID {
		// Right where the outer hold was lost in between, and this is another.
		if k.Err() == nil {
			h.c.complain("%s/%s: nested in %s, given %s", h.Resource, h.Key, h.ID, inner.Token().ID)
		}
	}
	if h.r.IntN(2) == 0 {
		in.locked(inner, nil)
		return
	}
	h.nest.Go(func() { in.locked(inner, nil) })
}

func (h *chaosHold) do(ctx context.Context, opts ...tierlock.Option) {
	ran := false
	h.Called = machineTime()
	err := h.c.locker.Do(ctx, h.Resource, h.Key, func(ctx context.Context) error {
		ran = true
		h.given(tierlock.TokenFrom(ctx))
		for end := time.Now().Add(h.work); h.look(nil, ctx) && time.Now().Before(end) && !h.c.stopping(); {
			time.Sleep(min(time.Until(end), span(h.r, time.Millisecond, 10*time.Millisecond)))
		}
		h.look(nil, ctx)
		return nil
	}, opts...)
	switch {
	case !ran:
		h.refused(err)
	case err != nil && !errors.Is(err, tierlock.ErrLost) && !errors.Is(err, tierlock.ErrLeaseExceeded):
		h.c.complain("%s/%s: Do gave %v for work that was done", h.Resource, h.Key, err)
	default:
		h.unlocked(err)
	}
}

func (h *chaosHold) given(t tierlock.Token) {
	h.Returned = machineTime()
	h.ID, h.Lease, h.Fence, h.Granted = t.ID, t.Lease, t.Fence, t.ServerTime.UnixMicro()
}

// look looks whether the lock is held, in both ways there are, and says so.
func (h *chaosHold) look(err func() error, ctx context.Context) bool {
	held := false
	// The clock is read first: a process stopped between the two claims less.
	if err != nil {
		if at := machineTime(); err() == nil {
			h.Believed, held = at, true
		}
	}
	if at := machineTime(); ctx.Err() == nil {
		h.Alive, held = at, true
	}
	return held
}

// documented are the sentinels that callers may branch on, and what each end is
// counted as.
var documented = []struct {
	name string
	err  error
}{
	{"lost", tierlock.ErrLost}, {"exceeded", tierlock.ErrLeaseExceeded}, {"held", tierlock.ErrHeld},
	{"unavailable", tierlock.ErrUnavailable}, {"reentrant", tierlock.ErrReentrant},
	{"canceled", context.Canceled}, {"deadline", context.DeadlineExceeded},
}

func (h *chaosHold) refused(err error) {
	// A store that is known to be down refuses at once.
	defer time.Sleep(span(h.r, time.Millisecond, 30*time.Millisecond))
	if h.c.count(err, "refused: ") == "" {
		h.c.complain("%s/%s: Lock gave %v", h.Resource, h.Key, err)
	}
}

func (h *chaosHold) unlocked(err error) {
	name := h.c.count(err, "unlocked: ")
	if name != "ok" && name != "lost" && name != "exceeded" && name != "unavailable" {
		h.c.complain("%s/%s: Unlock gave %v", h.Resource, h.Key, err)
	}
	if err != nil {
		h.Err = err.Error()
	}
	l := h.heldLock
	h.c.note(chaosEvent{Held: &l})
}

// count counts a result and returns its name, "" if callers could not know it.
func (c *chaosSide) count(err error, what string) (name string) {
	if err == nil {
		name = "ok"
	}
	for _, s := range documented {
		if name == "" && errors.Is(err, s.err) {
			name = s.name
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Ends[what+name]++
	if what == "unlocked: " {
		c.counts.Held++
	}
	return name
}

// lockAll takes every key once, when all faults are over: none may have stayed
// with a hold that is over, and nothing may be left that goes on.
func (c *chaosSide) lockAll() {
	var wg sync.WaitGroup
	for _, name := range chaosNames() {
		wg.Go(func() {
			if err := c.lockOnce(name); err != nil {
				c.outstanding("%s/%s at the end: %v", name.resource, name.key, err)
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		st := c.locker.Status()
		if st.Holds+st.Waiters+st.Undos == 0 {
			return
		}
		if time.Now().After(end) {
			c.outstanding("at rest there are %d holds, %d waiters, %d undos", st.Holds, st.Waiters, st.Undos)
			return
		}
	}
}

// lockOnce takes and frees a key within patience. The process may still find out
// that the store is back; and the server may be slow for a moment, as where all
// tests write to one disk: then Unlock does not know that the key is free, and
// the next Lock finds out.
func (c *chaosSide) lockOnce(name chaosName) error {
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	for {
		k, err := c.locker.Lock(ctx, name.resource, name.key, tierlock.UntilDone())
		if err != nil {
			return err
		}
		err = k.Unlock()
		if !errors.Is(err, tierlock.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
	}
}

// ruleBreaker is a store that breaks two promises: it confirms renewals without
// asking the server, so that belief outlasts the lease, and gives each second
// grant the fence of the one before.
type ruleBreaker struct {
	tierlock.Store

	mu     sync.Mutex
	grants int
	fence  map[tierlock.Name]uint64
}

func (s *ruleBreaker) Renew(_ context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	results := make([]tierlock.RenewResult, len(reqs))
	for i := range results {
		results[i].State = tierlock.LeaseOwned
	}
	return results
}

func (s *ruleBreaker) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	res, err := s.Store.Acquire(ctx, req)
	if err != nil || !res.Granted {
		return res, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence == nil {
		s.fence = make(map[tierlock.Name]uint64)
	}
	if s.grants++; s.grants%2 == 0 && s.fence[req.Name] != 0 {
		res.Token.Fence = s.fence[req.Name]
	}
	s.fence[req.Name] = res.Token.Fence
	return res, err
}
