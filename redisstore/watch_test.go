package redisstore_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

func watch(t testing.TB, s *redisstore.Store, key string) tierlock.Watch {
	t.Helper()
	w, err := s.Watch(t.Context(), name(key))
	if err != nil {
		t.Fatalf("watch %q: %v", key, err)
	}
	t.Cleanup(w.Close)
	return w
}

func signalled(w tierlock.Watch, within time.Duration) bool {
	select {
	case <-w.C():
		return true
	case <-time.After(within):
		return false
	}
}

// lockUnlock makes a release that watchers are told of.
func lockUnlock(t testing.TB, s tierlock.Store, key string) {
	t.Helper()
	lease := newLease()
	mustAcquire(t, s, ask(key, lease, 30*time.Second))
	mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
}

func channels(srv *rig.RedisServer) int {
	return len(srv.Do("PUBSUB", "SHARDCHANNELS", "lock:*").([]any)) + len(srv.Do("PUBSUB", "CHANNELS", "lock:*").([]any))
}

func allChannels(servers []*rig.RedisServer) (n int) {
	for _, srv := range servers {
		n += channels(srv)
	}
	return n
}

func allConnections(servers []*rig.RedisServer) (n int) {
	for _, srv := range servers {
		n += connections(srv)
	}
	return n
}

// Scenario 56: many watches at once leave neither channels nor goroutines.
func TestManyWatches(t *testing.T) {
	t.Run("single", func(t *testing.T) {
		rig.NoLeak(t)
		srv := rig.Redis(t)
		manyWatches(t, open(t, srv.Addr), []*rig.RedisServer{srv})
	})
	t.Run("cluster", func(t *testing.T) {
		rig.NoLeak(t)
		c := steadyCluster(t)
		manyWatches(t, openCluster(t, c), c.Nodes)
	})
}

func manyWatches(t *testing.T, s *redisstore.Store, servers []*rig.RedisServer) {
	for i := range 100 { // until the client has all its connections, one to each node
		lockUnlock(t, s, fmt.Sprint("warm-", i))
	}
	before, conns := runtime.NumGoroutine(), allConnections(servers)
	const n = 5000
	for round := range 2 {
		began := time.Now()
		watches := make([]tierlock.Watch, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				w, err := s.Watch(background, name(fmt.Sprint("many-", i)))
				for tries := 0; err != nil && tries < 20; tries++ { // this machine may be slow
					time.Sleep(50 * time.Millisecond)
					w, err = s.Watch(background, name(fmt.Sprint("many-", i)))
				}
				if err != nil {
					t.Errorf("watch %d: %v", i, err)
					return
				}
				watches[i] = w
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		if got := allChannels(servers); got != n {
			t.Errorf("round %d: %d channels on the servers; wanted %d", round, got, n)
		}
		if got := allConnections(servers); got > conns+len(servers) {
			t.Errorf("round %d: %d connections; wanted one more for each server than %d", round, got, conns)
		}
		if got := runtime.NumGoroutine(); got > before+300 { // workers for calls, a few for each connection
			t.Errorf("round %d: %d goroutines while all wait, %d before", round, got, before)
		}
		t.Logf("round %d: %d watches after %v", round, n, time.Since(began))
		lockUnlock(t, s, "many-4711")
		if !signalled(watches[4711], patience) {
			t.Errorf("round %d: a release was not signalled", round)
		}
		for i, w := range watches {
			if i != 4711 && signalledNow(w) {
				t.Errorf("round %d: watch %d was signalled by the release of another lock", round, i)
			}
			w.Close()
		}
		rig.Eventually(t, patience, "no channel is left", func() bool { return allChannels(servers) == 0 })
	}
	rig.Eventually(t, patience, "the connections for watches are gone", func() bool { return allConnections(servers) <= conns })
	// Workers for calls may be a few more or fewer.
	rig.Eventually(t, patience, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+3 })
}

func connections(srv *rig.RedisServer) int { return strings.Count(srv.Text("CLIENT", "LIST"), "\n") }

// A lock that is watched again at once, before or after the server was told
// that nobody watches it: the new watch is live all the same.
func TestWatchedAgainAtOnce(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	keep := watch(t, s, "other") // other work for the connection
	defer keep.Close()
	w := watch(t, s, "k")
	for i := range 300 {
		w.Close()
		if i%3 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		w = watch(t, s, "k")
		if i%20 == 0 {
			lockUnlock(t, s, "k")
			if !signalled(w, patience) {
				t.Fatalf("round %d: a release was not signalled", i)
			}
		}
	}
}

func signalledNow(w tierlock.Watch) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func TestWatchesOfOneLockShareASubscription(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	first, second := watch(t, s, "k"), watch(t, s, "k")
	subscribers := func() int64 {
		return srv.Do("PUBSUB", "SHARDNUMSUB", keyOf("k")+":wake").([]any)[1].(int64)
	}
	if n := subscribers(); n != 1 {
		t.Errorf("%d subscriptions for two watches; wanted 1", n)
	}
	lockUnlock(t, s, "k")
	if !signalled(first, patience) || !signalled(second, patience) {
		t.Error("not both watches were signalled")
	}
	first.Close()
	first.Close()
	lockUnlock(t, s, "k")
	if !signalled(second, patience) {
		t.Error("the watch that is still open was not signalled")
	}
	if signalledNow(first) {
		t.Error("a closed watch was signalled")
	}
	second.Close()
	rig.Eventually(t, patience, "the subscription ends", func() bool { return subscribers() == 0 })
}

// Scenario 57: what is published while the connection is away is made up for.
func TestWatchOutlivesItsConnection(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, lose := range []struct {
		name string
		f    func()
	}{
		{"killed", func() {
			if srv.Int("CLIENT", "KILL", "TYPE", "pubsub") == 0 {
				t.Fatal("there was no connection to kill")
			}
		}},
		{"restart", srv.Restart},
		{"crash", func() { srv.Kill(); time.Sleep(200 * time.Millisecond); srv.Start() }},
	} {
		t.Run(lose.name, func(t *testing.T) {
			w, other := watch(t, s, "k"), watch(t, s, "other")
			lose.f()
			if !signalled(w, patience) || !signalled(other, patience) {
				t.Fatal("no signal after the gap")
			}
			works(t, s)
			for range 3 { // and it is live again
				lockUnlock(t, s, "k")
				if !signalled(w, patience) {
					t.Fatal("a release after the gap was not signalled")
				}
			}
			w.Close()
			other.Close()
		})
	}
}

// Scenario 30: from the moment at which Watch returns, no release is missed,
// whatever subscriptions of the same lock come and go.
func TestNoReleaseIsMissed(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	a, b := open(t, srv.Addr), open(t, srv.Addr)
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	rounds := 0
	more := func() bool { // for three seconds, and a hundred rounds
		mu.Lock()
		defer mu.Unlock()
		return time.Since(began) < 3*time.Second || rounds < 100 && time.Since(began) < time.Minute
	}
	for i := range 8 {
		wg.Go(func() {
			key := fmt.Sprint(i % 2)
			for more() {
				w, err := a.Watch(background, name(key))
				if err != nil {
					t.Errorf("watch: %v", err)
					return
				}
				lease := fmt.Sprint("lease-", i)
				// The key may be another goroutine's: then its release counts.
				res, err := b.Acquire(background, ask(key, lease, 30*time.Second))
				if err != nil {
					t.Errorf("acquire: %v", err)
				}
				if res.Granted {
					if _, err := b.Release(background, drop(key, lease)); err != nil {
						t.Errorf("release: %v", err)
					}
				}
				if !signalled(w, patience) {
					t.Errorf("a release after Watch returned was not signalled (granted: %v)", res.Granted)
				}
				w.Close()
				mu.Lock()
				rounds++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if rounds < 100 {
		t.Errorf("only %d rounds: the test shows little", rounds)
	}
}

func TestWatchWhereThereIsNoPush(t *testing.T) {
	srv := rig.Redis(t)
	for what, s := range map[string]*redisstore.Store{
		"NoPush": openWith(t, patient(srv.Addr), redisstore.Options{NoPush: true, CallTimeout: unhurried.CallTimeout}),
		"closed": openWith(t, patient(srv.Addr), unhurried),
	} {
		if what == "closed" {
			s.Close()
		}
		within(t, patience, "Watch", func() {
			_, err := s.Watch(background, name("k"))
			wantClass(t, what, err, tierlock.ErrUnavailable)
		})
	}
	s := open(t, srv.Addr)
	_, err := s.Watch(background, tierlock.Name{Namespace: "{", Resource: "r", Key: "k"})
	wantClass(t, "a bad name", err, tierlock.ErrMisconfigured)

	// A user that may not subscribe still releases, and is told at once.
	srv.Do("ACL", "SETUSER", "app", "on", ">pw", "~*", "resetchannels", "+@all")
	opt := patient(srv.Addr)
	opt.Username, opt.Password = "app", "pw"
	restricted := connected(t, openWith(t, opt, unhurried))
	within(t, patience, "Watch", func() {
		_, err = restricted.Watch(background, name("k"))
	})
	wantClass(t, "no channel allowed", err, tierlock.ErrUnavailable)
	lockUnlock(t, restricted, "k")
}

// A store that lost its server answers Watch at once after the first failure.
func TestWatchWithoutAServer(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	w := watch(t, s, "k")
	srv.Kill()
	rig.Eventually(t, patience, "the loss is noticed", func() bool {
		began := time.Now()
		_, err := s.Watch(background, name("other"))
		return errors.Is(err, tierlock.ErrUnavailable) && time.Since(began) < 50*time.Millisecond
	})
	within(t, 5*time.Second, "20 watches without a server", func() {
		for range 20 {
			_, err := s.Watch(background, name("other"))
			wantClass(t, "watch", err, tierlock.ErrUnavailable)
		}
	})
	srv.Start()
	if !signalled(w, patience) {
		t.Error("the open watch was not signalled when the server came back")
	}
}
