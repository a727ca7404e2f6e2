package mysqlstore_test

import (
	"context"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// calm has a limit that a busy machine keeps.
var calm = mysqlstore.Options{CallTimeout: 15 * time.Second}

// pool is a pool of the test's own.
func pool(t testing.TB, dsn string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(64)
	t.Cleanup(func() { db.Close() })
	return db
}

// open is a store over a pool of its own.
func open(t testing.TB, dsn string, opt mysqlstore.Options) *mysqlstore.Store {
	t.Helper()
	s := mysqlstore.New(pool(t, dsn), opt)
	t.Cleanup(s.Close)
	return s
}

// migrate makes the tables.
func migrate(t testing.TB, srv *rig.MariaDBServer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := open(t, srv.DSN(""), calm).Migrate(ctx); err != nil {
		t.Fatal(err)
	}
}
