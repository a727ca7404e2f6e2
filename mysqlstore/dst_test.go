package mysqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The hour that is left out or repeated in the server's time zone is none of the
// locks', not even of a statement that waits for a row at that moment.
func TestDaylightSaving(t *testing.T) {
	t.Setenv("TZ", "Europe/Berlin") // of the server
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	var zone string
	if err := db.Get(&zone, "SELECT CONCAT(@@time_zone,' ',@@system_time_zone)"); err != nil || zone != "SYSTEM CET" && zone != "SYSTEM CEST" {
		t.Fatalf("the server's zone is %q, error %v; wanted that of Berlin: install it with `apt-get install tzdata`", zone, err)
	}
	var offset time.Duration
	for _, at := range []time.Time{
		time.Date(2027, 3, 28, 1, 0, 0, 0, time.UTC),  // an hour is left out
		time.Date(2027, 10, 31, 1, 0, 0, 0, time.UTC), // one is repeated
	} {
		day := at.Format("January ")
		set := func(to time.Time) {
			step := time.Until(to) - offset
			clock.Step(step)
			offset += step
		}
		set(at.Add(-time.Minute))
		// Who has known the clock would not believe the months between.
		s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
		for _, k := range []string{"renewed", "released"} {
			mustAcquire(t, s, ask(day+k, "l", time.Hour))
		}
		mustAcquire(t, s, ask(day+"held", "l", 10*time.Minute))
		mustAcquire(t, s, ask(day+"expired", "l", time.Millisecond))
		set(at.Add(-500 * time.Millisecond))
		tx := db.MustBegin()
		var locked []string
		if err := tx.Select(&locked, "SELECT business_id FROM lock_record WHERE namespace='test' AND resource_id='order:settle' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(day + "renewed"), Lease: "l", TTL: 2 * time.Hour}})
			rec, err := other.Inspect(t.Context(), name(day+"renewed"))
			if err != nil || !rec.Held || res[0].Err == nil && (res[0].State != tierlock.LeaseOwned || rec.Left < 2*time.Hour-time.Minute) || rec.Left > 2*time.Hour {
				t.Errorf("%srenewal: got %v, then held %v, %v left, error %v", day, res[0], rec.Held, rec.Left, err)
			}
		})
		all.Go(func() {
			own, err := releasePatiently(s, drop(day+"released", "l"))
			if err != nil || own != tierlock.LeaseOwned {
				t.Errorf("%srelease: got %v, error %v; wanted owned", day, own, err)
			}
		})
		all.Go(func() {
			if res, err := other.Acquire(t.Context(), ask(day+"held", "other", time.Minute)); res.Granted {
				t.Errorf("%sacquire of what is held: got granted, error %v", day, err)
			}
		})
		all.Go(func() {
			res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(day + "expired"), Lease: "l", TTL: time.Hour}})
			rec, err := other.Inspect(t.Context(), name(day+"expired"))
			if err != nil || rec.Held || res[0].State == tierlock.LeaseOwned {
				t.Errorf("%srenewal of what has ended: got %v, then held %v, error %v; wanted neither", day, res[0], rec.Held, err)
			}
		})
		time.Sleep(800 * time.Millisecond)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		mustAcquire(t, s, ask(day+"new", "l", time.Minute))
	}
}
