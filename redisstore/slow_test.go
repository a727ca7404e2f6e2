package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// With a round trip of more than half of CallTimeout, asking for the clock and
// acquiring do not fit into one call: but what the answer tells is kept for the next.
func TestSlowLink(t *testing.T) {
	srv := rig.Redis(t)
	mustAcquire(t, open(t, srv.Addr), ask("warm", newLease(), time.Second)) // the scripts are loaded
	proxy := rig.NewProxy(t, srv.Addr)
	s := openWith(t, patient(proxy.Addr), redisstore.Options{CallTimeout: time.Second})
	s.ForgetClock()
	proxy.Delay(300*time.Millisecond, 300*time.Millisecond)
	_, first := s.Acquire(background, ask("first", newLease(), 30*time.Second))
	wantClass(t, "an acquire of two round trips", first, tierlock.ErrUnavailable)
	rig.Eventually(t, patience, "the clock is known", s.KnowsClock)
}

// The clock is known before the first acquire.
func TestFirstAcquireIsOneRoundTrip(t *testing.T) {
	srv := rig.Redis(t)
	s := openWith(t, patient(srv.Addr), calm)
	before := srv.CommandsOf("time")
	mustAcquire(t, s, ask("k", newLease(), time.Second))
	if got := srv.CommandsOf("time") - before; got != 1 {
		t.Errorf("the first acquire asked for the time %d times; wanted once", got)
	}
}

// Where the way to the server takes all of the round trip, as much as where it
// takes half, a grant after the budget is refused.
func TestLateOnAnUnevenLink(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openWith(t, patient(proxy.Addr), calm)
	s.ForgetClock()
	proxy.Delay(300*time.Millisecond, 0)
	mustAcquire(t, s, ask("warm", newLease(), time.Second)) // learned on this link
	sets := srv.CommandsOf("evalsha")
	req := ask("k", newLease(), 30*time.Second)
	req.Budget = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(background, req.Budget)
	defer cancel()
	_, err := s.Acquire(ctx, req)
	wantClass(t, "a budget of 200 ms for a way of 300 ms", err, tierlock.ErrUnavailable)
	rig.Eventually(t, patience, "it is executed", func() bool { return srv.CommandsOf("evalsha") > sets })
	if srv.Int("EXISTS", keyOf("k")) != 0 {
		t.Error("granted after the caller had gone")
	}
}

// A connection that was lost while nothing was under way may lead to another
// server, whose clock differs.
func TestIdleReconnectForgetsTheClock(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openWith(t, patient(proxy.Addr), calm)
	mustAcquire(t, s, ask("warm", newLease(), time.Second))
	s.Mislead(40 * time.Second) // as if the next server were 40 s behind
	conns := proxy.Conns()
	proxy.Cut()
	rig.Eventually(t, patience, "the connection is gone", func() bool { return proxy.Conns() < conns })
	time.Sleep(100 * time.Millisecond) // until the client has seen it too
	proxy.Delay(400*time.Millisecond, 0)
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(ctx, ask("k", newLease(), 30*time.Second))
	wantClass(t, "100 ms for a way of 400 ms", err, tierlock.ErrUnavailable)
	// Longer than the handshake, its request and the acquire take.
	time.Sleep(2 * time.Second)
	if srv.Int("EXISTS", keyOf("k")) != 0 {
		t.Error("granted late, by the clock of the former connection")
	}
}

// lateCluster is a store whose Cluster, of one node, appears when up is set.
func lateCluster(t *testing.T) (s *redisstore.Store, up *atomic.Bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bus := l.Addr().(*net.TCPAddr).Port
	l.Close()
	srv := rig.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", fmt.Sprint(bus))
	srv.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	rig.Eventually(t, patience, "the cluster is up", func() bool {
		return strings.Contains(srv.Text("CLUSTER", "INFO"), "cluster_state:ok")
	})
	up = new(atomic.Bool)
	opt := patient(srv.Addr)
	opt.ForceSingleClient = false
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if !up.Load() {
			return nil, errors.New("down")
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	return openWith(t, opt, calm), up
}

// A Cluster that appears while calls are made. This is for the race detector.
func TestLateCluster(t *testing.T) {
	s, up := lateCluster(t)
	var wg sync.WaitGroup
	end := time.Now().Add(time.Minute)
	for i := range 4 {
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				if res, err := s.Acquire(background, ask(fmt.Sprint(i, n), newLease(), time.Second)); err == nil && res.Granted {
					return
				}
			}
			t.Errorf("caller %d: no grant within a minute", i)
		})
	}
	time.Sleep(50 * time.Millisecond)
	up.Store(true)
	wg.Wait()
}

// The same for exclusive calls, whose keys depend on what has appeared: those of two
// slots would bring the client down.
func TestLateClusterOfAChain(t *testing.T) {
	s, up := lateCluster(t)
	place := exclusive(2)
	place.Incarnation = strings.Repeat("a", 40)
	refused := func(err error) bool {
		if errors.Is(err, tierlock.ErrEpoch) {
			return true
		}
		wantClass(t, "a call before the Cluster is there", err, tierlock.ErrUnavailable)
		return false
	}
	renewals, adoptions := make([]tierlock.RenewRequest, 3000), make([]tierlock.AdoptRequest, 1000)
	for i := range renewals {
		renewals[i] = tierlock.RenewRequest{Name: name(fmt.Sprint(i)), Lease: newLease(), TTL: time.Minute, Place: place}
	}
	for i := range adoptions {
		adoptions[i] = adoptIn(place, ask(fmt.Sprint(i), newLease(), time.Minute), 1, 1)
	}
	var wg sync.WaitGroup
	end := time.Now().Add(time.Minute)
	for what, call := range map[string]func() error{
		"acquire": func() error {
			_, err := s.Acquire(background, askIn(place, ask("k", newLease(), time.Minute)))
			return err
		},
		"release": func() error {
			_, err := s.Release(background, dropIn(place, "k", newLease(), false))
			return err
		},
		"renew": func() error { return s.Renew(background, renewals)[0].Err },
		"adopt": func() error { return s.Adopt(background, adoptions)[0].Err },
	} {
		wg.Go(func() {
			for !refused(call()) {
				if time.Now().After(end) {
					t.Errorf("%s: not refused for the data within a minute", what)
					return
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	up.Store(true)
	wg.Wait()
}
