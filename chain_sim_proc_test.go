package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// simLocker is one process of the simulation: a Locker over clients of its own, and
// workers that lock. Between two of its steps it may stop for a while, with its
// calls under way.
type simLocker struct {
	*tierlock.Locker
	w      *simLockers
	name   string
	redis  *sim.RedisStore
	mysql  *sim.MySQLStore
	ctx    context.Context // ends with the process
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu  sync.Mutex
	rng *rand.Rand
}

// stalledRedis and stalledMySQL are the process's stores with its stops.
type stalledRedis struct {
	*sim.RedisStore
	p *simLocker
}

type stalledMySQL struct {
	*sim.MySQLStore
	p *simLocker
}

func (p *simLocker) random() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.Float64()
}

// stall is a stop: seldom, and as long as it likes.
func (p *simLocker) stall() {
	if p.random() < p.w.stalls && !p.w.calmed.Load() {
		f := p.random()
		time.Sleep(time.Duration(f * f * float64(simLongestStall)))
	}
}

const simLongestStall = 90 * time.Second

// acquire counts a stop before the sending against the budget, as the store would.
func (p *simLocker) acquire(ctx context.Context, s tierlock.Store, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	defer p.stall()
	began := time.Now()
	p.stall()
	if req.Budget -= time.Since(began); req.Budget <= 0 {
		return tierlock.AcquireResult{}, tierlock.ErrLate
	}
	return s.Acquire(ctx, req)
}

func (s stalledRedis) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	return s.p.acquire(ctx, s.RedisStore, req)
}

func (s stalledMySQL) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	return s.p.acquire(ctx, s.MySQLStore, req)
}

func (s stalledRedis) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	defer s.p.stall()
	s.p.stall()
	return s.RedisStore.Renew(ctx, reqs)
}

func (s stalledMySQL) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	defer s.p.stall()
	s.p.stall()
	return s.MySQLStore.Renew(ctx, reqs)
}

func (s stalledRedis) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	defer s.p.stall()
	s.p.stall()
	return s.RedisStore.Adopt(ctx, reqs)
}

func (s stalledMySQL) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	defer s.p.stall()
	s.p.stall()
	return s.MySQLStore.Adopt(ctx, reqs)
}

func (s stalledRedis) Probe(ctx context.Context, req tierlock.ProbeRequest) (tierlock.ProbeResult, error) {
	defer s.p.stall()
	s.p.stall()
	return s.RedisStore.Probe(ctx, req)
}

func (s stalledMySQL) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	defer s.p.stall()
	s.p.stall()
	return s.MySQLStore.Arbitrate(ctx, self, a)
}

// Linger is how late a call may still be executed: also one that the process has
// not sent yet when it is stopped.
func (s stalledRedis) Linger() time.Duration { return s.RedisStore.Linger() + s.p.w.lingers() }
func (s stalledMySQL) Linger() time.Duration { return s.MySQLStore.Linger() + s.p.w.lingers() }

// join starts a process.
func (w *simLockers) join() {
	w.n++
	n := uint64(w.n)
	p := &simLocker{w: w, name: fmt.Sprint("p", n), rng: rand.New(rand.NewPCG(uint64(w.swarm.Random()*1e9), n))}
	p.redis = w.redis.Client(sim.ClientOptions{Seed: n, Limit: 2 * time.Second})
	p.mysql = w.mysql.Client(sim.ClientOptions{Seed: n, Limit: 2 * time.Second})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	w.swarm.Join(p.redis, p.mysql)
	l, err := tierlock.New(tierlock.Config{
		App: p.name, Namespace: "sim", Stores: []tierlock.Store{stalledRedis{p.redis, p}, stalledMySQL{p.mysql, p}},
		Resources: []tierlock.Resource{
			{Name: "x", Floor: tierlock.MySQL, Exclusive: true, TTL: simLockerTTL},
			{Name: "b", Floor: tierlock.MySQL, TTL: simLockerTTL},
			{Name: "r", TTL: simLockerTTL},
		},
		Degrade: w.degrade, Logger: slog.New(slog.DiscardHandler),
		Observer: tierlock.Observer{
			Draining:    func(e tierlock.ChainEvent) { w.history.Logf("%s: drain to %v, epoch %d", p.name, e.Tier, e.Epoch) },
			TierChanged: func(e tierlock.ChainEvent) { w.history.Logf("%s: %v, epoch %d", p.name, e.Tier, e.Epoch) },
		},
	})
	if err != nil {
		panic(err)
	}
	p.Locker = l
	for range 3 {
		p.work.Go(p.worker)
	}
	w.procs = append(w.procs, p)
}

// sleep reports whether the process still lives.
func (p *simLocker) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return p.ctx.Err() == nil
	case <-p.ctx.Done():
		return false
	}
}

// worker takes locks and gives them back until the process ends.
func (p *simLocker) worker() {
	for p.sleep(time.Duration(p.random() * float64(2*time.Second))) {
		resource, key := "x", fmt.Sprint("k", int(p.random()*float64(p.w.keys)))
		switch f := p.random(); {
		case f < 0.1:
			resource = "b"
		case f < 0.2:
			resource = "r"
		}
		opt := tierlock.Wait(time.Millisecond + time.Duration(p.random()*float64(5*time.Second)))
		if p.random() < 0.2 {
			opt = tierlock.NoWait()
		}
		k, err := p.Lock(p.ctx, resource, key, opt)
		if err != nil {
			if p.ctx.Err() == nil && !errors.Is(err, tierlock.ErrHeld) && !errors.Is(err, tierlock.ErrUnavailable) {
				p.w.history.Wrong("%s: Lock: %v, want a lock, ErrHeld or ErrUnavailable", p.name, err)
			}
			continue
		}
		lasts := time.Duration(p.random() * p.random() * float64(p.w.longest))
		if resource == "x" {
			p.hold(k, key, lasts)
			continue
		}
		p.sleep(lasts)
		k.Unlock()
	}
}

// hold has an exclusive lock for a while, or until it is lost.
func (p *simLocker) hold(k *tierlock.Lock, key string, lasts time.Duration) {
	if g := k.Guarantee(); g != tierlock.Exclusive {
		p.w.history.Wrong("%s: a lock is worth %v, want %v", p.name, g, tierlock.Exclusive)
	}
	b := p.w.history.Began(key, p.name, k.Token().Fence, func() bool { return p.ctx.Err() == nil && k.Err() == nil })
	t := time.NewTimer(lasts)
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.Context().Done():
		if k.Err() == nil {
			p.w.history.Wrong("%s: the context of %s has ended with %v, and Err is nil", p.name, key, context.Cause(k.Context()))
		}
	}
	held := b.Ended()
	err := k.Unlock()
	switch {
	case held && err == nil:
		p.w.kept.Add(1)
	case err != nil && !errors.Is(err, tierlock.ErrLost) && !errors.Is(err, tierlock.ErrUnavailable) && p.ctx.Err() == nil:
		p.w.history.Wrong("%s: Unlock: %v, want nil, ErrLost or ErrUnavailable", p.name, err)
	}
}

// end ends the process: with grace, or as a kill does.
func (p *simLocker) end(kill bool) {
	p.w.swarm.Leave(p.redis)
	p.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if kill {
		p.redis.Close()
		p.mysql.Close()
		cancel()
	} else {
		p.work.Wait()
	}
	if err := p.Close(ctx); err != nil {
		p.w.history.Logf("%s: Close: %v", p.name, err)
	}
	p.work.Wait()
	p.redis.Close()
	p.mysql.Close()
}
