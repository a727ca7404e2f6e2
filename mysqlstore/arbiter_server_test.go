package mysqlstore_test

import (
	"fmt"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainWrites are an action of each kind that writes, which would be done on a
// server whose row is mode, or drain.
func chainWrites(mode degrade.Mode) []degrade.Action {
	drain := drainOf(mode)
	drain.Epoch = mode.Epoch
	taken := drainOf(mode)
	taken.Server, taken.Hard, taken.Epoch = "", true, mode.Epoch+16
	return []degrade.Action{
		{Kind: degrade.Refresh, From: mode}, {Kind: degrade.Start, From: mode, To: drainOf(mode)},
		{Kind: degrade.Ack, From: drain}, {Kind: degrade.Open, From: drain},
		{Kind: degrade.Takeover, From: mode, To: taken, Known: mode.Epoch + 1}, {Kind: degrade.Leave},
	}
}

// nothingIsDone carries out each of these on its own row, and wants each refused
// and nothing changed. An error is as good: it says that nothing is known to be done.
func nothingIsDone(t *testing.T, s, clean *mysqlstore.Store, put func(name string, m degrade.Mode), rows func() string, mode degrade.Mode) {
	t.Helper()
	for _, a := range chainWrites(mode) {
		name := newChainName()
		self := chainSelf(name, 1)
		if a.Kind == degrade.Leave {
			put(name, mode)
			arbitrate(t, clean, self, degrade.Action{Kind: degrade.Refresh, From: mode})
		} else {
			put(name, a.From)
		}
		before := rows()
		r, err := s.Arbitrate(background, self, a)
		if r.OK {
			t.Errorf("action %d: done", a.Kind)
		}
		if err != nil {
			wantClass(t, "action", err, tierlock.ErrUnavailable)
		}
		if after := rows(); after != before {
			t.Errorf("action %d: changed\n%s\nto\n%s", a.Kind, before, after)
		}
		// It is not for another reason.
		if r := arbitrate(t, clean, self, a); !r.OK {
			t.Errorf("action %d: refused on a clean connection, too", a.Kind)
		}
	}
	r, err := s.Arbitrate(background, chainSelf(newChainName(), 1), degrade.Action{Kind: degrade.Create, To: mode})
	if r.OK {
		t.Errorf("created: %v", err)
	}
	if r, err := s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll}); err == nil {
		t.Errorf("poll: %+v; wanted an error", r)
	}
}

// A connection that somebody has left in the middle of a transaction, or with
// autocommit off, serves no action: what it wrote would be rolled back, and what it
// showed may be old.
func TestArbiterStaysOutOfTransactions(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, left := range []string{"BEGIN", "SET autocommit=0", "START TRANSACTION WITH CONSISTENT SNAPSHOT"} {
		t.Run(left, func(t *testing.T) {
			p := pool(t, srv.DSN(""))
			p.SetMaxOpenConns(1)
			s, clean := mysqlstore.New(p, calm), open(t, srv.DSN(""), calm)
			t.Cleanup(s.Close)
			mode := firstMode(t, s)
			p.MustExec(left)
			nothingIsDone(t, s, clean, func(name string, m degrade.Mode) { putMode(t, db, name, m) }, func() string { return chainRows(t, db) }, mode)
			if n := inTransactions(t, db); n != 0 {
				t.Errorf("%d rows are locked or changed in the transaction; wanted none", n)
			}
		})
	}
	t.Run("READ UNCOMMITTED", func(t *testing.T) {
		s := open(t, srv.DSN(at("READ-UNCOMMITTED")), calm)
		_, err := s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
		wantClass(t, "poll", err, tierlock.ErrMisconfigured, "READ UNCOMMITTED")
	})
}

// A server that does not tell whether there is a transaction: what is left of one is
// ended before, so that what is answered holds.
func TestArbiterEndsALeftTransaction(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36")
	db := admin(t, srv)
	p := pool(t, srv.DSN("innodb_lock_wait_timeout=1"))
	p.SetMaxOpenConns(1)
	s := mysqlstore.New(p, calm)
	t.Cleanup(s.Close)
	mode := firstMode(t, s)
	putMode(t, db, "n", mode)
	for range 3 {
		p.MustExec("BEGIN")
		p.MustExec("SELECT * FROM lock_permit") // takes a snapshot
		execute(t, db, "UPDATE lock_mode SET epoch=epoch+1")
		mode.Epoch++
		if r := pollMode(t, s, "n"); r.Mode != mode {
			t.Errorf("read %+v, wanted %+v", r.Mode, mode)
		}
		p.MustExec("BEGIN")
		if r := arbitrate(t, s, chainSelf("n", 1), degrade.Action{Kind: degrade.Refresh, From: mode}); !r.OK {
			t.Error("refused")
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lock_permit WHERE epoch=?", mode.Epoch); n != 1 {
			t.Error("not committed")
		}
		p.MustExec("ROLLBACK")
	}
}

// A server that is read-only is no primary, also for who may write there all the
// same, and whatever it shows is old.
func TestArbiterReadOnly(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret';"+grants)
	root, app := open(t, srv.DSN(""), calm), open(t, appDSN(srv.DSN("")), calm)
	mode := firstMode(t, root)
	// With the documented rights everything works.
	putMode(t, db, "app", mode)
	taken := drainOf(mode)
	taken.Server, taken.Hard, taken.Epoch = "", true, 30
	for _, a := range []degrade.Action{
		{Kind: degrade.Poll}, {Kind: degrade.Refresh, From: mode}, {Kind: degrade.Start, From: mode, To: drainOf(mode)},
		{Kind: degrade.Ack, From: drainOf(mode)}, {Kind: degrade.Open, From: drainOf(mode)}, {Kind: degrade.Leave},
		{Kind: degrade.Takeover, From: opened(drainOf(mode)), To: taken, Known: 29},
	} {
		if r := arbitrate(t, app, chainSelf("app", 1), a); !r.OK {
			t.Errorf("action %d with the documented rights: refused", a.Kind)
		}
	}
	if r := arbitrate(t, app, chainSelf("fresh", 1), degrade.Action{Kind: degrade.Create, To: mode}); !r.OK {
		t.Error("create with the documented rights: refused")
	}
	for _, a := range append(chainWrites(mode), degrade.Action{Kind: degrade.Create, To: mode}, degrade.Action{Kind: degrade.Remove, Member: memberID(1), Beat: 5}) {
		name := newChainName()
		if a.From.Known() {
			putMode(t, db, name, a.From)
		} else if a.Kind != degrade.Create {
			putMode(t, db, name, mode)
			execute(t, db, "INSERT INTO lock_permit VALUES (?,?,1,0,5,0,0,'','','','','',0,'2026-01-01')", name, memberID(1))
		}
		before := chainRows(t, db)
		execute(t, db, "SET GLOBAL read_only=1")
		if r := arbitrate(t, root, chainSelf(name, 1), a); r.OK {
			t.Errorf("action %d on a read-only server: done", a.Kind)
		}
		_, err := app.Arbitrate(background, chainSelf(name, 1), a)
		wantClass(t, "without the right to write there", err, tierlock.ErrUnavailable, "1290")
		for _, s := range []*mysqlstore.Store{root, app} {
			_, err = s.Arbitrate(background, chainSelf(name, 1), degrade.Action{Kind: degrade.Poll})
			wantClass(t, "poll", err, tierlock.ErrUnavailable, "read-only")
		}
		execute(t, db, "SET GLOBAL read_only=0")
		if after := chainRows(t, db); after != before {
			t.Errorf("action %d: changed\n%s\nto\n%s", a.Kind, before, after)
		}
		if r := arbitrate(t, root, chainSelf(name, 1), a); !r.OK {
			t.Errorf("action %d: refused afterwards, too", a.Kind)
		}
	}
}

// A restart leaves a server what it was; its rows are its own.
func TestArbiterRestart(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN(""), calm)
	mode := firstMode(t, s)
	putMode(t, admin(t, srv), "n", mode)
	srv.Kill()
	_, err := s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
	wantClass(t, "poll", err, tierlock.ErrUnavailable)
	srv.Start()
	var r degrade.Reply
	rig.Eventually(t, patience, "it answers", func() bool {
		r, err = s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
		return err == nil
	})
	if r.Server != mode.Server || r.Mode != mode {
		t.Errorf("after the restart: %+v, wanted %+v", r, mode)
	}
	if r := arbitrate(t, s, chainSelf("n", 1), degrade.Action{Kind: degrade.Refresh, From: mode}); !r.OK {
		t.Error("after the restart: refused")
	}
}

// replicaOf makes a server a replica of another, which has a binary log.
func replicaOf(t *testing.T, primary *rig.MariaDBServer) *rig.MariaDBServer {
	t.Helper()
	execute(t, admin(t, primary), "CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'; RESET MASTER")
	r := rig.MariaDB(t, "--log-bin=binlog", "--server-id=2", "--binlog-format=MIXED")
	execute(t, admin(t, r), fmt.Sprintf("SET GLOBAL read_only=1; CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='repl', MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos; START SLAVE", primary.Port))
	return r
}

// A replica has the rows of its primary, and a promoted one is another server: no
// action but a takeover is done there, and afterwards no row is the old server's.
func TestArbiterPromotedReplica(t *testing.T) {
	t.Parallel()
	primary := rig.MariaDB(t, "--log-bin=binlog", "--server-id=1", "--binlog-format=MIXED")
	replica := replicaOf(t, primary)
	migrate(t, primary)
	db := admin(t, replica)
	old := open(t, primary.DSN(""), calm)
	mode := firstMode(t, old)
	mode.Epoch = 1
	self := chainSelf("n", 1)
	arbitrate(t, old, self, degrade.Action{Kind: degrade.Create, To: mode})
	if r := arbitrate(t, old, self, degrade.Action{Kind: degrade.Refresh, From: mode}); !r.OK {
		t.Fatal("refused")
	}
	beat := pollMode(t, old, "n").Members[0].Beat
	rig.Eventually(t, patience, "the replica has it", func() bool {
		var n int64
		err := db.QueryRow("SELECT COUNT(*) FROM tierlock.lock_permit WHERE beat=?", beat).Scan(&n)
		return err == nil && n == 1
	})
	s := open(t, replica.DSN(""), calm)
	_, err := s.Arbitrate(background, self, degrade.Action{Kind: degrade.Poll})
	wantClass(t, "poll on a replica", err, tierlock.ErrUnavailable, "read-only")

	// The old primary goes on: it has not heard of its end.
	execute(t, db, "STOP SLAVE; SET GLOBAL read_only=0")
	r := pollMode(t, s, "n")
	if r.Mode != mode || r.Server == mode.Server || len(r.Members) != 1 || r.Members[0].Beat != beat {
		t.Errorf("promoted: %+v, wanted the primary's %+v", r, mode)
	}
	rows := chainRows(t, db)
	for _, a := range append(chainWrites(mode), degrade.Action{Kind: degrade.Remove, Member: self.Member, Beat: beat}) {
		if a.Kind == degrade.Takeover || a.From.Drain {
			continue
		}
		if r := arbitrate(t, s, self, a); r.OK {
			t.Errorf("action %d on the promoted one: done", a.Kind)
		}
	}
	if now := chainRows(t, db); now != rows {
		t.Errorf("changed\n%s\nto\n%s", rows, now)
	}
	taken := drainOf(mode)
	taken.Hard, taken.Server, taken.Epoch = true, "", mode.Epoch+16
	take := arbitrate(t, s, self, degrade.Action{Kind: degrade.Takeover, From: mode, To: taken})
	if !take.OK || take.Server != r.Server {
		t.Fatalf("takeover: %+v", take)
	}
	taken.Server = take.Server
	if got := pollMode(t, s, "n"); got.Mode != taken || got.Server != taken.Server {
		t.Errorf("taken over: %+v, wanted %+v", got, taken)
	}
	for _, a := range []degrade.Action{{Kind: degrade.Ack, From: taken}, {Kind: degrade.Open, From: taken}, {Kind: degrade.Refresh, From: opened(taken)}} {
		if r := arbitrate(t, s, self, a); !r.OK {
			t.Errorf("action %d after the takeover: refused", a.Kind)
		}
		if r := arbitrate(t, old, self, a); r.OK {
			t.Errorf("action %d on the old primary: done", a.Kind)
		}
	}
	if pollMode(t, old, "n").Mode != mode {
		t.Error("the old primary's row has changed")
	}
}
