package mysqlstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// What others have left behind in a connection, see TestSessionsLeftByOthers, with
// statements that were prepared before or are prepared in it, for one call and for
// several: what the store says is true for everybody, or it is an error.
func TestGatheredInSessionsLeftByOthers(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	plain := open(t, srv.DSN(""), calm)
	for _, left := range []string{
		"BEGIN", "SET autocommit=0", "XA START 'x'", "SET timestamp=UNIX_TIMESTAMP()-100", "SET timestamp=UNIX_TIMESTAMP()+100",
		"SET character_set_connection=ucs2", "SET character_set_connection=latin1", "SET SESSION TRANSACTION READ ONLY",
	} {
		for _, gathered := range []bool{false, true} {
			for _, prepared := range []bool{false, true} {
				t.Run(fmt.Sprint(left, "/", gathered, "/", prepared), func(t *testing.T) {
					db := pool(t, srv.DSN(""))
					defer db.Close() // ends what was left, too
					db.SetMaxOpenConns(1)
					s := mysqlstore.New(db, calm)
					defer s.Close()
					inspectSoon(t, s, "warm")
					if gathered {
						s.GatherAlways()
					}
					key := func(k string) string { return k + " ключ " + t.Name()[35:] }
					held := "held " + t.Name()[35:]
					mustAcquire(t, plain, ask(held, "held", patience))
					if prepared {
						mustAcquire(t, s, ask(key("warm"), "warm", patience))
						mustRelease(t, s, drop(key("warm"), "warm"), tierlock.LeaseOwned)
					}
					db.MustExec(left)
					res, err := s.Acquire(t.Context(), ask(key("new"), "l", patience))
					if err != nil {
						wantClass(t, "acquire", err, tierlock.ErrUnavailable)
					} else if rec := mustInspect(t, plain, key("new")); res.Granted && rec.Token != res.Token {
						t.Errorf("granted %v, and others see %v", res.Token, rec.Token)
					}
					if strings.Contains(left, "character_set") {
						return // the read after a release, of names that are converted, is another matter
					}
					if own, err := s.Release(t.Context(), drop(held, "held")); err != nil {
						wantClass(t, "release", err, tierlock.ErrUnavailable)
					} else if rec := mustInspect(t, plain, held); rec.Held {
						t.Errorf("release said %v, and others see it held", own)
					}
				})
			}
		}
	}
}

// Some connections of the pool are in somebody's transaction: the calls that met
// one go by themselves, and all that are granted are.
func TestGatheredMeetsSomebodysTransaction(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	plain := open(t, srv.DSN(""), calm)
	db := pool(t, srv.DSN(""))
	s := mysqlstore.New(db, calm)
	t.Cleanup(s.Close)
	g := gatherCalls(t, s)
	var all []*gotten
	for i := range 30 {
		all = append(all, g.acquire(t.Context(), ask(fmt.Sprint(i), "l", patience)))
	}
	// The pool gives the connection that came back last.
	db.MustExec("BEGIN")
	g.answers()
	granted := 0
	for i, got := range all {
		rec := mustInspect(t, plain, fmt.Sprint(i))
		switch {
		case got.err != nil:
			wantClass(t, "acquire", got.err, tierlock.ErrUnavailable)
		case !got.Granted || rec.Token != got.Token:
			t.Errorf("%d: got %+v; stored is %+v", i, got, rec)
		default:
			granted++
		}
	}
	rig.Eventually(t, patience, "no connection is in use", func() bool { return db.Stats().InUse == 0 })
	t.Logf("%d granted", granted)
}
