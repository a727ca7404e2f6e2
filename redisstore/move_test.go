package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// While a slot moves from one node to another, no free lock in it can be taken,
// with a fence record or without: the script has two keys, of which the lock's is
// on neither side. That is unavailable and not held; who holds a lock there keeps
// it, and others are told so.
func TestFreeLockInASlotThatMoves(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{false, true} {
		c := steadyCluster(t)
		s := openCluster(t, c)
		works(t, s)
		held := newLease()
		if recorded {
			mustAcquire(t, s, ask("k", held, 30*time.Second))
		}
		to := c.Nodes[0]
		if c.OwnerOf(keyOf("k")) == to {
			to = c.Nodes[1]
		}
		m := c.Migrate(keyOf("k"), to)
		for _, move := range []func(){func() {}, m.Keys} {
			move()
			if recorded {
				res, err := s.Acquire(t.Context(), ask("k", newLease(), 30*time.Second))
				if err != nil || res.Granted || res.Token.Lease != held {
					t.Errorf("a held lock: got %+v, %v", res, err)
				}
				if res := renewOne(t, s, "k", held, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
					t.Errorf("its renewal: got %+v", res)
				}
			} else {
				wantTryAgain(t, s)
			}
		}
		if recorded {
			mustRelease(t, s, drop("k", held), tierlock.LeaseOwned)
			wantTryAgain(t, s)
		}
		m.Finish()
		mustAcquire(t, s, ask("k", newLease(), 30*time.Second))
	}
}

func wantTryAgain(t *testing.T, s tierlock.Store) {
	t.Helper()
	res, err := s.Acquire(t.Context(), ask("k", newLease(), 30*time.Second))
	wantClass(t, "a free lock in a slot that moves", err, tierlock.ErrUnavailable)
	if res.Granted || !strings.Contains(err.Error(), "TRYAGAIN") {
		t.Errorf("a free lock in a slot that moves: got %+v, %v", res, err)
	}
}
