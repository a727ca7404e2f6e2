package mysqlstore_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// The background work that meets a connection in the middle of a transaction
// writes nothing there: its rows would stay locked for as long as that is open,
// and with them the beats of others, and locks.
func TestBackgroundWorkStaysOutOfTransactions(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	one := func() (*sqlx.DB, *mysqlstore.Store, *logged) {
		p, log := pool(t, srv.DSN("")), new(logged)
		p.SetMaxOpenConns(1)
		s := mysqlstore.New(p, mysqlstore.Options{CallTimeout: calm.CallTimeout, Logger: slog.New(slog.NewTextHandler(log, nil))})
		t.Cleanup(s.Close)
		return p, s, log
	}
	unlocked := func(when string) {
		t.Helper()
		if n := inTransactions(t, db); n != 0 {
			t.Errorf("%s: %d rows are locked or changed in the transaction; wanted none", when, n)
		}
	}

	p, s, log := one()
	s.SetPace(100*time.Millisecond, 1500*time.Millisecond, 300*time.Millisecond, time.Hour)
	beat := func() int64 {
		return number(t, db, "SELECT COALESCE(MAX(beat), 0) FROM lock_member WHERE member=?", memberID(1))
	}
	leave := register(s, 1)
	rig.Eventually(t, patience, "the member beats", func() bool { return beat() > 1 })
	p.MustExec("BEGIN")
	rig.Eventually(t, patience, "the background work fails", func() bool { return log.count("background work fails") == 1 })
	unlocked("beating")
	p.MustExec("ROLLBACK")
	rig.Eventually(t, patience, "it is done again", func() bool { return log.count("is done again") == 1 })
	last := beat()
	rig.Eventually(t, patience, "the member beats again", func() bool { return beat() > last })
	p.MustExec("BEGIN")
	leave(t.Context())
	unlocked("leaving")
	p.MustExec("ROLLBACK")

	// Rows that are old, for the sweep; and a floor that lets them go.
	p, s, _ = one()
	s.SetPace(time.Hour, time.Hour, time.Hour, time.Second)
	for i := range 10 {
		key := fmt.Sprint(i)
		mustAcquire(t, s, ask(key, "l", time.Minute))
		mustRelease(t, s, drop(key, "l"), tierlock.LeaseOwned)
	}
	time.Sleep(3 * time.Second)
	mustInspect(t, s, "0")
	if _, err := s.Sweep(t.Context()); err != nil { // writes the floor
		t.Fatal(err)
	}
	p.MustExec("BEGIN")
	if n, err := s.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("swept %d rows in a transaction, error %v; wanted none", n, err)
	}
	unlocked("sweeping")
	p.MustExec("ROLLBACK")
	if n, err := s.Sweep(t.Context()); err != nil || n < 10 {
		t.Errorf("swept %d rows, error %v; wanted 10 at least", n, err)
	}
}

// A process that beats while it is being taken off the list, since it was only
// slow, stays on it, and nothing is said of it.
func TestMemberThatBeatsInTime(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s, log := paced(t, srv)
	s.SetPace(100*time.Millisecond, 6*time.Second, time.Hour, time.Hour) // so long does it stay on the list, too
	execute(t, db, "INSERT INTO lock_member VALUES ('test', ?, 5, 0, 1, 'app', 'slow', 2, UTC_TIMESTAMP(6))", memberID(2))
	mustAcquire(t, s, ask("slow", memberID(2)+"-a", time.Hour))
	register(s, 1)
	// It beats in a transaction that takes a while, and for which its removal waits.
	tx := foreign(t, db, "UPDATE lock_member SET beat=beat+1 WHERE namespace='test' AND member=?", memberID(2))
	rig.Eventually(t, patience, "it is being removed", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%DELETE FROM lock_member%' AND id<>CONNECTION_ID()") > 0
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if n := number(t, db, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(2)); n != 1 {
		t.Error("a process that beat was taken off the list")
	}
	if n := log.count("stopped beating"); n != 0 {
		t.Errorf("reported %d times as dead; wanted never", n)
	}
	// When it really is, it is reported once.
	rig.Eventually(t, patience, "it is reported", func() bool { return log.count("a process stopped beating") == 1 })
}
