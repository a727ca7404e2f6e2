package tests_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainPeriods make a switch a matter of seconds on a busy machine.
var chainPeriods = tierlock.Degrade{Permit: 20 * time.Second, Refresh: time.Second, Poll: 200 * time.Millisecond,
	Probe: 500 * time.Millisecond, Suspect: 200 * time.Millisecond, Up: 2 * time.Second, Dwell: 2 * time.Second}

// chainLocker is a process with a chain of its own stores.
func chainLocker(t *testing.T, redis string, mysql *rig.MariaDBServer) *tierlock.Locker {
	t.Helper()
	cfg := config(open(t, redis), tierlock.Resource{Name: "pay", Floor: tierlock.MySQL, Exclusive: true, TTL: 30 * time.Second, Wait: patience},
		tierlock.Resource{Name: "job", Floor: tierlock.MySQL, Wait: patience}, tierlock.Resource{Name: "plain", Wait: patience})
	cfg.CallTimeout = time.Second
	cfg.Stores = append(cfg.Stores, openMySQL(t, mysql.DSN(""), mysqlstore.Options{Durable: true, CallTimeout: time.Second}))
	cfg.Degrade = chainPeriods
	return lockerOf(t, cfg)
}

// chainOn waits until a process takes exclusive locks from a tier.
func chainOn(t *testing.T, tier tierlock.Tier, ls ...*tierlock.Locker) {
	t.Helper()
	for _, l := range ls {
		for end := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			k, err := l.TryLock(bg, "pay", "probe")
			got := k.Token().Tier
			if err == nil {
				_ = k.Unlock() // in the middle of a switch the release may fail
			}
			if err == nil && got == tier {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("locks come from %v (%v), want %v; status %+v", got, err, tier, l.Status().Chain)
			}
		}
	}
}

// Redis dies, and comes back without its data: held locks go to MySQL and return,
// nobody else gets them meanwhile, and fences rise.
func TestChainOverRealServers(t *testing.T) {
	t.Parallel()
	redis, mysql := rig.Redis(t), migratedServer(t)
	a, b := chainLocker(t, redis.Addr, mysql), chainLocker(t, redis.Addr, mysql)
	chainOn(t, tierlock.Redis, a, b)
	k, job := mustLock(t, a, "pay", "1"), mustLock(t, a, "job", "1")
	if k.Guarantee() != tierlock.Exclusive || job.Guarantee() != tierlock.FencedOnly {
		t.Errorf("worth %v and %v", k.Guarantee(), job.Guarantee())
	}
	token := k.Token()
	held := func(when string) {
		t.Helper()
		for _, h := range []*tierlock.Lock{k, job} {
			if err := h.Err(); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			wantHeld(t, when, b, h.Token().Resource, "1")
		}
	}
	held("on Redis")
	redis.Stop()
	chainOn(t, tierlock.MySQL, a, b)
	held("on MySQL")
	if rec, err := b.Inspect(bg, "pay", "1"); err != nil || rec.Token.Lease != token.Lease || rec.Token.Fence != token.Fence {
		t.Errorf("in MySQL: %+v %v", rec, err)
	}
	redis.Start()
	chainOn(t, tierlock.Redis, a, b)
	held("back on Redis")
	mustUnlock(t, k)
	mustUnlock(t, job)
	next := mustLock(t, b, "pay", "1")
	if next.Token().Fence <= token.Fence {
		t.Errorf("fence %d after %d", next.Token().Fence, token.Fence)
	}
	mustUnlock(t, next)
	// Locks of all kinds share the slots of a Redis and their records of fences.
	for i := range 400 {
		for _, resource := range []string{"pay", "plain", "job"} {
			mustUnlock(t, mustLock(t, a, resource, fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)})))) // as CRC16 is linear
		}
	}
	plain := mustLock(t, a, "plain", "1")
	wantHeld(t, "TryLock of a resource without a floor", b, "plain", "1")
	mustUnlock(t, plain)
}
