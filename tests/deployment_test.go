package tests_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

// deployment is one server of whatever kind, with what the tests that run over
// each kind need of it.
type deployment struct {
	name string
	tier tierlock.Tier
	addr string
	// open opens a store over the server, or over the proxy at addr. It is closed
	// at the end of the test.
	open func(t testing.TB, addr string) tierlock.Store
	// openIn is open with a time limit for each call.
	openIn func(t testing.TB, addr string, limit time.Duration) tierlock.Store
	// peer is a peer's configuration, over addr.
	peer func(addr string, rs ...tierlock.Resource) peerConfig
	// look reads a lock from the server itself, with the end of its lease by the
	// server's clock, which is this machine's.
	look func(t testing.TB, resource, key string) (tok tierlock.Token, end time.Time, held bool)
	// text is the token of a lock as the server keeps it.
	text func(t testing.TB, resource, key string) string
	// locks counts those that are held.
	locks func(t testing.TB) int
	// kept counts all that the server keeps for locks, held or not.
	kept func(t testing.TB) int
	// remove takes a lock away, and wipe all of them, with what is kept for them.
	remove func(t testing.TB, resource, key string)
	wipe   func(t testing.TB)
	// clients counts the connections of others than the test's own looks.
	clients func(t testing.TB) int
	// waiters begins to count the locks that somebody waits for and has been told
	// are held; count gives their number.
	waiters func(t testing.TB) (count func() int)
	// writes begins to count the writes for locks; end gives their number.
	writes func(t testing.TB) (end func() int)

	Pause, Resume, Kill, Start func()
}

// onEach runs a test over each kind of server.
func onEach(t *testing.T, f func(t *testing.T, d *deployment)) {
	t.Run("redis", func(t *testing.T) { f(t, redisDeployment(t)) })
	t.Run("mysql", func(t *testing.T) { f(t, mysqlDeployment(t)) })
}

func redisDeployment(t testing.TB) *deployment {
	srv := rig.Redis(t)
	return &deployment{
		name: "redis", tier: tierlock.Redis, addr: srv.Addr,
		open: func(t testing.TB, addr string) tierlock.Store { return open(t, addr) },
		openIn: func(t testing.TB, addr string, limit time.Duration) tierlock.Store {
			return open(t, addr, redisstore.Options{CallTimeout: limit})
		},
		peer: func(addr string, rs ...tierlock.Resource) peerConfig { return peerConfig{Addr: addr, Resources: rs} },
		text: func(_ testing.TB, resource, key string) string { return srv.Text("GET", keyOf(resource, key)) },
		look: func(t testing.TB, resource, key string) (tok tierlock.Token, end time.Time, held bool) {
			t.Helper()
			text := srv.Text("GET", keyOf(resource, key))
			ms := srv.Int("PEXPIRETIME", keyOf(resource, key))
			if text == "" || ms < 0 {
				return tok, end, false
			}
			if err := tok.UnmarshalJSON([]byte(text)); err != nil {
				t.Errorf("the stored token: %v", err)
			}
			return tok, time.UnixMilli(ms), true
		},
		locks:  func(testing.TB) int { return len(srv.Do("KEYS", "lock:*}").([]any)) },
		kept:   func(testing.TB) int { return int(srv.Int("DBSIZE")) },
		remove: func(_ testing.TB, resource, key string) { srv.Do("DEL", keyOf(resource, key)) },
		wipe:   func(testing.TB) { srv.Do("FLUSHALL") },
		clients: func(testing.TB) int {
			return strings.Count(srv.Text("CLIENT", "LIST"), "\n") - 1
		},
		waiters: func(testing.TB) func() int {
			return func() int { return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) }
		},
		writes: func(testing.TB) func() int {
			// Scripts renew, release and enter; what is left then are the
			// keep-alives of the clients' connections.
			count := func() int { return int(srv.CommandsOf("evalsha") + srv.CommandsOf("set")) }
			before := count()
			return func() int { return count() - before }
		},
		Pause: srv.Pause, Resume: srv.Resume, Kill: srv.Kill, Start: srv.Start,
	}
}

func mysqlDeployment(t testing.TB, args ...string) *deployment {
	srv := migratedServer(t, args...)
	db := mysqlPool(t, srv.DSN("")).DB
	return &deployment{
		name: "mysql", tier: tierlock.MySQL, addr: srv.Addr,
		open: func(t testing.TB, addr string) tierlock.Store {
			return openMySQL(t, srv.DSNVia(addr, mysqlParams), mysqlstore.Options{})
		},
		openIn: func(t testing.TB, addr string, limit time.Duration) tierlock.Store {
			// What a connection may take is no less.
			params := fmt.Sprintf("timeout=500ms&readTimeout=%v&writeTimeout=%[1]v", max(limit, 2*time.Second))
			return openMySQL(t, srv.DSNVia(addr, params), mysqlstore.Options{CallTimeout: limit})
		},
		peer: func(addr string, rs ...tierlock.Resource) peerConfig {
			return peerConfig{Locks: srv.DSNVia(addr, mysqlParams), Resources: rs}
		},
		look: func(t testing.TB, resource, key string) (tok tierlock.Token, end time.Time, held bool) {
			t.Helper()
			var text []byte
			var at int64
			err := db.QueryRow("SELECT token, TIMESTAMPDIFF(MICROSECOND,'1970-01-01',expire_at) FROM lock_record "+
				"WHERE namespace=? AND resource_id=? AND business_id=? AND expire_at>UTC_TIMESTAMP(6)", namespace, resource, key).Scan(&text, &at)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				return tok, end, false
			case err != nil:
				t.Fatal(err)
			}
			if err := tok.UnmarshalJSON(text); err != nil {
				t.Errorf("the stored token: %v", err)
			}
			return tok, time.UnixMicro(at), true
		},
		text: func(t testing.TB, resource, key string) (text string) {
			t.Helper()
			if err := db.QueryRow("SELECT token FROM lock_record WHERE namespace=? AND resource_id=? AND business_id=?",
				namespace, resource, key).Scan(&text); err != nil {
				t.Fatal(err)
			}
			return text
		},
		locks: func(t testing.TB) int {
			t.Helper()
			// The store's own, of the clean-up, is in no user's namespace.
			return countSQL(t, db, "SELECT COUNT(*) FROM lock_record WHERE namespace=? AND expire_at>UTC_TIMESTAMP(6)", namespace)
		},
		kept: func(t testing.TB) int { t.Helper(); return countSQL(t, db, "SELECT COUNT(*) FROM lock_record") },
		remove: func(t testing.TB, resource, key string) {
			t.Helper()
			execSQL(t, db, "DELETE FROM lock_record WHERE namespace=? AND resource_id=? AND business_id=?", namespace, resource, key)
		},
		wipe: func(t testing.TB) { t.Helper(); execSQL(t, db, "TRUNCATE TABLE lock_record") },
		// The test's own looks need one connection.
		clients: func(t testing.TB) int { t.Helper(); return srv.Threads() - db.Stats().OpenConnections },
		waiters: func(t testing.TB) func() int {
			t.Helper()
			logSQL(t, db)
			return func() int {
				t.Helper()
				// Who was refused, and only who was, reads the row of that lock;
				// each process also reads who the cleaner is.
				return countSQL(t, db, "SELECT COUNT(DISTINCT argument) FROM mysql.general_log "+
					"WHERE command_type='Execute' AND argument LIKE 'SELECT lease_id%' AND argument NOT LIKE '%tierlock/cleaner%'")
			}
		},
		writes: func(t testing.TB) func() int {
			t.Helper()
			logSQL(t, db)
			return func() int {
				t.Helper()
				execSQL(t, db, "SET GLOBAL general_log=0")
				// Processes write that they live, to another table, and one of them
				// deletes what is old and keeps that part.
				return countSQL(t, db, "SELECT COUNT(*) FROM mysql.general_log WHERE CONVERT(argument USING utf8mb4) "+
					"REGEXP '(INSERT INTO|UPDATE) lock_record' AND argument NOT LIKE '%tierlock/cleaner%'")
			}
		},
		Pause: srv.Pause, Resume: srv.Resume, Kill: srv.Kill, Start: srv.Start,
	}
}

// mysqlParams is what the package comment of mysqlstore recommends.
const mysqlParams = "timeout=500ms&readTimeout=2s&writeTimeout=2s"

// migratedServer is a mariadbd with the tables.
func migratedServer(t testing.TB, args ...string) *rig.MariaDBServer {
	t.Helper()
	srv := rig.MariaDB(t, args...)
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := openMySQL(t, srv.DSN(""), mysqlstore.Options{}).Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	return srv
}

func mysqlPool(t testing.TB, dsn string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(32)
	t.Cleanup(func() { db.Close() })
	return db
}

func openMySQL(t testing.TB, dsn string, opt mysqlstore.Options) *mysqlstore.Store {
	t.Helper()
	s := mysqlstore.New(mysqlPool(t, dsn), opt)
	t.Cleanup(s.Close)
	return s
}

// logSQL has the server note anew all statements that it gets, in the table
// mysql.general_log.
func logSQL(t testing.TB, db *sql.DB) {
	t.Helper()
	execSQL(t, db, "SET GLOBAL general_log=0")
	execSQL(t, db, "TRUNCATE TABLE mysql.general_log")
	execSQL(t, db, "SET GLOBAL log_output='TABLE', GLOBAL general_log=1")
}

func countSQL(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// wantGone checks that a lock is not held now.
func (d *deployment) wantGone(t testing.TB, resource, key string) {
	t.Helper()
	if tok, _, held := d.look(t, resource, key); held {
		t.Errorf("%s/%s is held by %v", resource, key, tok)
	}
}

// goneWithin waits until a lock is not held.
func (d *deployment) goneWithin(t testing.TB, within time.Duration, resource, key string) {
	t.Helper()
	rig.Eventually(t, within, resource+"/"+key+" is not held", func() bool {
		_, _, held := d.look(t, resource, key)
		return !held
	})
}

// warm has the store connect, and know the server and its clock: what is
// measured next is the fault alone.
func warm(t testing.TB, l *tierlock.Locker) {
	t.Helper()
	mustUnlock(t, mustLock(t, l, "job", "first", tierlock.Wait(patience)))
}
