package degrade_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

func closeRun(t *testing.T, r *fakeRun) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if !r.Close(ctx) {
		t.Error("Close: the member row is not gone")
	}
}

// The first process makes the mode, gets its permit within a few calls, and leaves
// no row.
func TestRunnerStartsAndLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		r := startFake(t, db, "a")
		took := waitFor(t, time.Minute, "a permit on Redis", r.grantsOn(degrade.Redis))
		if took > 50*time.Millisecond {
			t.Errorf("the first permit took %v, want some calls of 5 ms", took)
		}
		time.Sleep(10 * time.Minute)
		if !r.grantsOn(degrade.Redis)() {
			t.Error("no permit after ten minutes")
		}
		// A poll a second, a refresh each 10 s, a probe each 5 s: no more.
		if n := db.count(degrade.Poll); n > 620 {
			t.Errorf("%d polls in ten minutes", n)
		}
		if n := db.count(degrade.Refresh); n > 65 {
			t.Errorf("%d refreshes in ten minutes", n)
		}
		if n := db.count(degrade.Probe); n > 125 {
			t.Errorf("%d probes in ten minutes", n)
		}
		closeRun(t, r)
		if len(db.rows) != 0 {
			t.Errorf("rows left: %v", db.rows)
		}
		if _, ok := r.MayGrant(); ok {
			t.Error("it grants after Close")
		}
	})
}

// A hold lives through a switch: it is adopted, moves, and no grant is made in the
// drain.
func TestRunnerSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		a, b := startFake(t, db, "a"), startFake(t, db, "b")
		waitFor(t, time.Minute, "permits", func() bool { return a.grantsOn(degrade.Redis)() && b.grantsOn(degrade.Redis)() })
		before := a.take(t, "h")
		changed := b.Changed()
		db.set(func(f *fakeDB) { f.redis = "" })
		a.Suspect()
		b.Suspect()
		waitFor(t, 20*time.Second, "a permit on MySQL", func() bool {
			if m := a.Mode(); m.Drain {
				if _, ok := a.MayGrant(); ok && a.Mode() == m { // else the drain has just ended
					t.Fatal("a grant in the drain")
				}
			}
			return a.grantsOn(degrade.MySQL)() && b.grantsOn(degrade.MySQL)()
		})
		synctest.Wait() // the channel is closed when the grants are there already
		select {
		case <-changed:
		default:
			t.Error("a waiter was not woken")
		}
		place, ok := a.Place("h")
		if !ok || place.Tier != degrade.MySQL || place.Epoch != before.Epoch+1 || db.adopted["h"] != place.Epoch {
			t.Errorf("the hold is at %+v %v, adopted %v", place, ok, db.adopted)
		}
		if a.Belief("h") <= a.now() {
			t.Error("the hold was lost")
		}
		synctest.Wait()
		for kind, want := range map[degrade.EventKind]int{degrade.Draining: 1, degrade.Opened: 2, degrade.HoldEnded: 0} {
			if n, e := a.told(kind); n != want {
				t.Errorf("event %v: told %d times, want %d; the last: %+v", kind, n, want, e)
			}
		}
		if a.caps == 0 {
			t.Error("nobody was told that the ack caps beliefs")
		}
		if places := a.Release("h"); len(places) != 1 || places[0] != place {
			t.Errorf("to be freed at %v, want %v", places, place)
		}
		// And back, when Redis has been healthy and the dwell is over.
		db.set(func(f *fakeDB) { f.redis = "r2" })
		took := waitFor(t, 5*time.Minute, "a return", a.grantsOn(degrade.Redis))
		if took < 25*time.Second {
			t.Errorf("back after %v", took)
		}
		closeRun(t, a)
		closeRun(t, b)
	})
}

// A hold that is refused by the new store ends and is named with both places.
func TestRunnerRefusedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		r := startFake(t, db, "a")
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
		r.take(t, "h")
		db.set(func(f *fakeDB) { f.redis = ""; f.refuse["h"] = true })
		waitFor(t, 20*time.Second, "a permit on MySQL", r.grantsOn(degrade.MySQL))
		synctest.Wait()
		n, e := r.told(degrade.HoldEnded)
		if n != 1 || e.Hold != "h" || e.Reason != degrade.Refused || len(e.Places) != 2 {
			t.Errorf("told %d times, %+v", n, e)
		}
		if r.Belief("h") != 0 {
			t.Error("it is still believed")
		}
		closeRun(t, r)
	})
}

// Without the arbiter the permit ends, and with it grants and beliefs; best effort
// goes on. Calls that hang keep nothing up, and errors are told once.
func TestRunnerWithoutArbiter(t *testing.T) {
	for _, hang := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := newFakeDB()
			r := startFake(t, db, "a")
			waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
			r.take(t, "h")
			db.set(func(f *fakeDB) { f.down, f.hang = true, hang })
			time.Sleep(4 * time.Second)
			if ticket, settled := r.BestEffort(); settled || ticket.Tier != degrade.Redis {
				t.Errorf("best effort goes to %+v, settled %v", ticket, settled)
			}
			time.Sleep(57 * time.Second)
			if _, ok := r.MayGrant(); ok {
				t.Error("a grant after the permit's end")
			}
			if r.Belief("h") > r.now() {
				t.Error("belief outlives the permit")
			}
			if n := len(r.faults()); n != 2 { // polls and refreshes
				t.Errorf("told %d errors: %v", n, r.faults())
			}
			db.set(func(f *fakeDB) { f.down, f.hang = false, false })
			took := waitFor(t, 5*time.Second, "a permit again", r.grantsOn(degrade.Redis))
			if took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			time.Sleep(2 * time.Second)
			if n := len(r.faults()); n != 4 {
				t.Errorf("told %d errors: %v", n, r.faults())
			}
			if r.Belief("h") > r.now() {
				t.Error("belief came back")
			}
			closeRun(t, r)
		})
	}
}

// Close waits for the last hold, and not longer than its context.
func TestRunnerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		r := startFake(t, db, "a")
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
		r.take(t, "h")
		time.AfterFunc(2*time.Second, func() { r.Release("h") })
		start := time.Now()
		closeRun(t, r)
		if d := time.Since(start); d < 2*time.Second || d > 2100*time.Millisecond {
			t.Errorf("closed after %v, the hold ended after 2 s", d)
		}

		r = startFake(t, db, "b")
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
		db.set(func(f *fakeDB) { f.hang = true })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start = time.Now()
		if r.Close(ctx) {
			t.Error("the row is said to be gone, but nothing answered")
		}
		if d := time.Since(start); d > 1200*time.Millisecond {
			t.Errorf("Close took %v with a context of 1 s", d)
		}
		db.set(func(f *fakeDB) { f.hang = false })

		// A leave whose first try fails is repeated.
		r = startFake(t, db, "c")
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
		db.set(func(f *fakeDB) { f.down = true })
		time.AfterFunc(time.Second, func() { db.set(func(f *fakeDB) { f.down = false }) })
		closeRun(t, r)
		if _, there := db.rows["c"]; there {
			t.Error("the row is still there")
		}
	})
}

// Other digests are told when they come and when they go, and also when another member
// stands for one of them.
func TestRunnerDigests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		start := func(member, digest string) *fakeRun {
			f := startFake(t, db, member, func(c *degrade.RunnerConfig) { c.Machine.Digest = digest })
			time.Sleep(3 * time.Second)
			return f
		}
		a := start("a", "1")
		want := func(f *fakeRun, told string) {
			t.Helper()
			if got := f.digests(); got != told {
				t.Errorf("told %v, want %v", got, told)
			}
		}
		want(a, "[]")
		same := start("same", "1")
		want(a, "[]")
		c := start("c", "3")
		want(a, "[[c]]")
		want(c, "[[a]]")
		b := start("b", "2")
		later := start("later", "2")
		want(a, "[[c] [b c]]")
		// What was known stays known while the arbiter is silent.
		db.set(func(f *fakeDB) { f.down = true })
		time.Sleep(time.Minute)
		want(a, "[[c] [b c]]")
		db.set(func(f *fakeDB) { f.down = false })
		time.Sleep(3 * time.Second)
		closeRun(t, b)
		time.Sleep(3 * time.Second)
		if got := a.digests(); !strings.HasSuffix(got, " [later c]]") {
			t.Errorf("with another member of the same digest the last that was told: %v", got)
		}
		for _, f := range []*fakeRun{later, c} {
			closeRun(t, f)
		}
		time.Sleep(3 * time.Second)
		if got := a.digests(); !strings.HasSuffix(got, " []]") {
			t.Errorf("with all others gone the last that was told: %v", got)
		}
		closeRun(t, same)
		closeRun(t, a)
	})
}
