package redisstore_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

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
		case <-time.After(5 * time.Second):
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
