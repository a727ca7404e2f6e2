package tests_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 28 and 105: a hold of five TTLs with two contenders in other
// processes, one that waits and one that tries again and again. Nobody enters.
func TestNobodyEntersALongHold(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	res := tierlock.Resource{Name: "job", TTL: ttl}
	srv := rig.Redis(t)
	k := mustLock(t, newLocker(t, open(t, srv.Addr), res), "job", "k")
	cfg := peerConfig{Addr: srv.Addr, Resources: []tierlock.Resource{res}}
	waiting, trying := newPeer(t, cfg), newPeer(t, cfg)
	wait := waiting.send(order{Op: "lock", Resource: "job", Key: "k", Wait: 5 * ttl})
	tries := 0
	for start := time.Now(); time.Since(start) < 5*ttl; tries++ {
		e := trying.wait(trying.send(order{Op: "lock", Resource: "job", Key: "k"}), "refused")
		if !e.is("held") {
			t.Fatalf("try %d: %s", tries, e.Err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if e := waiting.wait(wait, "refused"); !e.is("held") {
		t.Errorf("the waiter: %s", e.Err)
	}
	if k.Err() != nil {
		t.Errorf("the holder: %v", k.Err())
	}
	mustUnlock(t, k)
	wantGone(t, srv, "job", "k")
}

// Scenario 19: one renewal is lost on its way. The lock is kept, and the next
// try comes within a fraction of the interval.
func TestOneLostRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second // the next regular attempt comes 2 s after the lost one
	for name, drop := range map[string]func(*rig.Proxy){
		"request": (*rig.Proxy).DropRequests,
		"reply":   (*rig.Proxy).DropReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := rig.Redis(t)
			proxy := rig.NewProxy(t, srv.Addr)
			s := newSpy(open(t, proxy.Addr))
			renewed := make(chan tierlock.RenewedEvent, 10)
			cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl})
			cfg.Observer.Renewed = func(e tierlock.RenewedEvent) { renewed <- e }
			k := mustLock(t, lockerOf(t, cfg), "job", "k")
			drop(proxy)
			rig.Eventually(t, patience, "a renewal is tried", func() bool { return s.renewed(k.Token().Lease) > 0 })
			time.Sleep(10 * time.Millisecond)
			proxy.Pass()
			passed := time.Now()
			select {
			case e := <-renewed:
				between(t, "from the end of the fault to a confirmed renewal", e.At.Sub(passed), 0, ttl/20+slack)
			case <-k.Context().Done():
				t.Fatalf("lost: %v", context.Cause(k.Context()))
			}
			time.Sleep(ttl)
			if k.Err() != nil {
				t.Errorf("later: %v", k.Err())
			}
			mustUnlock(t, k)
		})
	}
}

// Scenarios 25, 27 and 102: the bound MaxHold of 2 s. The context ends with that
// cause a margin before, the key is free on time although the body has not
// returned, and no renewal brings it back.
func TestMaxHold(t *testing.T) {
	const ttl, bound = 2 * time.Second, 2 * time.Second
	srv := rig.Redis(t)
	s := newSpy(open(t, srv.Addr))
	l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl, MaxHold: bound, Expect: ttl})
	start := time.Now()
	k := mustLock(t, l, "job", "k", tierlock.TTL(1300*time.Millisecond)) // so that it is renewed on the way
	granted := time.Now()
	time.Sleep(time.Until(start.Add(bound * 4 / 5)))
	if n := s.renewed(k.Token().Lease); n == 0 {
		t.Error("it was not renewed on the way to its bound")
	}
	// By the server's clock, which is this machine's.
	expiry := time.UnixMilli(srv.Int("PEXPIRETIME", keyOf("job", "k")))
	between(t, "the key's life", expiry.Sub(granted), bound-slack/2, bound+50*time.Millisecond)
	ended := waitEnd(t, k)
	wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrLeaseExceeded)
	between(t, "end of the context", ended.Sub(start), bound-ttl/5, bound+slack/10)
	if !ended.Before(expiry) {
		t.Errorf("the context ended %v after the key", ended.Sub(expiry))
	}
	goneWithin(t, srv, time.Until(expiry)+slack, "job", "k")
	time.Sleep(ttl)
	wantGone(t, srv, "job", "k")
	if n := s.renewedAfter(k.Token().Lease, ended); n > 0 {
		t.Errorf("%d renewals after the bound", n)
	}
	wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLeaseExceeded)
	mustUnlock(t, mustLock(t, l, "job", "k"))
}

// Scenario 16: a thousand holds taken at once, in a process that has one
// processor and keeps it busy. None is lost in five TTLs.
func TestStarvedProcessKeepsItsHolds(t *testing.T) {
	t.Parallel()
	const holds, lasting = 1000, 15 * time.Second
	srv := rig.Redis(t)
	p := rig.Spawn(t, "swarm", srv.Addr, strconv.Itoa(holds), lasting.String())
	report := p.Expect("swarm:", lasting+2*time.Minute)
	var kept, renewed int
	if _, err := fmt.Sscanf(report, "kept %d renewed %d", &kept, &renewed); err != nil {
		t.Fatalf("%q: %v", report, err)
	}
	if kept != holds {
		t.Errorf("%d of %d holds were kept", kept, holds)
	}
	// One renewal each second and hold; a few seconds late would still do.
	if want := holds * int(lasting/time.Second); renewed < want/2 || renewed > want*3/2 {
		t.Errorf("%d renewals, want about %d", renewed, want)
	}
	if err := p.Wait(patience); err != nil {
		t.Error(err)
	}
}

// runSwarm holds many keys on one busy processor, and tells how many it kept.
func runSwarm(args []string) {
	runtime.GOMAXPROCS(1)
	n, err := strconv.Atoi(args[1])
	if err != nil {
		die(err)
	}
	lasting, err := time.ParseDuration(args[2])
	if err != nil {
		die(err)
	}
	store, err := openStore(args[0])
	if err != nil {
		die(err)
	}
	var renewed atomic.Int64
	cfg := config(store, tierlock.Resource{Name: "job", TTL: 3 * time.Second, Wait: patience})
	cfg.Observer.Renewed = func(tierlock.RenewedEvent) { renewed.Add(1) }
	cfg.Observer.Lost = func(e tierlock.LostEvent) { fmt.Fprintln(os.Stderr, e.Err) }
	l, err := tierlock.New(cfg)
	if err != nil {
		die(err)
	}
	go func() {
		for x := 0; ; x++ {
			if x < 0 {
				panic(x) // so that the loop is not removed
			}
		}
	}()
	locks := make([]*tierlock.Lock, n)
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			k, err := l.Lock(bg, "job", strconv.Itoa(i), tierlock.UntilDone())
			if err != nil {
				die(err)
			}
			locks[i] = k
		})
	}
	wg.Wait()
	time.Sleep(lasting)
	counted := renewed.Load()
	kept := 0
	for _, k := range locks {
		if k.Err() == nil {
			kept++
		}
	}
	fmt.Printf("swarm: kept %d renewed %d\n", kept, counted)
}
