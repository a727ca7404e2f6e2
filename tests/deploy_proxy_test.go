package tests_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Deployments that lack something: RESP3, CLIENT, messages. Locks work on all of
// them. Where messages can be had they wake waiters, also over RESP2; where not,
// waiters poll, and that is all: no error, no line in the log, and the server or
// proxy is not asked for messages over and over.
func TestDeploymentsWithoutEverything(t *testing.T) {
	t.Parallel()
	const (
		ttl, keys = 4 * time.Second, 8
		waiting   = 4500 * time.Millisecond
		poll      = 250 * time.Millisecond
	)
	resp2 := func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }
	as := func(*rueidis.ClientOption) {}
	direct := func(args ...string) func(*testing.T) (string, func() int64) {
		return func(t *testing.T) (string, func() int64) {
			srv := rig.Redis(t, args...)
			srv.Do("ACL", "SETUSER", "quiet", "on", ">pw", "~lock:*", "&lock:*", "+@all", "-subscribe", "-ssubscribe")
			return srv.Addr, func() int64 { return srv.CommandsOf("ssubscribe") + srv.CommandsOf("subscribe") }
		}
	}
	proxied := func(t *testing.T) (string, func() int64) {
		proxy := rig.NewCommandProxy(t, rig.Redis(t).Addr,
			"SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE", "PUBLISH", "SPUBLISH", "CLIENT", "INFO", "SCRIPT", "ROLE", "CONFIG", "SELECT")
		return proxy.Addr, func() int64 { return int64(proxy.Refused("SUBSCRIBE") + proxy.Refused("SSUBSCRIBE")) }
	}
	for _, c := range []struct {
		name  string
		start func(t *testing.T) (addr string, subscribed func() int64)
		opt   func(*rueidis.ClientOption)
		own   redisstore.Options
		push  bool
	}{
		{name: "RESP2", start: direct(), opt: resp2, push: true},
		{name: "no HELLO", start: direct("--rename-command", "HELLO", ""), opt: as, push: true},
		{name: "no CLIENT", start: direct("--rename-command", "CLIENT", ""), opt: as, push: true},
		{name: "no SUBSCRIBE", start: direct("--rename-command", "SUBSCRIBE", "", "--rename-command", "SSUBSCRIBE", ""), opt: as},
		{name: "no permission to subscribe", start: direct(), opt: asUser("quiet", "pw")},
		{name: "proxy", start: proxied, opt: as},
		{name: "proxy, NoPush", start: proxied, opt: resp2, own: redisstore.Options{NoPush: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addr, subscribed := c.start(t)
			var stores [2]*redisstore.Store
			var lockers [2]*tierlock.Locker
			log := &logBook{}
			for i := range stores {
				opt := redisstore.RecommendedOptions(addr)
				c.opt(&opt)
				s, err := redisstore.OpenWith(opt, c.own)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				stores[i] = s
				cfg := config(s, tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true})
				cfg.Logger = newLogger(log)
				lockers[i] = lockerOf(t, cfg)
			}
			w, err := stores[0].Watch(bg, tierlock.Name{Namespace: namespace, Resource: "job", Key: "watched"})
			if (err == nil) != c.push {
				t.Errorf("Watch: %v; push is expected: %v", err, c.push)
			}
			if err == nil {
				w.Close()
			} else {
				wantClass(t, "Watch", err, tierlock.ErrUnavailable)
			}
			before, from := subscribed(), time.Now()

			type woken struct {
				at  time.Time
				k   *tierlock.Lock
				err error
			}
			var held [keys]*tierlock.Lock
			var waiters [keys]chan woken
			for i := range keys {
				var opts []tierlock.Option
				if i%2 == 0 {
					opts = append(opts, tierlock.Holder("import-7"))
				}
				held[i] = mustLock(t, lockers[0], "job", fmt.Sprint(i), opts...)
				waiters[i] = make(chan woken, 1)
				go func() {
					k, err := lockers[1].Lock(bg, "job", fmt.Sprint(i), tierlock.Wait(patience))
					waiters[i] <- woken{time.Now(), k, err}
				}()
			}
			outlives(t, held[0], waiting)
			for i, k := range held {
				began := time.Now()
				mustUnlock(t, k)
				r := <-waiters[i]
				if r.err != nil {
					t.Errorf("waiter %d: %v", i, r.err)
					continue
				}
				between(t, "from the unlock to the waiter's lock", r.at.Sub(began), 0, poll+slack)
				mustUnlock(t, r.k)
			}
			// A watch that cannot be had is asked for again every two seconds, in two
			// ways.
			asked, most := subscribed()-before, int64(0)
			switch {
			case c.own.NoPush:
			case !c.push:
				most = 2 * keys * int64(1+time.Since(from)/(2*time.Second))
			default:
				most = 2 * keys
			}
			if asked > most {
				t.Errorf("asked for messages %d times, want at most %d", asked, most)
			}
			if lines := log.all(); len(lines) > 0 {
				t.Errorf("%d lines in the log: %q", len(lines), lines)
			}
		})
	}
}
