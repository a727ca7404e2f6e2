package rig_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/rig"
)

// openSQL is a pool of connections, closed with the test.
func openSQL(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execSQL(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func textSQL(t testing.TB, db *sql.DB, query string, args ...any) string {
	t.Helper()
	var s string
	if err := db.QueryRow(query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

func wantSQL(t testing.TB, db *sql.DB, want, query string, args ...any) {
	t.Helper()
	if got := textSQL(t, db, query, args...); got != want {
		t.Errorf("%s answered %q, want %q", query, got, want)
	}
}

func TestMariaDB(t *testing.T) {
	rig.NoLeak(t)
	s := rig.MariaDB(t, "--max-connections=17")
	db := openSQL(t, s.DSN("timeout=10s"))
	wantSQL(t, db, "tierlock", "SELECT DATABASE()")
	wantSQL(t, db, "0", "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()")
	wantSQL(t, db, "17", "SELECT @@max_connections")
	// As durable as what users run.
	wantSQL(t, db, "1", "SELECT @@innodb_flush_log_at_trx_commit")
	wantSQL(t, db, "REPEATABLE-READ", "SELECT @@tx_isolation")
	wantSQL(t, db, "0", "SELECT @@log_bin")
}

func TestMariaDBMisused(t *testing.T) {
	wantFailure(t, "mariadbd ended at its start", func(t testing.TB) { rig.MariaDB(t, "--no-such-option=1") })
	t.Run("missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		rig.SetSuperuserDirs(t)
		wantFailure(t, "mariadbd is not installed; install it with `apt-get install mariadb-server` or `make deps`",
			func(t testing.TB) { rig.MariaDB(t) })
	})
	wantFailure(t, "is to be started, but runs", func(t testing.TB) { rig.MariaDB(t).Start() })
}

// What was committed is there after an orderly end and after a crash.
func TestMariaDBKeepsItsData(t *testing.T) {
	rig.NoLeak(t)
	s := rig.MariaDB(t)
	db := openSQL(t, s.DSN(""))
	execSQL(t, db, "CREATE TABLE k (id INT PRIMARY KEY) ENGINE=InnoDB")
	execSQL(t, db, "INSERT INTO k VALUES (1)")
	pid, addr := s.PID(), s.Addr
	s.Restart()
	if s.PID() == pid || s.Addr != addr {
		t.Errorf("process %d at %s, want another than %d at %s", s.PID(), s.Addr, pid, addr)
	}
	db = openSQL(t, s.DSN(""))
	execSQL(t, db, "INSERT INTO k VALUES (2)")
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO k VALUES (3)"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Kill()
	if err := tx.Commit(); err == nil {
		t.Error("a killed server committed")
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a killed server gave %v, want it refused", err)
	}
	s.Start()
	wantSQL(t, openSQL(t, s.DSN("")), "1,2", "SELECT GROUP_CONCAT(id ORDER BY id) FROM k")
}

func TestMariaDBPause(t *testing.T) {
	rig.NoLeak(t)
	s := rig.MariaDB(t)
	db := openSQL(t, s.DSN(""))
	execSQL(t, db, "CREATE TABLE k (id INT PRIMARY KEY)")
	s.Pause()
	done := make(chan error, 1)
	go func() { done <- tryFor(db, 6*soon, "INSERT INTO k VALUES (1)") }()
	select {
	case err := <-done:
		t.Fatalf("a paused server answered, %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	s.Resume()
	s.Resume()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantSQL(t, db, "1", "SELECT COUNT(*) FROM k")
	// A paused server can be stopped, started, and killed by the cleanup.
	s.Pause()
	s.Stop()
	s.Start()
	s.Pause()
}

// Two servers share nothing, and nothing is left of one when its test ends.
func TestMariaDBCleanup(t *testing.T) {
	var addr, dir string
	if got := failureOf(func(t testing.TB) {
		a, b := rig.MariaDB(t), rig.MariaDB(t)
		db := openSQL(t, a.DSN(""))
		execSQL(t, db, "CREATE TABLE only_a (id INT)")
		wantSQL(t, openSQL(t, b.DSN("")), "0",
			"SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'only_a'")
		// Nor the directory of temporary tables, which a start empties.
		for _, s := range []*rig.MariaDBServer{a, b} {
			wantSQL(t, openSQL(t, s.DSN("")), s.Dir, "SELECT @@tmpdir")
		}
		addr, dir = a.Addr, a.Dir
	}); got != "" {
		t.Error(got)
	}
	if _, err := net.DialTimeout("tcp", addr, soon); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling after the test gave %v, want it refused", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory is still there: %v", err)
	}
}

// Connections are counted from the server's side, whoever has forgotten them.
func TestMariaDBThreads(t *testing.T) {
	rig.NoLeak(t)
	s := rig.MariaDB(t, "--event-scheduler=ON")
	threads := func(want int) {
		t.Helper()
		var got int
		defer func() {
			t.Helper()
			if got != want {
				t.Errorf("%d threads, want %d", got, want)
			}
		}()
		rig.Eventually(t, soon, "the number of threads", func() bool { got = s.Threads(); return got == want })
	}
	threads(0)
	db := openSQL(t, s.DSN(""))
	var conns []*sql.Conn
	for range 3 {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	threads(3)
	silent := dial(t, s.Addr) // greeted, and never logs in
	threads(4)
	silent.Close()
	threads(3)

	// One that executes counts, although its client has gone.
	giveUp := start(conns[0], "DO SLEEP(600)")
	rig.Eventually(t, soon, "the server sleeps", func() bool {
		var n int
		err := conns[1].QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'").Scan(&n)
		return err == nil && n == 1
	})
	if err := giveUp(); !errors.Is(err, context.Canceled) {
		t.Errorf("SLEEP ended with %v", err)
	}
	for _, c := range conns {
		c.Close()
	}
	db.Close()
	threads(1)
}
