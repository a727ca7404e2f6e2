package tests_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 34: thousands of lock and unlock cycles, a third of them with a
// context that is cancelled before the unlock. No goroutine is left by them, and no
// connection in the server: not while the Locker lives, and none at all after it.
func TestNoGoroutinePerCycle(t *testing.T) {
	noLeak(t)
	onEach(t, func(t *testing.T, d *deployment) {
		const workers = 8
		cycles := 10_000
		if d.tier == tierlock.MySQL {
			cycles = 2_000 // each commits twice
		}
		alone := d.clients(t)
		t.Run("cycles", func(t *testing.T) {
			l := unhurriedLocker(t, d.openIn(t, d.addr, unhurried), tierlock.Resource{Name: "job", TTL: 10 * time.Second})
			run := func(n int) {
				each(workers, func(w int) error {
					for i := range n / workers {
						ctx, cancel := context.WithCancel(bg)
						k, err := l.Lock(ctx, "job", fmt.Sprint(w, i%100), tierlock.Wait(patience))
						if err == nil && i%3 == 0 {
							cancel()
						}
						err = errors.Join(err, k.Unlock())
						cancel()
						if err != nil {
							return err
						}
					}
					return nil
				}, t)
				idle(t, l)
			}
			run(cycles / 10)
			before, clients := runtime.NumGoroutine(), d.clients(t)
			run(cycles)
			// Beside its workers' connections a store may have had few before.
			rig.Eventually(t, patience, "as few goroutines as before", func() bool { return runtime.NumGoroutine() <= before+workers })
			if n := d.clients(t); n > clients+workers {
				t.Errorf("%d connections after %d cycles, %d before", n, cycles, clients)
			}
			if n := d.kept(t); n > 801+1 {
				t.Errorf("%d locks are kept for 800 names", n)
			}
			if n := d.locks(t); n > 0 {
				t.Errorf("%d locks are held", n)
			}
		})
		rig.Eventually(t, patience, "the connections have ended", func() bool { return d.clients(t) <= alone })
	})
}

// Every key in Redis has a TTL, at every moment of a random mix of operations
// with faults between.
func TestEveryKeyHasATTL(t *testing.T) {
	t.Parallel()
	const lasting = 6 * time.Second
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	rs := []tierlock.Resource{
		{Name: "plain", TTL: time.Second},
		{Name: "kept", TTL: time.Second, MinHold: 500 * time.Millisecond},
		{Name: "shared", TTL: time.Second, Reentrant: true},
		{Name: "bounded", TTL: time.Second, MaxHold: 700 * time.Millisecond},
	}
	lockers := []*tierlock.Locker{newLocker(t, open(t, srv.Addr), rs...), newLocker(t, open(t, proxy.Addr), rs...)}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	locked := 0
	for i := range 12 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := rs[rand.N(len(rs))]
				opts := []tierlock.Option{tierlock.Wait(time.Duration(1+rand.N(300)) * time.Millisecond)}
				if r.Reentrant && rand.N(2) == 0 {
					opts = append(opts, tierlock.Holder(fmt.Sprint("h", rand.N(2))))
				}
				if rand.N(4) == 0 && r.MinHold == 0 {
					opts = append(opts, tierlock.TTL(100*time.Millisecond))
				}
				ctx, cancel := context.WithTimeout(bg, time.Duration(1+rand.N(1500))*time.Millisecond)
				k, err := lockers[i%2].Lock(ctx, r.Name, fmt.Sprint(rand.N(3)), opts...)
				if err == nil {
					mu.Lock()
					locked++
					mu.Unlock()
					time.Sleep(time.Duration(rand.N(1200)) * time.Millisecond)
					_ = k.Unlock() // may be lost by then: all outcomes are wanted
				}
				cancel()
			}
		})
	}
	faults := []func(){proxy.BlackHole, proxy.DropReplies, proxy.DropRequests, proxy.Cut}
	seen := 0
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		faults[rand.N(len(faults))]()
		for range 20 {
			seen += wantTTLs(t, srv)
			time.Sleep(10 * time.Millisecond)
		}
		proxy.Pass()
		for range 20 {
			seen += wantTTLs(t, srv)
			time.Sleep(10 * time.Millisecond)
		}
	}
	close(stop)
	wg.Wait()
	for _, l := range lockers {
		idle(t, l)
	}
	wantTTLs(t, srv)
	t.Logf("%d locks, %d keys looked at", locked, seen)
	if locked < 20 || seen < 100 {
		t.Errorf("only %d locks and %d keys", locked, seen)
	}
	rig.Eventually(t, patience, "no lock is left", func() bool {
		for _, key := range srv.Do("KEYS", "*").([]any) {
			if !strings.HasSuffix(key.(string), ":fence") {
				return false
			}
		}
		return true
	})
}

// wantTTLs looks at all keys and returns how many there were.
func wantTTLs(t *testing.T, srv *rig.RedisServer) int {
	t.Helper()
	keys := srv.Do("KEYS", "*").([]any)
	for _, key := range keys {
		// -1 is a key without a TTL; -2 one that has expired meanwhile.
		if ms := srv.Int("PTTL", key.(string)); ms == -1 {
			t.Errorf("key %s has no TTL", key)
		}
	}
	return len(keys)
}

// Scenarios 11 and 40: Close with holds, waiters and calls under way while
// the server is a black hole. It returns within its bound, the waiters and the
// contexts end, Unlock returns from several goroutines before and after, and no
// goroutine stays.
func TestCloseWhileTheServerIsABlackHole(t *testing.T) {
	noLeak(t)
	onEach(t, func(t *testing.T, d *deployment) {
		const grace = time.Second
		res := tierlock.Resource{Name: "job", TTL: 7 * time.Second}
		holder := newPeer(t, d.peer(d.addr, res))
		other, _ := holder.lock("job", "elsewhere", patience)
		proxy := rig.NewProxy(t, d.addr)
		s := newSpy(d.open(t, proxy.Addr))
		l, err := tierlock.New(config(s, res))
		if err != nil {
			t.Fatal(err)
		}
		var locks []*tierlock.Lock
		for i := range 20 {
			locks = append(locks, mustLock(t, l, "job", fmt.Sprint(i)))
		}
		const waiters = 30
		waited := make(chan error, 2*waiters)
		for i := range waiters {
			key := "elsewhere"
			if i%2 == 0 {
				key = "0"
			}
			go func() {
				_, err := l.Lock(bg, "job", key, tierlock.UntilDone())
				waited <- err
			}()
		}
		rig.Eventually(t, patience, "they wait", func() bool { return l.Status().Waiters == waiters-1 })
		rig.Eventually(t, patience, "the contender has been answered", func() bool {
			return s.toldHeld("elsewhere") > 0
		})
		proxy.BlackHole()
		for i := range waiters { // calls that are at the store when Close begins
			go func() {
				_, err := l.Lock(bg, "job", fmt.Sprint("new", i), tierlock.UntilDone())
				waited <- err
			}()
		}
		rig.Eventually(t, patience, "requests are on their way", func() bool { n, _ := proxy.Waiting(); return n > 0 })
		early := make(chan error, 4)
		for range cap(early) {
			go func() { early <- locks[1].Unlock() }()
		}

		ctx, cancel := context.WithTimeout(bg, grace)
		defer cancel()
		start := time.Now()
		err = l.Close(ctx)
		between(t, "time of Close", time.Since(start), 0, grace+3*callTimeout+slack)
		wantIs(t, "Close", err, context.DeadlineExceeded, tierlock.ErrUnavailable)
		for range 2 * waiters {
			wantIs(t, "a waiter", <-waited, tierlock.ErrClosed)
		}
		for range cap(early) {
			wantIs(t, "Unlock before Close", <-early, tierlock.ErrUnavailable)
		}
		for i, k := range locks {
			select {
			case <-k.Context().Done():
			default:
				t.Errorf("the context of lock %d goes on after Close", i)
			}
		}
		wantIs(t, "cause", context.Cause(locks[0].Context()), tierlock.ErrClosed)
		_, err = l.Lock(bg, "job", "late")
		wantIs(t, "Lock after Close", err, tierlock.ErrClosed)
		start = time.Now()
		each(len(locks), func(i int) error {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { _ = locks[i].Unlock() }) // whatever it says, it returns
			}
			wg.Wait()
			return nil
		}, t)
		between(t, "time of Unlock after Close", time.Since(start), 0, 2*callTimeout+slack)
		if err := l.Close(bg); err == nil {
			t.Error("the second Close says that all was well")
		}
		proxy.Pass()
		rig.Eventually(t, res.TTL+slack, "the keys have ended", func() bool {
			return d.locks(t) == 1
		})
		holder.mustUnlock(other)
	})
}
