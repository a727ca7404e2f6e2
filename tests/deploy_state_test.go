package tests_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// Scenario 66: a server that refuses, for each reason that a real one can be
// brought to. A new lock is unavailable, with the reason, and never "held" for
// that; whether a held one still counts as held, whether holds are prolonged
// and given back, stands in the table. Where they are not, belief ends before
// the key does. A refusal that ends sooner costs no hold, and none needs a
// restart of the process.
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says        string // in the error
		cause, mend func(t *testing.T, srv *rig.RedisServer)
		reads       bool // so that "held" can be told
		keeps       bool // renewals and releases go on
	}{
		{says: "OOM", reads: true, keeps: true,
			cause: set("maxmemory", "1"), mend: set("maxmemory", "0")},
		{says: "MISCONF", reads: true, cause: failSave, mend: mendSave},
		{says: "READONLY", reads: true, cause: replicaOf("127.0.0.1", "1"), mend: replicaOf("NO", "ONE")},
		{says: "NOREPLICAS", reads: true,
			cause: set("min-replicas-to-write", "1"), mend: set("min-replicas-to-write", "0")},
		{says: "MASTERDOWN",
			cause: func(t *testing.T, srv *rig.RedisServer) {
				srv.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
				srv.Do("REPLICAOF", "127.0.0.1", "1")
			},
			mend: replicaOf("NO", "ONE")},
		{says: "BUSY",
			cause: func(t *testing.T, srv *rig.RedisServer) {
				srv.Do("CONFIG", "SET", "busy-reply-threshold", "20")
				go srv.Try("EVAL", "while true do end", "0")
				rig.Eventually(t, patience, "the script runs", func() bool {
					_, err := srv.Try("PING")
					return err != nil && strings.Contains(err.Error(), "BUSY")
				})
			},
			mend: func(t *testing.T, srv *rig.RedisServer) {
				if _, err := srv.Try("SCRIPT", "KILL"); err != nil {
					t.Error(err)
				}
			}},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			says := c.says
			if says == "READONLY" {
				// It also makes the store connect anew, once a second at most: a
				// call that meets the end of the connection says that instead.
				says = ""
			}
			const ttl = 4 * time.Second
			srv := rig.Redis(t)
			// Long limits: a server that runs a script answers when it gets round
			// to it, and it is the answer that is looked at.
			const limit = 2 * time.Second
			s := newSpy(open(t, srv.Addr, redisstore.Options{CallTimeout: limit}))
			res := []tierlock.Resource{{Name: "job", TTL: ttl, Reentrant: true}, {Name: "long", TTL: 16 * time.Second}, {Name: "min", TTL: ttl, MinHold: ttl / 3}}
			cfg := config(s, res...)
			cfg.CallTimeout = limit
			l := lockerOf(t, cfg)
			other := patientLocker(t, srv.Addr, func(*rueidis.ClientOption) {}) // without holds: its failures are the calls below
			released, locked := mustLock(t, l, "job", "released"), time.Now()
			kept := mustLock(t, l, "min", "released")
			plain, explicit := mustLock(t, l, "job", "plain"), mustLock(t, l, "job", "explicit", tierlock.Holder("import-7"))
			long := mustLock(t, l, "long", "k")
			c.cause(t, srv)
			var free [2]time.Time
			if c.reads {
				free = [2]time.Time{freeAt(t, srv, plain), freeAt(t, srv, explicit)}
			}

			_, err := other.TryLock(bg, "job", "plain")
			if c.reads {
				wantClass(t, "TryLock of a held key", err, tierlock.ErrHeld)
			} else {
				wantClass(t, "TryLock of a held key", err, tierlock.ErrUnavailable, says)
			}
			for _, opts := range [][]tierlock.Option{nil, {tierlock.Holder("import-8")}} {
				_, err := other.TryLock(bg, "job", "free", opts...)
				wantClass(t, fmt.Sprintf("TryLock with %d options", len(opts)), err, tierlock.ErrUnavailable, says, "lock scen:job/free")
			}
			start := time.Now()
			_, err = other.Lock(bg, "job", "free", tierlock.Wait(500*time.Millisecond))
			wantClass(t, "Lock with a wait", err, tierlock.ErrUnavailable, says)
			between(t, "its time", time.Since(start), 0, 500*time.Millisecond+slack)

			if c.keeps {
				mustUnlock(t, released)
				mustUnlock(t, kept)
				if left := time.Duration(srv.Int("PTTL", keyOf("min", "released"))) * time.Millisecond; left > ttl/3 {
					t.Errorf("%v left of a key that was released with a MinHold of %v", left, ttl/3)
				}
				outlives(t, plain, ttl*3/2)
				outlives(t, explicit, time.Millisecond)
				wantGone(t, srv, "job", "released")
				mustUnlock(t, plain)
				mustUnlock(t, explicit)
				wantGone(t, srv, "job", "plain")
				wantGone(t, srv, "job", "explicit")
			} else {
				// Not confirmed, which is no loss: the work was done in time.
				wantClass(t, "Unlock", released.Unlock(), tierlock.ErrUnavailable, says, "release not confirmed")
				wantClass(t, "Unlock", kept.Unlock(), tierlock.ErrUnavailable, says)
				if c.says == "MASTERDOWN" || c.says == "BUSY" {
					// Not even reads are answered. No renewal was executed, so
					// the keys end one TTL after they were taken, at the latest.
					for _, k := range []*tierlock.Lock{plain, explicit} {
						ended := waitEnd(t, k)
						between(t, "from the lock to the loss", ended.Sub(locked), 0, ttl+slack)
						wantLost(t, "Unlock", k.Unlock(), "unconfirmed")
						wantSays(t, "Unlock", k.Unlock(), says)
					}
				} else {
					endsInTime(t, free[0], plain, locked, says)
					endsInTime(t, free[1], explicit, locked, says)
				}
				wantNotIs(t, "the hold with a long lease", long.Err(), tierlock.ErrLost)
			}

			c.mend(t, srv)
			mended := time.Now()
			locksAgain(t, other, "job", "free")
			locksAgain(t, l, "job", "plain")
			rig.Eventually(t, patience, "the long lease is renewed", func() bool {
				return s.renewedAfter(long.Token().Lease, mended) > 0 && srv.Int("PTTL", keyOf("long", "k")) > 14_000
			})
			mustUnlock(t, long)
			goneWithin(t, srv, patience, "job", "released")
			idle(t, l)
		})
	}
}

func set(name, value string) func(*testing.T, *rig.RedisServer) {
	return func(_ *testing.T, srv *rig.RedisServer) { srv.Do("CONFIG", "SET", name, value) }
}

func replicaOf(host, port string) func(*testing.T, *rig.RedisServer) {
	return func(_ *testing.T, srv *rig.RedisServer) { srv.Do("REPLICAOF", host, port) }
}

// failSave makes the server's last save a failed one: a file cannot be renamed
// to what is a directory. mendSave lets the next succeed.
func failSave(t *testing.T, srv *rig.RedisServer) {
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

func mendSave(t *testing.T, srv *rig.RedisServer) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(srv.Dir, "dump.rdb")); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, "a save succeeds", func() bool {
		srv.Try("BGSAVE") // refused while one runs
		return strings.Contains(srv.Text("INFO", "persistence"), "rdb_last_bgsave_status:ok")
	})
}
