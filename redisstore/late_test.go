package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// openImpatient is a connected store whose calls are given up after half a second. Its
// client would wait for minutes.
func openImpatient(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	opt := patient(addr)
	opt.ConnWriteTimeout = 5 * time.Minute
	s := openWith(t, opt, redisstore.Options{CallTimeout: 500 * time.Millisecond})
	works(t, s)
	return s
}

// Scenarios 11 and 42: a stopped server, a ctx without end. Every call returns
// in its bound, and what was sent is executed when the server goes on, without
// effect.
func TestPausedServer(t *testing.T) {
	srv := rig.Redis(t)
	s := openImpatient(t, srv.Addr)
	held := newLease()
	mustAcquire(t, open(t, srv.Addr), ask("held", held, time.Minute))
	before := srv.CommandsOf("evalsha")
	srv.Pause()
	var wg sync.WaitGroup
	for what, call := range map[string]func() error{
		"acquire": func() error { _, err := s.Acquire(background, ask("a", newLease(), 30*time.Second)); return err },
		"explicit acquire": func() error {
			_, err := s.Acquire(background, askAs("h", "b", newLease(), 30*time.Second))
			return err
		},
		"renew": func() error {
			return s.Renew(background, []tierlock.RenewRequest{{Name: name("held"), Lease: held, TTL: time.Second}})[0].Err
		},
		"release": func() error { _, err := s.Release(background, drop("other", newLease())); return err },
		"inspect": func() error { _, err := s.Inspect(background, name("held")); return err },
		"watch":   func() error { _, err := s.Watch(background, name("held")); return err },
	} {
		wg.Go(func() {
			began := time.Now()
			err := call()
			if took := time.Since(began); took > patience {
				t.Errorf("%s returned after %v; wanted 500 ms", what, took)
			}
			if !errors.Is(err, tierlock.ErrUnavailable) {
				t.Errorf("%s: %v; wanted %v", what, err, tierlock.ErrUnavailable)
			}
		})
	}
	wg.Wait()
	srv.Resume()
	rig.Eventually(t, 5*time.Second, "what was sent is executed", func() bool { return srv.CommandsOf("evalsha") >= before+4 })
	for _, key := range []string{"a", "b"} {
		if srv.Int("EXISTS", keyOf(key)) != 0 {
			t.Errorf("the late acquire of %q was granted", key)
		}
	}
	rig.Eventually(t, 5*time.Second, "the store works again", func() bool {
		rec, err := s.Inspect(t.Context(), name("held"))
		return err == nil && rec.Held
	})
	noEternalKeys(t, srv)
}

// Scenario 42: the grant happened, its reply was lost. The same lease gets the
// same grant again.
func TestLostReply(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openImpatient(t, proxy.Addr)
	for _, lose := range []struct {
		name string
		f    func()
	}{
		{"dropped", proxy.DropReplies},
		{"held back", proxy.BlackHole},
	} {
		t.Run(lose.name, func(t *testing.T) {
			lease := newLease()
			var release func()
			if lose.name == "dropped" {
				proxy.DropReplies()
			} else {
				release = proxy.HoldReply()
			}
			rig.Eventually(t, patience, "the lock is granted", func() bool {
				within(t, patience, "an acquire without a reply", func() {
					_, err := s.Acquire(background, ask("k", lease, 5*time.Minute))
					wantClass(t, "acquire without a reply", err, tierlock.ErrUnavailable)
				})
				return srv.Int("EXISTS", keyOf("k")) == 1 // unless its time was over before it was sent
			})
			var stored tierlock.Token
			if err := stored.UnmarshalJSON([]byte(srv.Text("GET", keyOf("k")))); err != nil || stored.Lease != lease {
				t.Fatalf("the key holds %v (%v); wanted the lease %s", stored, err, lease)
			}
			if release != nil {
				release()
			}
			proxy.Pass()
			var again tierlock.AcquireResult
			rig.Eventually(t, 5*time.Second, "the store works again", func() (ok bool) {
				var err error
				again, err = s.Acquire(t.Context(), ask("k", lease, 5*time.Minute))
				return err == nil
			})
			if !again.Granted || again.Token != stored {
				t.Fatalf("again: got %+v; wanted the first grant %+v", again, stored)
			}
			mustRelease(t, open(t, srv.Addr), drop("k", lease), tierlock.LeaseOwned)
		})
	}
}

// Scenario 52: the caller's deadline ends the call.
func TestCallersContext(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	opt := patient(proxy.Addr)
	opt.ConnWriteTimeout = 5 * time.Minute
	s := openWith(t, opt, redisstore.Options{CallTimeout: time.Minute})
	works(t, s)
	proxy.BlackHole()

	ctx, cancel := context.WithTimeout(background, 25*time.Millisecond)
	defer cancel()
	var err error
	within(t, patience, "a call with a deadline", func() {
		_, err = s.Acquire(ctx, ask("a", newLease(), 30*time.Second))
	})
	wantClass(t, "deadline", err, tierlock.ErrUnavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v; wanted %v", err, context.DeadlineExceeded)
	}

	cause := errors.New("changed my mind")
	ctx, stop := context.WithCancelCause(background)
	time.AfterFunc(25*time.Millisecond, func() { stop(cause) })
	within(t, patience, "a cancelled call", func() {
		_, err = s.Release(ctx, drop("warm", newLease()))
	})
	wantClass(t, "cancelled", err, tierlock.ErrUnavailable)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("cancelled: %v; wanted %v and %v", err, context.Canceled, cause)
	}

	sent := srv.CommandsOf("evalsha")
	_, err = s.Acquire(ctx, ask("b", newLease(), 30*time.Second))
	wantClass(t, "ended ctx", err, tierlock.ErrUnavailable)
	proxy.Pass()
	mustAcquire(t, s, ask("last", newLease(), time.Second)) // what was held has arrived before it
	if n := srv.Int("EXISTS", keyOf("a"), keyOf("b")); n != 0 {
		t.Errorf("%d locks were taken for callers that had gone", n)
	}
	if srv.CommandsOf("evalsha") == sent {
		t.Error("nothing arrived: the test shows nothing")
	}
}

// The bound counts from the call, by the server's clock: what the way to the
// server takes too long for is refused there, and leaves nothing.
func TestBudget(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openWith(t, patient(proxy.Addr), calm)
	// Learned while the way is short, which tells most.
	mustAcquire(t, s, ask("warm", newLease(), time.Second))
	proxy.Delay(80*time.Millisecond, 0)
	for _, explicit := range []bool{false, true} {
		req := ask("k", newLease(), 30*time.Second)
		req.Explicit = explicit
		req.Budget = 20 * time.Millisecond
		refused, err := s.Acquire(background, req)
		wantClass(t, "a budget of 20 ms for a way of 80 ms", err, tierlock.ErrLate)
		if refused.Granted {
			t.Error("a late acquire was granted")
		}
		if n := srv.Int("EXISTS", keyOf("k"), redisstore.FenceKey(name("k")), keyOf("k")+":holds"); n != 0 {
			t.Errorf("a refused acquire left %d keys", n)
		}
		req.Budget = 5 * time.Second
		mustAcquire(t, s, req)
		srv.Do("FLUSHALL")
	}
	for _, budget := range []time.Duration{-time.Second, 0, 1} {
		req := ask("k", newLease(), 30*time.Second)
		req.Budget = budget
		_, err := s.Acquire(background, req)
		wantClass(t, "a budget of "+budget.String(), err, tierlock.ErrLate)
		if n := srv.Int("EXISTS", keyOf("k")); n != 0 {
			t.Errorf("budget %v: a lock was taken", budget)
		}
	}
}

// A wrong idea of the server's clock costs one round trip, once.
func TestRefusalTeachesTheClock(t *testing.T) {
	srv := rig.Redis(t)
	s := openWith(t, patient(srv.Addr), calm)
	mustAcquire(t, s, ask("warm", newLease(), time.Second))
	s.Mislead(-40 * time.Second)
	for _, want := range []int64{2, 1} {
		before := srv.CommandsOf("evalsha")
		lease := newLease()
		mustAcquire(t, s, ask("k", lease, 30*time.Second))
		if got := srv.CommandsOf("evalsha") - before; got != want {
			t.Errorf("an acquire took %d scripts; wanted %d", got, want)
		}
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	}
}

// Scenarios 50 and 51: no TTL is rounded to nothing on its way.
func TestTTLs(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, ttl := range []time.Duration{-time.Second, 0, 1, 999 * time.Microsecond, 1001 * time.Microsecond, 1<<63 - 1} {
		_, err := s.Acquire(t.Context(), ask("k", newLease(), ttl))
		wantClass(t, "acquire with TTL "+ttl.String(), err, tierlock.ErrMisconfigured)
		res := renewOne(t, s, "k", newLease(), ttl)
		wantClass(t, "renew with TTL "+ttl.String(), res.Err, tierlock.ErrMisconfigured)
	}
	if n := srv.Int("DBSIZE"); n != 0 {
		t.Fatalf("%d keys after refused requests", n)
	}
	for _, ttl := range []time.Duration{time.Minute, 25 * 24 * time.Hour, 60 * 24 * time.Hour} {
		lease := newLease()
		mustAcquire(t, s, ask("k", lease, ttl))
		if left := srv.Int("PTTL", keyOf("k")); left > ttl.Milliseconds() || left < ttl.Milliseconds()-patience.Milliseconds() {
			t.Errorf("TTL %v: %d ms left", ttl, left)
		}
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	}
	mustAcquire(t, s, ask("k", newLease(), time.Millisecond))
	rig.Eventually(t, patience, "a lease of 1 ms ends", func() bool { return srv.Int("EXISTS", keyOf("k")) == 0 })
	noEternalKeys(t, srv)
}

// More calls at a silent server than the client has places for: all return in
// their bound, and nothing stays behind.
func TestManyCallsAtASilentServer(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openImpatient(t, proxy.Addr)
	proxy.BlackHole()
	// In the end a call is refused at once: no more of them pile up.
	refused := func() bool {
		_, err := s.Inspect(background, name("k"))
		wantClass(t, "a call behind many that are stuck", err, tierlock.ErrUnavailable)
		return strings.Contains(err.Error(), "still without an answer")
	}
	within(t, time.Minute, "all calls until then", func() {
		for waves := 0; !refused(); waves++ {
			if waves == 20 {
				t.Fatal("20 waves of 1,000 calls were all sent to a silent server")
			}
			var wg sync.WaitGroup
			for range 1000 {
				wg.Go(func() {
					if _, err := s.Inspect(background, name("k")); !errors.Is(err, tierlock.ErrUnavailable) {
						t.Errorf("inspect: %v; wanted %v", err, tierlock.ErrUnavailable)
					}
				})
			}
			wg.Wait()
		}
	})
	proxy.Cut()
	proxy.Pass()
	rig.Eventually(t, 5*time.Second, "the store works again", func() bool {
		_, err := s.Inspect(background, name("k"))
		return err == nil
	})
}
