package tests_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// Scenario 23 and the plainest fault of all: the holder's process is killed.
// Another process has the key one TTL after the last renewal at the latest, and
// not while the lease may have run.
func TestHolderKilled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl}
		l := newLocker(t, d.open(t, d.addr), res)
		for _, kill := range []time.Duration{0, 450 * time.Millisecond, 1300 * time.Millisecond} {
			p := newPeer(t, d.peer(d.addr, res))
			_, held := p.lock("job", "k", patience)
			time.Sleep(kill) // before and after renewals
			p.p.Kill()
			killed := time.Now()     // before the look at what is left, which may take its time
			left := time.Duration(0) // on a busy machine it may have run out by the look
			if _, end, kept := d.look(t, "job", "k"); kept {
				left = end.Sub(killed)
			}
			k := mustLock(t, l, "job", "k", tierlock.Wait(patience))
			between(t, "from the kill to the next lock", time.Since(killed), left-50*time.Millisecond, ttl+slack)
			if k.Token().Fence <= held.Fence {
				t.Errorf("fence %d after %d", k.Token().Fence, held.Fence)
			}
			mustUnlock(t, k)
		}
	})
}

// Scenarios 14, 36 and 38: the holder's process is stopped for longer than the
// TTL and another takes the key. The resumed process must begin no step of work
// (Lock.Err judges by the clock, before any timer has run), its context ends,
// its Unlock says why and leaves the new owner's key as it is.
func TestHolderStopped(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 3 * time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl}
		l := newLocker(t, d.open(t, d.addr), res)
		p := newPeer(t, d.peer(d.addr, res))
		for range 2 {
			id, held := p.lock("job", "k", patience)
			p.send(order{ID: id, Op: "step"})
			p.wait(id, "step")
			time.Sleep(ttl/3 + ttl/9) // some steps, and a renewal
			p.p.Pause()
			stopped := time.Now()
			k := mustLock(t, l, "job", "k", tierlock.Wait(patience))
			between(t, "from the stop to the next lock", time.Since(stopped), 0, ttl+slack)
			time.Sleep(300 * time.Millisecond)
			resumed := time.Now()
			p.p.Resume()

			last := resumed.Add(-time.Hour)
			for ended, done := false, false; !ended || !done; {
				if time.Since(resumed) > patience {
					t.Fatalf("after %v: context ended %v, work stopped %v", patience, ended, done)
				}
				switch e := p.next(patience); {
				case e.What == "step":
					last = e.at()
				case e.What == "stopped":
					done = true
					if !e.is("lost") {
						t.Errorf("the holder stopped because of %q", e.Err)
					}
				case e.What == "ended":
					ended = true
					if !e.is("lost") {
						t.Errorf("the context ended by %q", e.Err)
					}
					between(t, "from the resume to the end of the context", e.at().Sub(resumed), 0, slack)
				}
			}
			if last.After(k.Token().ServerTime) {
				t.Errorf("a step began %v after the next holder's grant", last.Sub(k.Token().ServerTime))
			}

			_, end, _ := d.look(t, "job", "k")
			e := p.unlock(id)
			if !e.is("lost") || e.Reason != "expired" && e.Reason != "unconfirmed" && e.Reason != "taken" {
				t.Errorf("unlock of the resumed holder: %q, reason %q", e.Err, e.Reason)
			}
			rec, err := l.Inspect(bg, "job", "k")
			if err != nil || rec.Token != k.Token() || rec.Left > time.Until(end)+10*time.Millisecond && rec.Left < ttl/2 {
				t.Errorf("after the stale unlock: %+v, %v; want it held by %v", rec, err, k.Token())
			}
			if k.Err() != nil {
				t.Errorf("the new holder: %v", k.Err())
			}
			if k.Token().Fence <= held.Fence {
				t.Errorf("fence %d after %d", k.Token().Fence, held.Fence)
			}
			mustUnlock(t, k)
		}
	})
}
