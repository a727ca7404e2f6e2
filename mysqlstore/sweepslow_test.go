package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// oldRows are as many locks that nobody took for long.
const oldRows = "INSERT INTO lock_record SELECT 'test','order:settle',LPAD(seq,10,'0'),'','',562949953421312+seq,1,1,0,NULL,'','2000-01-01','2000-01-01' FROM seq_1_to_40000"

// The cleaner goes on beating, and looking after others, while there is much to
// delete.
func TestLongSweepKeepsNothingElseUp(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s, log := paced(t, srv)
	register(s, 1)
	rig.Eventually(t, patience, "the member sweeps", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM lock_member WHERE member='' AND floor>0") == 1
	})
	execute(t, db, oldRows)
	left := func() int64 { return number(t, db, "SELECT COUNT(*) FROM lock_record WHERE business_id LIKE '0%'") }
	beat := func() int64 { return number(t, db, "SELECT beat FROM lock_member WHERE member=?", memberID(1)) }
	rig.Eventually(t, patience, "the sweep has begun", func() bool { return left() < 39_000 })
	first := beat()
	execute(t, db, "INSERT INTO lock_member VALUES ('test', ?, 5, 0, 1, 'app', 'dead', 2, UTC_TIMESTAMP(6))", memberID(2))
	rig.Eventually(t, 2*patience, "a dead process is found, and there were some beats", func() bool {
		return log.count("a process stopped beating") == 1 && beat() >= first+5
	})
	if n := left(); n == 0 {
		t.Error("nothing is left of the sweep by then; wanted both meanwhile")
	}
	rig.Eventually(t, 4*patience, "all old rows have gone", func() bool { return left() == 0 })
}

// An old row that somebody's transaction has locked stays, and those that are
// deleted together with it; the others go.
func TestSweepGoesRoundLockedRows(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	s.SetPace(time.Hour, time.Hour, time.Hour, time.Second)
	mustInspect(t, s, "0")
	if _, err := s.Sweep(t.Context()); err != nil { // writes the floor
		t.Fatal(err)
	}
	execute(t, db, oldRows+" WHERE seq<=3000")
	tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row("0000000700")+" FOR UPDATE")
	first, err := s.Sweep(t.Context())
	if err != nil || first < 2500 || first == 3000 {
		t.Errorf("swept %d rows, error %v; wanted 2,500 of 3,000", first, err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(t.Context()); err != nil || n+first != 3000 {
		t.Errorf("swept %d rows, error %v; wanted the %d that were left", n, err, 3000-first)
	}
}
