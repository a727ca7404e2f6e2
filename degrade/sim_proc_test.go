package degrade_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// simProc is one process of the simulation: a runner over clients of its own, a
// clock that may be wrong by a hundredth, and workers that lock. Between any two of
// its steps it may stop for a while, with its calls under way.
type simProc struct {
	w      *simWorld
	name   string
	redis  *sim.RedisStore
	mysql  *sim.MySQLStore
	run    *degrade.Runner
	start  time.Time
	ppm    int64
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	rng   *rand.Rand
	holds map[degrade.HoldID]tierlock.AdoptRequest
	n     int
}

const (
	simTTL    = 10 * time.Second
	simMargin = simTTL / 10
	simCall   = 500 * time.Millisecond
)

func (p *simProc) now() degrade.Instant {
	d := time.Since(p.start)
	return degrade.Instant(d + d/1000*time.Duration(p.ppm)/1000)
}

func (p *simProc) random() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.Float64()
}

// stall is a stop of the process, or of one of its goroutines: seldom, and as long
// as it likes.
func (p *simProc) stall() {
	if p.random() < p.w.stalls && !p.w.calmed.Load() {
		f := p.random()
		time.Sleep(time.Duration(f * f * float64(90*time.Second)))
	}
}

func (p *simProc) store(t degrade.Tier) tierlock.Chained {
	if t == degrade.MySQL {
		return p.mysql
	}
	return p.redis
}

func simPlace(t degrade.Ticket) tierlock.Place {
	return tierlock.Place{Epoch: t.Epoch, Incarnation: t.Incarnation, Exclusive: true}
}

// Arbitrate, probe and adopt are the runner's calls, with stops before the sending
// and before the reply is heard.
func (p *simProc) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	defer p.stall()
	p.stall()
	return p.mysql.Arbitrate(ctx, self, a)
}

func (p *simProc) probe(ctx context.Context, epoch uint16) (string, error) {
	defer p.stall()
	p.stall()
	res, err := p.redis.Probe(ctx, tierlock.ProbeRequest{Namespace: "sim", Epoch: epoch})
	return res.Incarnation, err
}

func (p *simProc) adopt(ctx context.Context, to degrade.Mode, ids []degrade.HoldID) []degrade.Adoption {
	defer p.stall()
	p.stall()
	out := make([]degrade.Adoption, len(ids))
	var reqs []tierlock.AdoptRequest
	var index []int
	p.mu.Lock()
	for i, id := range ids {
		if req, ok := p.holds[id]; ok {
			req.Place = simPlace(to.Ticket())
			reqs, index = append(reqs, req), append(index, i)
		}
	}
	p.mu.Unlock()
	for i, r := range p.store(to.Tier).Adopt(ctx, reqs) {
		switch {
		case r.Err != nil:
		case r.State == tierlock.LeaseOwned:
			out[index[i]] = degrade.Taken
		default:
			out[index[i]] = degrade.NotTaken
		}
	}
	return out
}

// simCtx bounds one call of a worker. It does not end with the process: what a
// process has sent is sent.
func simCtx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), simCall)
}

// worker takes locks and gives them back until the process ends.
func (p *simProc) worker() {
	for p.sleep(time.Duration(p.random() * float64(time.Second))) {
		changed := p.run.Changed()
		ticket, ok := p.run.MayGrant()
		if !ok {
			select {
			case <-changed:
			case <-time.After(time.Second):
			case <-p.ctx.Done():
			}
			continue
		}
		p.lock(ticket)
	}
}

// sleep reports whether the process still lives.
func (p *simProc) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return p.ctx.Err() == nil
	case <-p.ctx.Done():
		return false
	}
}

// lock is one try, and the hold that may come of it.
func (p *simProc) lock(ticket degrade.Ticket) {
	p.mu.Lock()
	p.n++
	lease := fmt.Sprintf("%s-%d", p.name, p.n)
	p.mu.Unlock()
	key := fmt.Sprint("k", int(p.random()*float64(p.w.keys)))
	name := tierlock.Name{Namespace: "sim", Resource: "r", Key: key}
	sent := p.now()
	p.stall()
	ctx, cancel := simCtx()
	defer cancel()
	res, err := p.store(ticket.Tier).Acquire(ctx, tierlock.AcquireRequest{
		Name: name, TTL: simTTL, Budget: simMargin / 2, Token: tierlock.Token{Lease: lease, TTL: simTTL}, Place: simPlace(ticket),
	})
	p.stall()
	if err != nil {
		p.run.Suspect() // more often than is right; it only makes probes come faster
	}
	if err != nil || !res.Granted {
		if err != nil {
			p.release(name, lease, []degrade.Ticket{ticket})
		}
		return
	}
	id := degrade.HoldID(lease)
	p.mu.Lock()
	p.holds[id] = tierlock.AdoptRequest{Name: name, Token: res.Token, TTL: simTTL}
	p.mu.Unlock()
	hold := degrade.Hold{ID: id, Lease: simTTL - simMargin, Until: sent.Add(simTTL - simMargin), Exclusive: true}
	places := []degrade.Ticket{ticket}
	if p.run.Granted(ticket, hold) {
		b := p.w.history.Began(key, p.name, res.Token.Fence, func() bool {
			return p.ctx.Err() == nil && p.now() < p.run.Belief(id)
		})
		p.w.grants(p)
		p.hold(name, id)
		if b.Ended() {
			p.w.kept.Add(1)
		}
		places = p.run.Release(id)
	}
	p.mu.Lock()
	delete(p.holds, id)
	p.mu.Unlock()
	p.release(name, lease, places)
}

// hold renews for a while, or until belief is over.
func (p *simProc) hold(name tierlock.Name, id degrade.HoldID) {
	end := p.now().Add(time.Duration(p.random() * p.random() * float64(p.w.longest)))
	for p.sleep(min(simTTL/3, end.Sub(p.now()))) && p.now() < min(end, p.run.Belief(id)) && !p.w.calmed.Load() {
		place, ok := p.run.Place(id)
		if !ok {
			return
		}
		sent := p.now()
		p.stall()
		ctx, cancel := simCtx()
		res := p.store(place.Tier).Renew(ctx, []tierlock.RenewRequest{{Name: name, Lease: string(id), TTL: simTTL, Place: simPlace(place)}})
		cancel()
		p.stall()
		switch {
		case res[0].Err != nil:
		case res[0].State == tierlock.LeaseOwned:
			p.run.Renewed(id, place.Epoch, sent.Add(simTTL-simMargin))
		default:
			if now, _ := p.run.Place(id); now == place {
				return // taken: it is over
			}
		}
	}
}

// release gives a lease up where it may be. What fails ends by itself.
func (p *simProc) release(name tierlock.Name, lease string, places []degrade.Ticket) {
	for _, t := range places {
		ctx, cancel := simCtx()
		p.store(t.Tier).Release(ctx, tierlock.ReleaseRequest{Name: name, Lease: lease, Place: simPlace(t)})
		cancel()
	}
}

// end ends the process: with grace, or as a kill does.
func (p *simProc) end(kill bool) {
	p.w.swarm.Leave(p.redis)
	p.cancel()
	if kill {
		p.redis.Close()
		p.mysql.Close()
	} else {
		p.work.Wait()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if kill {
		cancel()
	}
	p.run.Close(ctx)
	p.work.Wait()
	p.redis.Close()
	p.mysql.Close()
}
