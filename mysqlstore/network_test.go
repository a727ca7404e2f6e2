package mysqlstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// The grant happened and its answer did not arrive, or the request did not. The
// call ends on time without an answer; the same lease asked again gets the same
// grant where there was one.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	for what, c := range map[string]struct {
		begin   func(*rig.Proxy) (end func())
		granted bool // the request reaches the server, in time
	}{
		"replies dropped":   {func(p *rig.Proxy) func() { p.DropReplies(); return p.Pass }, true},
		"replies held back": {func(p *rig.Proxy) func() { return p.HoldReply() }, true},
		"requests dropped":  {func(p *rig.Proxy) func() { p.DropRequests(); return p.Pass }, false},
		"black hole":        {func(p *rig.Proxy) func() { p.BlackHole(); return p.Pass }, false},
		"half open, cut": {func(p *rig.Proxy) func() {
			p.Set(rig.ToServer, rig.Fault{Flow: rig.Drop})
			p.Reset(rig.ToServer)
			return p.Pass
		}, false},
	} {
		for kind, explicit := range map[string]bool{"plain": false, "explicit": true} {
			if explicit && c.granted {
				continue // it reads first, so it never sends what would be granted
			}
			t.Run(what+"/"+kind, func(t *testing.T) {
				t.Parallel()
				const limit = 5 * time.Second // the request is sent before that
				proxy := rig.NewProxy(t, srv.Addr)
				s := open(t, srv.DSNVia(proxy.Addr, ""), mysqlstore.Options{CallTimeout: limit})
				clean := open(t, srv.DSN(""), calm)
				key, lease := what+kind, newLease()
				// The statement is prepared, and the clock known.
				warm := newLease()
				rig.Eventually(t, patience, "the store works", func() bool {
					res, err := s.Acquire(t.Context(), ask(key+"warm", warm, patience))
					return err == nil && res.Granted
				})
				req := ask(key, lease, time.Hour)
				req.Explicit = explicit
				end := c.begin(proxy)
				within(t, limit+slack, "acquire", func() {
					_, err := s.Acquire(background, req)
					wantClass(t, "acquire", err, tierlock.ErrUnavailable)
				})
				stored := mustInspect(t, clean, key)
				if stored.Held != c.granted || stored.Held && stored.Token.Lease != lease {
					t.Fatalf("stored: %+v; wanted granted %v", stored, c.granted)
				}
				end()
				time.Sleep(200 * time.Millisecond) // what was held back is executed
				if now := mustInspect(t, clean, key); now.Held != c.granted {
					t.Fatalf("late: %+v; wanted granted %v", now, c.granted)
				}
				var again tierlock.AcquireResult
				rig.Eventually(t, patience, "the store works again", func() bool {
					var err error
					again, err = s.Acquire(t.Context(), req)
					return err == nil
				})
				if !again.Granted || c.granted && again.Token != stored.Token {
					t.Errorf("again: got %+v; wanted the grant of %+v", again, stored.Token)
				}
				mustRelease(t, clean, tierlock.ReleaseRequest{Name: name(key), Lease: lease, Explicit: explicit}, tierlock.LeaseOwned)
			})
		}
	}
}

// Scenarios 10, 11 and 42: the server is stopped (SIGSTOP) and the ctx has no end.
// Every call returns in its bound; what was sent is executed when the server goes
// on, and grants nothing.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), quick)
	clean := open(t, srv.DSN(""), calm)
	held := newLease()
	mustAcquire(t, clean, ask("held", held, time.Hour))
	for round := range 3 {
		free := newLease() // a row that is there
		mustAcquire(t, clean, ask("freed", free, patience))
		mustRelease(t, clean, drop("freed", free), tierlock.LeaseOwned)
		// As many connections as calls, each with the statements prepared: else
		// nothing would be sent but the beginning of a connection.
		var warm sync.WaitGroup
		for i := range 12 {
			warm.Go(func() {
				for range 8 {
					key, lease := fmt.Sprint("warm", i), newLease()
					_, _ = s.Acquire(background, ask(key, lease, time.Second)) // on a busy machine it may be late
					_, _ = s.Release(background, drop(key, lease))
				}
			})
		}
		warm.Wait()
		inspectSoon(t, s, "held")
		keys := []string{fmt.Sprint("new", round), "freed", fmt.Sprint("explicit", round)}
		srv.Pause()
		var calls sync.WaitGroup
		for what, call := range map[string]func() error{
			"acquire":            func() error { _, err := s.Acquire(background, ask(keys[0], newLease(), patience)); return err },
			"acquire over a row": func() error { _, err := s.Acquire(background, ask(keys[1], newLease(), patience)); return err },
			"explicit acquire": func() error {
				_, err := s.Acquire(background, askAs("h", keys[2], newLease(), patience))
				return err
			},
			"renew": func() error {
				return s.Renew(background, []tierlock.RenewRequest{{Name: name("held"), Lease: held, TTL: patience}})[0].Err
			},
			"release": func() error { _, err := s.Release(background, drop("other", newLease())); return err },
			"inspect": func() error { _, err := s.Inspect(background, name("held")); return err },
		} {
			calls.Go(func() {
				within(t, quick.CallTimeout+slack, what, func() {
					if err := call(); !errors.Is(err, tierlock.ErrLate) { // not sent in time
						wantClass(t, what, err, tierlock.ErrUnavailable)
					}
				})
			})
		}
		calls.Wait()
		time.Sleep(200 * time.Millisecond)
		srv.Resume()
		time.Sleep(300 * time.Millisecond)
		noTransactions(t, db)
		for _, key := range keys {
			if rec := mustInspect(t, clean, key); rec.Held {
				t.Errorf("round %d: a late acquire was granted: %+v", round, rec)
			}
		}
		if rec := mustInspect(t, clean, "held"); !rec.Held || rec.Token.Lease != held {
			t.Errorf("round %d: the hold is gone: %+v", round, rec)
		}
		rig.Eventually(t, patience, "the store works again", func() bool {
			res, err := s.Acquire(t.Context(), ask(keys[0], free, patience))
			return err == nil && res.Granted
		})
	}
}

// The server is killed in mid hold, and while a call is under way. Held locks
// are there when it is back, and the same store works.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN(""), calm)
	lease := newLease()
	token := mustAcquire(t, s, ask("held", lease, time.Minute))
	explicit := newLease()
	mustAcquire(t, s, askAs("h", "held as", explicit, time.Minute))

	got := acquireUnderWay(t, srv, s, "waited for")
	srv.Kill()
	wantClass(t, "a call at the kill", <-got, tierlock.ErrUnavailable)
	for range 3 {
		within(t, calm.CallTimeout, "calls without a server", func() {
			for what, err := range every(s) {
				wantClass(t, what, err, tierlock.ErrUnavailable)
			}
		})
	}
	srv.Start()
	if rec := mustInspect(t, s, "held"); rec.Token != token || rec.Left <= 0 {
		t.Errorf("after the restart: %+v; wanted %v", rec, token)
	}
	if rec := mustInspect(t, s, "waited for"); rec.Held {
		t.Errorf("what was waiting has been granted: %+v", rec)
	}
	for _, res := range s.Renew(t.Context(), []tierlock.RenewRequest{
		{Name: name("held"), Lease: lease, TTL: 2 * time.Minute}, {Name: name("held as"), Lease: explicit, Explicit: true, TTL: 2 * time.Minute},
	}) {
		if res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("renewal after the restart: %+v", res)
		}
	}
	mustRelease(t, s, drop("held", lease), tierlock.LeaseOwned)
	next := mustAcquire(t, s, ask("held", newLease(), time.Minute))
	if next.Fence <= token.Fence {
		t.Errorf("fence %d after %d", next.Fence, token.Fence)
	}
}

// Over a link that is late, cut, silent and half open by turns: what is granted is
// in the table as long as it may be believed in, errors are of one class, and
// what was not answered is found by a release later.
func TestBadLink(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	clean := open(t, srv.DSN(""), calm)
	const workers, ttl = 6, 3 * time.Second
	began := time.Now()
	var mu sync.Mutex
	last := map[string]uint64{} // the fence of a key, as far as it is known
	var granted, held, failed int
	more := func() bool {
		mu.Lock()
		defer mu.Unlock()
		enough := granted >= 20 && failed >= 6
		return time.Since(began) < 6*time.Second || !enough && time.Since(began) < patience
	}
	var all sync.WaitGroup
	for i := range workers {
		proxy := rig.NewProxy(t, srv.Addr)
		s := open(t, srv.DSNVia(proxy.Addr, ""), mysqlstore.Options{CallTimeout: 300 * time.Millisecond})
		faults := []func(){
			func() { proxy.Delay(rand.N(80*time.Millisecond), rand.N(80*time.Millisecond)) },
			proxy.Cut, proxy.DropReplies, proxy.DropRequests, proxy.BlackHole,
			func() { proxy.Reset(rig.ToClient) }, func() { proxy.Finish(rig.ToServer) },
		}
		all.Go(func() {
			for more() {
				faults[rand.N(len(faults))]()
				time.Sleep(rand.N(250 * time.Millisecond))
				proxy.Delay(0, 0)
				proxy.Pass()
				time.Sleep(rand.N(250 * time.Millisecond))
			}
		})
		all.Go(func() {
			for n := 0; more(); n++ {
				key, lease := fmt.Sprint("k", n%2), newLease()
				req := ask(key, lease, ttl)
				if i%3 == 0 {
					req.Explicit, req.Token.Holder = true, fmt.Sprint("h", i)
				}
				sent := time.Now()
				res, err := s.Acquire(background, req)
				giveUp := tierlock.ReleaseRequest{Name: req.Name, Lease: lease, Explicit: req.Explicit}
				switch {
				case err != nil:
					if !errors.Is(err, tierlock.ErrLate) {
						wantClass(t, "acquire", err, tierlock.ErrUnavailable)
					}
					time.Sleep(s.Linger())
					if _, err := clean.Release(background, giveUp); err != nil {
						t.Errorf("undo: %v", err)
					}
					if rec, err := clean.Inspect(background, req.Name); err != nil || rec.Token.Lease == lease {
						t.Errorf("after the undo: %+v, %v", rec, err)
					}
					mu.Lock()
					failed++
					mu.Unlock()
				case !res.Granted:
					mu.Lock()
					held++
					mu.Unlock()
					time.Sleep(rand.N(20 * time.Millisecond))
				default:
					rec, err := clean.Inspect(background, req.Name)
					if err != nil {
						t.Errorf("inspect: %v", err)
					} else if time.Since(sent) < ttl-ttl/10 && rec.Token != res.Token {
						t.Errorf("granted %v, but the table has %v", res.Token, rec.Token)
					}
					mu.Lock()
					granted++
					if res.Token.Fence <= last[key] && time.Since(sent) < ttl { // else another's grant may be noted before
						t.Errorf("%s: fence %d after %d", key, res.Token.Fence, last[key])
					}
					last[key] = max(last[key], res.Token.Fence)
					mu.Unlock()
					if state, err := clean.Release(background, giveUp); err != nil || time.Since(sent) < ttl-ttl/10 && state != tierlock.LeaseOwned {
						t.Errorf("release: %v, %v", state, err)
					}
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d granted, %d held, %d without an answer", granted, held, failed)
	if granted < 20 || failed < 6 {
		t.Errorf("%d granted and %d without an answer are no trial", granted, failed)
	}
}
