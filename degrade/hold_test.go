package degrade_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// hold takes a hold of ten seconds in the present mode.
func (l *lone) hold(id degrade.HoldID, exclusive bool) {
	l.t.Helper()
	h := degrade.Hold{ID: id, Lease: 10 * time.Second, Until: l.now.Add(10 * time.Second), Exclusive: exclusive}
	if !l.m.Granted(l.now, l.m.Mode().Ticket(), h) {
		l.t.Fatalf("%s is not granted in %v", id, short(l.m.Mode()))
	}
}

func (l *lone) drain(tier degrade.Tier, incarnation string) {
	l.t.Helper()
	l.mode = drain(l.mode, tier, incarnation)
	l.poll()
}

func (l *lone) open() {
	l.t.Helper()
	l.mode.Drain = false
	l.poll()
}

func (l *lone) believed(id degrade.HoldID, want bool) {
	l.t.Helper()
	if got := l.m.Belief(id) > l.now; got != want {
		l.t.Fatalf("%s is believed: %v, want %v", id, got, want)
	}
}

func (l *lone) adopt(r degrade.Reply, ids ...degrade.HoldID) {
	l.t.Helper()
	l.do(degrade.Action{Kind: degrade.Adopt, From: l.m.Mode(), Holds: ids}, r)
}

func (l *lone) ended(id degrade.HoldID, why degrade.Reason) {
	l.t.Helper()
	for _, e := range l.m.Events() {
		if e.Kind == degrade.HoldEnded && e.Hold == id && e.Reason == why {
			return
		}
	}
	l.t.Fatalf("nobody was told that %s ended for reason %d", id, why)
}

// What is granted, and what a reply that comes too late is worth.
func TestGrant(t *testing.T) {
	l := newLone(t, onRedis)
	if _, ok := l.m.MayGrant(l.now); ok {
		t.Fatal("it grants without a permit")
	}
	l.refresh()
	ticket, ok := l.m.MayGrant(l.now)
	if !ok || ticket != (degrade.Ticket{Epoch: 1, Tier: degrade.Redis, Incarnation: "x"}) {
		t.Fatalf("MayGrant gave %+v, %v", ticket, ok)
	}
	h := degrade.Hold{ID: "k", Lease: time.Second, Until: l.now, Exclusive: true}
	if l.m.Granted(l.now, ticket, h) {
		t.Fatal("a lease that is over is believed")
	}
	h.Until = l.now.Add(time.Second)
	if !l.m.Granted(l.now, ticket, h) || l.m.Granted(l.now, ticket, h) {
		t.Fatal("a hold begins exactly once")
	}
	l.now = l.now.Add(time.Second)
	if l.m.Renewed(l.now, "k", 1, l.now.Add(time.Second)) {
		t.Fatal("a renewal's reply revives a hold that has ended")
	}
	l.believed("k", false)
	l.now = l.now.Add(time.Minute)
	if _, ok := l.m.MayGrant(l.now); ok {
		t.Fatal("it grants when the permit is over")
	}
	l.refresh()
	l.m.Close()
	if _, ok := l.m.MayGrant(l.now); ok {
		t.Fatal("it grants after Close")
	}
}

// The permit caps, and Cap says so without the lease.
func TestPermitCaps(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	l.now = l.now.Add(55 * time.Second)
	l.hold("exclusive", true)
	l.hold("other", false)
	permit := degrade.Instant(time.Minute)
	if b, c := l.m.Belief("exclusive"), l.m.Cap("exclusive"); b != permit || c != permit {
		t.Fatalf("Belief %v, Cap %v, want the permit's end for both", b, c)
	}
	if b := l.m.Belief("other"); b != l.now.Add(10*time.Second) {
		t.Fatalf("what is not exclusive is believed until %v", b)
	}
	if c := l.m.Cap("other"); c < l.now.Add(time.Hour) {
		t.Fatalf("what is not exclusive has a cap of %v", c)
	}
	if !l.m.Renewed(l.now, "exclusive", 1, l.now.Add(20*time.Second)) || l.m.Belief("exclusive") != permit {
		t.Fatal("a renewal goes beyond the permit")
	}
	l.refresh()
	if got := l.m.Belief("exclusive"); got != l.now.Add(20*time.Second) {
		t.Fatalf("after a refresh it is believed until %v", got)
	}
}

// A hold goes through a drain: old place and new are freed by a release in it, the
// new one alone after the opening, with the adopted lease's time.
func TestHoldThroughADrain(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	for _, id := range []degrade.HoldID{"stays", "freed", "late"} {
		l.hold(id, true)
	}
	l.drain(degrade.MySQL, "")
	if got := l.m.Release("late"); len(got) != 1 || got[0].Tier != degrade.Redis {
		t.Fatalf("not adopted, it is to be freed in %+v", got)
	}
	l.now = l.now.Add(time.Second)
	l.adopt(degrade.Reply{OK: true, Adopted: []degrade.Adoption{degrade.Taken, degrade.Unknown}}, "stays", "freed")
	ack := degrade.Action{Kind: degrade.Ack, From: l.mode}
	if _, ok := l.m.Begin(l.now, ack); ok {
		t.Fatal("it acks although one adoption is not confirmed")
	}
	want := []degrade.Ticket{{Epoch: 1, Tier: degrade.Redis, Incarnation: "x"}, {Epoch: 2, Tier: degrade.MySQL, Incarnation: "A"}}
	if got := l.m.Release("freed"); !slices.Equal(got, want) {
		t.Fatalf("perhaps adopted, it is to be freed in %+v", got)
	}
	if got := l.m.Belief("stays"); got != l.now.Add(9*time.Second) {
		t.Fatalf("adoption alone moved the belief to %v", got)
	}
	l.do(ack, degrade.Reply{OK: true})
	l.open()
	if got := l.m.Belief("stays"); got != l.now.Add(10*time.Second) {
		t.Fatalf("in the new epoch it is believed until %v", got)
	}
	if got := l.m.Release("stays"); !slices.Equal(got, want[1:]) {
		t.Fatalf("in the new epoch it is to be freed in %+v", got)
	}
}

// Holds end, and somebody is told, when the new store refuses them, when they did
// not get in, and when a whole drain was missed.
func TestHoldsThatEnd(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		t.Run(fmt.Sprintf("exclusive %v", exclusive), func(t *testing.T) {
			start := func() *lone {
				l := newLone(t, onRedis)
				l.refresh()
				l.hold("k", exclusive)
				return l
			}
			l := start()
			l.drain(degrade.MySQL, "")
			l.adopt(degrade.Reply{OK: true, Adopted: []degrade.Adoption{degrade.NotTaken}}, "k")
			l.believed("k", false)
			l.ended("k", degrade.Refused)

			l = start()
			l.drain(degrade.MySQL, "")
			l.open()
			l.believed("k", false)
			l.ended("k", degrade.LeftBehind)

			l = start()
			l.mode = drain(l.mode, degrade.MySQL, "")
			l.open()
			l.believed("k", false)
			l.ended("k", degrade.LeftBehind)
		})
	}
}

// The permit's end is told with the next input, and a new permit revives nothing.
func TestPermitEnds(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	l.now = l.now.Add(55 * time.Second)
	l.hold("k", true)
	l.now = l.now.Add(5 * time.Second)
	l.believed("k", false)
	l.refresh()
	l.believed("k", false)
	l.ended("k", degrade.Lapsed)

	l.hold("in a drain", true)
	l.now = l.now.Add(10 * time.Second)
	l.drain(degrade.MySQL, "")
	l.ended("in a drain", degrade.Lapsed)
}

// Six hundred holds are adopted in three batches; a batch that was lost comes
// again after a poll's time, and one that is in after a third of the lease.
func TestBatches(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	for i := range 600 {
		l.hold(degrade.HoldID(fmt.Sprintf("%03d", i)), true)
	}
	l.drain(degrade.MySQL, "")
	batches := func() (as []degrade.Action) {
		for _, a := range l.m.Due(l.now) {
			if a.Kind == degrade.Adopt {
				as = append(as, a)
			}
		}
		return as
	}
	as := batches()
	if len(as) != 3 || len(as[0].Holds) != 256 || len(as[2].Holds) != 88 || as[1].Holds[0] != "256" {
		t.Fatalf("%d batches", len(as))
	}
	all := degrade.Reply{OK: true, Adopted: slices.Repeat([]degrade.Adoption{degrade.Taken}, 256)}
	l.do(as[0], all)
	l.do(as[1], degrade.Reply{Lost: true})
	slow, ok := l.m.Begin(l.now, as[2])
	if !ok || len(batches()) != 0 {
		t.Fatal("a batch that was just begun is due again")
	}
	l.now = l.now.Add(time.Second)
	if as = batches(); len(as) != 1 {
		t.Fatalf("%d batches are due, want the lost one and not that which is under way", len(as))
	}
	l.m.Done(l.now, slow, all)
	if as = batches(); len(as) != 1 || as[0].Holds[0] != "256" {
		t.Fatalf("after a second %d batches are due, want the lost one", len(as))
	}
	l.do(as[0], all)
	if l.due(degrade.Ack) == nil {
		t.Fatal("all are in, and no ack is due")
	}
	l.now = l.now.Add(10*time.Second/3 - time.Second + 1)
	if as = batches(); len(as) != 2 {
		t.Fatalf("after a third of the lease %d batches are due, want the two", len(as))
	}
}

// A row that another server wrote is taken over: a drain sixteen epochs above all
// that anybody knows, which waits for the permit and a minute whoever has acked.
func TestTakeover(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	l.hold("k", true)
	row := l.mode
	seen := degrade.Reply{OK: true, Mode: row, Server: "B", Members: []degrade.Member{{ID: "a", Epoch: 1}, {ID: "b", Epoch: 3, Acked: 4}}}
	l.do(degrade.Action{Kind: degrade.Poll}, seen)
	a := l.due(degrade.Takeover)
	if a == nil || a.To.Epoch != 20 || !a.To.Hard || !a.To.Drain || a.To.Tier != degrade.Redis {
		t.Fatalf("due: %+v", a)
	}
	l.do(*a, degrade.Reply{OK: true, Server: "B"})
	if m := l.m.Mode(); m.Server != "B" || m.Epoch != 20 {
		t.Fatalf("the mode is %v", short(m))
	}
	if l.due(degrade.Takeover) != nil {
		t.Fatal("a second takeover is due")
	}
	l.believed("k", true)
	seen.Mode = l.m.Mode()
	seen.Members = []degrade.Member{{ID: "a", Epoch: 1, Acked: 20}}
	from := l.now
	open := degrade.Action{Kind: degrade.Open, From: seen.Mode}
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {119 * time.Second, false}, {120 * time.Second, true}} {
		l.now = from.Add(c.after)
		l.do(degrade.Action{Kind: degrade.Poll}, seen)
		if got := l.m.Can(l.now, open); got != c.want {
			t.Fatalf("%v after the takeover it may open: %v", c.after, got)
		}
	}
	// A row that is merely read late is no reason: the statement would refuse, and
	// the next reading shows it.
	l.do(degrade.Action{Kind: degrade.Poll}, degrade.Reply{OK: true, Mode: row, Server: "A"})
	l.do(degrade.Action{Kind: degrade.Poll}, seen)
	if a := l.due(degrade.Takeover); a != nil {
		t.Fatalf("due: %v", say(*a))
	}
}

// W is Term·(1+ρ)/(1−ρ), rounded up, from when the drain was learned.
func TestWait(t *testing.T) {
	l := newLone(t, onRedis)
	l.now = l.now.Add(17 * time.Second)
	l.rows = members(1, func(int) degrade.Vote { return degrade.Vote{} })
	l.drain(degrade.MySQL, "")
	w := 61_212_121_213 * time.Nanosecond
	open := degrade.Action{Kind: degrade.Open, From: l.mode}
	if l.m.Can(l.now.Add(w-1), open) || !l.m.Can(l.now.Add(w), open) {
		t.Fatalf("it does not open after exactly %v", w)
	}
}
