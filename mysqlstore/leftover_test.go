package mysqlstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// What other users of the pool leave behind in a connection takes nobody's lock
// away: what the store says of a lock is true for everybody, or it is an error.
func TestSessionsLeftByOthers(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	plain := open(t, srv.DSN(""), calm)
	for _, left := range []struct {
		query    string
		harmless bool
	}{
		{"BEGIN", false},
		{"SET autocommit=0", false},
		{"XA START 'x'", false},
		{"SET timestamp=UNIX_TIMESTAMP()-100", false},
		{"SET timestamp=UNIX_TIMESTAMP()+100", false},
		{"SET character_set_connection=ucs2", false},
		{"SET character_set_connection=latin1", false},
		{"SET SESSION TRANSACTION READ ONLY", false},
		{"SET sql_select_limit=1", true},
		{"SET time_zone='-05:00'", true},
		{"SET sql_mode='ORACLE'", true},
		{"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", true},
		{"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", true},
		{"SET NAMES latin1", true},
		{"SET sql_safe_updates=1", true},
	} {
		t.Run(left.query, func(t *testing.T) {
			db := pool(t, srv.DSN(""))
			defer db.Close() // ends what was left, too
			db.SetMaxOpenConns(1)
			s := mysqlstore.New(db, calm)
			defer s.Close()
			key := func(k string) string { return k + " ключ " + left.query }
			for _, k := range []string{"1", "2", "released"} {
				mustAcquire(t, s, ask(key(k), "l"+k, 10*time.Minute))
			}
			db.MustExec(left.query)

			res, err := s.Acquire(t.Context(), ask(key("new"), "l", time.Minute))
			granted := err == nil && res.Granted
			if granted {
				if other, err := plain.Acquire(t.Context(), ask(key("new"), "other", time.Minute)); err != nil || other.Granted {
					t.Errorf("granted, and to another: %v, error %v; wanted held", other.Granted, err)
				}
			}
			reqs := []tierlock.RenewRequest{
				{Name: name(key("1")), Lease: "l1", TTL: time.Hour},
				{Name: name(key("2")), Lease: "l2", TTL: time.Hour},
				{Name: name(key("none")), Lease: "l3", TTL: time.Hour}, // so that the rows have to be read
			}
			renewed := 0
			for i, r := range s.Renew(t.Context(), reqs) {
				if r.Err != nil || r.State != tierlock.LeaseOwned {
					continue
				}
				renewed++
				rec, err := plain.Inspect(t.Context(), reqs[i].Name)
				if err != nil || rec.Left < 30*time.Minute {
					t.Errorf("renewed, and others see %v left, error %v; wanted about an hour", rec.Left, err)
				}
			}
			own, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: name(key("released")), Lease: "lreleased"})
			released := err == nil && own == tierlock.LeaseOwned
			if released {
				if rec, err := plain.Inspect(t.Context(), name(key("released"))); err != nil || rec.Held {
					t.Errorf("released, and others see it held %v, error %v; wanted free", rec.Held, err)
				}
			}
			if left.harmless && !(granted && renewed == 2 && released) {
				t.Errorf("granted %v, renewed %d of 2, released %v (%v, %v); wanted all", granted, renewed, released, res.Token, err)
			}
		})
	}
}

// A server that converts the names on their way would make one lock of two, or
// two of one.
func TestConvertedNamesAreRefused(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	for _, params := range []string{"character_set_connection=latin1", "collation_connection=ucs2_general_ci", "charset=latin1&character_set_connection=utf8mb4"} {
		res, err := open(t, srv.DSN(params), calm).Acquire(t.Context(), ask("ключ", "l", time.Minute))
		if !errors.Is(err, tierlock.ErrMisconfigured) {
			t.Errorf("%s: got granted %v, error %v; wanted misconfigured", params, res.Granted, err)
		}
	}
	for _, params := range []string{"charset=latin1", "charset=gbk", "charset=big5", "charset=utf8mb3"} {
		s := open(t, srv.DSN(params), calm)
		tok := mustAcquire(t, s, ask("ключ '\\ "+params, "l", time.Minute))
		rec, err := open(t, srv.DSN(""), calm).Inspect(t.Context(), name("ключ '\\ "+params))
		if err != nil || rec.Token != tok {
			t.Errorf("%s: others read %v, error %v; wanted %v", params, rec.Token, err, tok)
		}
		if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("ключ '\\ " + params), Lease: "l", TTL: time.Minute}}); res[0].State != tierlock.LeaseOwned {
			t.Errorf("%s: renewal: got %v; wanted owned", params, res[0])
		}
	}
}
