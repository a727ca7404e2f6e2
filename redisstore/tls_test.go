package redisstore_test

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// withTLS are options for a server of an authority, with the client's
// certificate of another, or none where that is nil.
func withTLS(addr string, server, client *rig.Authority) rueidis.ClientOption {
	opt := patient(addr)
	opt.TLSConfig = &tls.Config{RootCAs: server.Pool}
	if client != nil {
		opt.TLSConfig.Certificates = []tls.Certificate{client.Client}
	}
	return opt
}

// Locks and push over TLS, with and without a certificate of the client's.
func TestTLS(t *testing.T) {
	ca := rig.NewAuthority(t)
	for _, mutual := range []bool{false, true} {
		srv, client := rig.RedisTLS(t, ca, "--tls-auth-clients", "no"), (*rig.Authority)(nil)
		if mutual {
			srv, client = rig.RedisTLS(t, ca), ca
		}
		for _, resp2 := range []bool{false, true} {
			opt := withTLS(srv.Addr, ca, client)
			opt.AlwaysRESP2 = resp2
			s := openWith(t, opt, calm)
			works(t, s)
			w, err := s.Watch(t.Context(), name("watched"))
			if err != nil {
				t.Fatal(err)
			}
			lease := newLease()
			mustAcquire(t, s, ask("watched", lease, 30*time.Second))
			mustRelease(t, s, drop("watched", lease), tierlock.LeaseOwned)
			select {
			case <-w.C():
			case <-time.After(5 * time.Second):
				t.Errorf("mutual %v, RESP2 %v: no signal of the release", mutual, resp2)
			}
			w.Close()
		}
	}
}

// What one side does not accept is a misconfiguration, told by Open.
func TestTLSRefused(t *testing.T) {
	ours, theirs := rig.NewAuthority(t), rig.NewAuthority(t)
	srv := rig.RedisTLS(t, ours)
	wrongName := withTLS(srv.Addr, ours, ours)
	wrongName.TLSConfig.ServerName = "redis.example"
	oldOnly := withTLS(srv.Addr, ours, ours)
	oldOnly.TLSConfig.MinVersion, oldOnly.TLSConfig.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for _, c := range []struct {
		what, says string
		opt        rueidis.ClientOption
	}{
		{"the server's authority is unknown to us", "certificate signed by unknown authority", withTLS(srv.Addr, theirs, ours)},
		{"the server has another name", "wanted to match redis.example", wrongName},
		{"our authority is unknown to the server", "remote error: tls: unknown certificate authority", withTLS(srv.Addr, ours, theirs)},
		{"we show no certificate", "remote error: tls: certificate required", withTLS(srv.Addr, ours, nil)},
		{"we speak old versions only", "remote error: tls: protocol version not supported", oldOnly},
	} {
		// Several times, since TLS 1.3 leaves it to chance how the client meets
		// a refusal of its certificate.
		for i := range 20 {
			opt := c.opt
			opt.ForceSingleClient = i%2 == 0
			s, err := openRefused(opt, calm)
			if s != nil {
				s.Close()
			}
			wantClass(t, c.what, err, tierlock.ErrMisconfigured)
			if s != nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, %v; wanted no store, and %q", c.what, s, err, c.says)
			}
		}
	}
}

// Where only one side speaks TLS nothing can be told in general: a server
// without waits for the end of what it takes for a command, one with it closes.
// But what is plainly no TLS is a misconfiguration.
func TestTLSOnOneSide(t *testing.T) {
	ours := rig.NewAuthority(t)
	srv, plain := rig.RedisTLS(t, ours), rig.Redis(t)
	s := openWith(t, patient(srv.Addr), calm)
	_, err := s.Inspect(t.Context(), name("k"))
	wantClass(t, "we speak no TLS", err, tierlock.ErrUnavailable)

	// With all places taken a server says so to everybody, unasked.
	plain.Do("CONFIG", "SET", "maxclients", "10")
	for range 10 {
		c, err := net.Dial("tcp", plain.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	rig.Eventually(t, patience, "no place is left", func() bool {
		_, err := plain.Try("PING")
		return err != nil
	})
	none, err := openRefused(withTLS(plain.Addr, ours, nil), calm)
	wantClass(t, "the server speaks no TLS", err, tierlock.ErrMisconfigured)
	if none != nil || !strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		t.Errorf("got %v, %v; wanted no store, and that there is no TLS", none, err)
	}
}

// The server comes back with a certificate that we do not accept, and later
// with the right one again.
func TestTLSCertificateChanged(t *testing.T) {
	ours, theirs := rig.NewAuthority(t), rig.NewAuthority(t)
	srv := rig.RedisTLS(t, ours, "--tls-auth-clients", "no")
	s := openWith(t, withTLS(srv.Addr, ours, nil), calm)
	works(t, s)
	told := func(class error, says string) {
		t.Helper()
		rig.Eventually(t, patience, says+" is told", func() bool {
			_, err := s.Acquire(background, ask("k", newLease(), time.Second))
			return errors.Is(err, class) && strings.Contains(err.Error(), says)
		})
		for range 5 {
			_, err := s.Acquire(background, ask("k", newLease(), time.Second))
			wantClass(t, says, err, class)
			wantClass(t, says, renewOne(t, s, "k", newLease(), time.Second).Err, class)
		}
	}
	theirs.Certify(srv)
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	told(tierlock.ErrMisconfigured, "certificate signed by unknown authority")
	ours.Certify(srv)
	rig.Eventually(t, patience, "the store works again", func() bool {
		_, err := s.Inspect(background, name("k"))
		return err == nil
	})
	works(t, s)
}
