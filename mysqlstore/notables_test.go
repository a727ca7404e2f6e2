package mysqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// A process that begins before the tables are there says so once, and works from
// when they are; and locks need no list of processes, once a store knows its
// server.
func TestTablesComeAndGo(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	db := admin(t, srv)
	s, log := paced(t, srv)
	leave := register(s, 1)
	_, err := s.Acquire(t.Context(), ask("k", "l", time.Minute))
	wantClass(t, "acquire", err, tierlock.ErrMisconfigured, "Migrate")
	rig.Eventually(t, patience, "it is said", func() bool { return log.count("background work fails") == 1 })
	time.Sleep(500 * time.Millisecond)
	if n := log.count("background work fails"); n != 1 {
		t.Errorf("said %d times; wanted once", n)
	}
	migrate(t, srv)
	rig.Eventually(t, patience, "it is done again", func() bool { return log.count("is done again") == 1 })
	if n := number(t, db, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(1)); n != 1 {
		t.Errorf("%d rows of the member; wanted one", n)
	}

	execute(t, db, "DROP TABLE lock_member")
	rig.Eventually(t, patience, "it is said again", func() bool { return log.count("background work fails") == 2 })
	for range 3 {
		mustAcquire(t, s, ask("k", "l", time.Minute))
		if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: "l", TTL: time.Minute}}); res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Errorf("renewal: got %+v; wanted owned", res[0])
		}
		mustRelease(t, s, drop("k", "l"), tierlock.LeaseOwned)
		srv.Restart() // the store asks anew
		rig.Eventually(t, patience, "the server answers", func() bool {
			_, err := s.Inspect(t.Context(), name("k"))
			return err == nil
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leave(ctx)
	if ctx.Err() != nil {
		t.Error("the process cannot leave")
	}
}
