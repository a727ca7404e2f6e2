package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// A server that is out of memory takes no new lock, of any kind, but tells,
// prolongs and frees what there is.
func TestOutOfMemory(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		srv.Do("CONFIG", "SET", "maxmemory", "0")
		short, long := ask("k", newLease(), 10*time.Second), ask("k", newLease(), 20*time.Second)
		short.Explicit, long.Explicit = explicit, explicit
		mustAcquire(t, s, short)
		leases := []string{short.Token.Lease}
		if explicit {
			// Beside a longer one, a lease is prolonged without the lock.
			mustAcquire(t, s, long)
			leases = append(leases, long.Token.Lease)
		}
		srv.Do("CONFIG", "SET", "maxmemory", "1")

		fresh := ask("fresh", newLease(), 10*time.Second)
		fresh.Explicit = explicit
		_, err := s.Acquire(t.Context(), fresh)
		wantClass(t, "acquire", err, tierlock.ErrUnavailable)
		if !strings.Contains(err.Error(), "OOM") {
			t.Errorf("explicit %v: error %q does not say OOM", explicit, err)
		}
		if keys := srv.Do("KEYS", "*{order:settle/fresh}*").([]any); len(keys) > 0 {
			t.Errorf("explicit %v: the refused acquire left %v", explicit, keys)
		}
		if !explicit {
			// Contention is no outage, and a retry gets what it was granted.
			if res, err := s.Acquire(t.Context(), ask("k", newLease(), 10*time.Second)); err != nil || res.Granted || res.Token.Lease != short.Token.Lease {
				t.Errorf("acquire of a held lock: got %+v, %v; wanted its holder", res, err)
			}
			mustAcquire(t, s, short)
		}
		for _, ttl := range []time.Duration{15 * time.Second, 30 * time.Second} {
			for i, lease := range leases {
				res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, Explicit: explicit, TTL: ttl}})
				if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
					t.Errorf("explicit %v: renewal %d for %v: got %+v", explicit, i, ttl, res[0])
				}
			}
		}
		if left := srv.Int("PTTL", keyOf("k")); left < 25_000 {
			t.Errorf("explicit %v: %d ms left after a renewal for 30 s", explicit, left)
		}
		for _, lease := range leases {
			rel := drop("k", lease)
			rel.Explicit = explicit
			kept := rel
			if kept.Keep = 5 * time.Second; !explicit {
				mustRelease(t, s, kept, tierlock.LeaseOwned)
			}
			mustRelease(t, s, rel, tierlock.LeaseOwned)
		}
		if n := srv.Int("EXISTS", keyOf("k")); n != 0 {
			t.Errorf("explicit %v: the lock stays", explicit)
		}
	}
}
