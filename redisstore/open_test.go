package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// works waits until an acquire succeeds.
func works(t testing.TB, s tierlock.Store) {
	t.Helper()
	rig.Eventually(t, patience, "the store works", func() bool {
		lease := newLease()
		res, err := s.Acquire(t.Context(), ask("works", lease, time.Second))
		if err != nil || !res.Granted {
			return false
		}
		_, err = s.Release(t.Context(), drop("works", lease))
		return err == nil
	})
}

// failsFast checks that a call of a store that is unhurried is refused at once.
func failsFast(t testing.TB, s tierlock.Store, class error) {
	t.Helper()
	within(t, patience, "a call without a connection", func() {
		_, err := s.Acquire(background, ask("k", newLease(), time.Second))
		wantClass(t, "a call without a connection", err, class)
	})
}

// Scenarios 4 and 5: a server that is not there must not keep a process from
// starting; the store connects when it is.
func TestOpenWithoutAServer(t *testing.T) {
	for _, mode := range []struct {
		name   string
		single bool
	}{{"one server", true}, {"kind of deployment unknown", false}} {
		t.Run("refused, "+mode.name, func(t *testing.T) {
			rig.NoLeak(t)
			srv := rig.Redis(t)
			srv.Kill()
			opt := redisstore.RecommendedOptions(srv.Addr)
			opt.ForceSingleClient = mode.single
			var s *redisstore.Store
			within(t, patience, "Open", func() { s = openWith(t, opt, unhurried) })
			failsFast(t, s, tierlock.ErrUnavailable)
			srv.Start()
			works(t, s)
			srv.Kill() // and the same later on
			rig.Eventually(t, patience, "the loss is noticed", func() bool {
				_, err := s.Inspect(background, name("k"))
				return errors.Is(err, tierlock.ErrUnavailable)
			})
			failsFast(t, s, tierlock.ErrUnavailable)
			srv.Start()
			works(t, s)
		})
		t.Run("silent, "+mode.name, func(t *testing.T) {
			rig.NoLeak(t)
			srv := rig.Redis(t)
			proxy := rig.NewProxy(t, srv.Addr)
			proxy.BlackHole()
			opt := redisstore.RecommendedOptions(proxy.Addr)
			opt.ForceSingleClient = mode.single
			var s *redisstore.Store
			within(t, patience, "Open", func() { s = openWith(t, opt, unhurried) })
			failsFast(t, s, tierlock.ErrUnavailable)
			proxy.Pass()
			works(t, s)

			// Later calls wait for their answers until the connection is found
			// dead; after that they do not wait for dials either.
			proxy.BlackHole()
			rig.Eventually(t, time.Minute, "20 calls in a row fail at once", func() bool {
				for range 20 {
					began := time.Now()
					_, err := s.Inspect(background, name("k"))
					if !errors.Is(err, tierlock.ErrUnavailable) || time.Since(began) > 100*time.Millisecond {
						return false
					}
					time.Sleep(20 * time.Millisecond) // they go on to fail while it dials
				}
				return true
			})
			proxy.Cut()
			proxy.Pass()
			works(t, s)
		})
	}
}

// A dialer that heeds nothing holds up neither Open nor Close.
func TestOpenWithADialerThatHangs(t *testing.T) {
	rig.NoLeak(t)
	opt := redisstore.RecommendedOptions("127.0.0.1:1")
	hang := make(chan struct{})
	defer close(hang)
	opt.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		<-hang
		return nil, errors.New("no connection")
	}
	var s *redisstore.Store
	within(t, patience, "Open", func() { s = openWith(t, opt, unhurried) })
	failsFast(t, s, tierlock.ErrUnavailable)
	within(t, patience, "Close", openWith(t, opt, redisstore.Options{}).Close)
}

// Scenario 5: a wrong password is told, at Open and later, and not taken for an
// outage.
func TestPasswords(t *testing.T) {
	srv := rig.Redis(t, "--requirepass", "right")
	for _, row := range []struct{ user, password, says string }{
		{"", "wrong", "WRONGPASS"},
		{"nobody", "right", "WRONGPASS"},
		{"", "", "NOAUTH"},
	} {
		for _, resp2 := range []bool{false, true} {
			for _, single := range []bool{false, true} {
				opt := patient(srv.Addr)
				opt.AlwaysRESP2, opt.ForceSingleClient = resp2, single
				opt.Username, opt.Password = row.user, row.password
				s, err := openRefused(opt, calm)
				wantClass(t, row.says, err, tierlock.ErrMisconfigured)
				if s != nil || !strings.Contains(err.Error(), row.says) {
					t.Errorf("got %v, %v; wanted no store, and %s", s, err, row.says)
				}
			}
		}
	}

	srv.Do("ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all")
	opt := redisstore.RecommendedOptions(srv.Addr)
	opt.Username, opt.Password = "app", "first"
	s := openWith(t, opt, unhurried)
	works(t, s)
	srv.Do("ACL", "SETUSER", "app", "resetpass", ">second")
	srv.Do("CLIENT", "KILL", "USER", "app")
	rig.Eventually(t, patience, "the changed password is told", func() bool {
		_, err := s.Inspect(background, name("k"))
		return errors.Is(err, tierlock.ErrMisconfigured)
	})
	failsFast(t, s, tierlock.ErrMisconfigured)
	srv.Do("ACL", "SETUSER", "app", "resetpass", ">first")
	works(t, s)
}

// A server that was down at Open and then turns out to want another password.
func TestPasswordFoundWrongAfterOpen(t *testing.T) {
	for _, single := range []bool{true, false} {
		srv := rig.Redis(t, "--requirepass", "right")
		srv.Kill()
		opt := redisstore.RecommendedOptions(srv.Addr)
		opt.ForceSingleClient, opt.Password = single, "wrong"
		s := openWith(t, opt, unhurried)
		failsFast(t, s, tierlock.ErrUnavailable)
		srv.Start()
		rig.Eventually(t, patience, "the wrong password is told", func() bool {
			_, err := s.Inspect(background, name("k"))
			return errors.Is(err, tierlock.ErrMisconfigured)
		})
		failsFast(t, s, tierlock.ErrMisconfigured)
	}
}

func TestTooManyClients(t *testing.T) {
	srv := rig.Redis(t)
	srv.Do("CONFIG", "SET", "maxclients", "10")
	var conns []net.Conn
	for range 10 {
		c, err := net.Dial("tcp", srv.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	rig.Eventually(t, patience, "no place is left", func() bool {
		_, err := srv.Try("PING")
		return err != nil
	})
	s := openWith(t, patient(srv.Addr), calm)
	_, err := s.Inspect(background, name("k"))
	wantClass(t, "too many clients", err, tierlock.ErrUnavailable)
	for _, c := range conns {
		c.Close()
	}
	works(t, s)
}

func TestOptionsThatCannotWork(t *testing.T) {
	for field, change := range map[string]func(*rueidis.ClientOption, *redisstore.Options){
		"InitAddress is empty":             func(c *rueidis.ClientOption, _ *redisstore.Options) { c.InitAddress = nil },
		"InitAddress: \"localhost\"":       func(c *rueidis.ClientOption, _ *redisstore.Options) { c.InitAddress[0] = "localhost" },
		"Dialer.Timeout":                   func(c *rueidis.ClientOption, _ *redisstore.Options) { c.Dialer.Timeout = -1 },
		"ConnWriteTimeout":                 func(c *rueidis.ClientOption, _ *redisstore.Options) { c.ConnWriteTimeout = -1 },
		"Sentinel.TopologyRefreshInterval": func(c *rueidis.ClientOption, _ *redisstore.Options) { c.Sentinel.TopologyRefreshInterval = -1 },
		"SelectDB":                         func(c *rueidis.ClientOption, _ *redisstore.Options) { c.SelectDB = -1 },
		"PipelineMultiplex":                func(c *rueidis.ClientOption, _ *redisstore.Options) { c.PipelineMultiplex = 9 },
		"RingScaleEachConn":                func(c *rueidis.ClientOption, _ *redisstore.Options) { c.RingScaleEachConn = 21 },
		"ReplicaOnly":                      func(c *rueidis.ClientOption, _ *redisstore.Options) { c.ReplicaOnly = true },
		"SendToReplicas": func(c *rueidis.ClientOption, _ *redisstore.Options) {
			c.SendToReplicas = func(rueidis.Completed) bool { return true }
		},
		"Standalone.ReplicaAddress": func(c *rueidis.ClientOption, _ *redisstore.Options) {
			c.Standalone.ReplicaAddress = []string{"127.0.0.1:1"}
		},
		"ForceSingleClient: more": func(c *rueidis.ClientOption, _ *redisstore.Options) {
			c.InitAddress = append(c.InitAddress, "127.0.0.1:2")
		},
		"ForceSingleClient: Sentinel": func(c *rueidis.ClientOption, _ *redisstore.Options) { c.Sentinel.MasterSet = "m" },
		"Options.CallTimeout":         func(_ *rueidis.ClientOption, o *redisstore.Options) { o.CallTimeout = -1 },
	} {
		c, o := redisstore.RecommendedOptions("127.0.0.1:1"), redisstore.Options{}
		change(&c, &o)
		s, err := redisstore.OpenWith(c, o)
		wantClass(t, field, err, tierlock.ErrMisconfigured)
		if s != nil || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, %v; wanted an error that names %s", s, err, field)
		}
	}
	for what, s := range map[string]*redisstore.Store{
		"Options.CallTimeout": redisstore.New(nil, redisstore.Options{CallTimeout: -1}),
		"client is nil":       redisstore.New(nil, redisstore.Options{}),
	} {
		defer s.Close()
		_, err := s.Inspect(t.Context(), name("k"))
		wantClass(t, what, err, tierlock.ErrMisconfigured)
		if !strings.Contains(err.Error(), what) {
			t.Errorf("error %q does not name %s", err, what)
		}
	}
	// Several problems are told at once.
	_, err := redisstore.OpenWith(rueidis.ClientOption{SelectDB: -1}, redisstore.Options{CallTimeout: -1})
	for _, part := range []string{"InitAddress", "SelectDB", "CallTimeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %s", err, part)
		}
	}
	// A server of RESP2 without client tracking, and a cache.
	srv := rig.Redis(t)
	opt := patient(srv.Addr)
	opt.AlwaysRESP2, opt.DisableCache = true, false
	s, err := openRefused(opt, calm)
	wantClass(t, "a cache that cannot be", err, tierlock.ErrMisconfigured)
	if s != nil || !strings.Contains(err.Error(), "DisableCache") {
		t.Errorf("got %v, %v; wanted an error that names DisableCache", s, err)
	}
	opt = patient(srv.Addr)
	opt.SelectDB = 1000
	_, err = openRefused(opt, calm)
	wantClass(t, "a database that is not there", err, tierlock.ErrMisconfigured)
}

// A connection that is killed between calls is nobody's business.
func TestKilledConnectionIsReplaced(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for range 20 {
		works(t, s)
		srv.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	works(t, s)
}

// A client of the caller's that retries reads must not retry the store's: a
// refused connection is told at once, and nothing goes on behind.
func TestClientThatRetries(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr}, ForceSingleClient: true, Dialer: net.Dialer{Timeout: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := redisstore.New(client, redisstore.Options{})
	defer s.Close()
	works(t, s)
	srv.Kill()
	rig.Eventually(t, time.Minute, "20 reads in a row fail at once", func() bool {
		for range 20 {
			began := time.Now()
			_, err := s.Inspect(background, name("k"))
			if !errors.Is(err, tierlock.ErrUnavailable) || time.Since(began) > 100*time.Millisecond {
				return false
			}
		}
		return true
	})
	within(t, patience, "Close", s.Close)
}
