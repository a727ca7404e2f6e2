package tests_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// rotation is one way to have a password changed while clients are connected.
type rotation struct {
	user   string
	start  func(t *testing.T) *rig.RedisServer // the password is "first"
	change func(srv *rig.RedisServer, password string)
	kill   []string
}

var rotations = map[string]rotation{
	"requirepass": {
		start:  func(t *testing.T) *rig.RedisServer { return rig.Redis(t, "--requirepass", "first") },
		change: func(srv *rig.RedisServer, password string) { srv.SetPassword(password) },
		kill:   []string{"CLIENT", "KILL", "TYPE", "normal"},
	},
	"ACL": {
		user: "app",
		start: func(t *testing.T) *rig.RedisServer {
			srv := rig.Redis(t)
			srv.Do("ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all")
			return srv
		},
		change: func(srv *rig.RedisServer, password string) {
			srv.Do("ACL", "SETUSER", "app", "resetpass", ">"+password)
		},
		kill: []string{"CLIENT", "KILL", "USER", "app"},
	},
}

// The password is changed and this client does not know the new one. Nothing
// happens while its connections live. When they are cut, new locks are refused
// as misconfigured and the holds end on time, both with the reason; nothing
// counts as an outage. With the old password back all works again.
func TestPasswordRotatedAway(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for name, r := range rotations {
		t.Run(name, func(t *testing.T) {
			srv := r.start(t)
			s := newSpy(openAs(t, srv.Addr, asUser(r.user, "first")))
			log := &logBook{}
			cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl})
			cfg.Logger, cfg.CallTimeout = newLogger(log), 2*time.Second
			l := lockerOf(t, cfg)
			k := mustLock(t, l, "job", "k")
			locked := time.Now()
			r.change(srv, "second")
			outlives(t, k, ttl)
			mustUnlock(t, mustLock(t, l, "job", "other"))

			srv.Do(r.kill...)
			free := freeAt(t, srv, k)
			// Who meets the cut connection itself gets the connection's error.
			var err error
			rig.Eventually(t, patience, "the password is told", func() bool {
				_, err = l.TryLock(bg, "job", "other")
				return contains(err, "WRONGPASS")
			})
			wantClass(t, "TryLock", err, tierlock.ErrMisconfigured, "WRONGPASS invalid username-password pair")
			endsInTime(t, free, k, locked, "WRONGPASS")
			if st := l.Status().Stores[0]; !st.Available {
				t.Errorf("status %+v; a wrong password is no outage", st)
			}
			goneWithin(t, srv, patience, "job", "k")
			time.Sleep(ttl / 2)
			// The loss, and where three calls in a row met cut connections an
			// outage with its end.
			if n := len(log.all()); n < 1 || n > 3 {
				t.Errorf("%d log lines for one loss: %q", n, log.all())
			}

			r.change(srv, "first")
			if tok := locksAgain(t, l, "job", "k"); tok.Fence <= k.Token().Fence {
				t.Errorf("fence %d after %d", tok.Fence, k.Token().Fence)
			}
		})
	}
}

// A client that asks for its password with each connection takes a rotation
// with no loss and no restart, over the cut as well.
func TestPasswordRotatedWithCredentialsFn(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for name, r := range rotations {
		for _, resp2 := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				srv := r.start(t)
				var password atomic.Pointer[string]
				tell := func(p string) { password.Store(&p) }
				tell("first")
				s := openAs(t, srv.Addr, func(o *rueidis.ClientOption) {
					o.AlwaysRESP2 = resp2
					o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
						return rueidis.AuthCredentials{Username: r.user, Password: *password.Load()}, nil
					}
				})
				l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl})
				k := mustLock(t, l, "job", "k")
				tell("second")
				r.change(srv, "second")
				srv.Do(r.kill...)
				locksAgain(t, l, "job", "other")
				outlives(t, k, ttl+ttl/4)
				mustUnlock(t, k)
				wantGone(t, srv, "job", "k")
			})
		}
	}
}

// A user is restricted or removed in mid hold. Renewals that need what was
// withdrawn fail: the hold ends on time, and its loss names what is missing.
// What is given back before costs nothing.
func TestPermissionWithdrawnInMidHold(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	rules := []string{"on", ">pw", "resetkeys", "~lock:scen:*", "resetchannels", "&lock:scen:*", "+@all"}
	user := func(srv *rig.RedisServer, rules ...string) {
		srv.Do(append([]string{"ACL", "SETUSER", "app"}, rules...)...)
	}
	for _, c := range []struct {
		what     string
		withdraw []string // nil removes the user, with its connections
		says     string
		acquires bool // a new lock needs nothing of it
	}{
		{"a command in scripts", []string{"-getrange"}, "missing permission: +getrange;", true},
		{"scripts", []string{"-evalsha"}, "missing permission: +evalsha;", false},
		{"the keys", []string{"resetkeys", "~lock:other:*"}, "missing permission: ~lock:scen:*;", false},
		{"the user", nil, "WRONGPASS", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			srv := rig.Redis(t)
			user(srv, rules...)
			s := newSpy(openAs(t, srv.Addr, asUser("app", "pw")))
			cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl}, tierlock.Resource{Name: "long", TTL: 12 * time.Second})
			cfg.CallTimeout = 2 * time.Second
			l := lockerOf(t, cfg)
			other := patientLocker(t, srv.Addr, asUser("app", "pw"))
			k, locked := mustLock(t, l, "job", "k"), time.Now()
			long := mustLock(t, l, "long", "k")
			waiter := make(chan error, 1)
			if !c.acquires {
				go func() {
					_, err := other.Lock(bg, "job", "k", tierlock.Wait(patience))
					waiter <- err
				}()
				rig.Eventually(t, patience, "one waits", func() bool {
					return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) > 0
				})
			}
			if c.withdraw == nil {
				srv.Do("ACL", "DELUSER", "app")
			} else {
				user(srv, c.withdraw...)
			}
			free := freeAt(t, srv, k)
			if c.withdraw == nil {
				rig.Eventually(t, patience, "the cut connection was met", func() bool {
					_, err := other.TryLock(bg, "job", "other")
					return contains(err, c.says)
				})
			}
			if k, err := other.TryLock(bg, "job", "other"); c.acquires {
				if err != nil {
					t.Fatalf("TryLock: %v", err)
				}
				wantClass(t, "Unlock", k.Unlock(), tierlock.ErrMisconfigured, c.says, "release not confirmed")
			} else {
				wantClass(t, "TryLock", err, tierlock.ErrMisconfigured, c.says)
			}
			endsInTime(t, free, k, locked, c.says)
			if !c.acquires {
				// Who waits is told, when the key is free at the latest.
				select {
				case err := <-waiter:
					wantClass(t, "the waiter", err, tierlock.ErrMisconfigured, c.says)
				case <-time.After(ttl + slack):
					t.Error("a waiter goes on though the store is misconfigured")
				}
			}
			if st := l.Status().Stores[0]; !st.Available {
				t.Errorf("status %+v; a missing permission is no outage", st)
			}
			user(srv, rules...)
			back := time.Now()
			rig.Eventually(t, patience, "the long lease is renewed", func() bool {
				return s.renewedAfter(long.Token().Lease, back) > 0 && srv.Int("PTTL", keyOf("long", "k")) > 10_000
			})
			mustUnlock(t, long)
			locksAgain(t, l, "job", "k")
		})
	}
}

// The function that knows the password fails, or hangs: that is an outage like
// another, told with the function's own error, and costs no caller more than
// the limit of a call.
func TestCredentialsFnFails(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t, "--requirepass", "first")
	sealed := errors.New("the vault is sealed")
	var fail, hang atomic.Bool
	release := make(chan struct{})
	s := openAs(t, srv.Addr, func(o *rueidis.ClientOption) {
		o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			if hang.Load() {
				<-release
			}
			if fail.Load() {
				return rueidis.AuthCredentials{}, sealed
			}
			return rueidis.AuthCredentials{Password: "first"}, nil
		}
	})
	l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: 20 * time.Second})
	k := mustLock(t, l, "job", "k")
	fail.Store(true)
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	rig.Eventually(t, patience, "the function's error is told", func() bool {
		_, err := l.TryLock(bg, "job", "other")
		return errors.Is(err, tierlock.ErrUnavailable) && contains(err, sealed.Error())
	})
	fail.Store(false)
	locksAgain(t, l, "job", "other")

	hang.Store(true)
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	for range 5 {
		start := time.Now()
		_, err := l.TryLock(bg, "job", "other")
		wantClass(t, "TryLock", err, tierlock.ErrUnavailable)
		between(t, "its time", time.Since(start), 0, callTimeout+slack)
	}
	hang.Store(false)
	close(release)
	locksAgain(t, l, "job", "other")
	mustUnlock(t, k)
}
