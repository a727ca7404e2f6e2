package degrade_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// slowArbiter executes the calls of one kind later than others.
type slowArbiter struct {
	*fakeDB
	kind  degrade.Kind
	delay time.Duration
}

func (s slowArbiter) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	if a.Kind == s.kind {
		time.Sleep(s.delay)
	}
	return s.fakeDB.Arbitrate(ctx, self, a)
}

// A process that ends while its own row is being written leaves none: a leave that
// overtook the refresh, or the ack, would be followed by the row of nobody, for which
// every switch waits.
func TestRunnerLeavesBehindItsRefresh(t *testing.T) {
	for _, kind := range []degrade.Kind{degrade.Refresh, degrade.Ack} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newFakeDB()
				r := startFake(t, db, "a", func(c *degrade.RunnerConfig) { c.Arbiter = slowArbiter{db, kind, 200 * time.Millisecond} })
				if kind == degrade.Ack {
					// The other never answers, so the drain stays.
					waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
					db.set(func(f *fakeDB) {
						f.rows["dead"] = degrade.Member{ID: "dead", Epoch: f.mode.Epoch, Beat: 1 << 40}
						f.mode.Epoch, f.mode.Drain, f.mode.Tier, f.mode.Incarnation = f.mode.Epoch+1, true, degrade.MySQL, ""
					})
					waitFor(t, time.Minute, "the drain", func() bool { return r.Mode().Drain })
				} else {
					waitFor(t, time.Minute, "a mode", func() bool { return r.Mode().Known() })
				}
				time.Sleep(20 * time.Millisecond) // it has begun
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if !r.Close(ctx) {
					t.Error("the row is not said to be gone")
				}
				time.Sleep(time.Second)
				if _, there := db.rows["a"]; there {
					t.Error("the row is there after Close")
				}
			})
		})
	}
}

// A process that was stopped for a while has not asked meanwhile: it does not take
// the arbiter for silent when it goes on, and so sends nobody to the wrong store.
func TestRunnerAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		db.redis = ""
		var stopped atomic.Int64 // for how long in all
		r := startFake(t, db, "a", func(c *degrade.RunnerConfig) {
			now := c.Now
			c.Now = func() degrade.Instant { return now().Add(time.Duration(stopped.Load())) }
		})
		defer closeRun(t, r)
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.MySQL))
		b := startFake(t, db, "b", func(c *degrade.RunnerConfig) { c.Machine.Digest = "other" })
		defer closeRun(t, b)
		waitFor(t, time.Minute, "the other digest", func() bool { return r.digests() == "[[b]]" })
		for range 20 {
			time.Sleep(time.Second + 37*time.Millisecond)
			stopped.Add(int64(40 * time.Second))
			if st := r.State(); st.Silent || r.digests() != "[[b]]" {
				t.Fatalf("after a stop: %+v, told %v", st, r.digests())
			}
			if ticket, settled := r.BestEffort(); ticket.Tier != degrade.MySQL || !settled {
				t.Fatalf("best effort after a stop: %+v, settled %v", ticket, settled)
			}
			synctest.Wait()
		}
		// But silence is noticed as ever.
		db.set(func(f *fakeDB) { f.hang = true })
		d := waitFor(t, time.Minute, "silence", func() bool { return r.State().Silent })
		if d > 5*time.Second {
			t.Errorf("silence was noticed after %v", d)
		}
		stopped.Add(int64(time.Second))
		if !r.State().Silent {
			t.Error("silent no more after a short stop, and no answer")
		}
		db.set(func(f *fakeDB) { f.hang = false })
	})
}
