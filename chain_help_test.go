package tierlock_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// chainWorld is a Redis and a MySQL that processes share.
type chainWorld struct {
	t     *testing.T
	redis *sim.Redis
	mysql *sim.MySQL
	procs int
}

func newChainWorld(t *testing.T) *chainWorld {
	return &chainWorld{t: t, redis: sim.NewRedis(sim.Options{Guarantee: tierlock.FencedOnly}),
		mysql: sim.NewMySQL(sim.Options{Guarantee: tierlock.Exclusive})}
}

// chainProc is a process in it, with its own ways to both.
type chainProc struct {
	*tierlock.Locker
	rc  *sim.RedisStore
	mc  *sim.MySQLStore
	day diary
	log logBook
}

// near1ms is a healthy way to a server.
var near1ms = sim.Faults{Delay: time.Millisecond}

// start gives a process with an exclusive resource "x", a best-effort one "b" and
// one without a floor, "r".
func (w *chainWorld) start(change ...func(*tierlock.Config)) *chainProc {
	w.t.Helper()
	w.procs++
	seed := uint64(w.procs)
	p := &chainProc{rc: w.redis.Client(sim.ClientOptions{Seed: seed, Faults: near1ms}),
		mc: w.mysql.Client(sim.ClientOptions{Seed: seed, Faults: near1ms})}
	cfg := tierlock.Config{
		App: "test", Namespace: "ns", Stores: []tierlock.Store{p.rc, p.mc},
		Logger: slog.New(&p.log), Observer: p.day.observer(),
		Resources: []tierlock.Resource{
			{Name: "x", Floor: tierlock.MySQL, Exclusive: true, Reentrant: true},
			{Name: "b", Floor: tierlock.MySQL},
			{Name: "r"},
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := tierlock.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p.Locker = l
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, 5*time.Minute)
		defer cancel()
		_ = l.Close(ctx) // tests that care close themselves
		p.rc.Close()
		p.mc.Close()
	})
	return p
}

var cutOff = sim.Faults{CutRequests: true, CutReplies: true}

// redisAway cuts processes off from Redis, redisBack connects them again.
func redisAway(procs ...*chainProc) {
	for _, p := range procs {
		p.rc.SetFaults(cutOff)
	}
}

func redisBack(procs ...*chainProc) {
	for _, p := range procs {
		p.rc.SetFaults(near1ms)
	}
}

// chainTakes waits until a process gives locks of x from a tier.
func chainTakes(t *testing.T, limit time.Duration, tier tierlock.Tier, procs ...*chainProc) time.Duration {
	t.Helper()
	start := time.Now()
	for i := 0; i < len(procs); {
		k, err := procs[i].TryLock(bg, "x", "probe")
		got := k.Token().Tier
		if err == nil {
			if err := k.Unlock(); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		}
		if err == nil && got == tier {
			i++
			continue
		}
		if time.Since(start) > limit {
			t.Fatalf("after %v process %d takes locks from %v (%v), want %v; status %+v", limit, i, got, err, tier, procs[i].Status())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start)
}

// shift has the test itself begin a drain, as a member would.
func (w *chainWorld) shift(p *chainProc, tier degrade.Tier, incarnation string) {
	w.t.Helper()
	from := w.mysql.Mode("ns")
	to := from
	to.Epoch, to.Drain, to.Tier, to.Incarnation = from.Epoch+1, true, tier, incarnation
	r, err := p.mc.Arbitrate(bg, degrade.Self{Namespace: "ns", Member: "test"}, degrade.Action{Kind: degrade.Start, From: from, To: to})
	if err != nil || !r.OK {
		w.t.Fatalf("start of a drain: %+v %v", r, err)
	}
}

// inBubble runs a test of a chain in a bubble.
func inBubble(t *testing.T, f func(t *testing.T, w *chainWorld)) {
	synctest.Test(t, func(t *testing.T) { f(t, newChainWorld(t)) })
}
