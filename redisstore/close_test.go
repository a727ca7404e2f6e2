package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Close may come at any time, from anywhere, more than once.
func TestCloseUnderLoad(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	client, err := rueidis.NewClient(patient(srv.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for round := range 6 {
		s := redisstore.New(client, unhurried)
		if round%2 == 0 {
			s = openWith(t, redisstore.RecommendedOptions(srv.Addr), unhurried)
		}
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 16 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					lease := newLease()
					_, err1 := s.Acquire(background, ask("k", lease, time.Second))
					_, err2 := s.Release(background, drop("k", lease))
					w, err3 := s.Watch(background, name("k"))
					if w != nil {
						w.Close()
					}
					for _, err := range []error{err1, err2, err3} {
						if err == nil {
							continue
						}
						if !errors.Is(err, tierlock.ErrUnavailable) {
							t.Errorf("around Close: %v; wanted %v or nothing", err, tierlock.ErrUnavailable)
						}
						time.Sleep(time.Millisecond) // a closed store answers at once: leave others the CPU
					}
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		var closers sync.WaitGroup
		for range 4 {
			closers.Go(func() { within(t, patience, "Close", s.Close) })
		}
		closers.Wait()
		failsFast(t, s, tierlock.ErrUnavailable)
		close(stop)
		wg.Wait()
	}
	if err := client.Do(background, client.B().Ping().Build()).Error(); err != nil {
		t.Errorf("the caller's client: %v; wanted it open", err)
	}
}

// Close is bounded where the server does not answer, and where it never did.
func TestCloseWithoutAServer(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := openWith(t, redisstore.RecommendedOptions(proxy.Addr), redisstore.Options{})
	works(t, s)
	w := eventuallyWatch(t, s, "k")
	proxy.BlackHole()
	if _, err := s.Inspect(background, name("k")); !errors.Is(err, tierlock.ErrUnavailable) {
		t.Fatalf("inspect: %v; wanted %v", err, tierlock.ErrUnavailable)
	}
	within(t, patience, "Close with a silent server", s.Close)
	w.Close()
	never := openWith(t, redisstore.RecommendedOptions(proxy.Addr), redisstore.Options{})
	within(t, patience, "Close of a store that never connected", never.Close)

	// A client that waits longer than the store for its dead connection.
	proxy.Pass()
	opt := patient(proxy.Addr)
	opt.ConnWriteTimeout = 2 * time.Minute
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	waiting := redisstore.New(client, redisstore.Options{})
	works(t, waiting)
	proxy.BlackHole()
	if _, err := waiting.Inspect(background, name("k")); !errors.Is(err, tierlock.ErrUnavailable) {
		t.Fatalf("inspect: %v; wanted %v", err, tierlock.ErrUnavailable)
	}
	within(t, patience, "Close over a client that waits", waiting.Close)
	proxy.Cut()
}

// A connection that is being made while the store is closed does not stay open:
// the client would forget it.
func TestCloseWhileDialing(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t)
	opt := patient(srv.Addr)
	var hold atomic.Bool
	began, dial := make(chan struct{}, 16), make(chan struct{})
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if hold.Load() {
			began <- struct{}{}
			<-dial // whatever ctx says: a dial may end at that very moment
			ctx = context.Background()
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	s := openWith(t, opt, redisstore.Options{})
	works(t, s)
	hold.Store(true)
	srv.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for len(began) == 0 {
			s.Inspect(background, name("k"))
		}
	}()
	<-asked
	s.Close()
	before := connections(srv)
	close(dial)
	time.Sleep(200 * time.Millisecond)
	rig.Eventually(t, patience, "no connection is left", func() bool { return connections(srv) <= before })
}
