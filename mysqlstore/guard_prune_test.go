package mysqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Rows are deleted when nobody has used them for seven days, not sooner, each of
// them, over several pages and two resources, by a pool of one connection.
func TestPruneGuard(t *testing.T) {
	server := rig.MariaDB(t)
	for _, params := range []string{
		"", "character_set_connection=latin1", "clientFoundRows=true&interpolateParams=true&time_zone=%27%2B13%3A00%27",
	} {
		db := guardPool(t, server, params)
		db.SetMaxOpenConns(1)
		prune := func(want int64) {
			t.Helper()
			if n, err := mysqlstore.PruneGuard(guardContext(t), db); err != nil || n != want {
				t.Fatalf("%d rows pruned and %v, want %d", n, err, want)
			}
		}
		prune(0)
		const each = 800 // of two resources; every third is old
		var values []string
		for _, resource := range []string{"a", "b"} {
			for i := range each {
				age := []string{"7 0:01", "6 23:00", "0 0:00"}[i%3]
				values = append(values, fmt.Sprintf("('%s', x'%x', 5, UTC_TIMESTAMP(6) - INTERVAL '%s' DAY_MINUTE)",
					resource, fmt.Sprintf("ｋ%d", i), age))
			}
		}
		guardExec(t, db, "INSERT INTO tierlock_guard VALUES "+strings.Join(values, ","))
		const old = (each + 2) / 3 * 2
		prune(old)
		var left int
		if err := db.QueryRow("SELECT COUNT(*) FROM tierlock_guard WHERE used_at > UTC_TIMESTAMP(6) - INTERVAL 7 DAY").Scan(&left); err != nil || left != 2*each-old {
			t.Fatalf("%d young rows are left (%v), want %d", left, err, 2*each-old)
		}
		prune(0)
		guardExec(t, db, "DELETE FROM tierlock_guard")
	}
}

// A use, also with an unchanged fence, keeps the row; a refusal is none. What a
// pruned row no longer refuses is the stated risk.
func TestPruneGuardSparesWhatIsUsed(t *testing.T) {
	db := guardPool(t, rig.MariaDB(t), "")
	age := func() { guardExec(t, db, "UPDATE tierlock_guard SET used_at = used_at - INTERVAL 8 DAY") }
	prune := func(want int64) {
		t.Helper()
		if n, err := mysqlstore.PruneGuard(guardContext(t), db); err != nil || n != want {
			t.Fatalf("%d rows pruned and %v, want %d", n, err, want)
		}
	}
	for _, token := range []tierlock.Token{guardToken("42", 5), guardToken("42", 5), guardToken("42", 6)} {
		if err := guarded(t, db, token); err != nil {
			t.Fatal(err)
		}
		prune(0)
		age()
	}
	if err := guarded(t, db, guardToken("42", 6)); err != nil {
		t.Fatal(err)
	}
	prune(0)
	age()
	wantFenced(t, guarded(t, db, guardToken("42", 5)), "42", 5, 6)
	prune(1)
	if err := guarded(t, db, guardToken("42", 5)); err != nil {
		t.Fatal(err)
	}
}

// A row that comes to life between the reading and the deletion stays, and one
// that a transaction holds does not keep the others from going.
func TestPruneGuardWhileRowsAreUsed(t *testing.T) {
	server := rig.MariaDB(t)
	db := guardPool(t, server, "")
	impatient := guardPool(t, server, "innodb_lock_wait_timeout=1")
	for _, key := range []string{"a", "b", "c"} {
		if err := guarded(t, db, guardToken(key, 5)); err != nil {
			t.Fatal(err)
		}
	}
	guardExec(t, db, "UPDATE tierlock_guard SET used_at = used_at - INTERVAL 8 DAY")
	using := guardBegin(t, db, 0)
	if err := mysqlstore.Guard(guardContext(t), using, guardToken("b", 6)); err != nil {
		t.Fatal(err)
	}
	if n, err := mysqlstore.PruneGuard(guardContext(t), impatient); n != 2 || err != nil {
		t.Fatalf("%d rows pruned and %v, want a and c", n, err)
	}
	guardExec(t, db, "INSERT INTO tierlock_guard VALUES ('order', 'c', 5, UTC_TIMESTAMP(6) - INTERVAL 8 DAY)")
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := mysqlstore.PruneGuard(guardContext(t), db); n != 1 || err != nil {
			t.Errorf("%d rows pruned and %v, want c", n, err)
		}
	})
	untilWaiting(t, db, 1)
	if err := using.Commit(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if fence, ok := storedFence(t, db, "b"); !ok || fence != 6 {
		t.Errorf("b has fence %d (%v), want 6", fence, ok)
	}
	wantFenced(t, guarded(t, db, guardToken("b", 5)), "b", 5, 6)
}
