package mysqlstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Every other row of a batch is locked by somebody's transaction: the leases of
// the rest are renewed all the same, within one call of the usual limit. On MySQL,
// which has no wait of none, too. (The server says that it is one; it takes the
// statements that both know.)
func TestManyLockedRowsDoNotStopOtherRenewals(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "8.0.36"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var args []string
			if version != "" {
				args = []string{"--version=" + version}
			}
			srv := rig.MariaDB(t, args...)
			migrate(t, srv)
			s, slow := open(t, srv.DSN("innodb_lock_wait_timeout=1"), calm), open(t, srv.DSN(""), calm)
			inspectSoon(t, s, "k")
			const leases = 250
			var reqs []tierlock.RenewRequest
			for i := range leases {
				key := fmt.Sprintf("k%03d", i)
				mustAcquire(t, slow, ask(key, "l", 10*time.Minute))
				reqs = append(reqs, tierlock.RenewRequest{Name: name(key), Lease: "l", TTL: 30 * time.Minute})
			}
			// One by one: by a list the server may lock what is between, too.
			tx := foreign(t, admin(t, srv), "SELECT 1")
			for i := 0; i < leases; i += 2 {
				if _, err := tx.Exec("SELECT 1 FROM lock_record WHERE " + row(reqs[i].Name.Key) + " FOR UPDATE"); err != nil {
					t.Fatal(err)
				}
			}
			renewed, wrong := 0, 0
			var results []tierlock.RenewResult
			took := within(t, 500*time.Millisecond+slack, "renew", func() { results = s.Renew(t.Context(), reqs) })
			for i, res := range results {
				switch {
				case i%2 == 0 && !errors.Is(res.Err, tierlock.ErrUnavailable):
					t.Errorf("renewal of %s, whose row is locked: got %+v; wanted unavailable", reqs[i].Name, res)
				case i%2 == 1 && res.Err == nil && res.State == tierlock.LeaseOwned:
					renewed++
				case i%2 == 1:
					if wrong++; wrong == 1 {
						t.Errorf("renewal of %s: got %+v; wanted owned", reqs[i].Name, res)
					}
				}
			}
			t.Logf("%d renewed in %v", renewed, took)
			if renewed != leases/2 {
				t.Errorf("%d renewed; wanted %d", renewed, leases/2)
			}
			for i := 1; i < leases; i += 50 {
				if rec := mustInspect(t, slow, reqs[i].Name.Key); rec.Left < 20*time.Minute {
					t.Errorf("%s was renewed, and %v are left; wanted half an hour", reqs[i].Name, rec.Left)
				}
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			noTransactions(t, admin(t, srv)) // of what a statement has locked nothing stays so
			for i, res := range s.Renew(t.Context(), reqs) {
				if res.Err != nil || res.State != tierlock.LeaseOwned {
					t.Fatalf("afterwards, renewal of %s: got %+v; wanted owned", reqs[i].Name, res)
				}
			}
		})
	}
}
