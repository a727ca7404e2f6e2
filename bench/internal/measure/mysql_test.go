//go:build unix

package measure_test

import (
	"database/sql"
	"os"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/bench/internal/measure"
	"github.com/tierlock/tierlock/internal/rig"
)

// What a real server says is what was done there.
func TestMySQLServer(t *testing.T) {
	srv := rig.MariaDB(t)
	db, err := sql.Open("mysql", srv.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	must := func(query string, args ...any) {
		t.Helper()
		if _, err := db.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	read := func() measure.Server {
		t.Helper()
		rows, err := db.Query("SHOW GLOBAL STATUS")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		status := make(map[string]int64)
		for rows.Next() {
			var name string
			var value sql.NullString
			if err := rows.Scan(&name, &value); err != nil {
				t.Fatal(err)
			}
			var n int64
			for _, digit := range value.String {
				if n = 10*n + int64(digit-'0'); digit < '0' || digit > '9' {
					n = 0
					break
				}
			}
			status[name] = n
		}
		cpu, err := measure.ProcessCPU(srv.PID())
		if err != nil {
			t.Fatal(err)
		}
		s, err := measure.MySQLServer(status, cpu)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	must("CREATE TABLE a (k INT PRIMARY KEY, v INT)")
	before := read()
	began := time.Now()
	must("INSERT INTO a VALUES (1,2)")
	must("DELETE FROM a WHERE k=?", 1) // prepared, executed, closed
	must("SELECT BENCHMARK(3000000, SHA1('a'))")
	d := read().Sub(before)
	took := time.Since(began)
	if got := d.Total(); got != 3 {
		t.Errorf("%d statements, want 3", got)
	}
	if d.CPU < 10*time.Millisecond || d.CPU > 8*took {
		t.Errorf("CPU %v in %v", d.CPU, took)
	}
	if d.Deadlocks != 0 {
		t.Errorf("%d deadlocks, want none", d.Deadlocks)
	}

	// Two who want each other's row.
	must("INSERT INTO a VALUES (1,0),(2,0)")
	other, err := sql.Open("mysql", srv.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var both [2]*sql.Tx
	for i, db := range [...]*sql.DB{db, other} {
		if both[i], err = db.Begin(); err != nil {
			t.Fatal(err)
		}
		if _, err := both[i].Exec("UPDATE a SET v=1 WHERE k=?", i+1); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := both[0].Exec("UPDATE a SET v=2 WHERE k=2")
		done <- err
	}()
	_, second := both[1].Exec("UPDATE a SET v=2 WHERE k=1")
	if first := <-done; (first == nil) == (second == nil) {
		t.Fatalf("errors %v and %v, want one", first, second)
	}
	both[0].Rollback()
	both[1].Rollback()
	if d := read().Sub(before); d.Deadlocks != 1 {
		t.Errorf("%d deadlocks, want 1", d.Deadlocks)
	}
}

func TestMySQLServerRefuses(t *testing.T) {
	if s, err := measure.MySQLServer(map[string]int64{"Questions": 1, "Com_show_status": 1}, 0); err == nil {
		t.Errorf("no number of deadlocks: got %+v, want an error", s)
	}
}

func TestProcessCPU(t *testing.T) {
	own, err := measure.ProcessCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// Both read the same clock; the second reading is later.
	if all := measure.ReadClient().CPU; own > all+10*time.Millisecond || own < all-5*time.Second {
		t.Errorf("%v, and by getrusage %v", own, all)
	}
	if _, err := measure.ProcessCPU(1 << 30); err == nil {
		t.Error("no error for a process that there is not")
	}
}
