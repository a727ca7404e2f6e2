package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// A hold of an exclusive resource lives through the switch to MySQL and the return:
// same lease, same fence, never two holders, and the next fence is larger.
func TestChainHoldSurvivesSwitches(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		token := k.Token()
		if token.Tier != tierlock.Redis || k.Guarantee() != tierlock.Exclusive {
			t.Errorf("taken from %v, worth %v", token.Tier, k.Guarantee())
		}
		redisAway(a, b)
		took := chainTakes(t, 30*time.Second, tierlock.MySQL, a, b)
		if took > 12*time.Second {
			t.Errorf("the switch took %v", took)
		}
		if err := k.Err(); err != nil {
			t.Fatalf("the hold was lost: %v", err)
		}
		time.Sleep(2 * time.Minute) // renewed in MySQL
		if err := k.Err(); err != nil {
			t.Fatalf("the hold was lost after the switch: %v", err)
		}
		if k.Token() != token {
			t.Errorf("token %+v, was %+v", k.Token(), token)
		}
		_, err := b.TryLock(bg, "x", "1")
		wantIs(t, "TryLock of the adopted key", err, tierlock.ErrHeld)
		rec, err := b.Inspect(bg, "x", "1")
		if err != nil || rec.Token.Lease != token.Lease || rec.Token.Fence != token.Fence || rec.Token.Epoch != 2 {
			t.Errorf("Inspect: %+v %v", rec, err)
		}
		redisBack(a, b)
		chainTakes(t, 5*time.Minute, tierlock.Redis, a, b)
		if err := k.Err(); err != nil {
			t.Fatalf("the hold was lost at the return: %v", err)
		}
		_, err = b.TryLock(bg, "x", "1")
		wantIs(t, "TryLock after the return", err, tierlock.ErrHeld)
		mustUnlock(t, k)
		next := mustLock(t, b.Locker, "x", "1")
		if next.Token().Fence <= token.Fence || next.Token().Epoch != 3 {
			t.Errorf("next fence %d in epoch %d, the one before is %d", next.Token().Fence, next.Token().Epoch, token.Fence)
		}
		mustUnlock(t, next)
		var moves []tierlock.Tier
		for _, e := range a.day.all() {
			if e, ok := e.(tierlock.AdoptedEvent); ok && e.Token == token {
				moves = append(moves, e.Tier)
			}
		}
		if !slices.Equal(moves, []tierlock.Tier{tierlock.MySQL, tierlock.Redis}) {
			t.Errorf("told to have moved to %v", moves)
		}
	})
}

// In a drain nobody grants, callers that do not wait are told so, and those that
// wait get the lock where the chain is then.
func TestChainDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		b.mc.SetFaults(cutOff) // so that the drain lasts for W, the end of b's permit
		w.shift(a, degrade.MySQL, "")
		time.Sleep(1500 * time.Millisecond)
		start := time.Now()
		_, err := a.TryLock(bg, "x", "1")
		wantIs(t, "TryLock in the drain", err, tierlock.ErrUnavailable)
		wantNotIs(t, "TryLock in the drain", err, tierlock.ErrHeld)
		if d := time.Since(start); d > 0 {
			t.Errorf("TryLock in the drain took %v", d)
		}
		_, err = a.Lock(bg, "x", "1", tierlock.Wait(5*time.Second))
		wantIs(t, "Lock in the drain", err, tierlock.ErrUnavailable)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("Lock in the drain waited %v, want 5 s", d)
		}
		k := mustLock(t, a.Locker, "x", "1", tierlock.UntilDone())
		if d := time.Since(start); d < 45*time.Second || d > 65*time.Second {
			t.Errorf("Lock came %v after the drain began, want after some 60 s", d)
		}
		if got := k.Token(); got.Tier != tierlock.MySQL || got.Epoch != 2 {
			t.Errorf("taken from %v in epoch %d", got.Tier, got.Epoch)
		}
		mustUnlock(t, k)
	})
}

// A waiter on a held key goes with the chain: it gets the key when its holder, which
// has gone along, unlocks.
func TestChainWaiterFollows(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		waits := lockAsync(bg, b.Locker, "x", "1", tierlock.UntilDone())
		time.Sleep(time.Second)
		redisAway(a, b)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a, b)
		time.Sleep(10 * time.Second)
		select {
		case r := <-waits:
			t.Fatalf("the waiter got %v, %v while the key is held", r.k.Token(), r.err)
		default:
		}
		mustUnlock(t, k)
		start := time.Now()
		r := <-waits
		if r.err != nil || r.k.Token().Tier != tierlock.MySQL {
			t.Fatalf("the waiter got %v, %v", r.k.Token(), r.err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v after the unlock", d)
		}
		mustUnlock(t, r.k)
	})
}

// A grant whose reply comes after the process has learned of the drain is nobody's,
// and is given back.
func TestChainLateGrantIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(func(c *tierlock.Config) { c.Degrade.Poll = 20 * time.Millisecond })
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		slow := near1ms
		slow.Delay = 120 * time.Millisecond
		a.rc.SetFaults(slow)
		waits := lockAsync(bg, a.Locker, "x", "1", tierlock.Wait(10*time.Second))
		time.Sleep(170 * time.Millisecond) // granted, the answer on its way
		if held := w.redis.Held(); len(held) != 1 {
			t.Fatalf("held: %v", held)
		}
		w.shift(a, degrade.MySQL, "")
		for a.Status().Chain.Epoch == 1 {
			time.Sleep(time.Millisecond)
		}
		r := <-waits
		if r.err != nil || r.k.Token().Tier != tierlock.MySQL || r.k.Token().Epoch != 2 {
			t.Fatalf("got %v, %v", r.k.Token(), r.err)
		}
		time.Sleep(3 * time.Second)
		if held := w.redis.Held(); len(held) != 0 {
			t.Errorf("left in Redis: %v", held)
		}
		mustUnlock(t, r.k)
		idle(t, a.Locker)
		if held := w.mysql.Held(); len(held) != 0 {
			t.Errorf("left in MySQL: %v", held)
		}
	})
}

// Without MySQL exclusive holds end with the permit, are told so, and none is given;
// best effort goes on.
func TestChainWithoutArbiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k, be := mustLock(t, a.Locker, "x", "1"), mustLock(t, a.Locker, "b", "1")
		a.mc.SetFaults(cutOff)
		start := time.Now()
		permit := a.Status().Chain.Permit
		<-k.Context().Done()
		if d := time.Since(start); permit < 45*time.Second || d < permit || d > permit+time.Millisecond {
			t.Errorf("the hold ended after %v, want when the permit does, after %v", d, permit)
		}
		wantLost(t, "the hold", context.Cause(k.Context()), "unconfirmed")
		wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
		_, err := a.TryLock(bg, "x", "1")
		wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
		if err := be.Err(); err != nil {
			t.Errorf("best effort: %v", err)
		}
		k2 := mustLock(t, a.Locker, "b", "2")
		if k2.Guarantee() != tierlock.FencedOnly {
			t.Errorf("best effort is worth %v", k2.Guarantee())
		}
		mustUnlock(t, k2)
		mustUnlock(t, be)
		a.mc.SetFaults(near1ms)
		if d := chainTakes(t, 10*time.Second, tierlock.Redis, a); d > 3*time.Second {
			t.Errorf("it took %v to go on", d)
		}
	})
}

// Best effort: a call that waits stays for a short drain; one that does not, or a
// long one, goes on at once.
func TestChainBestEffortInDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		b.mc.SetFaults(cutOff)
		w.shift(a, degrade.MySQL, "")
		time.Sleep(1500 * time.Millisecond)
		start := time.Now()
		k := mustLock(t, a.Locker, "b", "1", tierlock.NoWait())
		if d := time.Since(start); d > 10*time.Millisecond {
			t.Errorf("TryLock took %v", d)
		}
		if got := k.Token(); got.Tier != tierlock.MySQL || k.Guarantee() != tierlock.FencedOnly {
			t.Errorf("taken from %v, worth %v", got.Tier, k.Guarantee())
		}
		k2 := mustLock(t, a.Locker, "b", "2", tierlock.Wait(2*time.Second))
		if d := time.Since(start); d < time.Second || d > 2*time.Second {
			t.Errorf("a wait of 2 s took %v", d)
		}
		start = time.Now()
		k3 := mustLock(t, a.Locker, "b", "3", tierlock.UntilDone())
		if d := time.Since(start); d < 4*time.Second || d > 6*time.Second {
			t.Errorf("a wait without end took %v", d)
		}
		time.Sleep(2 * time.Minute) // the drain ends, and they stay
		for _, k := range []*tierlock.Lock{k, k2, k3} {
			mustUnlock(t, k)
		}
	})
}

// A best-effort hold goes along as well.
func TestChainBestEffortHoldSurvives(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k := mustLock(t, a.Locker, "b", "1")
		redisAway(a)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a)
		time.Sleep(time.Minute)
		if err := k.Err(); err != nil {
			t.Fatalf("lost: %v", err)
		}
		if held := w.mysql.Held(); len(held) != 1 {
			t.Errorf("held in MySQL: %v", held)
		}
		mustUnlock(t, k)
		if held := w.mysql.Held(); len(held) != 0 {
			t.Errorf("held in MySQL after the unlock: %v", held)
		}
	})
}

// The very first call of a process that does not wait gets its lock all the same.
func TestChainFirstCall(t *testing.T) {
	for _, resource := range []string{"x", "b"} {
		inBubble(t, func(t *testing.T, w *chainWorld) {
			for range 2 { // with and without a mode that is there already
				a := w.start()
				k, err := a.TryLock(bg, resource, "1")
				if err != nil || k.Token().Tier != tierlock.Redis || k.Token().Epoch != 1 {
					t.Fatalf("%s: %v, %v", resource, k.Token(), err)
				}
				mustUnlock(t, k)
			}
			// But not for long where nothing answers.
			a := w.start()
			a.mc.SetFaults(cutOff)
			start := time.Now()
			k, err := a.TryLock(bg, resource, "1")
			if d := time.Since(start); d > 1500*time.Millisecond {
				t.Errorf("%s: it took %v", resource, d)
			}
			if resource == "x" {
				wantIs(t, "without an arbiter", err, tierlock.ErrUnavailable)
			} else if err != nil {
				t.Errorf("best effort without an arbiter: %v", err)
			} else {
				mustUnlock(t, k)
			}
		})
	}
}

// brokenArbiter refuses all that an arbiter does: its tables are missing, say.
type brokenArbiter struct{ *sim.MySQLStore }

func (brokenArbiter) Arbitrate(context.Context, degrade.Self, degrade.Action) (degrade.Reply, error) {
	return degrade.Reply{}, fmt.Errorf("%w: no table lock_mode", tierlock.ErrMisconfigured)
}

// Whose arbiter is not set up is told so, by each error and once in the log.
func TestChainArbiterNotSetUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(func(c *tierlock.Config) { c.Stores[1] = brokenArbiter{c.Stores[1].(*sim.MySQLStore)} })
		_, err := a.Lock(bg, "x", "1", tierlock.Wait(3*time.Second))
		wantIs(t, "Lock", err, tierlock.ErrUnavailable, tierlock.ErrMisconfigured)
		if !strings.Contains(err.Error(), "no table lock_mode") {
			t.Errorf("it does not say why: %v", err)
		}
		if lines := a.log.lines("tierlock: the chain's call is refused"); len(lines) != 1 {
			t.Errorf("lines: %v", lines)
		}
	})
}

// A call that enters a hold does not get less than it requires.
func TestChainReentryRequiresGuarantee(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		k := mustLock(t, a.Locker, "x", "1")
		mustUnlock(t, mustLockCtx(t, k.Context(), a.Locker, "x", "1", tierlock.RequireGuarantee(tierlock.Exclusive)))
		b := w.start(func(c *tierlock.Config) { c.Resources[0].Reentrant = false })
		time.Sleep(3 * time.Second)
		_, err := a.Lock(k.Context(), "x", "1", tierlock.RequireGuarantee(tierlock.Exclusive))
		wantIs(t, "re-entry of a fenced-only hold", err, tierlock.ErrUnavailable)
		mustUnlock(t, mustLockCtx(t, k.Context(), a.Locker, "x", "1"))
		mustUnlock(t, k)
		_ = b
	})
}

// Who alone does not reach Redis drags nobody: it gets ErrUnavailable.
func TestChainAloneCutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b, c := w.start(), w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b, c)
		redisAway(a)
		for range 30 {
			_, err := a.TryLock(bg, "x", "1")
			wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
			_, err = a.TryLock(bg, "b", "1")
			wantIs(t, "TryLock best effort", err, tierlock.ErrUnavailable)
			time.Sleep(2 * time.Second)
		}
		if got := w.mysql.Mode("ns"); got.Epoch != 1 {
			t.Errorf("it has switched to %+v", got)
		}
		redisBack(a)
		chainTakes(t, 5*time.Second, tierlock.Redis, a, b, c)
	})
}

// A promotion of a replica of Redis is a drain to the new data.
func TestChainRedisFailover(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		w.redis.Failover(time.Second) // what is younger is lost: the lock
		w.redis.KillOld()
		_, err := b.TryLock(bg, "x", "1")
		if err == nil {
			t.Error("b took the lock on the new primary at once")
		}
		took := chainTakes(t, time.Minute, tierlock.Redis, a, b)
		if took > 12*time.Second {
			t.Errorf("it took %v to go on", took)
		}
		if err := k.Err(); err != nil {
			t.Errorf("the hold was lost: %v", err)
		}
		_, err = b.TryLock(bg, "x", "1")
		wantIs(t, "TryLock of the adopted", err, tierlock.ErrHeld)
		mustUnlock(t, k)
		mustUnlock(t, mustLock(t, b.Locker, "x", "1"))
	})
}

// A hold that the new store refuses ends at once, and not with its next renewal or its
// lease, for the right reason; so does one that is not exclusive.
func TestChainRefusedHold(t *testing.T) {
	for _, resource := range []string{"x", "b"} {
		inBubble(t, func(t *testing.T, w *chainWorld) {
			a := w.start()
			chainTakes(t, 2*time.Second, tierlock.Redis, a)
			k := mustLock(t, a.Locker, resource, "1")
			// Somebody has the key in MySQL, with a larger fence, in the epoch to come.
			other := k.Token()
			other.Lease, other.Fence = "other", other.Fence+1000
			res := a.mc.Adopt(bg, []tierlock.AdoptRequest{{Name: name(resource, "1"), Token: other, TTL: time.Minute, Place: tierlock.Place{Epoch: 2}}})
			if res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
			w.shift(a, degrade.MySQL, "")
			shifted := time.Now()
			<-k.Context().Done()
			if d := time.Since(shifted); d > 3*time.Second { // a poll and an adoption; a renewal comes later
				t.Errorf("%s: ended after %v", resource, d)
			}
			wantLost(t, "the hold", context.Cause(k.Context()), "taken")
			wantLost(t, "Unlock", k.Unlock(), "taken")
			chainTakes(t, 10*time.Second, tierlock.MySQL, a)
			idle(t, a.Locker)
			if held := w.redis.Held(); len(held) != 0 {
				t.Errorf("%s: left in Redis: %v", resource, held)
			}
		})
	}
}

// renewsNothing is a database that does all but renew.
type renewsNothing struct{ *sim.MySQLStore }

func (renewsNothing) Renew(_ context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	res := make([]tierlock.RenewResult, len(reqs))
	for i := range res {
		res[i].Err = tierlock.ErrUnavailable
	}
	return res
}

// After a switch belief goes by the adopted lease: no longer, and no shorter.
func TestChainBeliefAfterSwitch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(func(c *tierlock.Config) { c.Stores[1] = renewsNothing{c.Stores[1].(*sim.MySQLStore)} })
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k, be := mustLock(t, a.Locker, "x", "1"), mustLock(t, a.Locker, "b", "1")
		redisAway(a)
		for !a.Status().Chain.Draining {
			time.Sleep(time.Millisecond)
		}
		drain := time.Now() // adoptions go out at once
		for a.Status().Chain.Draining {
			time.Sleep(time.Millisecond)
		}
		if open := time.Since(drain); open > 3*time.Second {
			t.Fatalf("the drain took %v", open)
		}
		for _, h := range []*tierlock.Lock{k, be} {
			<-h.Context().Done()
			if d := time.Since(drain); d < 27*time.Second-2*time.Millisecond || d > 27*time.Second+20*time.Millisecond {
				t.Errorf("%s ended %v after its adoption, want 27 s", h.Token(), d)
			}
			wantLost(t, "the end", context.Cause(h.Context()), "unconfirmed")
		}
	})
}

// What is unlocked in a drain, after its adoption, is freed in both stores.
func TestChainUnlockInDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		b.mc.SetFaults(cutOff) // the drain lasts
		w.shift(a, degrade.MySQL, "")
		time.Sleep(2 * time.Second)
		if n, m := len(w.redis.Held()), len(w.mysql.Held()); n != 1 || m != 1 {
			t.Fatalf("%d keys in Redis and %d in MySQL, want one each", n, m)
		}
		mustUnlock(t, k)
		idle(t, a.Locker)
		if n, m := len(w.redis.Held()), len(w.mysql.Held()); n != 0 || m != 0 {
			t.Errorf("%d keys in Redis and %d in MySQL after the unlock", n, m)
		}
	})
}

// Close takes the process off the list of members, and leaves no goroutine.
func TestChainClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		before := goroutines()
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k := mustLock(t, a.Locker, "x", "1")
		if n := len(w.mysql.Members("ns")); n != 1 {
			t.Fatalf("%d members", n)
		}
		time.AfterFunc(time.Second, func() { mustUnlock(t, k) })
		start := time.Now()
		if err := a.Close(bg); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d < time.Second || d > 1200*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		if m := w.mysql.Members("ns"); len(m) != 0 {
			t.Errorf("members left: %v", m)
		}
		synctest.Wait()
		if n := goroutines(); n > before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		// Without MySQL it ends in time, and says what it leaves.
		a = w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		a.mc.SetFaults(cutOff)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		start = time.Now()
		wantIs(t, "Close without MySQL", a.Close(ctx), tierlock.ErrUnavailable)
		if d := time.Since(start); d > 2500*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
	})
}

// Who closes in an outage, with a release that Redis has not heard of, is not waited
// for by the next switch: it is off the list of members although the release is left.
func TestChainCloseInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		redisAway(a)
		wantIs(t, "Unlock", k.Unlock(), tierlock.ErrUnavailable)
		ctx, cancel := context.WithTimeout(bg, 5*time.Second)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- a.Close(ctx) }()
		time.Sleep(time.Second)
		if m := w.mysql.Members("ns"); len(m) != 1 {
			t.Errorf("members while it waits for the release: %v", m)
		}
		wantIs(t, "Close", <-closed, tierlock.ErrUnavailable)
		if m := w.mysql.Members("ns"); len(m) != 1 {
			t.Errorf("members after Close: %v", m)
		}
	})
}

// Unlock and Close at any moment of a switch leave nothing behind: no key, no member,
// no goroutine.
func TestChainEndsAtAnyMoment(t *testing.T) {
	for late := time.Duration(0); late < 8*time.Second; late += 230 * time.Millisecond {
		inBubble(t, func(t *testing.T, w *chainWorld) {
			before := goroutines()
			a, b := w.start(), w.start()
			chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
			p := w.start()
			chainTakes(t, 2*time.Second, tierlock.Redis, p)
			var holds []*tierlock.Lock
			for _, resource := range []string{"x", "b"} {
				for _, key := range []string{"1", "2"} {
					holds = append(holds, mustLock(t, p.Locker, resource, key))
				}
			}
			waits := lockAsync(bg, p.Locker, "x", "1", tierlock.UntilDone())
			redisAway(a, b, p)
			time.Sleep(late)
			go func() {
				for _, k := range holds {
					if err := k.Unlock(); errors.Is(err, tierlock.ErrLost) {
						t.Errorf("%v: %v", late, err)
					}
				}
			}()
			time.Sleep(100 * time.Millisecond)
			ctx, cancel := context.WithTimeout(bg, 20*time.Second)
			defer cancel()
			_ = p.Close(ctx)
			if r := <-waits; r.err == nil {
				_ = r.k.Unlock()
			}
			time.Sleep(3 * time.Minute)
			if m := w.mysql.Members("ns"); len(m) != 2 {
				t.Errorf("%v: members %v", late, m)
			}
			if r, m := w.redis.Held(), w.mysql.Held(); len(r)+len(m) != 0 {
				t.Errorf("%v: left %v %v", late, r, m)
			}
			for _, p := range []*chainProc{a, b} {
				if err := p.Close(bg); err != nil {
					t.Errorf("%v: Close: %v", late, err)
				}
			}
			synctest.Wait()
			if n := goroutines(); n > before {
				t.Errorf("%v: %d goroutines, %d before", late, n, before)
			}
		})
	}
}

// The options Floor and RequireGuarantee refuse before a store is asked.
func TestChainOptions(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		for what, opt := range map[string]tierlock.Option{
			"a floor below": tierlock.Floor(tierlock.Local), "no tier": tierlock.Floor(0),
			"no guarantee": tierlock.RequireGuarantee(0), "more than it can": tierlock.RequireGuarantee(tierlock.Exclusive),
		} {
			_, err := a.TryLock(bg, "b", "1", opt)
			wantIs(t, what, err, tierlock.ErrInvalid)
		}
		mustUnlock(t, mustLock(t, a.Locker, "x", "1", tierlock.Floor(tierlock.Redis), tierlock.RequireGuarantee(tierlock.Exclusive)))
		_, err := a.TryLock(bg, "x", "1", tierlock.TTL(2*time.Second))
		wantIs(t, "a short TTL", err, tierlock.ErrInvalid)
		redisAway(a)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a)
		for _, resource := range []string{"x", "b"} {
			_, err := a.TryLock(bg, resource, "1", tierlock.Floor(tierlock.Redis))
			wantIs(t, "Floor(Redis) on MySQL", err, tierlock.ErrUnavailable)
			mustUnlock(t, mustLock(t, a.Locker, resource, "1", tierlock.Floor(tierlock.MySQL)))
		}
		// Without a floor the first store is all there is.
		_, err = a.TryLock(bg, "r", "1")
		wantIs(t, "no floor", err, tierlock.ErrUnavailable)
	})
}

// MySQL alone keeps exclusion, too, under a permit of its own.
func TestChainMySQLAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(func(c *tierlock.Config) {
			c.Stores = c.Stores[1:]
			c.Resources = []tierlock.Resource{{Name: "x", Exclusive: true}, {Name: "r"}}
		})
		chainTakes(t, 5*time.Second, tierlock.MySQL, a)
		k, r := mustLock(t, a.Locker, "x", "1"), mustLock(t, a.Locker, "r", "1")
		if k.Guarantee() != tierlock.Exclusive || r.Guarantee() != tierlock.FencedOnly {
			t.Errorf("worth %v and %v", k.Guarantee(), r.Guarantee())
		}
		w.mysql.Failover(0)
		time.Sleep(5 * time.Second)
		_, err := a.TryLock(bg, "x", "2")
		wantIs(t, "TryLock after a failover", err, tierlock.ErrUnavailable)
		chainTakes(t, 3*time.Minute, tierlock.MySQL, a)
		// The new server renews no lease of the old one's, and the pause is longer
		// than a lease.
		wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
		if st := a.Status().Chain; st.Epoch < 17 {
			t.Errorf("epoch %d after the arbiter's failover", st.Epoch)
		}
		mustUnlock(t, r)
	})
}

// A failover of the arbiter while locks are kept in Redis: a pause for new ones, and
// no held one is lost.
func TestChainArbiterFailover(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(), w.start()
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		k := mustLock(t, a.Locker, "x", "1")
		w.mysql.Failover(0)
		time.Sleep(5 * time.Second)
		_, err := b.TryLock(bg, "x", "2")
		wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
		mustUnlock(t, mustLock(t, b.Locker, "b", "1"))
		if d := chainTakes(t, 3*time.Minute, tierlock.Redis, a, b); d < time.Minute {
			t.Errorf("it went on after %v", d)
		}
		if err := k.Err(); err != nil {
			t.Errorf("the hold was lost: %v", err)
		}
		_, err = b.TryLock(bg, "x", "1")
		wantIs(t, "TryLock", err, tierlock.ErrHeld)
		mustUnlock(t, k)
	})
}

// Status tells the mode.
func TestChainStatus(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		if st := a.Status().Chain; st == nil || st.Epoch != 0 || st.Tier != 0 {
			t.Errorf("at the start: %+v", st)
		}
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		st := a.Status().Chain
		if st.Epoch != 1 || st.Tier != tierlock.Redis || st.Draining || st.Differing != nil || st.Permit < 40*time.Second || st.Permit > time.Minute {
			t.Errorf("on Redis: %+v", st)
		}
		redisAway(a)
		chainTakes(t, 30*time.Second, tierlock.MySQL, a)
		if st := a.Status(); st.Chain.Epoch != 2 || st.Chain.Tier != tierlock.MySQL || len(st.Stores) != 2 {
			t.Errorf("on MySQL: %+v", st)
		}
		if l := newLocker(t, newSpy(nil)); l.Status().Chain != nil {
			t.Error("a chain without a chain")
		}
	})
}

// New warns where held locks would not outlast a switch.
func TestChainWarnsOfShortLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		const line = "tierlock: a switch to another store may take longer than leases last: shorten Degrade.Probe, Suspect and Poll, or lengthen the TTL"
		a := w.start()
		if lines := a.log.lines(line); len(lines) != 0 {
			t.Errorf("with the defaults: %v", lines)
		}
		a = w.start(func(c *tierlock.Config) { c.Resources[0].TTL, c.Resources[2].TTL = 10*time.Second, time.Second })
		if lines := a.log.lines(line); len(lines) != 1 || !strings.Contains(lines[0], "resource=x") {
			t.Errorf("with leases of 10 s: %v", lines)
		}
		a = w.start(func(c *tierlock.Config) {
			c.Resources[0].TTL = 10 * time.Second
			c.Degrade = tierlock.Degrade{Probe: time.Second, Suspect: 300 * time.Millisecond, Poll: 500 * time.Millisecond}
		})
		if lines := a.log.lines(line); len(lines) != 0 {
			t.Errorf("with fast probes: %v", lines)
		}
	})
}

// What a chain wants of a configuration.
func TestChainConfig(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		p := w.start()
		for _, tc := range []struct {
			what, field string
			stores      []tierlock.Store
			r           tierlock.Resource
		}{
			{"wrong order", "Stores[1]", []tierlock.Store{p.mc, p.rc}, tierlock.Resource{Floor: tierlock.MySQL}},
			{"twice", "Stores[1]", []tierlock.Store{p.rc, p.rc}, tierlock.Resource{}},
			{"nobody needs MySQL", "Stores[1]", []tierlock.Store{p.rc, p.mc}, tierlock.Resource{}},
			{"nobody needs the local store", "Stores[1]", []tierlock.Store{p.rc, newSpy(nil)}, tierlock.Resource{}},
			{"a floor that is not there", "Resources[0].Floor", []tierlock.Store{p.rc}, tierlock.Resource{Floor: tierlock.MySQL}},
			{"exclusive on Redis alone", "Resources[0].Exclusive", []tierlock.Store{p.rc}, tierlock.Resource{Exclusive: true}},
			{"exclusive without a floor", "Resources[0].Floor", []tierlock.Store{p.rc, p.mc}, tierlock.Resource{Exclusive: true}},
			{"exclusive and short", "Resources[0].TTL", []tierlock.Store{p.rc, p.mc}, tierlock.Resource{Exclusive: true, Floor: tierlock.MySQL, TTL: time.Second}},
			{"not chained", "Stores[0]", []tierlock.Store{pollOnly{p.rc}, p.mc}, tierlock.Resource{Floor: tierlock.MySQL}},
			{"no arbiter", "Stores[1]", []tierlock.Store{p.rc, pollOnly{p.mc}}, tierlock.Resource{Floor: tierlock.MySQL}},
		} {
			tc.r.Name = "x"
			l, err := tierlock.New(tierlock.Config{App: "a", Namespace: "n", Stores: tc.stores, Resources: []tierlock.Resource{tc.r}})
			var bad *tierlock.InvalidError
			if l != nil || !errors.As(err, &bad) || bad.Field != tc.field {
				t.Errorf("%s: %v, want a problem with %s", tc.what, err, tc.field)
			}
		}
		_, err := tierlock.New(tierlock.Config{App: "a", Namespace: "n", Stores: []tierlock.Store{p.rc, p.mc},
			Resources: []tierlock.Resource{{Name: "x", Floor: tierlock.MySQL}}, Degrade: tierlock.Degrade{Permit: time.Second}})
		var bad *tierlock.InvalidError
		if !errors.As(err, &bad) || bad.Field != "Degrade.Permit" {
			t.Errorf("a short permit: %v", err)
		}
	})
}
