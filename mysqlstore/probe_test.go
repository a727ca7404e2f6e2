package mysqlstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// A probe says who serves, leaves nothing behind, and fails where nothing can be
// written, whatever the reason.
func TestProbe(t *testing.T) {
	t.Parallel()
	srv, other := migrated(t), migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	probe := func(s *mysqlstore.Store) (string, error) {
		res, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"})
		return res.Incarnation, err
	}
	is, err := probe(s)
	if err != nil || is == "" {
		t.Fatalf("got %q, %v", is, err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if again, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "another"}); err != nil || again.Incarnation != is {
				t.Errorf("got %q, %v; wanted %q", again.Incarnation, err, is)
			}
		})
	}
	all.Wait()
	for _, table := range []string{"lock_record", "lock_member", "lock_mode", "lock_permit"} {
		if n := number(t, db, "SELECT COUNT(*) FROM "+table); n != 0 {
			t.Errorf("%d rows in %s after the probes; wanted none", n, table)
		}
	}
	if another, err := probe(open(t, other.DSN(""), calm)); err != nil || another == is {
		t.Errorf("another server: got %q, %v; wanted another name than %q", another, err, is)
	}
	// Of a user with the rights that are documented.
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'; "+grants)
	app := open(t, appDSN(srv.DSN("")), calm)
	if got, err := probe(app); err != nil || got != is {
		t.Errorf("with few rights: got %q, %v", got, err)
	}
	for _, who := range []*mysqlstore.Store{s, app} { // root is not stopped by it
		execute(t, db, "SET GLOBAL read_only=ON")
		_, err = probe(who)
		wantClass(t, "read_only", err, tierlock.ErrUnavailable)
		execute(t, db, "SET GLOBAL read_only=OFF")
		if got, err := probe(who); err != nil || got != is {
			t.Errorf("writable again: got %q, %v", got, err)
		}
	}
	execute(t, db, "FLUSH TABLES WITH READ LOCK; UNLOCK TABLES")
	execute(t, db, "REVOKE INSERT ON tierlock.lock_record FROM app@'127.0.0.1'")
	_, err = probe(app)
	wantClass(t, "without the right to write", err, tierlock.ErrMisconfigured)
	execute(t, db, "DROP TABLE lock_record")
	_, err = probe(s)
	wantClass(t, "without a table", err, tierlock.ErrMisconfigured)
}

// A server that takes statements and does not get on with them is no server.
func TestProbeOfAServerThatHangs(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN(""), quick)
	rig.Eventually(t, patience, "the store answers", func() bool {
		_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		return err == nil
	})
	srv.Pause()
	within(t, quick.CallTimeout+slack, "probe", func() {
		_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		wantClass(t, "paused", err, tierlock.ErrUnavailable)
	})
	srv.Resume()
	rig.Eventually(t, patience, "the store answers again", func() bool {
		_, err := s.Probe(background, tierlock.ProbeRequest{Namespace: "test"})
		return err == nil
	})
}

// Many calls, of which each waits for a row, are no outage.
func TestProbeWhileAllPlacesAreTaken(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36") // on MariaDB no acquire waits
	db := admin(t, srv)
	s := open(t, srv.DSN(""), mysqlstore.Options{CallTimeout: calm.CallTimeout, MaxCalls: 4})
	inspectSoon(t, s, "k")
	mustAcquire(t, s, ask("k", newLease(), patience))
	tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row("k")+" FOR UPDATE")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			ctx, cancel := withTimeout(900 * time.Millisecond)
			defer cancel()
			_, _ = s.Acquire(ctx, ask("k", newLease(), patience)) // its end does not matter
		})
	}
	rig.Eventually(t, patience, "calls wait for the row", func() bool { return lockWaits(t, db) > 0 })
	within(t, calm.CallTimeout/2, "probe", func() { // the places are taken until then at least
		if _, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"}); err != nil {
			t.Error(err)
		}
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

// The clean-up goes through all epochs. Rows that are held, or were freed a moment
// ago, stay, whatever their fence.
func TestSweepOfAllEpochs(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	s.SetPace(time.Hour, time.Hour, time.Hour, time.Hour) // two, since the floor counts from the sweep before
	put := func(key string, epoch uint16, seq string, ago time.Duration) {
		execute(t, db, "INSERT INTO lock_record SELECT 'test','order:settle',?,?,'',(?<<49)+"+seq+",?,1,0,NULL,'',UTC_TIMESTAMP(6)-INTERVAL ? SECOND,UTC_TIMESTAMP(6)",
			key, memberID(1)+"-x", max(epoch, 2)-1, epoch, int64(ago/time.Second))
	}
	const clock = "(TIMESTAMPDIFF(MICROSECOND,'2025-01-01',UTC_TIMESTAMP(6)) DIV 2)"
	gone := []string{}
	for _, epoch := range []uint16{1, 2, 3, 7, 300, 16383} {
		for i, r := range []struct {
			seq  string
			ago  time.Duration
			goes bool
		}{
			{clock + "-3*3600*500000", 2 * time.Hour, true},
			{"17", 2 * time.Hour, true},                              // adopted, of a clock far behind
			{clock + "-3*3600*500000", -time.Minute, false},          // held
			{"18", -time.Minute, false},                              // adopted, and held
			{clock + "-3*3600*500000", 30 * time.Minute, false},      // not long ago
			{clock, 2 * time.Hour, false},                            // its fence is of now
			{"(1<<49)-1-" + fmt.Sprint(epoch), 2 * time.Hour, false}, // and this of much later
		} {
			key := fmt.Sprint(epoch, " ", i)
			if r.goes {
				gone = append(gone, key)
			}
			put(key, epoch, r.seq, r.ago)
		}
	}
	for range 2 {
		if _, err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, db, "SELECT COUNT(*) FROM lock_record"); n != 6*5 {
		t.Errorf("%d rows left; wanted %d", n, 6*5)
	}
	for _, key := range gone {
		if n := number(t, db, "SELECT COUNT(*) FROM lock_record WHERE "+row(key)); n != 0 {
			t.Errorf("%s is still there", key)
		}
	}
}
