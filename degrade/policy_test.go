package degrade_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// lone is a machine in an open mode, with the arbiter's rows under the test's hand.
type lone struct {
	t    *testing.T
	m    *degrade.Machine
	now  degrade.Instant
	mode degrade.Mode
	rows []degrade.Member
}

func newLone(t *testing.T, mode degrade.Mode) *lone {
	l := &lone{t: t, m: degrade.New(degrade.Config{Member: "a"}), mode: mode}
	l.mode.Server, l.mode.Term, l.mode.Drift = "A", time.Minute, 10
	l.poll()
	return l
}

// do begins an action that has to be possible, and finishes it.
func (l *lone) do(a degrade.Action, r degrade.Reply) {
	l.t.Helper()
	a, ok := l.m.Begin(l.now, a)
	if !ok {
		l.t.Fatalf("%v cannot be begun in %v", say(a), short(l.m.Mode()))
	}
	l.m.Done(l.now, a, r)
}

func (l *lone) poll() {
	l.t.Helper()
	l.do(degrade.Action{Kind: degrade.Poll}, degrade.Reply{OK: true, Mode: l.mode, Server: "A", Members: l.rows})
}

func (l *lone) refresh() {
	l.t.Helper()
	l.do(degrade.Action{Kind: degrade.Refresh, From: l.m.Mode()}, degrade.Reply{OK: true})
}

func (l *lone) probe(ok bool, incarnation string) {
	l.t.Helper()
	l.do(degrade.Action{Kind: degrade.Probe}, degrade.Reply{OK: ok, Incarnation: incarnation})
}

// due is the first action of a kind that is due, or nil.
func (l *lone) due(k degrade.Kind) *degrade.Action {
	for _, a := range l.m.Due(l.now) {
		if a.Kind == k {
			return &a
		}
	}
	return nil
}

var onRedis = degrade.Mode{Epoch: 1, Tier: degrade.Redis, Incarnation: "x"}
var onMySQL = degrade.Mode{Epoch: 2, Tier: degrade.MySQL}

func members(n int, v func(i int) degrade.Vote) []degrade.Member {
	var rows []degrade.Member
	for i := range n {
		rows = append(rows, degrade.Member{ID: fmt.Sprint(i), Epoch: 1, Vote: v(i)})
	}
	return rows
}

// A switch needs more than half of the live members; ten dead ones do not count.
func TestMajorityOfTheLive(t *testing.T) {
	for _, c := range []struct {
		live, down, dead int
		want             bool
	}{
		{1, 1, 0, true}, {2, 1, 0, false}, {2, 2, 0, true}, {3, 1, 0, false}, {3, 2, 0, true},
		{5, 2, 0, false}, {5, 3, 0, true}, {3, 2, 10, true}, {3, 1, 10, false},
	} {
		t.Run(fmt.Sprintf("%d of %d, %d dead", c.down, c.live, c.dead), func(t *testing.T) {
			l := newLone(t, onRedis)
			l.rows = members(c.live+c.dead, func(i int) degrade.Vote {
				return degrade.Vote{Down: i < c.down, Incarnation: "x"}
			})
			for range 5 { // the dead ones' beats stand still meanwhile
				l.poll()
				l.now = l.now.Add(10 * time.Second)
				for i := range c.live {
					l.rows[i].Beat++
				}
			}
			l.poll()
			a := l.due(degrade.Start)
			if (a != nil) != c.want {
				t.Fatalf("a start is due: %v, want %v", a != nil, c.want)
			}
			if a != nil && (a.To.Tier != degrade.MySQL || !a.To.Drain || a.To.Epoch != 2) {
				t.Fatalf("it leads to %v", short(a.To))
			}
		})
	}
}

// Most see a healthy Redis under another id: a drain to Redis. One who does is
// behind or on the wrong side.
func TestPromotionIsASwitch(t *testing.T) {
	l := newLone(t, onRedis)
	see := func(n int) {
		l.rows = members(3, func(i int) degrade.Vote {
			if i < n {
				return degrade.Vote{Incarnation: "y"}
			}
			return degrade.Vote{Incarnation: "x"}
		})
		l.poll()
	}
	see(1)
	if a := l.due(degrade.Start); a != nil {
		t.Fatalf("one of three sees another id, and %v is due", say(*a))
	}
	see(2)
	a := l.due(degrade.Start)
	if a == nil || a.To.Tier != degrade.Redis || a.To.Incarnation != "y" {
		t.Fatalf("due: %+v", a)
	}
}

// A refusal for the data, and a vote for other data than the mode's, have Redis probed
// soon, once a second at most; what this process has seen itself needs no probe.
func TestDoubtHasRedisProbed(t *testing.T) {
	for _, voted := range []bool{false, true} {
		l := newLone(t, onRedis)
		l.probe(true, "x")
		doubt := func() {
			if voted {
				l.rows = members(3, func(i int) degrade.Vote { return degrade.Vote{Incarnation: string("xyx"[i])} })
				l.poll()
			} else {
				l.m.Doubt(l.now)
			}
		}
		for range 3 {
			l.now = l.now.Add(time.Second - 1)
			if doubt(); l.due(degrade.Probe) != nil {
				t.Errorf("voted %v: a probe is due less than a second after the last", voted)
			}
			l.now++
			if l.due(degrade.Probe) == nil {
				t.Errorf("voted %v: no probe is due a second after the last", voted)
			}
			l.probe(true, "x")
		}
		l.now = l.now.Add(time.Second)
		if l.due(degrade.Probe) != nil {
			t.Errorf("voted %v: a probe is due without a doubt", voted)
		}
		l.probe(true, "y")
		l.now = l.now.Add(time.Second)
		if l.poll(); l.due(degrade.Probe) != nil {
			t.Errorf("voted %v: a probe is due though this process has seen the other data", voted)
		}
	}
}

// Three failed probes in a row flip the vote, which is then written at once; they
// come every second as soon as one has failed, or a call.
func TestVoteFlipsAfterThreeProbes(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	l.probe(true, "x")
	l.now++
	if a := l.due(degrade.Refresh); a == nil || a.Vote.Incarnation != "x" {
		t.Fatal("the id that was seen is not written at once")
	} else {
		l.do(*a, degrade.Reply{OK: true})
	}
	if l.due(degrade.Probe) != nil {
		t.Fatal("a healthy Redis is probed without a pause")
	}
	l.m.Suspect(l.now)
	for i := range 3 {
		if l.due(degrade.Refresh) != nil {
			t.Fatalf("the vote has flipped after %d failures", i)
		}
		if l.due(degrade.Probe) == nil {
			t.Fatalf("probe %d is not due", i)
		}
		l.probe(false, "")
		l.now = l.now.Add(time.Second)
	}
	a := l.due(degrade.Refresh)
	if a == nil || !a.Vote.Down {
		t.Fatal("the vote is not written at once")
	}
	l.do(*a, degrade.Reply{Lost: true})
	if l.due(degrade.Refresh) != nil {
		t.Fatal("an arbiter that is away is asked without a pause")
	}
	for _, k := range []degrade.Kind{degrade.Poll, degrade.Probe} {
		if _, ok := l.m.Begin(l.now, degrade.Action{Kind: k}); !ok {
			t.Fatal("it does not poll or probe")
		}
	}
	if next := l.m.Next(l.now); next != l.now.Add(time.Second) {
		t.Fatalf("it sleeps until %v, and the vote is to be written after a second", next)
	}
	l.now = l.now.Add(time.Second)
	if a := l.due(degrade.Refresh); a == nil || !a.Vote.Down {
		t.Fatal("a vote whose writing was lost is not written again")
	}
	l.probe(true, "x")
	if a := l.due(degrade.Refresh); a == nil || a.Vote.Down {
		t.Fatal("one good probe does not take the vote back")
	}
}

// Back to Redis when nine of ten have seen it healthy and the stay is over; each
// return within the hour doubles the next stay.
func TestReturn(t *testing.T) {
	l := newLone(t, onMySQL)
	beat := uint64(0)
	ten := func(up int) {
		beat++
		l.rows = members(10, func(i int) degrade.Vote { return degrade.Vote{Up: i < up, Incarnation: "y"} })
		for i := range l.rows {
			l.rows[i].Beat = beat
		}
		l.poll()
	}
	ten(10)
	if l.due(degrade.Start) != nil {
		t.Fatal("it returns before the stay is over")
	}
	stay := time.Minute
	for i := range 8 {
		l.now = l.now.Add(stay - time.Second)
		ten(10)
		if l.due(degrade.Start) != nil {
			t.Fatalf("return %d comes before %v", i, stay)
		}
		l.now = l.now.Add(time.Second)
		ten(8)
		if l.due(degrade.Start) != nil {
			t.Fatal("eight of ten are enough")
		}
		ten(9)
		a := l.due(degrade.Start)
		if a == nil || a.To.Tier != degrade.Redis || a.To.Incarnation != "y" {
			t.Fatalf("return %d is not due after %v: %+v", i, stay, a)
		}
		if i == 5 {
			break
		}
		// To Redis and away again.
		for _, m := range []degrade.Mode{
			{Epoch: l.mode.Epoch + 1, Drain: true, Tier: degrade.Redis, Incarnation: "y"},
			{Epoch: l.mode.Epoch + 1, Tier: degrade.Redis, Incarnation: "y"},
			{Epoch: l.mode.Epoch + 2, Drain: true, Tier: degrade.MySQL},
			{Epoch: l.mode.Epoch + 2, Tier: degrade.MySQL},
		} {
			m.Server, m.Term, m.Drift = "A", time.Minute, 10
			l.mode = m
			if i == 4 && m.Tier == degrade.MySQL && m.Drain {
				l.now = l.now.Add(2 * time.Hour) // a long time on Redis: all is forgotten
				stay = time.Minute / 2
			}
			l.poll()
		}
		stay *= 2
	}
}

// Acks and openings that were lost come again after a second, a confirmed ack
// after a third of the permit; and the end of the own wait is not slept over.
func TestDrainIsPursued(t *testing.T) {
	l := newLone(t, onRedis)
	l.refresh()
	l.rows = members(1, func(int) degrade.Vote { return degrade.Vote{} })
	l.drain(degrade.MySQL, "")
	openAt := l.now.Add(61_212_121_213)
	again := func(k degrade.Kind, r degrade.Reply, after time.Duration) {
		t.Helper()
		l.do(degrade.Action{Kind: k, From: l.mode}, r)
		from := l.now
		for _, c := range []struct {
			at   time.Duration
			want bool
		}{{0, false}, {after - 1, false}, {after, true}} {
			l.now = from.Add(c.at)
			if got := l.due(k) != nil; got != c.want {
				t.Fatalf("%v after it is due again: %v", c.at, got)
			}
		}
	}
	again(degrade.Ack, degrade.Reply{Lost: true}, time.Second)
	again(degrade.Ack, degrade.Reply{OK: true}, 20*time.Second)
	if _, ok := l.m.Begin(l.now, degrade.Action{Kind: degrade.Ack, From: l.mode}); !ok {
		t.Fatal("an ack cannot be repeated")
	}
	for _, k := range []degrade.Kind{degrade.Poll, degrade.Probe} {
		if _, ok := l.m.Begin(l.now, degrade.Action{Kind: k}); !ok {
			t.Fatal("it does not poll or probe")
		}
	}
	if next := l.m.Next(l.now); next != openAt {
		t.Fatalf("with all else under way it sleeps until %v, and the wait ends at %v", next, openAt)
	}
	l.now = openAt
	again(degrade.Open, degrade.Reply{Lost: true}, time.Second)
	again(degrade.Open, degrade.Reply{}, time.Second)
}

// Each other digest is given once, with a live member that has it.
func TestDigests(t *testing.T) {
	l := newLone(t, onRedis)
	l.rows = members(6, func(int) degrade.Vote { return degrade.Vote{} })
	l.poll()
	if d := l.m.Digests(l.now); d != nil {
		t.Fatalf("all have the same, and it gives %v", d)
	}
	l.rows[2].Digest, l.rows[3].Digest, l.rows[4].Digest, l.rows[5].Digest = "z", "k", "z", "a"
	l.rows[5].App, l.rows[5].Host = "app", "host"
	l.poll()
	if d := l.m.Digests(l.now); len(d) != 3 || d[0] != l.rows[5] || d[1] != l.rows[3] || d[2] != l.rows[2] {
		t.Fatalf("it gives %+v of %+v", d, l.rows)
	}
	l.now = l.now.Add(31 * time.Second)
	l.rows[4].Beat++
	l.poll()
	if d := l.m.Digests(l.now); len(d) != 1 || d[0] != l.rows[4] {
		t.Fatalf("with only %+v alive it gives %+v", l.rows[4], d)
	}
}

// Where best effort goes, and whether it had better wait.
func TestBestEffort(t *testing.T) {
	want := func(m *degrade.Machine, now degrade.Instant, tier degrade.Tier, epoch uint16, settled bool) {
		t.Helper()
		if got, ok := m.BestEffort(now); got.Tier != tier || got.Epoch != epoch || ok != settled {
			t.Fatalf("it goes to %+v, settled %v; want %v of epoch %d, %v", got, ok, tier, epoch, settled)
		}
	}
	unknown := degrade.New(degrade.Config{})
	want(unknown, 0, degrade.Redis, 0, false)

	l := newLone(t, onRedis)
	want(l.m, l.now, degrade.Redis, 1, true)
	l.now = l.now.Add(4 * time.Second) // no answer of the arbiter for three polls
	want(l.m, l.now, degrade.Redis, 1, false)
	l.refresh()
	want(l.m, l.now, degrade.Redis, 1, true)
	l.drain(degrade.MySQL, "")
	want(l.m, l.now, degrade.MySQL, 2, false)
	l.open()
	want(l.m, l.now, degrade.MySQL, 2, true)
	l.now = l.now.Add(4 * time.Second)
	want(l.m, l.now, degrade.Redis, 2, false)
	l.probe(true, "y")
	want(l.m, l.now, degrade.Redis, 2, false)
	l.poll()
	want(l.m, l.now, degrade.MySQL, 2, true)

	// What was granted in a drain to the coming tier is part of the epoch.
	l = newLone(t, onRedis)
	l.refresh()
	old, _ := l.m.BestEffort(l.now)
	l.drain(degrade.MySQL, "")
	ticket, _ := l.m.BestEffort(l.now)
	h := degrade.Hold{ID: "k", Lease: time.Minute, Until: l.now.Add(time.Minute)}
	if l.m.Granted(l.now, old, h) {
		t.Fatal("best effort is believed in a mode that is over")
	}
	if !l.m.Granted(l.now, ticket, h) {
		t.Fatal("best effort is not believed in a drain")
	}
	if l.due(degrade.Adopt) != nil {
		t.Fatal("what is in the new store already is to be adopted")
	}
	if l.due(degrade.Ack) == nil {
		t.Fatal("what is in the new store already keeps back the ack")
	}
	l.open()
	l.believed("k", true)
	l.drain(degrade.Redis, "y")
	l.open()
	l.believed("k", false)

	// What was granted before the arbiter was ever reached lives on if it is where
	// the mode says.
	for incarnation, lives := range map[string]bool{"x": true, "y": false} {
		m := degrade.New(degrade.Config{})
		a, _ := m.Begin(0, degrade.Action{Kind: degrade.Probe})
		m.Done(0, a, degrade.Reply{OK: true, Incarnation: incarnation})
		ticket, _ := m.BestEffort(0)
		if !m.Granted(0, ticket, h) {
			t.Fatal("best effort is not believed without an arbiter")
		}
		mode := onRedis
		mode.Server, mode.Term = "A", time.Minute
		a, _ = m.Begin(0, degrade.Action{Kind: degrade.Poll})
		m.Done(0, a, degrade.Reply{OK: true, Mode: mode, Server: "A"})
		if got := m.Belief("k") > 0; got != lives {
			t.Fatalf("granted on %s, it lives in a mode of x: %v", incarnation, got)
		}
	}
}

// Answers that overtake each other: the one that was asked later counts.
func TestOldAnswers(t *testing.T) {
	l := newLone(t, onMySQL)
	old := degrade.Action{Kind: degrade.Probe}
	old, _ = l.m.Begin(l.now, old)
	oldPoll, _ := l.m.Begin(l.now, degrade.Action{Kind: degrade.Poll})
	l.now++
	l.probe(true, "x")
	l.rows = members(1, func(int) degrade.Vote { return degrade.Vote{Up: true, Incarnation: "x"} })
	l.poll()
	l.m.Done(l.now, old, degrade.Reply{})
	l.m.Done(l.now, oldPoll, degrade.Reply{OK: true, Mode: l.mode, Server: "A"})
	l.now = l.now.Add(30 * time.Second)
	if a := l.due(degrade.Refresh); a == nil || !a.Vote.Up {
		t.Fatal("an older probe's failure counts")
	}
	if len(l.m.Peers()) != 1 {
		t.Fatal("an older reading counts")
	}
	// Other data under the same address begin to be healthy anew.
	l.probe(true, "y")
	if a := l.due(degrade.Refresh); a == nil || a.Vote.Up || a.Vote.Incarnation != "y" {
		t.Fatalf("with other data the vote is %+v", a.Vote)
	}
}

// The last epoch refuses switches, and says so once.
func TestEpochsEnd(t *testing.T) {
	mode := onRedis
	mode.Epoch = degrade.MaxEpoch
	l := newLone(t, mode)
	l.rows = members(1, func(int) degrade.Vote { return degrade.Vote{Down: true} })
	l.poll()
	if a := l.due(degrade.Start); a != nil {
		t.Fatalf("a start is due in the last epoch: %v", say(*a))
	}
	to := l.mode
	to.Drain = true
	to.Epoch++
	if _, ok := l.m.Begin(l.now, degrade.Action{Kind: degrade.Start, From: l.mode, To: to}); ok {
		t.Fatal("a start can be begun in the last epoch")
	}
	l.do(degrade.Action{Kind: degrade.Poll}, degrade.Reply{OK: true, Mode: l.mode, Server: "B"})
	l.now = l.now.Add(time.Second)
	if a := l.due(degrade.Takeover); a != nil {
		t.Fatalf("a takeover is due in the last epoch: %v", say(*a))
	}
	exhausted := 0
	for range 3 {
		l.poll()
		for _, e := range l.m.Events() {
			if e.Kind == degrade.Exhausted {
				exhausted++
			}
		}
	}
	if exhausted != 1 {
		t.Fatalf("told %d times that the epochs are used up, want once", exhausted)
	}
}

// Refreshes and polls of many members stay below what the arbiter can bear.
func TestPeriodsStretch(t *testing.T) {
	for _, c := range []struct {
		members       int
		refresh, poll time.Duration
	}{
		{1, 10 * time.Second, time.Second},
		{500, 10 * time.Second, time.Second},
		{3000, 15 * time.Second, 6 * time.Second},
		{10000, 20 * time.Second, 20 * time.Second}, // never beyond a third of the permit
	} {
		l := newLone(t, onRedis)
		l.rows = members(c.members, func(int) degrade.Vote { return degrade.Vote{} })
		l.poll()
		l.refresh()
		for k, want := range map[degrade.Kind]time.Duration{degrade.Refresh: c.refresh, degrade.Poll: c.poll} {
			from := l.now
			l.now = from.Add(want - 1)
			early := l.due(k) != nil
			l.now = from.Add(want)
			if late := l.due(k) == nil; early || late {
				t.Errorf("%d members: %s is due before %v: %v, not then: %v", c.members, kindNames[k], want, early, late)
			}
			l.now = from
		}
	}
}
