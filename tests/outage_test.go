package tests_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Scenarios 3, 4, 5 and 11: the process starts while its server refuses
// connections, while it is not there, a black hole, or stopped. The constructors
// return within their bound, calls fail within theirs, and locks work once the
// server is there, without a restart.
func TestStartWithoutAServer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		for name, fault := range map[string]struct {
			begin, end func(*rig.Proxy)
		}{
			"refused": {
				(*rig.Proxy).Refuse,
				(*rig.Proxy).Accept,
			},
			"no server": {
				func(*rig.Proxy) { d.Kill() },
				func(*rig.Proxy) { d.Start() },
			},
			"black hole": {
				(*rig.Proxy).BlackHole,
				(*rig.Proxy).Pass,
			},
			"stopped": {
				func(*rig.Proxy) { d.Pause() },
				func(*rig.Proxy) { d.Resume() },
			},
		} {
			t.Run(name, func(t *testing.T) {
				proxy := rig.NewProxy(t, d.addr)
				fault.begin(proxy)
				start := time.Now()
				store := d.open(t, proxy.Addr)
				opened := 2*time.Second + slack
				if d.tier == tierlock.MySQL {
					opened = slack / 2 // it asks nobody
				}
				between(t, "time to open the store", time.Since(start), 0, opened)
				start = time.Now()
				l := newLocker(t, store, tierlock.Resource{Name: "job", TTL: 3 * time.Second})
				between(t, "time of New", time.Since(start), 0, slack/2)
				for range 5 {
					start = time.Now()
					_, err := l.TryLock(bg, "job", "k")
					between(t, "time of TryLock", time.Since(start), 0, callTimeout+slack/2)
					wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
					wantNotIs(t, "TryLock", err, tierlock.ErrHeld, tierlock.ErrMisconfigured)
				}
				if l.Status().Stores[0].Available {
					t.Error("Status says that the store is available")
				}
				fault.end(proxy)
				back := time.Now()
				var k *tierlock.Lock
				rig.Eventually(t, patience, "locks are given", func() bool {
					var err error
					k, err = l.TryLock(bg, "job", "k")
					return err == nil
				})
				// The breaker's second, the pause between two dials, one dial.
				between(t, "from the server's return to a lock", time.Since(back), 0, 2500*time.Millisecond+slack)
				if !l.Status().Stores[0].Available {
					t.Error("Status says that the store is not available")
				}
				mustUnlock(t, k)
			})
		}
	})
}

// Scenario 5, the other half: a wrong password is a misconfiguration, told at
// once, and not an outage that heals.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t, "--requirepass", "right")
	opt := redisstore.RecommendedOptions(srv.Addr)
	opt.Password = "wrong"
	_, err := redisstore.Open(opt)
	wantIs(t, "Open", err, tierlock.ErrMisconfigured)
	wantNotIs(t, "Open", err, tierlock.ErrUnavailable)
	opt.Password = "right"
	store, err := redisstore.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	mustUnlock(t, mustLock(t, newLocker(t, store, tierlock.Resource{Name: "job"}), "job", "k"))
}

// A dead Redis must not cost each request its deadline: after three failures a
// call gets its error in under a millisecond, while one try a second goes to the
// store.
func TestDeadRedisFailsFast(t *testing.T) {
	const calls, lasting = 1000, 5 * time.Second
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := newSpy(open(t, proxy.Addr))
	l := newLocker(t, s, tierlock.Resource{Name: "job"})
	mustUnlock(t, mustLock(t, l, "job", "first"))
	proxy.BlackHole()
	for range 3 {
		_, err := l.TryLock(bg, "job", "k")
		wantIs(t, "one of the first three", err, tierlock.ErrUnavailable)
	}
	start := time.Now()
	var times []time.Duration
	for i := range calls {
		began := time.Now()
		_, err := l.Lock(bg, "job", fmt.Sprint(i))
		times = append(times, time.Since(began))
		if !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatalf("call %d: %v", i, err)
		}
		if time.Since(start) > 6*lasting {
			t.Fatalf("%d calls took %v", i+1, time.Since(start))
		}
		time.Sleep(lasting / calls)
	}
	d := time.Since(start)
	slices.Sort(times)
	median, tries := times[calls/2], s.asked(start)
	t.Logf("median %v, 99 %% %v; %d tries in %v", median, times[calls*99/100], tries, d)
	if median >= time.Millisecond {
		t.Errorf("median of a call: %v", median)
	}
	if least, most := int(lasting/time.Second)-2, int(d/time.Second)+1; tries < least || tries > most {
		t.Errorf("%d tries in %v, want %d to %d", tries, d, least, most)
	}
	proxy.Pass()
	rig.Eventually(t, patience, "locks are given again", func() bool {
		k, err := l.TryLock(bg, "job", "k")
		return err == nil && k.Unlock() == nil
	})
	idle(t, l)
}

// Scenario 44: 500 goroutines on distinct keys while each round trip takes 30 ms
// longer. No error, and the store never counts as down.
func TestSlowNetworkIsNoOutage(t *testing.T) {
	onEach(t, func(t *testing.T, d *deployment) {
		const callers = 500
		proxy := rig.NewProxy(t, d.addr)
		// Eight times the default: on a busy machine, under the race detector, 500
		// goroutines keep the test's own processors busy for up to half of that.
		const limit = 8 * callTimeout
		cfg := config(d.openIn(t, proxy.Addr, limit), tierlock.Resource{Name: "job"})
		cfg.CallTimeout = limit
		var changes atomic.Int64
		cfg.Observer.StoreChanged = func(tierlock.StoreEvent) { changes.Add(1) }
		l := lockerOf(t, cfg)
		// Before that, the store has connected and the server knows the scripts:
		// here it is the network that is slow, not the test's own processor.
		mustUnlock(t, mustLock(t, l, "job", "first"))
		proxy.Delay(15*time.Millisecond, 15*time.Millisecond)
		start := time.Now()
		var longest [callers]time.Duration
		each(callers, func(i int) error {
			for range 3 {
				began := time.Now()
				k, err := l.Lock(bg, "job", fmt.Sprint(i), tierlock.Wait(4*limit))
				longest[i] = max(longest[i], time.Since(began))
				if err != nil {
					return err
				}
				if err := k.Unlock(); err != nil {
					return err
				}
			}
			return nil
		}, t)
		t.Logf("%d pairs in %v, the slowest lock in %v", 3*callers, time.Since(start), slices.Max(longest[:]))
		if st := l.Status(); !st.Stores[0].Available || st.Stores[0].LastError != nil || changes.Load() > 0 {
			t.Errorf("status %+v, %d changes", st, changes.Load())
		}
	})
}

// Scenario 52: a wait of 25 ms, and a context of 25 ms, against a server that
// takes a second. The call returns on time, and nothing stays.
func TestShortWaitAgainstSlowServer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const wait, server = 25 * time.Millisecond, time.Second
		proxy := rig.NewProxy(t, d.addr)
		l := unhurriedLocker(t, d.openIn(t, proxy.Addr, unhurried), tierlock.Resource{Name: "job"})
		mustUnlock(t, mustLock(t, l, "job", "first"))
		proxy.Delay(server/2, server/2)
		var waits, contexts []time.Duration
		for range 5 {
			start := time.Now()
			k, err := l.Lock(bg, "job", "k", tierlock.Wait(wait))
			waits = append(waits, time.Since(start))
			if err == nil { // the answer came, too, while a busy machine stood still
				mustUnlock(t, k)
			} else {
				wantIs(t, "wait", err, tierlock.ErrUnavailable)
				wantNotIs(t, "wait", err, tierlock.ErrHeld)
			}

			ctx, cancel := context.WithTimeout(bg, wait)
			start = time.Now()
			_, err = l.Lock(ctx, "job", "k")
			contexts = append(contexts, time.Since(start))
			wantIs(t, "context", err, tierlock.ErrUnavailable, context.DeadlineExceeded)
			wantNotIs(t, "context", err, tierlock.ErrHeld)
			cancel()
		}
		for what, took := range map[string][]time.Duration{"wait": waits, "context": contexts} {
			slices.Sort(took)
			between(t, "the shortest "+what, took[0], wait, server)
			between(t, "the median "+what, took[len(took)/2], wait, server/2) // a busy machine may stand still in one
		}
		if !l.Status().Stores[0].Available {
			t.Error("the caller's own short time counts as an outage")
		}
		proxy.Delay(0, 0)
		idle(t, l)
		d.wantGone(t, "job", "k")
		mustUnlock(t, mustLock(t, l, "job", "k"))
	})
}

// Scenarios 1, 45 and 47: what a caller is told depends on what was heard. A key
// that is held gives ErrHeld, with the context's error where that ended the
// wait, and never counts as an outage; silence gives ErrUnavailable; silence
// after "held" gives both.
func TestHeldOrUnavailableByWhatWasHeard(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		res := tierlock.Resource{Name: "job", TTL: 30 * time.Second}
		holder := newPeer(t, d.peer(d.addr, res))
		held, token := holder.lock("job", "held", patience)
		proxy := rig.NewProxy(t, d.addr)
		s := newSpy(d.openIn(t, proxy.Addr, unhurried))
		l := unhurriedLocker(t, s, res)
		warm(t, l)

		start := time.Now()
		const wait = 1500 * time.Millisecond
		k, err := l.Lock(bg, "job", "held", tierlock.Wait(wait))
		between(t, "wait for a held key", time.Since(start), wait, wait+slack)
		wantIs(t, "wait over", err, tierlock.ErrHeld)
		wantNotIs(t, "wait over", err, tierlock.ErrUnavailable, context.DeadlineExceeded)
		var he *tierlock.HeldError
		if !errors.As(err, &he) || he.Holder != token {
			t.Errorf("the error names %+v, want %+v", he, token)
		}
		if k != nil {
			t.Error("a lock beside an error")
		}

		cause := errors.New("the request was dropped")
		ctx, cancel := context.WithTimeoutCause(bg, wait, cause)
		k, err = l.Lock(ctx, "job", "held", tierlock.Wait(patience))
		cancel()
		if k != nil {
			t.Error("a lock beside an error")
		}
		wantIs(t, "context over", err, tierlock.ErrHeld, context.DeadlineExceeded, cause)
		wantNotIs(t, "context over", err, tierlock.ErrUnavailable)
		if st := l.Status(); len(st.Stores) != 1 || !st.Stores[0].Available || st.Stores[0].LastError != nil {
			t.Errorf("contention counts as an outage: %+v", st)
		}

		told := s.toldHeld("held")
		got := make(chan error)
		go func() {
			// A poll, and a call that gets no answer in its time.
			k, err := l.Lock(bg, "job", "held", tierlock.Wait(2*unhurried))
			if k != nil {
				t.Error("a lock beside an error")
			}
			got <- err
		}()
		rig.Eventually(t, patience, "it has been told", func() bool { return s.toldHeld("held") > told })
		proxy.BlackHole()
		wantIs(t, "held, then silence", <-got, tierlock.ErrHeld, tierlock.ErrUnavailable)

		k, err = l.Lock(bg, "job", "free", tierlock.Wait(300*time.Millisecond))
		if k != nil {
			t.Error("a lock beside an error")
		}
		wantIs(t, "silence", err, tierlock.ErrUnavailable)
		wantNotIs(t, "silence", err, tierlock.ErrHeld)
		proxy.Pass()
		holder.mustUnlock(held)
	})
}
