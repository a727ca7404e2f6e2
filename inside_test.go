package tierlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/watchdog"
)

// What happens between two steps of the package that no caller can come between.

// slowReleases is a store of which nothing but releases is asked, each of which
// takes a second.
type slowReleases struct {
	Store
	mu   sync.Mutex
	reqs []ReleaseRequest
	last time.Time // when the last was sent
}

func (s *slowReleases) Tier() Tier           { return Redis }
func (s *slowReleases) Guarantee() Guarantee { return FencedOnly }

func (s *slowReleases) Release(_ context.Context, req ReleaseRequest) (Ownership, error) {
	sent := time.Now()
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reqs, s.last = append(s.reqs, req), sent
	return LeaseGone, nil
}

func (s *slowReleases) all() (reqs []ReleaseRequest, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reqs, s.last
}

func insideLocker(t *testing.T, s Store) *Locker {
	t.Helper()
	l, err := New(Config{App: "app", Namespace: "ns", Stores: []Store{s}, CallTimeout: 2 * time.Second, Resources: []Resource{{Name: "job"}}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A lease has to be given up once more while it is being given up, since more was
// sent for it meanwhile: the first release is not the last. Nor does a task that is
// settled sooner take away what another has to wait for.
func TestUndoneWhileItIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowReleases{}
		l := insideLocker(t, s)
		defer l.Close(context.Background())
		start := time.Now()
		task := func(settled time.Duration) undoTask {
			return undoTask{req: ReleaseRequest{Name: Name{"ns", "job", "k"}, Lease: "l"}, settled: start.Add(settled), until: start.Add(time.Minute)}
		}
		l.store.undo.add(task(0))
		time.Sleep(500 * time.Millisecond) // under way
		l.store.undo.add(task(5 * time.Second))
		l.store.undo.add(task(0))
		time.Sleep(20 * time.Second)
		if _, last := s.all(); last.Sub(start) < 5*time.Second {
			t.Errorf("the last release was sent after %v, before all was settled", last.Sub(start))
		}
		if n := l.store.undo.count(); n != 0 {
			t.Errorf("%d tasks are left", n)
		}
	})
}

// A hold is over whose end the machine has decided, while the event that tells where
// it has to be given up is on its way: it is given up where it was, at once, and
// elsewhere when the event comes.
func TestGivenUpBeforeTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowReleases{}
		l := insideLocker(t, s)
		defer l.Close(context.Background())
		c := &chain{locker: l, redis: l.store, mysql: l.store, holds: map[degrade.HoldID]*chainHold{}}
		here := degrade.Ticket{Epoch: 3, Tier: degrade.Redis, Incarnation: "a"}
		there := degrade.Ticket{Epoch: 4, Tier: degrade.Redis, Incarnation: "b"}
		h := &chainHold{chain: c, id: "l", exclusive: true, ttl: 10 * time.Second, hold: &hold{locker: l, name: Name{"ns", "job", "k"}},
			at: c.at(here, true), over: true}
		h.giveAll(time.Time{})
		if n := l.store.undo.count(); n != 1 {
			t.Errorf("%d releases are to come, want one where it was", n)
		}
		h.ended(degrade.Event{Kind: degrade.HoldEnded, Hold: "l", Reason: degrade.Lapsed, Places: []degrade.Ticket{here, there}})
		if n := l.store.undo.count(); n != 2 {
			t.Errorf("%d releases are to come, want one in each place", n)
		}
		time.Sleep(30 * time.Second)
		epochs := map[uint16]bool{}
		reqs, _ := s.all()
		for _, req := range reqs {
			epochs[req.Place.Epoch] = true
		}
		if !epochs[3] || !epochs[4] || len(epochs) != 2 {
			t.Errorf("given up in epochs %v", epochs)
		}
	})
}

// lateArbiter answers nothing until it is there, and then that Redis is in force.
type lateArbiter struct {
	mu    sync.Mutex
	there bool
}

func (a *lateArbiter) Arbitrate(_ context.Context, _ degrade.Self, act degrade.Action) (degrade.Reply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.there {
		return degrade.Reply{}, errors.New("away")
	}
	mode := degrade.Mode{Epoch: 1, Tier: degrade.Redis, Incarnation: "a", Server: "s", Term: time.Minute, Drift: 10}
	return degrade.Reply{OK: act.Kind == degrade.Refresh, Mode: mode, Server: "s"}, nil
}

// A best-effort hold that was granted before the mode was known has not moved when it
// is: nobody is told of an adoption that was none, and its lease goes on.
func TestModeKnownAfterTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := insideLocker(t, &slowReleases{})
		defer l.Close(context.Background())
		arbiter := &lateArbiter{}
		c := &chain{locker: l, origin: watchdog.Now(), redis: l.store, mysql: l.store, holds: map[degrade.HoldID]*chainHold{}}
		c.run = degrade.NewRunner(degrade.RunnerConfig{
			Machine: degrade.Config{Member: "m"}, Arbiter: arbiter, CallTimeout: time.Second,
			Probe: func(context.Context, uint16) (string, error) { return "a", nil },
			Adopt: func(_ context.Context, _ degrade.Mode, ids []degrade.HoldID) []degrade.Adoption {
				return make([]degrade.Adoption, len(ids))
			},
			Now: func() degrade.Instant { return c.instant(watchdog.Now()) },
		})
		defer c.run.Close(context.Background())
		time.Sleep(time.Second) // probed
		ticket, _ := c.run.BestEffort()
		h := &chainHold{chain: c, id: "l", ttl: time.Minute, hold: &hold{locker: l}, at: c.at(ticket, false)}
		c.holds[h.id] = h
		if !c.run.Granted(ticket, degrade.Hold{ID: h.id, Lease: time.Minute, Until: c.instant(watchdog.Now()) + degrade.Instant(time.Minute)}) {
			t.Fatal("not granted")
		}
		arbiter.mu.Lock()
		arbiter.there = true
		arbiter.mu.Unlock()
		time.Sleep(5 * time.Second)
		h.follow()
		if at := h.route(); at.ticket.Epoch != 1 {
			t.Fatalf("it is at %+v, want the mode that was told", at.ticket)
		}
		if h.moves != 0 {
			t.Errorf("it has moved %d times: a lease between two holders would be given no time", h.moves)
		}
		c.run.Release(h.id)
	})
}

// A store that reserves more than it was asked for, or less than nothing, changes
// nothing about how often a lease goes on.
func TestReservedFencesAreBounded(t *testing.T) {
	for got, want := range map[int]int{-1: 0, 1 << 30: maxHandOvers} {
		synctest.Test(t, func(t *testing.T) {
			l := insideLocker(t, &boundless{fences: got})
			defer l.Close(context.Background())
			k, err := l.Lock(context.Background(), "job", "k", UntilDone())
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			most := 0 // under the lock that is tested
			for range 200 {
				wg.Go(func() {
					k, err := l.Lock(context.Background(), "job", "k", UntilDone())
					if err != nil {
						t.Error(err)
						return
					}
					most = max(most, k.hold.run.count)
					_ = k.Unlock()
				})
			}
			synctest.Wait() // all wait
			_ = k.Unlock()
			wg.Wait()
			if most != want {
				t.Errorf("%d reserved: handed over %d times, want %d", got, most, want)
			}
		})
	}
}

// boundless grants everything.
type boundless struct {
	Store
	fences int
}

func (s *boundless) Tier() Tier           { return Redis }
func (s *boundless) Guarantee() Guarantee { return FencedOnly }
func (s *boundless) Acquire(_ context.Context, req AcquireRequest) (AcquireResult, error) {
	return AcquireResult{Granted: true, Token: req.Token, Fences: s.fences}, nil
}
func (s *boundless) Release(context.Context, ReleaseRequest) (Ownership, error) {
	return LeaseOwned, nil
}
func (s *boundless) Renew(_ context.Context, reqs []RenewRequest) []RenewResult {
	res := make([]RenewResult, len(reqs))
	for i := range res {
		res[i].State = LeaseOwned
	}
	return res
}
