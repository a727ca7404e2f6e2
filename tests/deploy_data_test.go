package tests_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

func replica(t *testing.T, of *rig.RedisServer, args ...string) *rig.RedisServer {
	t.Helper()
	of.Do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	srv := rig.Redis(t, append([]string{"--replicaof", "127.0.0.1", strconv.Itoa(of.Port)}, args...)...)
	inSync(t, srv)
	return srv
}

func inSync(t *testing.T, srv *rig.RedisServer) {
	t.Helper()
	rig.Eventually(t, patience, "the replica is in sync", func() bool {
		role := srv.Do("ROLE").([]any)
		return role[0] == "slave" && role[3] == "connected"
	})
}

// Scenario 66, by mistake: the address is that of a replica. What is held on
// the primary is held, and nothing new is granted; the reason is told. When the
// replica is promoted, who waited gets his lock, and nothing has to be restarted.
func TestReplicaByMistake(t *testing.T) {
	t.Parallel()
	primary := rig.Redis(t)
	second := replica(t, primary)
	res := tierlock.Resource{Name: "job", TTL: 20 * time.Second}
	right, wrong := newLocker(t, open(t, primary.Addr), res), newLocker(t, open(t, second.Addr), res)
	k := mustLock(t, right, "job", "held")
	rig.Eventually(t, patience, "the key is on the replica", func() bool {
		return second.Int("EXISTS", keyOf("job", "held")) == 1
	})
	_, err := wrong.TryLock(bg, "job", "held")
	wantClass(t, "TryLock of a held key", err, tierlock.ErrHeld)
	_, err = wrong.TryLock(bg, "job", "free")
	wantClass(t, "TryLock", err, tierlock.ErrUnavailable, "READONLY You can't write against a read only replica")

	type result struct {
		k   *tierlock.Lock
		err error
	}
	waiter := make(chan result, 1)
	go func() {
		k, err := wrong.Lock(bg, "job", "waited for", tierlock.Wait(patience), tierlock.UntilDone())
		waiter <- result{k, err}
	}()
	rig.Eventually(t, patience, "the store counts as down", func() bool { return !wrong.Status().Stores[0].Available })
	second.Do("REPLICAOF", "NO", "ONE")
	select {
	case r := <-waiter:
		if r.err != nil {
			t.Fatal(r.err)
		}
		mustUnlock(t, r.k)
	case <-time.After(patience):
		t.Fatal("the waiter got nothing from the promoted server")
	}
	if tok := locksAgain(t, wrong, "job", "free"); tok.Fence <= k.Token().Fence {
		t.Errorf("fence %d on the promoted server, after %d on the primary", tok.Fence, k.Token().Fence)
	}
	mustUnlock(t, k)
}

// A primary is demoted in mid hold and gets the data of another, which lacks
// the key: the connection stays, and the holder is told that the key is gone.
func TestDemotedInMidHold(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second // long enough for the data to come before belief ends
	srv, next := rig.Redis(t), rig.Redis(t)
	next.Do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	l := newLocker(t, open(t, srv.Addr), tierlock.Resource{Name: "job", TTL: ttl})
	k, locked := mustLock(t, l, "job", "k"), time.Now()
	srv.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(next.Port))
	ended := waitEnd(t, k)
	between(t, "from the lock to the loss", ended.Sub(locked), 0, ttl+slack)
	wantLost(t, "Unlock", k.Unlock(), "gone")
	inSync(t, srv)
	srv.Do("REPLICAOF", "NO", "ONE")
	if tok := locksAgain(t, l, "job", "k"); tok.Fence <= k.Token().Fence {
		t.Errorf("fence %d after %d", tok.Fence, k.Token().Fence)
	}
}

// Scenario 66, LOADING: a server that comes back with its data takes a while to
// load it. Until then all is unavailable, with the reason; a hold whose lease is
// longer than that is renewed then, and lives on.
func TestLoading(t *testing.T) {
	t.Parallel()
	const keys, each = 3000, 500 * time.Microsecond
	srv := rig.Redis(t, "--key-load-delay", fmt.Sprint(each.Microseconds()), "--loading-process-events-interval-bytes", "1024")
	s := newSpy(open(t, srv.Addr))
	l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: 20 * time.Second})
	srv.Do("EVAL", "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'other:' .. i, string.rep('x', 100)) end", "0", fmt.Sprint(keys))
	k := mustLock(t, l, "job", "k")
	srv.Do("SAVE")
	srv.Kill()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		srv.Start() // returns when the server has loaded
	}()
	rig.Eventually(t, patience, "LOADING is told", func() bool {
		k, err := l.TryLock(bg, "job", "free")
		if err == nil {
			t.Errorf("locked before LOADING was told: the server is too fast for this test")
			mustUnlock(t, k)
			return true
		}
		if !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("TryLock: %v", err)
			return true
		}
		if st := l.Status().Stores[0]; st.LastError != nil {
			return contains(st.LastError, "LOADING")
		}
		return false
	})
	<-loaded
	back := time.Now()
	wantHeld(t, "the held key", l, "job", "k")
	rig.Eventually(t, patience, "the hold is renewed", func() bool {
		return s.renewedAfter(k.Token().Lease, back) > 0 && srv.Int("PTTL", keyOf("job", "k")) > 15_000
	})
	mustUnlock(t, k)
	if tok := locksAgain(t, l, "job", "k"); tok.Fence <= k.Token().Fence {
		t.Errorf("fence %d after %d, over a restart", tok.Fence, k.Token().Fence)
	}
}

// Any eviction policy but noeviction may take a held key away: all lock keys
// have a TTL, so the volatile policies choose them too. The holder is told that
// it is gone at the next renewal, and another gets it with a larger fence.
func TestEvictedKey(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		srv := rig.Redis(t, "--maxmemory-policy", policy)
		s := newSpy(open(t, srv.Addr))
		l := newLocker(t, s, tierlock.Resource{Name: "job", TTL: ttl})
		other := newLocker(t, open(t, srv.Addr), tierlock.Resource{Name: "job", TTL: ttl})
		k := mustLock(t, l, "job", "k")
		srv.Do("CONFIG", "SET", "maxmemory", "1")
		goneWithin(t, srv, patience, "job", "k")
		srv.Do("CONFIG", "SET", "maxmemory", "0")
		evicted := time.Now()
		ended := waitEnd(t, k)
		between(t, policy+": from the eviction to the signal", ended.Sub(evicted), 0, ttl/3+ttl/20+slack)
		wantLost(t, policy+": Unlock", k.Unlock(), "gone")
		if tok := locksAgain(t, other, "job", "k"); tok.Fence <= k.Token().Fence {
			t.Errorf("%s: fence %d after %d", policy, tok.Fence, k.Token().Fence)
		}
		if n := s.renewedAfter(k.Token().Lease, ended); n > 0 {
			t.Errorf("%s: %d renewals after the signal", policy, n)
		}
	}
}
