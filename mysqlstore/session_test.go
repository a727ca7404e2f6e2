package mysqlstore_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// life is a lock from its first acquire to its last release, by every kind of
// call; between is called before each.
func life(t *testing.T, s tierlock.Store, key string, between func()) {
	t.Helper()
	lease, entrant, first := newLease(), newLease(), newLease()
	steps := []func(){
		func() { mustAcquire(t, s, ask(key, lease, patience)) },
		func() { mustAcquire(t, s, ask(key, lease, patience)) },
		func() {
			if res, err := s.Acquire(t.Context(), ask(key, newLease(), patience)); err != nil || res.Granted {
				t.Errorf("acquire by another: %+v, %v", res, err)
			}
		},
		func() { mustInspect(t, s, key) },
		func() {
			for _, lease := range []string{lease, "other"} {
				if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: lease, TTL: patience}}); res[0].Err != nil {
					t.Errorf("renew: %v", res[0].Err)
				}
			}
		},
		func() { mustRelease(t, s, drop(key, "other"), tierlock.LeaseTaken) },
		func() {
			req := drop(key, lease)
			req.Keep = time.Millisecond
			mustRelease(t, s, req, tierlock.LeaseOwned)
		},
		func() {
			rig.Eventually(t, patience, "kept no longer", func() bool { return !mustInspect(t, s, key).Held })
		},
		func() { mustAcquire(t, s, askAs("h", key, first, patience)) },
		func() { mustAcquire(t, s, askAs("h", key, entrant, patience)) },
		func() {
			if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: entrant, Explicit: true, TTL: patience}}); res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
				t.Errorf("renew: %+v", res[0])
			}
		},
		func() { mustRelease(t, s, dropAs(key, first), tierlock.LeaseOwned) },
		func() { mustRelease(t, s, dropAs(key, entrant), tierlock.LeaseOwned) },
		func() { mustRelease(t, s, dropAs(key, entrant), tierlock.LeaseGone) },
	}
	for _, step := range steps {
		between()
		step()
	}
}

// Scenarios 83, 95 and 96: no call needs the connection of another. Through a pool
// of one connection that is killed before each call, and through one that keeps
// none, everything goes as it does otherwise.
func TestNoCallNeedsAnothersConnection(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	one := func(t *testing.T) (*sqlx.DB, *mysqlstore.Store) {
		p := pool(t, srv.DSN(""))
		p.SetMaxOpenConns(1)
		s := mysqlstore.New(p, calm)
		t.Cleanup(s.Close)
		return p, s
	}
	t.Run("killed", func(t *testing.T) {
		p, s := one(t)
		kills := 0
		life(t, s, "killed", func() {
			var id int64
			if err := p.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				t.Fatal(err)
			}
			execute(t, db, fmt.Sprint("KILL ", id))
			rig.Eventually(t, patience, "the connection has ended", func() bool {
				return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE id=?", id) == 0
			})
			kills++
		})
		if kills < 10 {
			t.Errorf("%d connections killed", kills)
		}
	})
	t.Run("none kept", func(t *testing.T) {
		p, s := one(t)
		p.SetMaxIdleConns(-1)
		life(t, s, "none kept", func() {
			if st := p.Stats(); st.OpenConnections != 0 {
				t.Errorf("%d connections are open between two calls", st.OpenConnections)
			}
		})
	})
}

// Scenarios 95, 96 and 97: what is sent is statements that stand for themselves. No
// transaction is begun or left open, no lock of a session is taken, no setting of
// a session is changed; and between two calls no connection is in use.
func TestStatementsStandForThemselves(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--log-output=TABLE")
	db := admin(t, srv)
	p := pool(t, srv.DSN(""))
	s := mysqlstore.New(p, calm)
	t.Cleanup(s.Close)
	execute(t, db, "SET GLOBAL general_log=1")
	life(t, s, "k", func() {
		rig.Eventually(t, patience, "no connection is in use", func() bool { return p.Stats().InUse == 0 })
		if n := transactions(t, db, "true"); n != 0 {
			t.Errorf("%d transactions are open between two calls", n)
		}
	})
	execute(t, db, "SET GLOBAL general_log=0")
	rows, err := db.Query("SELECT command_type, CONVERT(argument USING utf8mb4) FROM mysql.general_log " +
		"WHERE argument NOT LIKE '%innodb_trx%' AND argument NOT LIKE 'SET GLOBAL%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	prefix := regexp.MustCompile("^SET STATEMENT innodb_lock_wait_timeout=[01] FOR ") // lasts for the statement
	allowed := regexp.MustCompile(`^(INSERT INTO lock_record |UPDATE lock_record |SELECT |SHOW VARIABLES )`)
	// Of anything that outlives a statement, or holds a row after it.
	forbidden := regexp.MustCompile(`(?i)\b(BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|GET_LOCK|RELEASE_LOCK|LOCK TABLES|FOR UPDATE|LOCK IN SHARE MODE|SET SESSION|SET NAMES|@[a-z]+ *:=|DELETE)\b`)
	n := 0
	for rows.Next() {
		var kind, text string
		if err := rows.Scan(&kind, &text); err != nil {
			t.Fatal(err)
		}
		switch kind {
		case "Connect", "Quit", "Close stmt", "Reset stmt":
			continue
		}
		n++
		text = prefix.ReplaceAllString(text, "")
		if !allowed.MatchString(text) || forbidden.MatchString(text) {
			t.Errorf("%s: %s", kind, text)
		}
	}
	if err := rows.Err(); err != nil || n < 20 {
		t.Errorf("%d statements in the log, %v", n, err)
	}
}

// Scenario 91: a lease of 300 ms is over after 300 ms, and not before, by the
// server's clock and over the wire; whatever the driver or the server round.
func TestShortLeaseEndsOnTime(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	const ttl, tolerance = 300 * time.Millisecond, 50 * time.Millisecond
	for _, params := range []string{"", "parseTime=true&loc=Asia%2FKolkata&interpolateParams=true", "time_zone=%27%2B05:45%27&sql_mode=%27TIME_ROUND_FRACTIONAL%27"} {
		t.Run(params, func(t *testing.T) {
			holder, other := open(t, srv.DSN(params), calm), open(t, srv.DSN(params), calm)
			var late []time.Duration
			for round := range 7 {
				key, lease := "short", newLease()
				if round%2 == 1 {
					key = fmt.Sprint(params, round)
				}
				taken := time.Now()
				first := mustAcquire(t, holder, ask(key, lease, ttl))
				latest := first.ServerTime // at which the lease may have begun
				if d := first.ExpireAt.Sub(first.ServerTime); d != ttl {
					t.Errorf("granted for %v", d)
				}
				if round%3 == 2 { // renewed once
					time.Sleep(100 * time.Millisecond)
					sent := time.Now()
					res := holder.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: lease, TTL: ttl}})
					if res[0].Err == nil && res[0].State == tierlock.LeaseGone && time.Since(taken) > ttl {
						continue // the machine stood still for so long
					}
					if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
						t.Fatalf("renew: %+v", res[0])
					}
					// By the clock of the same machine.
					if left := mustInspect(t, other, key).Left; left > ttl || left < ttl-time.Since(sent) {
						t.Errorf("%v left %v after the renewal was sent", left, time.Since(sent))
					}
					first.ServerTime, latest = sent, time.Now()
				}
				var next tierlock.AcquireResult
				var asked, before time.Time // the last time, and the one before, when it was still held
				for !next.Granted {
					var err error
					asked, before = time.Now(), asked
					if next, err = other.Acquire(t.Context(), ask(key, newLease(), patience)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
				answered := time.Now()
				if d := next.Token.ServerTime.Sub(first.ServerTime) - ttl; d < 0 {
					t.Errorf("round %d: taken %v before the lease was over", round, -d)
				}
				if before.IsZero() {
					before = taken
				}
				// Not by the time in which nobody has asked.
				late = append(late, next.Token.ServerTime.Sub(latest)-ttl-answered.Sub(before))
				mustRelease(t, other, drop(key, next.Token.Lease), tierlock.LeaseOwned)
			}
			for _, d := range late {
				if d > tolerance {
					t.Errorf("over by %v; wanted at most %v", late, tolerance)
					break
				}
			}
			t.Logf("over by %v", late)
		})
	}
}
