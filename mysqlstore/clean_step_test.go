package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The clean-up ends no lease by a step forward of the server's clock: neither the
// row of a holder is deleted, nor that of one who was taken for dead and renews
// marked as released.
func TestStepForwardCleansNothingThatIsHeld(t *testing.T) {
	t.Parallel()
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	cleaner, log := paced(t, srv)
	register(cleaner, 1)
	if _, err := db.Exec("INSERT INTO lock_member VALUES ('test', ?, 5, 0, 1, 'app', 'silent', 2, UTC_TIMESTAMP(6))", memberID(2)); err != nil {
		t.Fatal(err)
	}
	holder := open(t, srv.DSN(""), calm)
	lease := memberID(2) + "-a"
	const left = 15 * time.Second
	mustAcquire(t, holder, ask("k", lease, left))
	began := time.Now()
	rig.Eventually(t, patience, "it is taken for dead", func() bool { return log.count("lock=test:order:settle/k ") == 1 })
	renew := func() {
		t.Helper()
		res := holder.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, TTL: time.Minute}})
		if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Errorf("renewal: got %+v; wanted owned", res[0])
		}
	}
	renew()
	clock.Step(2 * time.Hour)
	for range 2 { // the second goes by the floor that the first has written
		if _, err := cleaner.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(began.Add(left + 3*time.Second))) // what it was seen to have left is over
	var expires string
	if err := db.Get(&expires, "SELECT expire_at FROM lock_record WHERE business_id='k'"); err != nil {
		t.Fatalf("the row of a lock that is held: %v", err)
	}
	if expires == "2000-01-01 00:00:00.000000" {
		t.Error("a lock that is held was marked as released")
	}
	renew()
}

// A statement that is refused after it has waited for the row is not taken for the
// one that was sent before it by the same attempt.
func TestRefusedAfterAGrantOfTheSameAttempt(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36") // on MariaDB no acquire waits
	s, db := open(t, srv.DSN(""), calm), pool(t, srv.DSN(""))
	key, lease := "refused after a grant", newLease()
	first, second, err := s.TakeAgainLate(t.Context(), ask(key, lease, time.Minute), func() {
		mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
		tx := foreign(t, db.DB, "UPDATE lock_record SET reentrant=1 WHERE "+row(key))
		time.AfterFunc(500*time.Millisecond, func() { _ = tx.Rollback() })
	})
	if err != nil || first == 0 {
		t.Fatalf("the first: got %d, %v; wanted a grant", first, err)
	}
	if second != 0 {
		t.Errorf("the second, too late: got %d; wanted 0", second)
	}
	if rec := mustInspect(t, s, key); rec.Held {
		t.Errorf("a refused statement took the lock: %+v", rec)
	}
}
