package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// replid is the replication id of a node.
func replid(n *rig.RedisServer) string {
	_, rest, _ := strings.Cut(n.Text("INFO", "replication"), "master_replid:")
	return rest[:40]
}

// Probe tells the data that it was answered from, and leaves nothing that stays.
func TestProbe(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	id := mustProbe(t, s)
	if !strings.HasPrefix(id, replid(srv)+"-") {
		t.Errorf("got %s; wanted the replication id %s and more", id, replid(srv))
	}
	if again := mustProbe(t, open(t, srv.Addr)); again != id {
		t.Errorf("another store got %s; wanted %s", again, id)
	}
	keys := srv.Do("KEYS", "*").([]any)
	if len(keys) != 1 || !strings.HasPrefix(keys[0].(string), "lock:test:{") || !strings.HasSuffix(keys[0].(string), "}:marker") {
		t.Errorf("it left %v; wanted one key of the namespace", keys)
	}
	noEternalKeys(t, srv)
	srv.Restart()
	rig.Eventually(t, patience, "another incarnation", func() bool {
		next, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		return err == nil && !next.Lost && next.Incarnation != id && strings.HasPrefix(next.Incarnation, replid(srv)+"-")
	})
	_, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "no/namespace"})
	wantClass(t, "probe of no namespace", err, tierlock.ErrMisconfigured)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Probe(ctx, tierlock.ProbeRequest{Namespace: "test"})
	wantClass(t, "probe with an ended ctx", err, tierlock.ErrUnavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("probe with an ended ctx: %v", err)
	}
	s.Close()
	_, err = s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"})
	wantClass(t, "probe of a closed store", err, tierlock.ErrUnavailable)
}

// A server that serves no locks is unavailable, and says why.
func TestProbeOfAServerThatTakesNoLocks(t *testing.T) {
	configure := func(name, value string) func(*testing.T, *rig.RedisServer) {
		return func(_ *testing.T, srv *rig.RedisServer) { srv.Do("CONFIG", "SET", name, value) }
	}
	for _, state := range []struct {
		says        string
		cause, mend func(*testing.T, *rig.RedisServer)
	}{
		{"OOM", configure("maxmemory", "1"), configure("maxmemory", "0")},
		{"NOREPLICAS", configure("min-replicas-to-write", "1"), configure("min-replicas-to-write", "0")},
		{"READONLY", func(_ *testing.T, srv *rig.RedisServer) { srv.Do("REPLICAOF", "127.0.0.1", "1") },
			func(_ *testing.T, srv *rig.RedisServer) { srv.Do("REPLICAOF", "NO", "ONE") }},
		{"MISCONF", failTheSave, func(t *testing.T, srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "save", "") }},
		{"no answer", func(_ *testing.T, srv *rig.RedisServer) { srv.Pause() },
			func(_ *testing.T, srv *rig.RedisServer) { srv.Resume() }},
		{"refused", func(_ *testing.T, srv *rig.RedisServer) { srv.Kill() },
			func(_ *testing.T, srv *rig.RedisServer) { srv.Start() }},
	} {
		t.Run(state.says, func(t *testing.T) {
			srv := rig.Redis(t)
			o := calm
			if state.says == "no answer" {
				o = brisk
			}
			opt := patient(srv.Addr)
			opt.ConnWriteTimeout = 5 * time.Minute
			s := openWith(t, opt, o)
			works(t, s)
			state.cause(t, srv)
			rig.Eventually(t, patience, "the probe says "+state.says, func() bool {
				var err error
				within(t, patience, "a probe", func() { _, err = s.Probe(background, tierlock.ProbeRequest{Namespace: "test"}) })
				wantClass(t, "probe", err, tierlock.ErrUnavailable)
				return strings.Contains(err.Error(), state.says)
			})
			state.mend(t, srv)
			rig.Eventually(t, patience, "the probe succeeds again", func() bool {
				_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
				return err == nil
			})
		})
	}
}

// failTheSave makes the server's last save a failed one: a file cannot be renamed
// to what is a directory.
func failTheSave(t *testing.T, srv *rig.RedisServer) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(srv.Dir, "dump.rdb", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	srv.Do("CONFIG", "SET", "save", "3600 1000000")
	srv.Do("BGSAVE")
	rig.Eventually(t, patience, "the save fails", func() bool {
		return strings.Contains(srv.Text("INFO", "persistence"), "rdb_last_bgsave_status:err")
	})
}

func TestProbeWhileLoading(t *testing.T) {
	t.Parallel()
	const keys, each = 4000, 5 * time.Millisecond // until it is told
	srv := rig.Redis(t, "--key-load-delay", fmt.Sprint(each.Microseconds()), "--loading-process-events-interval-bytes", "1024")
	s := open(t, srv.Addr)
	mustProbe(t, s)
	srv.Do("EVAL", "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'other:' .. i, string.rep('x', 100)) end", "0", fmt.Sprint(keys))
	srv.Do("SAVE")
	srv.Kill()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		srv.Start() // returns when the server has loaded
	}()
	rig.Eventually(t, patience, "LOADING is told", func() bool {
		_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		if err == nil {
			t.Fatal("it succeeded before LOADING was told: the server is too fast for this test")
		}
		wantClass(t, "probe", err, tierlock.ErrUnavailable)
		return strings.Contains(err.Error(), "LOADING")
	})
	srv.Try("CONFIG", "SET", "key-load-delay", "0")
	<-loaded
	rig.Eventually(t, patience, "the probe succeeds", func() bool {
		_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		return err == nil
	})
}

// An exclusive call is for the data it names, and touches no other.
func TestIncarnation(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	own := mustProbe(t, s)
	marker := srv.Do("KEYS", "*}:marker").([]any)[0].(string)
	content := srv.Text("GET", marker)
	other := strings.Repeat("0", 40) + own[40:]
	for _, c := range []struct {
		incarnation string
		ok          bool
	}{
		{own, true}, {"", true}, {other + "," + own, true}, {own + "," + other, true}, {other, false}, {own[:40], false}, {own[:len(own)-1], false}, {own + "0", false}, {"0" + own, false},
		{strings.ToUpper(own), false}, {own[:40] + "-00000000", false}, {own[:40] + "-?", false}, {other + "," + other, false},
	} {
		for _, explicit := range []bool{false, true} {
			srv.Do("FLUSHALL")
			srv.Do("SET", marker, content)
			right, place := exclusive(3), exclusive(3)
			right.Incarnation, place.Incarnation = own, c.incarnation
			req := ask("k", newLease(), 30*time.Second)
			req.Explicit = explicit
			lease := req.Token.Lease
			check := func(what string, err error) {
				t.Helper()
				if c.ok && err != nil {
					t.Errorf("%s for %q: %v", what, c.incarnation, err)
				}
				if !c.ok {
					wantEpochError(t, what+" for "+c.incarnation, err)
				}
			}
			_, err := s.Acquire(t.Context(), askIn(place, req))
			check("acquire", err)
			if n := srv.Int("DBSIZE"); !c.ok && n != 1 {
				t.Errorf("a refused acquire left %d keys beside the marker", n-1)
			}
			mustAcquire(t, s, askIn(right, req))
			state := keyState(srv, "k")
			check("renew", renewIn(t, s, place, "k", lease, explicit, time.Minute).Err)
			check("adopt", adoptOne(t, s, adoptIn(place, req, 2, 1)).Err)
			if !c.ok && (keyState(srv, "k") != state || srv.Int("PTTL", keyOf("k")) > 30_000) {
				t.Errorf("for %q: a refused call has changed the key", c.incarnation)
			}
			_, err = s.Release(t.Context(), dropIn(place, "k", lease, explicit))
			check("release", err)
			if n := srv.Int("EXISTS", keyOf("k")); n == 1 == c.ok {
				t.Errorf("release for %q: the key exists: %d", c.incarnation, n)
			}
			// Without Exclusive it is not looked at.
			loose := place
			loose.Exclusive = false
			mustAdopt(t, s, adoptIn(loose, req, 4, 1))
			if res := renewIn(t, s, loose, "k", lease, explicit, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Errorf("shared, for %q: renew: got %+v", c.incarnation, res)
			}
			mustRelease(t, s, dropIn(loose, "k", lease, explicit), tierlock.LeaseOwned)
			srv.Do("DEL", redisstore.FenceKey(name("k")))
			mustAcquire(t, s, askIn(loose, req))
		}
	}
}

// A replica has the replication id of its primary: an exclusive call is not
// answered there, whatever it would have changed.
func TestExclusiveCallsAtAReplica(t *testing.T) {
	srv := rig.Redis(t)
	client, err := rueidis.NewClient(patient(srv.Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s := redisstore.New(client, calm) // which does not leave the server
	t.Cleanup(s.Close)
	place := exclusive(3)
	place.Incarnation = mustProbe(t, s)
	mustAcquire(t, s, askIn(place, ask("k", "a", time.Minute)))
	srv.Do("REPLICAOF", "127.0.0.1", "1") // nobody
	for what, call := range map[string]func() error{
		"acquire of a held key": func() error { _, err := s.Acquire(background, askIn(place, ask("k", "b", time.Minute))); return err },
		"renewal for less":      func() error { return renewIn(t, s, place, "k", "a", false, time.Second).Err },
		"another's renewal":     func() error { return renewIn(t, s, place, "k", "b", false, time.Second).Err },
		"another's release":     func() error { _, err := s.Release(background, dropIn(place, "k", "b", false)); return err },
		"adoption":              func() error { return adoptOne(t, s, adoptIn(place, ask("k", "c", time.Second), 1, 1)).Err },
	} {
		err := call()
		wantClass(t, what, err, tierlock.ErrUnavailable)
		if !strings.Contains(err.Error(), "READONLY ") {
			t.Errorf("%s: %v; wanted READONLY", what, err)
		}
	}
}

// With a failover the incarnation changes, and what is meant for the former data
// is refused at the new primary.
func TestIncarnationChangesWithAFailover(t *testing.T) {
	t.Parallel()
	d := rig.StartSentinel(t)
	s := openWith(t, sentinelOptions(d), calm)
	before := exclusive(1)
	before.Incarnation = mustProbe(t, s)
	tok := mustAcquire(t, s, askIn(before, ask("k", "a", time.Minute)))
	old := d.Primary()
	for _, n := range d.Nodes {
		rig.Eventually(t, patience, "the key is replicated", func() bool { return n.Int("EXISTS", keyOf("k")) == 1 })
	}
	old.Kill()
	d.NewPrimary(old)
	d.Steady()
	after := exclusive(2)
	rig.Eventually(t, time.Minute, "a probe after the failover", func() bool {
		res, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		after.Incarnation = res.Incarnation
		return err == nil
	})
	if after.Incarnation == before.Incarnation {
		t.Fatal("the incarnation is the same after a failover")
	}
	wantEpochError(t, "renewal for the former data", renewIn(t, s, before, "k", "a", false, time.Minute).Err)
	_, err := s.Acquire(background, askIn(before, ask("other", "b", time.Minute)))
	wantEpochError(t, "acquire for the former data", err)
	_, err = s.Release(background, dropIn(before, "k", "a", false))
	wantEpochError(t, "release for the former data", err)
	// The hold is adopted over what was replicated of it.
	mustAdopt(t, s, adoptIn(after, ask("k", "a", time.Minute), tok.Epoch, tok.Seq))
	if res := renewIn(t, s, after, "k", "a", false, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
		t.Errorf("renewal of the adopted hold: got %+v", res)
	}
	mustRelease(t, s, dropIn(after, "k", "a", false), tierlock.LeaseOwned)
	if next := mustAcquire(t, s, askIn(after, ask("k", "c", time.Second))); next.Fence <= tok.Fence {
		t.Errorf("fence %d after %d", next.Fence, tok.Fence)
	}
}

// On a Cluster the incarnation has the ids of all masters, each call is judged by
// the one that it reaches, and a master that is away makes the probe fail.
func TestIncarnationOfACluster(t *testing.T) {
	t.Parallel()
	c := rig.StartCluster(t, true, "--cluster-require-full-coverage", "no")
	s := openCluster(t, c)
	place := exclusive(1)
	place.Incarnation = mustProbe(t, s)
	masters := c.Nodes[:3]
	var want []string
	for _, n := range masters {
		want = append(want, replid(n))
	}
	slices.Sort(want)
	if place.Incarnation != strings.Join(want, ",") {
		t.Errorf("got %s; wanted %s", place.Incarnation, strings.Join(want, ","))
	}
	keys := keysOn(t, c, masters...)
	for _, key := range keys {
		mustAcquire(t, s, askIn(place, ask(key, key, time.Minute)))
	}
	masters[0].Kill()
	_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
	wantClass(t, "probe with a master away", err, tierlock.ErrUnavailable)
	c.NewOwner(keyOf(keys[0]), masters[0])
	next := exclusive(2)
	rig.Eventually(t, time.Minute, "a probe after the failover", func() bool {
		res, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		next.Incarnation = res.Incarnation
		return err == nil
	})
	if next.Incarnation == place.Incarnation || strings.Count(next.Incarnation, ",") != 2 {
		t.Errorf("after the failover: got %s, before %s", next.Incarnation, place.Incarnation)
	}
	for i, key := range keys {
		res := renewIn(t, s, place, key, key, false, time.Minute)
		if i == 0 {
			wantEpochError(t, "renewal at the promoted replica", res.Err)
		} else if res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("renewal at a master that stayed: got %+v", res)
		}
		mustAcquire(t, s, askIn(next, ask(key+"-next", key, time.Minute)))
	}
}

// While a slot moves an exclusive hold is renewed and released on both sides, and
// the incarnation does not change, also where it is the slot that is asked.
func TestExclusiveHoldInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	s := openCluster(t, c)
	place := exclusive(4)
	place.Incarnation = mustProbe(t, s)
	// A key in the first slot of a node.
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("k", i); redisstore.SlotOf(keyOf(k)) == 0 {
			key = k
		}
	}
	from, to := c.OwnerOf(keyOf(key)), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	mustAcquire(t, s, askIn(place, ask(key, "a", 30*time.Second)))
	same := func(when string) {
		t.Helper()
		if id := mustProbe(t, s); id != place.Incarnation {
			t.Errorf("%s: the incarnation is %s; wanted %s", when, id, place.Incarnation)
		}
		if res := renewIn(t, s, place, key, "a", false, 30*time.Second); res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("%s: renewal: got %+v", when, res)
		}
	}
	same("before")
	m := c.Migrate(keyOf(key), to)
	same("on its way")
	m.Keys()
	same("at the target")
	m.Finish()
	rig.Eventually(t, patience, "the incarnation after the move", func() bool {
		res, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		return err == nil && res.Incarnation == place.Incarnation && !res.Lost && res.Unsafe == ""
	})
	mustRelease(t, s, dropIn(place, key, "a", false), tierlock.LeaseOwned)
}

// What the package comment adds for a chain is enough, and named where it lacks.
func TestLeastPermissionsOfAChain(t *testing.T) {
	srv := rig.Redis(t)
	s := restricted(t, srv)
	_, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"})
	wantClass(t, "probe without +info", err, tierlock.ErrMisconfigured)
	if !strings.Contains(err.Error(), "missing permission: +info; all that are needed: ~lock:test:* ") || !strings.HasSuffix(err.Error(), " +info)") {
		t.Errorf("without +info: %v", err)
	}
	_, err = s.Acquire(t.Context(), askIn(exclusive(2), ask("k", "a", time.Minute)))
	wantClass(t, "acquire without +info", err, tierlock.ErrMisconfigured)
	for _, place := range []tierlock.Place{shared(2), exclusive(2)} {
		if place.Exclusive {
			permit(srv, beside("+info")...)
			place.Incarnation = mustProbe(t, s)
		}
		for _, explicit := range []bool{false, true} {
			req := ask("k", newLease(), 30*time.Second)
			req.Explicit = explicit
			mustAcquire(t, s, askIn(place, req))
			if res := renewIn(t, s, place, "k", req.Token.Lease, explicit, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Errorf("renew: got %+v", res)
			}
			place.Epoch++
			req.TTL = 10 * time.Second
			mustAdopt(t, s, adoptIn(place, req, 2, 1))
			mustRelease(t, s, dropIn(place, "k", req.Token.Lease, explicit), tierlock.LeaseOwned)
		}
		srv.Do("FLUSHALL")
	}
	for _, entry := range srv.Do("ACL", "LOG").([]any) {
		if text := fmt.Sprint(entry); !strings.Contains(text, "client|setinfo") && !strings.Contains(text, " info ") {
			t.Errorf("the server denied something: %s", text)
		}
	}
}
