package degrade_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

var errAway = errors.New("away")

// fakeDB is an arbiter in memory, with a Redis beside it. Each call takes rtt.
type fakeDB struct {
	mu      sync.Mutex
	mode    degrade.Mode
	rows    map[string]degrade.Member
	server  string
	redis   string // its incarnation; "" while it is away
	down    bool   // the arbiter does not answer
	hang    bool   // nor do its calls end
	beats   uint64
	calls   map[degrade.Kind]int
	rtt     time.Duration
	adopted map[degrade.HoldID]uint16 // epochs of what was adopted
	refuse  map[degrade.HoldID]bool
}

func newFakeDB() *fakeDB {
	return &fakeDB{server: "A", redis: "r1", rtt: 5 * time.Millisecond, rows: map[string]degrade.Member{},
		calls: map[degrade.Kind]int{}, adopted: map[degrade.HoldID]uint16{}, refuse: map[degrade.HoldID]bool{}}
}

func (f *fakeDB) set(change func(*fakeDB)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeDB) count(k degrade.Kind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[k]
}

func (f *fakeDB) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	time.Sleep(f.rtt)
	f.mu.Lock()
	f.calls[a.Kind]++
	if f.hang {
		f.mu.Unlock()
		<-ctx.Done()
		return degrade.Reply{}, ctx.Err()
	}
	defer f.mu.Unlock()
	if f.down {
		return degrade.Reply{}, errAway
	}
	return f.exec(self, a), nil
}

func (f *fakeDB) exec(self degrade.Self, a degrade.Action) (r degrade.Reply) {
	row := f.rows[self.Member]
	row.ID, row.Digest, row.App, row.Host = self.Member, self.Digest, self.App, self.Host
	at := f.mode == a.From && f.mode.Server == f.server
	r.Server = f.server
	switch a.Kind {
	case degrade.Poll:
		r.Mode, r.OK = f.mode, true
		for _, m := range f.rows {
			r.Members = append(r.Members, m)
		}
	case degrade.Create:
		if r.OK = !f.mode.Known(); r.OK {
			f.mode = a.To
		}
	case degrade.Refresh, degrade.Ack:
		if r.OK = at && f.mode.Drain == (a.Kind == degrade.Ack); r.OK {
			f.beats++
			row.Beat, row.Vote = f.beats, a.Vote
			if a.Kind == degrade.Ack {
				row.Acked = a.From.Epoch
			} else {
				row.Epoch = a.From.Epoch
			}
			f.rows[self.Member] = row
		}
	case degrade.Start:
		if r.OK = at && !f.mode.Drain; r.OK {
			f.mode = a.To
		}
	case degrade.Open:
		if r.OK = at && f.mode.Drain; r.OK {
			f.mode.Drain, f.mode.Hard = false, false
		}
	case degrade.Takeover:
		if r.OK = f.mode == a.From && (f.mode.Server != f.server || f.mode.Epoch < a.Known); r.OK {
			f.mode = a.To
			f.mode.Server = f.server
		}
	case degrade.Remove:
		if m, ok := f.rows[a.Member]; ok && m.Beat == a.Beat {
			delete(f.rows, a.Member)
			r.OK = true
		}
	case degrade.Leave:
		delete(f.rows, self.Member)
		r.OK = true
	}
	return r
}

func (f *fakeDB) probe(context.Context, uint16) (string, error) {
	time.Sleep(f.rtt)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[degrade.Probe]++
	if f.redis == "" {
		return "", errAway
	}
	return f.redis, nil
}

func (f *fakeDB) adopt(_ context.Context, to degrade.Mode, holds []degrade.HoldID) []degrade.Adoption {
	time.Sleep(f.rtt)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[degrade.Adopt]++
	var all []degrade.Adoption
	for _, id := range holds {
		if f.refuse[id] {
			all = append(all, degrade.NotTaken)
			continue
		}
		f.adopted[id] = to.Epoch
		all = append(all, degrade.Taken)
	}
	return all
}

// fakeRun is a runner over a fakeDB, with what it has told.
type fakeRun struct {
	*degrade.Runner
	origin time.Time

	mu     sync.Mutex
	events []degrade.Event
	errs   []string
	caps   int
	others [][]string // the members of each call of OnDigests
}

func (f *fakeRun) now() degrade.Instant { return degrade.Instant(time.Since(f.origin)) }

func startFake(t *testing.T, db *fakeDB, member string, change ...func(*degrade.RunnerConfig)) *fakeRun {
	t.Helper()
	f := &fakeRun{origin: time.Now()}
	c := degrade.RunnerConfig{
		Machine: degrade.Config{Member: member}, Self: degrade.Self{Namespace: "ns"}, Arbiter: db, Probe: db.probe,
		Adopt: db.adopt, Now: f.now, CallTimeout: 500 * time.Millisecond,
		OnEvent: func(e degrade.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		},
		OnCap: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.caps++
		},
		OnDigests: func(others []degrade.Member) {
			f.mu.Lock()
			defer f.mu.Unlock()
			ids := []string{}
			for _, m := range others {
				ids = append(ids, m.ID)
			}
			f.others = append(f.others, ids)
		},
		OnError: func(k degrade.Kind, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.errs = append(f.errs, fmt.Sprint(k, err))
		},
	}
	for _, ch := range change {
		ch(&c)
	}
	f.Runner = degrade.NewRunner(c)
	return f
}

func (f *fakeRun) told(kind degrade.EventKind) (n int, last degrade.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.Kind == kind {
			n++
			last = e
		}
	}
	return n, last
}

// digests are the calls of OnDigests so far.
func (f *fakeRun) digests() string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.others)
}

// faults are the calls of OnError so far.
func (f *fakeRun) faults() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.errs)
}

// take begins an exclusive hold of 30 s now.
func (f *fakeRun) take(t *testing.T, id degrade.HoldID) degrade.Ticket {
	t.Helper()
	ticket, ok := f.MayGrant()
	if !ok || !f.Granted(ticket, degrade.Hold{ID: id, Lease: lease, Until: f.now().Add(lease), Exclusive: true}) {
		t.Fatalf("hold %s: not granted in %+v", id, f.State())
	}
	return ticket
}

// waitFor lets time pass until done says so, at most for limit.
func waitFor(t *testing.T, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if done() {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("after %v there is still not: %s", limit, what)
		}
	}
}

func (f *fakeRun) grantsOn(tier degrade.Tier) func() bool {
	return func() bool {
		ticket, ok := f.MayGrant()
		return ok && ticket.Tier == tier
	}
}
