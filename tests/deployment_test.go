package tests_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
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
	// peer is a peer's configuration, over addr.
	peer func(addr string, rs ...tierlock.Resource) peerConfig
	// look reads a lock from the server itself, with the end of its lease by the
	// server's clock, which is this machine's.
	look func(t testing.TB, resource, key string) (tok tierlock.Token, end time.Time, held bool)
	// locks counts those that are held.
	locks func(t testing.TB) int

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
		peer: func(addr string, rs ...tierlock.Resource) peerConfig { return peerConfig{Addr: addr, Resources: rs} },
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
		locks: func(testing.TB) int { return len(srv.Do("KEYS", "lock:*}").([]any)) },
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
		locks: func(t testing.TB) (n int) {
			t.Helper()
			if err := db.QueryRow("SELECT COUNT(*) FROM lock_record WHERE expire_at>UTC_TIMESTAMP(6)").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
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
