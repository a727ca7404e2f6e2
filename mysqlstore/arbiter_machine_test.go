package mysqlstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainProc is one process's machine, run over the real arbiter. Redis is a flag,
// and adoptions are all confirmed: locks are not what this is about.
type chainProc struct {
	self  degrade.Self
	s     *mysqlstore.Store
	redis *atomic.Bool // it answers
	began time.Time
	wake  chan struct{}

	mu      sync.Mutex
	m       *degrade.Machine
	renewed degrade.Instant
	lease   time.Duration
	ended   []degrade.Event
	errs    int
}

// chainConfig is that of a chain that does in a second what takes a minute.
func chainConfig(self degrade.Self, term time.Duration) degrade.Config {
	return degrade.Config{Member: self.Member, Digest: self.Digest, Term: term,
		Refresh: 400 * time.Millisecond, Poll: 50 * time.Millisecond, Probe: 100 * time.Millisecond, Suspect: 50 * time.Millisecond,
		Up: 300 * time.Millisecond, Dwell: 500 * time.Millisecond, Grace: 500 * time.Millisecond}
}

// chainOf is a chain of processes, each with a store of its own.
func chainOf(t *testing.T, namespace string, term time.Duration, redis *atomic.Bool, stores ...*mysqlstore.Store) (procs []*chainProc, stop []context.CancelFunc) {
	t.Helper()
	var all sync.WaitGroup
	for i, s := range stores {
		self := chainSelf(namespace, i+1)
		p := &chainProc{self: self, s: s, redis: redis, began: time.Now(), wake: make(chan struct{}, 1), m: degrade.New(chainConfig(self, term))}
		ctx, cancel := context.WithCancel(background)
		all.Go(func() { p.run(ctx) })
		procs, stop = append(procs, p), append(stop, cancel)
	}
	t.Cleanup(func() {
		for _, cancel := range stop {
			cancel()
		}
		all.Wait()
	})
	return procs, stop
}

func (p *chainProc) now() degrade.Instant { return degrade.Instant(time.Since(p.began)) }

func (p *chainProc) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for ctx.Err() == nil {
		p.mu.Lock()
		now := p.now()
		for _, a := range p.m.Due(now) {
			if a, ok := p.m.Begin(now, a); ok {
				calls.Go(func() { p.carryOut(ctx, a) })
			}
		}
		// Its lease, in whatever store it is, is renewed every third.
		if p.lease > 0 && now.Sub(p.renewed) > p.lease/3 && (p.redis.Load() || p.m.Mode().Tier == degrade.MySQL && !p.m.Mode().Drain) {
			p.renewed = now
			p.m.Renewed(now, "hold", p.m.Mode().Epoch, now.Add(p.lease))
		}
		for _, e := range p.m.Events() {
			if e.Kind == degrade.HoldEnded {
				p.ended = append(p.ended, e)
			}
		}
		wait := min(p.m.Next(p.now()).Sub(p.now()), 100*time.Millisecond)
		p.mu.Unlock()
		timer := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-timer.C:
		case <-p.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (p *chainProc) carryOut(ctx context.Context, a degrade.Action) {
	var r degrade.Reply
	switch a.Kind {
	case degrade.Probe:
		r = degrade.Reply{OK: p.redis.Load(), Incarnation: "0"}
	case degrade.Adopt:
		for range a.Holds {
			r.Adopted = append(r.Adopted, degrade.Taken)
		}
		r.Lost = a.From.Tier == degrade.Redis && !p.redis.Load()
	default:
		var err error
		if r, err = p.s.Arbitrate(ctx, p.self, a); err != nil {
			r.Lost = true
		}
	}
	p.mu.Lock()
	p.m.Done(p.now(), a, r)
	if r.Lost {
		p.errs++
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take begins an exclusive hold.
func (p *chainProc) take(t *testing.T, lease time.Duration) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	ticket, ok := p.m.MayGrant(now)
	if !ok || !p.m.Granted(now, ticket, degrade.Hold{ID: "hold", Lease: lease, Until: now.Add(lease), Exclusive: true}) {
		t.Fatalf("member %s cannot take a lock in %+v", p.self.Member, p.m.Mode())
	}
	p.lease, p.renewed = lease, now
}

// permitLeft is how long its permit lasts.
func (p *chainProc) permitLeft() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.Permit().Sub(p.now())
}

func (p *chainProc) holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.Belief("hold") > p.now()
}

func (p *chainProc) state() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%+v, permit %v, %d errors, ended %+v", p.m.Mode(), p.m.Permit().Sub(p.now()), p.errs, p.ended)
}

// granting waits until all of them may grant on a tier, and returns how long that
// took, and the epoch.
func granting(t *testing.T, tier degrade.Tier, within time.Duration, procs ...*chainProc) (took time.Duration, epoch uint16) {
	t.Helper()
	began := time.Now()
	defer func() {
		if t.Failed() {
			for _, p := range procs {
				t.Log(p.state())
			}
		}
	}()
	rig.Eventually(t, within, "all may grant on "+tier.String(), func() bool {
		epochs := make(map[uint16]bool)
		for _, p := range procs {
			p.mu.Lock()
			ticket, ok := p.m.MayGrant(p.now())
			p.mu.Unlock()
			if !ok || ticket.Tier != tier {
				return false
			}
			epoch = ticket.Epoch
			epochs[epoch] = true
		}
		return len(epochs) == 1
	})
	return time.Since(began), epoch
}

func stillHeld(t *testing.T, procs ...*chainProc) {
	t.Helper()
	for _, p := range procs {
		if !p.holds() {
			t.Errorf("member %s has lost its lock: %s", p.self.Member, p.state())
		}
	}
}

// Three processes through the outage of Redis and back: everybody acks, nobody
// waits for a permit to end, and no lock is lost.
func TestMachinesOverTheArbiter(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	const term = 20 * time.Second
	redis := new(atomic.Bool)
	redis.Store(true)
	procs, _ := chainOf(t, "n", term, redis, open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm))
	granting(t, degrade.Redis, patience, procs...)
	for _, p := range procs {
		p.take(t, time.Minute)
	}
	for round := range 3 {
		redis.Store(false)
		took, epoch := granting(t, degrade.MySQL, term*3/4, procs...)
		stillHeld(t, procs...)
		if epoch != uint16(2+2*round) {
			t.Errorf("epoch %d", epoch)
		}
		redis.Store(true)
		back, epoch := granting(t, degrade.Redis, term*3/4+time.Second<<round, procs...)
		stillHeld(t, procs...)
		if epoch != uint16(3+2*round) {
			t.Errorf("epoch %d", epoch)
		}
		t.Logf("to MySQL in %v, and back in %v", took, back)
	}
	db := admin(t, srv)
	if n := number(t, db, "SELECT COUNT(*) FROM lock_permit WHERE epoch=7 AND acked_epoch=7"); n != 3 {
		rig.Eventually(t, patience, "all are members of epoch 7", func() bool {
			return number(t, db, "SELECT COUNT(*) FROM lock_permit WHERE GREATEST(epoch,acked_epoch)=7") == 3
		})
	}
	// Who closes takes its row away when its lock has ended.
	for _, p := range procs {
		p.mu.Lock()
		p.m.Close()
		p.m.Release("hold")
		p.mu.Unlock()
	}
	rig.Eventually(t, patience, "all have left", func() bool { return number(t, db, "SELECT COUNT(*) FROM lock_permit") == 0 })
}

// A process is gone when Redis goes: the others wait until its permit has ended,
// and remove it.
func TestMachinesWaitForAMemberThatIsGone(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	const term = 6 * time.Second
	redis := new(atomic.Bool)
	redis.Store(true)
	procs, stop := chainOf(t, "n", term, redis, open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm))
	granting(t, degrade.Redis, patience, procs...)
	for _, p := range procs[:2] {
		p.take(t, time.Minute)
	}
	stop[2]()
	redis.Store(false)
	took, _ := granting(t, degrade.MySQL, term+patience, procs[:2]...)
	if left := procs[2].permitLeft(); left > 0 {
		t.Errorf("opened after %v: the permit of the one that is gone lasts for another %v", took, left)
	}
	stillHeld(t, procs[:2]...)
	db := admin(t, srv)
	rig.Eventually(t, term+patience, "its row is removed", func() bool { return number(t, db, "SELECT COUNT(*) FROM lock_permit") == 2 })
	granting(t, degrade.MySQL, patience, procs[:2]...)
	stillHeld(t, procs[:2]...)
}

// The arbiter fails over to its replica: nobody grants until every permit of the
// old one has ended; then the epoch is far ahead, and the locks are still held.
func TestMachinesOverAFailoverOfTheArbiter(t *testing.T) {
	t.Parallel()
	primary := rig.MariaDB(t, "--log-bin=binlog", "--server-id=1", "--binlog-format=MIXED")
	replica := replicaOf(t, primary)
	migrate(t, primary)
	const term = 6 * time.Second
	redis := new(atomic.Bool)
	redis.Store(true)
	var stores []*mysqlstore.Store
	var moves []func(*rig.MariaDBServer)
	for range 3 {
		db, move := movable(t, primary)
		s := mysqlstore.New(db, calm)
		t.Cleanup(s.Close)
		stores, moves = append(stores, s), append(moves, move)
	}
	procs, _ := chainOf(t, "n", term, redis, stores...)
	_, before := granting(t, degrade.Redis, patience, procs...)
	db := admin(t, replica)
	rig.Eventually(t, patience, "the replica has all members", func() bool {
		var n int64
		return db.QueryRow("SELECT COUNT(*) FROM tierlock.lock_permit").Scan(&n) == nil && n == 3
	})
	for _, p := range procs {
		p.take(t, time.Minute)
	}
	primary.Kill()
	execute(t, db, "STOP SLAVE; SET GLOBAL read_only=0")
	for _, move := range moves {
		move(replica)
	}
	failed := time.Now()
	var permits []degrade.Instant // of the old arbiter
	for _, p := range procs {
		p.mu.Lock()
		permits = append(permits, p.m.Permit())
		p.mu.Unlock()
	}
	rig.Eventually(t, patience, "all know of it", func() bool {
		for _, p := range procs {
			p.mu.Lock()
			hard := p.m.Mode().Hard
			p.mu.Unlock()
			if !hard {
				return false
			}
		}
		return true
	})
	t.Logf("taken over after %v", time.Since(failed))
	_, after := granting(t, degrade.Redis, term+patience, procs...)
	for i, p := range procs {
		if left := permits[i].Sub(p.now()); left > 0 {
			t.Errorf("opened after %v: a permit of the old arbiter lasts for another %v", time.Since(failed), left)
		}
	}
	if after < before+16 {
		t.Errorf("epoch %d after %d", after, before)
	}
	stillHeld(t, procs...)
}
