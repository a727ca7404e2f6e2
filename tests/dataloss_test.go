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
	const ttl = 3 * time.Second
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

// Scenarios 49, 54 and 76: FLUSHALL while there are holders, and waiters in
// another process. One loss for each holder and no more; the waiters go on, with
// larger fences; then it is quiet, on the wire as well.
func TestFlushAllWithHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	const ttl, keys = 3 * time.Second, 20
	res := tierlock.Resource{Name: "job", TTL: ttl}
	srv := rig.Redis(t)
	var mu sync.Mutex
	losses := make(map[string]int)
	cfg := config(open(t, srv.Addr), res)
	cfg.Observer.Lost = func(e tierlock.LostEvent) {
		mu.Lock()
		defer mu.Unlock()
		losses[e.Token.ID]++
	}
	l := lockerOf(t, cfg)
	p := newPeer(t, peerConfig{Addr: srv.Addr, Resources: []tierlock.Resource{res}})
	var locks [keys]*tierlock.Lock
	var waits [keys]int
	for i := range keys {
		locks[i] = mustLock(t, l, "job", fmt.Sprint(i))
		waits[i] = p.send(order{Op: "lock", Resource: "job", Key: fmt.Sprint(i), Wait: patience})
	}
	rig.Eventually(t, patience, "all wait", func() bool {
		return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) == keys
	})
	srv.Do("FLUSHALL")
	flushed := time.Now()
	for i := range keys {
		e := p.wait(waits[i], "locked")
		between(t, "from FLUSHALL to the waiter's lock", e.at().Sub(flushed), 0, time.Second+slack)
		if e.Token.Fence <= locks[i].Token().Fence {
			t.Errorf("key %d: fence %d after %d", i, e.Token.Fence, locks[i].Token().Fence)
		}
	}
	for i, k := range locks {
		waitEnd(t, k)
		between(t, "from FLUSHALL to the loss", time.Since(flushed), 0, ttl/3+slack)
		wantLost(t, fmt.Sprint("key ", i), context.Cause(k.Context()), "gone", "taken")
		wantLost(t, fmt.Sprint("unlock of key ", i), k.Unlock(), "gone", "taken")
	}
	for i := range keys {
		if text := srv.Text("GET", keyOf("job", fmt.Sprint(i))); text == "" {
			t.Errorf("key %d: the new owner's key is gone", i)
		}
		p.mustUnlock(waits[i])
		wantGone(t, srv, "job", fmt.Sprint(i))
	}
	// Quiet: what is left are the keep-alives of the clients' connections.
	idle(t, l)
	evals, sets := srv.CommandsOf("evalsha"), srv.CommandsOf("set")
	time.Sleep(2 * time.Second)
	if n, m := srv.CommandsOf("evalsha")-evals, srv.CommandsOf("set")-sets; n+m > 0 {
		t.Errorf("%d scripts and %d grants in two seconds in which nobody wanted anything", n, m)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, k := range locks {
		if n := losses[k.Token().ID]; n != 1 {
			t.Errorf("%v: %d loss events, want 1", k.Token(), n)
		}
	}
	if len(losses) != keys {
		t.Errorf("%d holds were lost, want %d", len(losses), keys)
	}
}

// Scenario 71: SCRIPT FLUSH in mid hold. Locking, renewal, a waiter's wake-up and
// the release all go on.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	srv := rig.Redis(t)
	res := tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true}
	s := newSpy(open(t, srv.Addr))
	a, b := newLocker(t, s, res), newLocker(t, open(t, srv.Addr), res)
	k := mustLock(t, a, "job", "k")
	h := mustLock(t, a, "job", "h", tierlock.Holder("x"))
	for end := time.Now().Add(3 * ttl); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		srv.Do("SCRIPT", "FLUSH")
	}
	if k.Err() != nil || h.Err() != nil {
		t.Errorf("after three TTLs: %v, %v", k.Err(), h.Err())
	}
	if n := s.renewed(k.Token().Lease); n < 6 {
		t.Errorf("%d renewals in three TTLs", n)
	}
	srv.Do("SCRIPT", "FLUSH")
	_, err := b.TryLock(bg, "job", "k")
	wantIs(t, "another", err, tierlock.ErrHeld)
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
