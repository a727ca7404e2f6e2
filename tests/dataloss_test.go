package tests_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 29: Redis crashes without persistence in mid hold and comes back
// empty. The holder is told, with the reason gone, at its next renewal; the key
// is never written again by it.
func TestRestartWithoutPersistence(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second // the server is back before belief ends
	srv := rig.Redis(t)
	var lost []tierlock.LostEvent
	s := newSpy(open(t, srv.Addr))
	cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl})
	cfg.Observer.Lost = func(e tierlock.LostEvent) { lost = append(lost, e) } // one at a time
	l := lockerOf(t, cfg)
	k := mustLock(t, l, "job", "k")
	srv.Kill()
	srv.Start()
	restarted := time.Now()
	ended := waitEnd(t, k)
	// One period, and the pause before the retry on a new connection.
	between(t, "from the restart to the signal", ended.Sub(restarted), 0, ttl/3+ttl/20+slack)
	wantLost(t, "cause", context.Cause(k.Context()), "gone")
	wantLost(t, "Err", k.Err(), "gone")
	time.Sleep(ttl / 2)
	wantGone(t, srv, "job", "k")
	if n := s.renewedAfter(k.Token().Lease, ended); n > 0 {
		t.Errorf("%d renewals after the signal", n)
	}
	wantLost(t, "Unlock", k.Unlock(), "gone")
	again := mustLock(t, l, "job", "k", tierlock.UntilDone())
	if again.Token().Fence <= k.Token().Fence {
		t.Errorf("fence %d after %d, over a restart", again.Token().Fence, k.Token().Fence)
	}
	mustUnlock(t, again)
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := l.Close(ctx); err != nil { // after it no event is under way
		t.Error(err)
	}
	if len(lost) != 1 {
		t.Errorf("%d loss events, want 1", len(lost))
	}
}

// Scenarios 49, 54 and 76: the data are wiped out (FLUSHALL, TRUNCATE) while there
// are holders, and waiters in another process. One loss for each holder and no
// more; the waiters go on, with larger fences; then it is quiet, on the wire as
// well. Who held what nobody waits for is told that it is gone.
func TestWipedWithHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl, keys = 5 * time.Second, 20
		res := tierlock.Resource{Name: "job", TTL: ttl}
		var mu sync.Mutex
		losses := make(map[string]int)
		cfg := config(d.open(t, d.addr), res)
		cfg.Observer.Lost = func(e tierlock.LostEvent) {
			mu.Lock()
			defer mu.Unlock()
			losses[e.Token.ID]++
		}
		l := lockerOf(t, cfg)
		p := newPeer(t, d.peer(d.addr, res))
		var locks [keys]*tierlock.Lock
		var waits [keys]int
		waiters := d.waiters(t)
		for i := range keys {
			locks[i] = mustLock(t, l, "job", fmt.Sprint(i))
			waits[i] = p.send(order{Op: "lock", Resource: "job", Key: fmt.Sprint(i), Wait: patience})
		}
		alone := mustLock(t, l, "job", "alone")
		rig.Eventually(t, patience, "all wait", func() bool { return waiters() == keys })
		d.wipe(t)
		flushed := time.Now()
		for i := range keys {
			e := p.wait(waits[i], "locked")
			between(t, "from the loss of the data to the waiter's lock", e.at().Sub(flushed), 0, time.Second+slack)
			if e.Token.Fence <= locks[i].Token().Fence {
				t.Errorf("key %d: fence %d after %d", i, e.Token.Fence, locks[i].Token().Fence)
			}
		}
		waitEnd(t, alone)
		between(t, "from the loss of the data to its signal", time.Since(flushed), 0, ttl/3+slack)
		wantLost(t, "what nobody waits for", context.Cause(alone.Context()), "gone")
		wantLost(t, "its unlock", alone.Unlock(), "gone")
		for i, k := range locks {
			waitEnd(t, k)
			between(t, "from the loss of the data to its signal", time.Since(flushed), 0, ttl/3+slack)
			wantLost(t, fmt.Sprint("key ", i), context.Cause(k.Context()), "gone", "taken")
			wantLost(t, fmt.Sprint("unlock of key ", i), k.Unlock(), "gone", "taken")
		}
		for i := range keys {
			if _, _, held := d.look(t, "job", fmt.Sprint(i)); !held {
				t.Errorf("key %d: the new owner's lock is gone", i)
			}
			p.mustUnlock(waits[i])
			d.wantGone(t, "job", fmt.Sprint(i))
		}
		idle(t, l)
		end := d.writes(t)
		time.Sleep(2 * time.Second)
		if n := end(); n > 0 {
			t.Errorf("%d writes in two seconds in which nobody wanted anything", n)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, k := range locks {
			if n := losses[k.Token().ID]; n != 1 {
				t.Errorf("%v: %d loss events, want 1", k.Token(), n)
			}
		}
		if len(losses) != keys+1 || losses[alone.Token().ID] != 1 {
			t.Errorf("%d holds were lost, want %d; %d events of the one that nobody waited for, want 1",
				len(losses), keys+1, losses[alone.Token().ID])
		}
	})
}

// Scenario 71: SCRIPT FLUSH in mid hold. Locking, renewal, a waiter's wake-up and
// the release all go on.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	srv := rig.Redis(t)
	res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
	s := newSpy(open(t, srv.Addr))
	a, b := newLocker(t, s, res), newLocker(t, open(t, srv.Addr), res)
	k := mustLock(t, a, "job", "k")
	h := mustLock(t, a, "job", "h", tierlock.Holder("x"))
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		srv.Do("SCRIPT", "FLUSH")
	}
	if k.Err() != nil || h.Err() != nil {
		t.Errorf("after two TTLs: %v, %v", k.Err(), h.Err())
	}
	if n := s.renewed(k.Token().Lease); n < 3 {
		t.Errorf("%d renewals in two TTLs", n)
	}
	srv.Do("SCRIPT", "FLUSH")
	wantHeld(t, "another", b, "job", "k")
	got := make(chan error)
	go func() {
		k, err := b.Lock(bg, "job", "k", tierlock.Wait(patience))
		if err == nil {
			err = k.Unlock()
		}
		got <- err
	}()
	rig.Eventually(t, patience, "the other waits", func() bool {
		return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) == 1
	})
	srv.Do("SCRIPT", "FLUSH")
	mustUnlock(t, k)
	if err := <-got; err != nil {
		t.Errorf("the waiter: %v", err)
	}
	srv.Do("SCRIPT", "FLUSH")
	mustUnlock(t, h)
	wantGone(t, srv, "job", "k")
	wantGone(t, srv, "job", "h")
}
