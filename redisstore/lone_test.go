package redisstore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// A dial that was refused for a lone call's sake is what a closed client answers
// with, and then it forgets that it was closed. A worker that comes to it after
// Close must not try for ever, nor get a connection that nobody would close.
func TestWorkerEndsWithTheStore(t *testing.T) {
	srv := rig.Redis(t)
	s := openWith(t, patient(srv.Addr), redisstore.Options{CallTimeout: 200 * time.Millisecond})
	works(t, s)
	s.BesideALoneCall(func() {
		srv.Do("CLIENT", "KILL", "TYPE", "normal")
		for range 2 { // one may end with the connection, the next wants to dial
			if _, err := s.Release(background, drop("k", newLease())); err == nil {
				t.Fatal("a call had an answer without a connection")
			}
		}
	})
	works(t, s)
	s.Close()
	for range 3 {
		ended := make(chan error, 1)
		go func() { ended <- s.AsWorker() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Fatal("a call of a closed store has an answer")
			}
		case <-time.After(patience):
			t.Fatal("a worker goes on after the store was closed")
		}
	}
}

// A connection that is being made while the store is closed does not stay.
func TestDialDuringClose(t *testing.T) {
	for _, where := range []string{"dial", "handshake"} {
		t.Run(where, func(t *testing.T) {
			srv := rig.Redis(t)
			rig.NoLeak(t)
			var armed atomic.Bool
			reached, release := make(chan struct{}, 8), make(chan struct{})
			hang := func(here string) {
				if armed.Load() && here == where {
					reached <- struct{}{}
					<-release
				}
			}
			opt := patient(srv.Addr)
			opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				conn, err := d.DialContext(ctx, "tcp", addr)
				hang("dial")
				return conn, err
			}
			opt.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				hang("handshake")
				return rueidis.AuthCredentials{}, nil
			}
			s := openWith(t, opt, redisstore.Options{CallTimeout: 200 * time.Millisecond})
			works(t, s)
			armed.Store(true)
			srv.Do("CLIENT", "KILL", "TYPE", "normal")
			for range 2 { // one may end with the connection, the next wants to dial
				_, _ = s.Release(background, drop("k", newLease()))
			}
			<-reached
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				s.Close()
			}()
			time.Sleep(500 * time.Millisecond) // the client is closed meanwhile
			close(release)
			<-closed
		})
	}
}

// A server that sends its callers elsewhere (Valkey 8) makes the client dial inside
// a call, without regard to the call's ctx.
func TestRedirectedCallKeepsItsTime(t *testing.T) {
	silent := rig.NewProxy(t, rig.Redis(t).Addr)
	silent.BlackHole()
	var moved atomic.Bool
	addr := answering(t, func(cmd []string) string {
		switch cmd[0] {
		case "HELLO":
			return "%2\r\n+version\r\n+8.0.0\r\n+proto\r\n:3\r\n"
		case "EVAL":
			return fmt.Sprintf("*3\r\n:%d\r\n:1\r\n:1\r\n", time.Now().UnixMicro())
		case "EVALSHA":
			if moved.Load() {
				return "-REDIRECT " + silent.Addr + "\r\n"
			}
			return ":1\r\n"
		}
		return "+OK\r\n"
	})
	opt := patient(addr)
	opt.Standalone.EnableRedirect = true
	opt.Dialer.Timeout, opt.ConnWriteTimeout = time.Minute, time.Minute
	s := openWith(t, opt, brisk)
	for range 5 {
		rig.Eventually(t, patience, "a release", func() bool {
			_, err := s.Release(background, drop("k", newLease()))
			return err == nil
		})
	}
	moved.Store(true)
	within(t, patience, "a call that is redirected into silence", func() {
		_, err := s.Release(background, drop("k", newLease()))
		wantClass(t, "a call that is redirected into silence", err, tierlock.ErrUnavailable)
	})
	silent.Cut()
}

// A client that makes connections of their own for long pipelines may answer those
// while the connection for single calls is being made.
func TestSecondConnectionForPipelines(t *testing.T) {
	srv := rig.Redis(t)
	var armed atomic.Bool
	hanging, release := make(chan struct{}, 8), make(chan struct{})
	opt := patient(srv.Addr)
	opt.BlockingPipeline = 2
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if _, asked := ctx.Deadline(); asked && armed.Load() { // the question for the clock
			hanging <- struct{}{}
			<-release
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	s := openWith(t, opt, redisstore.Options{CallTimeout: time.Second})
	works(t, s)
	armed.Store(true)
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	eventuallyWatch(t, s, "k") // makes a connection, and so the clock is asked for
	<-hanging
	for range 3 {
		s.Renew(background, []tierlock.RenewRequest{
			{Name: name("a"), Lease: newLease(), TTL: time.Second}, {Name: name("b"), Lease: newLease(), TTL: time.Second},
		})
	}
	defer close(release)
	called := make(chan struct{})
	go func() {
		defer close(called)
		_, _ = s.Release(background, drop("k", newLease()))
	}()
	select {
	case <-called:
	case <-time.After(patience):
		t.Error("a call waits for a connection that is being made")
	}
}
