package tests_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// After an error nothing stays: no key of ours, no renewal, no goroutine.

const callTimeout = tierlock.DefaultCallTimeout

// Scenario 41: the context is cancelled at every millisecond around a reply
// that takes 200 ms. Either the call gives the lock, or it gives the context's
// error; afterwards the key is absent and nothing renews it.
func TestCancelledAroundTheReply(t *testing.T) {
	noLeak(t)
	onEach(t, func(t *testing.T, d *deployment) {
		const reply = 200 // ms
		const calls = 150 // each cancelled 1 ms after the one before
		const batches = 6 // not all at once: the reply is to come on time
		const limit = 2 * unhurried
		proxy := rig.NewProxy(t, d.addr)
		s := newSpy(d.openIn(t, proxy.Addr, limit))
		// Long enough that a call of two replies is not late: a statement is prepared on
		// each connection, in a reply of its own.
		const ttl = 9 * time.Second
		cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl})
		cfg.CallTimeout = limit
		l := lockerOf(t, cfg)
		// The key is gone at the end, also where a busy machine has no answer in time.
		unlock := func(k *tierlock.Lock) error {
			if err := k.Unlock(); !errors.Is(err, tierlock.ErrUnavailable) {
				return err
			}
			return nil
		}
		// The store then knows the server's clock, and where a call needs a
		// connection for itself it has as many as are used at once.
		proxy.Delay(0, 20*time.Millisecond)
		for range 3 {
			each(calls/batches, func(i int) error {
				k, err := l.Lock(bg, "job", fmt.Sprint(i), tierlock.Wait(patience))
				return errors.Join(err, unlock(k))
			}, t)
		}
		proxy.Delay(0, reply*time.Millisecond)
		// A third of the calls is cancelled before the reply comes, which is late on a
		// busy machine.
		var took [calls / batches]time.Duration
		for range 3 {
			each(len(took), func(i int) error {
				began := time.Now()
				k, err := l.Lock(bg, "job", fmt.Sprint(i), tierlock.Wait(patience))
				took[i] = time.Since(began)
				return errors.Join(err, unlock(k))
			}, t)
		}
		slices.Sort(took[:])
		from := int(took[len(took)/2].Milliseconds()) - calls/3

		var locked, refused [calls]bool
		cancelled := func(i int) error {
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			after := from + i
			timer := time.AfterFunc(time.Duration(after)*time.Millisecond, cancel)
			defer timer.Stop()
			k, err := l.Lock(ctx, "job", fmt.Sprint(i), tierlock.Wait(patience))
			if err != nil {
				refused[i] = true
				// Late is what a busy machine's server says.
				if !errors.Is(err, context.Canceled) && !errors.Is(err, tierlock.ErrLate) {
					return fmt.Errorf("cancelled after %d ms: %w", after, err)
				}
				return nil
			}
			locked[i] = true
			select {
			case <-k.Context().Done():
			case <-time.After(patience):
				return fmt.Errorf("cancelled after %d ms: the lock's context goes on", after)
			}
			if !errors.Is(k.Err(), context.Canceled) {
				return fmt.Errorf("cancelled after %d ms: the lock says %w", after, k.Err())
			}
			return unlock(k)
		}
		for b := range batches {
			each(calls/batches, func(i int) error { return cancelled(i*batches + b) }, t)
		}
		ended := time.Now()
		n := 0
		for i := range locked {
			if locked[i] {
				n++
			}
			if locked[i] == refused[i] {
				t.Errorf("%d ms: locked %v, refused %v", from+i, locked[i], refused[i])
			}
		}
		t.Logf("%d of %d calls got the lock", n, calls)
		if n == 0 || n == calls {
			t.Error("the delays lie all on one side of the reply")
		}
		// A round trip from when nothing more can come, and what a busy machine
		// adds.
		linger := s.Linger()
		rig.Eventually(t, linger+reply*time.Millisecond+slack, "all keys are absent", func() bool {
			return d.locks(t) == 0
		})
		idle(t, l)
		time.Sleep(time.Until(ended.Add(ttl/3 + ttl/6))) // a renewal would be due
		if n := d.locks(t); n > 0 {
			t.Errorf("%d keys came back", n)
		}
		s.mu.Lock()
		if len(s.renewals) > 0 {
			t.Errorf("%d leases were renewed", len(s.renewals))
		}
		s.mu.Unlock()
		proxy.Delay(0, 0)
	})
}

// Scenario 42: the request goes through, the reply is dropped, then the
// connection is reset. A call that waits gets the same grant by asking again; one
// that does not gets an error, and the key is gone a round trip after Redis is
// back.
func TestReplyDroppedThenReset(t *testing.T) {
	noLeak(t)
	onEach(t, func(t *testing.T, d *deployment) {
		for name, try := range map[string]bool{"waiting": false, "trying": true} {
			t.Run(name, func(t *testing.T) {
				proxy := rig.NewProxy(t, d.addr)
				s := newSpy(d.open(t, proxy.Addr))
				l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: 10 * time.Second, Wait: 5 * time.Second})
				mustUnlock(t, mustLock(t, l, "job", "first"))
				proxy.DropReplies()
				type outcome struct {
					k   *tierlock.Lock
					err error
				}
				got := make(chan outcome)
				go func() {
					var opts []tierlock.Option
					if try {
						opts = append(opts, tierlock.NoWait())
					}
					k, err := l.Lock(bg, "job", "k", opts...)
					got <- outcome{k, err}
				}()
				var token tierlock.Token
				rig.Eventually(t, patience, "the server has granted", func() bool {
					var held bool
					token, _, held = d.look(t, "job", "k")
					return held
				})
				proxy.Cut()
				proxy.Pass()
				passed := time.Now()
				o := <-got
				if try {
					wantIs(t, "TryLock", o.err, tierlock.ErrUnavailable)
					wantNotIs(t, "TryLock", o.err, tierlock.ErrHeld)
					d.goneWithin(t, time.Until(passed.Add(slack)), "job", "k")
				} else {
					if o.err != nil {
						t.Fatal(o.err)
					}
					if o.k.Token().Fence != token.Fence || o.k.Token().Lease != token.Lease {
						t.Errorf("granted %v, then %v", token, o.k.Token())
					}
					mustUnlock(t, o.k)
				}
				idle(t, l)
				d.wantGone(t, "job", "k")
				if n := s.renewed(token.Lease); n > 0 {
					t.Errorf("%d renewals", n)
				}
				mustUnlock(t, mustLock(t, l, "job", "k"))
			})
		}
	})
}

// Scenarios 10, 11 and 42: Redis is stopped (SIGSTOP), a call with
// context.Background gives up after its wait, and Redis runs on. The call
// returns on time, and what it had sent is refused when it is executed: the key
// never appears.
func TestRedisStopped(t *testing.T) {
	noLeak(t)
	srv := rig.Redis(t)
	s := newSpy(open(t, srv.Addr))
	// The time limit of 200 ms says nothing about the store, so the breaker
	// stays closed and each call is sent.
	l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: 30 * time.Second})
	mustUnlock(t, mustLock(t, l, "job", "first"))
	for name, opt := range map[string]tierlock.Option{"wait": tierlock.Wait(200 * time.Millisecond), "try": tierlock.NoWait()} {
		sets := srv.CommandsOf("set")
		srv.Pause()
		start := time.Now()
		_, err := l.Lock(bg, "job", "k", opt)
		took := time.Since(start)
		wantIs(t, name, err, tierlock.ErrUnavailable)
		wantNotIs(t, name, err, tierlock.ErrHeld)
		// Both bounds are given in advance: the wait, and the CallTimeout.
		limit := 200 * time.Millisecond
		if name == "try" {
			limit = callTimeout
		}
		between(t, name+": time until the call returned", took, 0, limit+slack)
		time.Sleep(300 * time.Millisecond)
		srv.Resume()
		for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
			wantGone(t, srv, "job", "k")
		}
		if n := srv.CommandsOf("set") - sets; n > 0 {
			t.Errorf("%s: %d grants were written after the caller had gone", name, n)
		}
		idle(t, l)
		mustUnlock(t, mustLock(t, l, "job", "k", tierlock.Wait(patience)))
	}
	if s.mu.Lock(); len(s.renewals) > 0 {
		t.Errorf("renewed: %v", s.renewals)
	}
	s.mu.Unlock()
}

// Scenario 31: the caller's context is cancelled and then the lock is unlocked.
// The key is gone and the error nil.
func TestUnlockAfterCancel(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 9 * time.Second
		s := newSpy(d.open(t, d.addr))
		l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl})
		ctx, cancel := context.WithCancel(bg)
		k, err := l.Lock(ctx, "job", "k", tierlock.Wait(patience))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		cancelled := waitEnd(t, k)
		wantIs(t, "cause", context.Cause(k.Context()), context.Canceled)
		time.Sleep(ttl/3 + ttl/9) // a renewal was due
		if n := s.renewedAfter(k.Token().Lease, cancelled); n > 0 {
			t.Errorf("%d renewals after the caller's context ended", n)
		}
		if _, _, held := d.look(t, "job", "k"); !held {
			t.Error("the key went before the unlock: the body may still run")
		}
		mustUnlock(t, k)
		d.wantGone(t, "job", "k")
	})
}

// Scenario 32: Redis becomes a black hole before Unlock. Unlock returns an error
// within its bound, renewal has stopped, and the key is gone within one TTL once
// Redis is back.
func TestBlackHoleDuringUnlock(t *testing.T) {
	noLeak(t)
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl = 4 * time.Second
		for name, held := range map[string]time.Duration{"at once": 0, "renewal in flight": ttl/3 + 100*time.Millisecond} {
			t.Run(name, func(t *testing.T) {
				proxy := rig.NewProxy(t, d.addr)
				s := newSpy(d.open(t, proxy.Addr))
				l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl})
				k := mustLock(t, l, "job", "k")
				proxy.BlackHole()
				time.Sleep(held)
				start := time.Now()
				err := k.Unlock()
				between(t, "time of Unlock", time.Since(start), 0, 2*callTimeout+slack)
				unlocked := time.Now()
				wantIs(t, "Unlock", err, tierlock.ErrUnavailable)
				wantNotIs(t, "Unlock", err, tierlock.ErrLost)
				wantIs(t, "cause", context.Cause(k.Context()), tierlock.ErrReleased)
				time.Sleep(300 * time.Millisecond)
				proxy.Pass()
				passed := time.Now()
				d.goneWithin(t, ttl+slack, "job", "k")
				t.Logf("key gone %v after the recovery", time.Since(passed))
				idle(t, l)
				time.Sleep(ttl / 2)
				d.wantGone(t, "job", "k")
				if n := s.renewedAfter(k.Token().Lease, unlocked); n > 0 {
					t.Errorf("%d renewals began after Unlock", n)
				}
				mustUnlock(t, mustLock(t, l, "job", "k", tierlock.UntilDone()))
			})
		}
	})
}
