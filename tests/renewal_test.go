package tests_test

import (
	"context"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 28 and 105: a hold of three TTLs with two contenders in other
// processes, one that waits and one that tries again and again. Nobody enters.
func TestNobodyEntersALongHold(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 4 * time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl}
		k := mustLock(t, newLocker(t, d.open(t, d.addr), res), "job", "k")
		cfg := d.peer(d.addr, res)
		waiting, trying := newPeer(t, cfg), newPeer(t, cfg)
		wait := waiting.send(order{Op: "lock", Resource: "job", Key: "k", Wait: 3 * ttl})
		tries, late := 0, 0
		for start := time.Now(); time.Since(start) < 3*ttl; tries++ {
			e := trying.wait(trying.send(order{Op: "lock", Resource: "job", Key: "k"}), "refused")
			switch {
			case e.is("unavailable"): // on a busy machine a try may take longer than it is worth
				late++
			case !e.is("held"):
				t.Fatalf("try %d: %s", tries, e.Err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if late > tries/10 {
			t.Errorf("%d of %d tries were without an answer", late, tries)
		}
		if e := waiting.wait(wait, "refused"); !e.is("held") {
			t.Errorf("the waiter: %s", e.Err)
		}
		if k.Err() != nil {
			t.Errorf("the holder: %v", k.Err())
		}
		mustUnlock(t, k)
		d.wantGone(t, "job", "k")
	})
}

// Scenario 19: one renewal is lost on its way. The lock is kept, and the next
// try comes within a fraction of the interval.
func TestOneLostRenewal(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 12 * time.Second // the next regular attempt comes 4 s after the lost one
		for name, drop := range map[string]func(*rig.Proxy){
			"request": (*rig.Proxy).DropRequests,
			"reply":   (*rig.Proxy).DropReplies,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := rig.NewProxy(t, d.addr)
				s := newSpy(d.open(t, proxy.Addr))
				renewed := make(chan tierlock.RenewedEvent, 10)
				cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl})
				cfg.Observer.Renewed = func(e tierlock.RenewedEvent) { renewed <- e }
				k := mustLock(t, lockerOf(t, cfg), "job", name)
				drop(proxy)
				rig.Eventually(t, patience, "a renewal is tried", func() bool { return s.renewed(k.Token().Lease) > 0 })
				time.Sleep(10 * time.Millisecond)
				proxy.Pass()
				passed := time.Now()
				select {
				case e := <-renewed:
					between(t, "from the end of the fault to a confirmed renewal", e.At.Sub(passed), 0, ttl/3-500*time.Millisecond)
				case <-k.Context().Done():
					t.Fatalf("lost: %v", context.Cause(k.Context()))
				}
				time.Sleep(ttl / 3)
				if k.Err() != nil {
					t.Errorf("later: %v", k.Err())
				}
				mustUnlock(t, k)
			})
		}
	})
}

// Scenarios 25, 27 and 102: the bound MaxHold of 4 s. The context ends with that
// cause a margin before, the key is free on time although the body has not
// returned, and no renewal brings it back.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl, bound = 4 * time.Second, 4 * time.Second
		s := newSpy(d.open(t, d.addr))
		l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl, MaxHold: bound, Expect: ttl})
		start := time.Now()
		k := mustLock(t, l, "job", "k", tierlock.TTL(ttl*19/20)) // so that it is renewed on the way
		granted := time.Now()
		unlooked := mustLock(t, l, "job", "unlooked")
		time.Sleep(time.Until(start.Add(bound * 4 / 5)))
		if n := s.renewed(k.Token().Lease); n == 0 {
			t.Error("it was not renewed on the way to its bound")
		}
		// By the server's clock, which is this machine's.
		_, expiry, _ := d.look(t, "job", "k")
		between(t, "the key's life", expiry.Sub(granted), bound/2, bound+bound/5) // a renewal may come late
		last := lastBelief(k)
		ended := waitEnd(t, k)
		wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrLeaseExceeded)
		waitEnd(t, unlooked) // though nobody looks at it
		between(t, "end of the context", ended.Sub(start), bound-ttl/5, bound+slack)
		if !last.Before(expiry) {
			t.Errorf("belief ended %v after the key", last.Sub(expiry))
		}
		d.goneWithin(t, time.Until(expiry)+slack, "job", "k")
		time.Sleep(ttl / 2)
		d.wantGone(t, "job", "k")
		if n := s.renewedAfter(k.Token().Lease, ended); n > 0 {
			t.Errorf("%d renewals after the bound", n)
		}
		wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLeaseExceeded)
		wantIs(t, "Unlock", unlooked.Unlock(), tierlock.ErrLeaseExceeded)
		mustUnlock(t, mustLock(t, l, "job", "k"))
	})
}

// Scenario 102: a worker is gone without an unlock, and with it the context that it
// locked with. Nothing renews the lease any more, and another process has the lock
// when it has run out, not before.
func TestWorkerGoneWithoutUnlock(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 4 * time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl}
		s := newSpy(d.open(t, d.addr))
		l, other := newLocker(t, s, res), newLocker(t, d.open(t, d.addr), res)
		warm(t, other)
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		k, err := l.Lock(ctx, "job", "k", tierlock.Wait(patience))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl + ttl/4) // it is renewed as long as the worker is there
		if n := s.renewed(k.Token().Lease); n < 2 || k.Err() != nil {
			t.Errorf("%d renewals in more than a TTL; %v", n, k.Err())
		}
		cancel()
		gone := time.Now()
		_, end, held := d.look(t, "job", "k")
		if !held {
			t.Error("it is free at once, while the work may go on")
		}
		next := mustLock(t, other, "job", "k", tierlock.Wait(patience))
		// By the server's clock, which is this machine's.
		if got := next.Token().ServerTime; got.Before(end.Add(-time.Millisecond)) {
			t.Errorf("another has it %v before the end of the lease", end.Sub(got))
		}
		between(t, "from the worker's end to the next lock", time.Since(gone), 0, ttl+slack)
		// One that was on its way when the context ended does not count.
		if n := s.renewedAfter(k.Token().Lease, gone.Add(ttl/10)); n > 0 {
			t.Errorf("%d renewals after the worker's end", n)
		}
		wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLost)
		if tok, _, _ := d.look(t, "job", "k"); tok != next.Token() {
			t.Errorf("on the server: %v, want %v", tok, next.Token())
		}
		mustUnlock(t, next)
	})
}
