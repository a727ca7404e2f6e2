package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// deadlocksFound is how many the server has found since it was started.
func deadlocksFound(t testing.TB, db *sql.DB) (n int64) {
	t.Helper()
	var v string
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(new(string), &v); err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(v, &n)
	return n
}

// A row that was made is undone while several want it, as by a statement for several
// calls that meets a locked row. The server hands what waits for it on to the next
// row, as locks of the gap, where each keeps the others from making the row anew.
func TestUndoneRowThatOthersWant(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, level := range levels {
		for _, kind := range []string{"plain", "explicit", "placed"} {
			t.Run(level+"/"+kind, func(t *testing.T) {
				before := deadlocksFound(t, db)
				key := level + kind
				execute(t, db, insertRow, key+"z")
				tx := foreign(t, db, insertRow, key)
				const rivals = 3
				var stores [rivals]*mysqlstore.Store
				for i := range stores {
					stores[i] = open(t, srv.DSN(at(level)), calm)
					inspectSoon(t, stores[i], key)
				}
				sent := executed(t, srv)
				var calls sync.WaitGroup
				granted := make(chan string, rivals)
				for i, s := range stores {
					calls.Go(func() {
						req := ask(key, fmt.Sprint("l", i), patience)
						switch kind {
						case "explicit":
							req = askAs(fmt.Sprint("h", i), key, fmt.Sprint("l", i), patience)
						case "placed":
							req = atEpoch(req, 1)
						}
						res, err := acquirePatiently(s, req)
						if err != nil {
							t.Errorf("acquire: %v", err)
						} else if res.Granted {
							granted <- res.Token.Lease
						}
					})
				}
				rig.Eventually(t, patience, "each has met the row", func() bool { return executed(t, srv)-sent >= 2*rivals })
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
				calls.Wait()
				if len(granted) != 1 {
					t.Errorf("%d granted", len(granted))
				}
				if n := deadlocksFound(t, db) - before; n != 0 {
					t.Errorf("%d deadlocks", n)
				}
			})
		}
	}
}
