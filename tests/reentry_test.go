package tests_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// Re-entry by an explicit holder id from a second process (and scenario 103,
// which asks for a way to share a lock between processes): the second enters
// the hold, with its fence. One of the two is killed; the other's hold goes on
// past the TTL, nobody else enters, and at the end the key is free.
func TestHolderIDFromASecondProcess(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 2 * time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
		l := newLocker(t, d.open(t, d.addr), res)
		cfg := d.peer(d.addr, res)
		for _, killed := range []string{"first", "second"} {
			t.Run(killed+" killed", func(t *testing.T) {
				ps := []*peer{newPeer(t, cfg), newPeer(t, cfg)}
				var ids [2]int
				var tokens [2]tierlock.Token
				for i, p := range ps {
					ids[i] = p.send(order{Op: "lock", Resource: "job", Key: "k", Wait: patience, Holder: "import-7"})
					tokens[i] = *p.wait(ids[i], "locked").Token
				}
				if tokens[0].Fence != tokens[1].Fence || tokens[0].Lease == tokens[1].Lease {
					t.Errorf("fences %d and %d, leases %s and %s; want one fence, two leases",
						tokens[0].Fence, tokens[1].Fence, tokens[0].Lease, tokens[1].Lease)
				}
				if rec, err := l.Inspect(bg, "job", "k"); err != nil || rec.Holds != 2 {
					t.Errorf("Inspect: %+v, %v; want 2 holds", rec, err)
				}
				dead, alive := 0, 1
				if killed == "second" {
					dead, alive = 1, 0
				}
				ps[dead].p.Kill()
				told := 0
				for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					for who, opts := range map[string][]tierlock.Option{"another caller": nil, "another holder id": {tierlock.Holder("import-8")}} {
						// A call without an answer in time, on a busy machine, says nothing of the holder.
						_, err := l.TryLock(bg, "job", "k", opts...)
						if !errors.Is(err, tierlock.ErrUnavailable) {
							wantIs(t, who, err, tierlock.ErrHeld)
							told++
						}
					}
				}
				if told < 10 {
					t.Errorf("others were told that it is held %d times", told)
				}
				if rec, err := l.Inspect(bg, "job", "k"); err != nil || rec.Holds != 1 {
					t.Errorf("Inspect after the crash: %+v, %v; want 1 hold", rec, err)
				}
				ps[alive].mustUnlock(ids[alive])
				d.wantGone(t, "job", "k")
				next := mustLock(t, l, "job", "k")
				if next.Token().Fence <= tokens[0].Fence {
					t.Errorf("fence %d after %d", next.Token().Fence, tokens[0].Fence)
				}
				mustUnlock(t, next)
			})
		}
	})
}

// The same without a rest: the survivor unlocks at once, while the lease of the
// killed one still runs. The key is free when that has expired.
func TestHolderIDLastLeaseEndsTheHold(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 6 * time.Second // a try is worth margin/2, which a busy machine may use up
		res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
		p := newPeer(t, d.peer(d.addr, res))
		p.wait(p.send(order{Op: "lock", Resource: "job", Key: "k", Wait: patience, Holder: "import-7"}), "locked")
		l := newLocker(t, d.open(t, d.addr), res)
		mine := mustLock(t, l, "job", "k", tierlock.Holder("import-7"))
		p.p.Kill()
		killed := time.Now()
		mustUnlock(t, mine)
		wantHeld(t, "right after", l, "job", "k")
		mustUnlock(t, mustLock(t, l, "job", "k", tierlock.Wait(patience)))
		between(t, "from the kill to the next lock", time.Since(killed), 0, ttl+slack)
	})
}

// Scenario 35: of five entries four unlocks leave the hold renewed on the server,
// past its TTL, and the fifth frees it; nothing renews it after that.
func TestRenewedUntilTheLastEntry(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl, entries = 4 * time.Second, 5
		res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
		s := newSpy(d.open(t, d.addr))
		l, other := newLocker(t, s, res), newLocker(t, d.open(t, d.addr), res)
		warm(t, l)
		var ks []*tierlock.Lock
		ctx := bg
		for range entries {
			k, err := l.Lock(ctx, "job", "k", tierlock.Wait(patience))
			if err != nil {
				t.Fatal(err)
			}
			ks, ctx = append(ks, k), k.Context()
		}
		lease := ks[0].Token().Lease
		for i := entries - 1; i > 0; i-- {
			mustUnlock(t, ks[i])
			mustUnlock(t, ks[i]) // counts once
		}
		last := time.Now()
		time.Sleep(ttl + ttl/4)
		if n := s.renewedAfter(lease, last); n < 2 || ks[0].Err() != nil {
			t.Errorf("%d renewals in one and a quarter TTLs with one entry left; %v", n, ks[0].Err())
		}
		if tok, _, held := d.look(t, "job", "k"); !held || tok != ks[0].Token() {
			t.Errorf("on the server: %v, held %v; want %v", tok, held, ks[0].Token())
		}
		_, err := other.Lock(bg, "job", "k", tierlock.Wait(time.Second))
		wantIs(t, "another process", err, tierlock.ErrHeld)
		mustUnlock(t, ks[0])
		d.wantGone(t, "job", "k")
		released := time.Now()
		next := mustLock(t, other, "job", "k", tierlock.Wait(patience))
		time.Sleep(ttl / 2) // longer than a period
		if n := s.renewedAfter(lease, released); n > 0 {
			t.Errorf("%d renewals after the last unlock", n)
		}
		if next.Err() != nil {
			t.Error(next.Err())
		}
		mustUnlock(t, next)
	})
}
