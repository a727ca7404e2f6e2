package mysqlstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Leases of one explicit holder that ask for a free lock at the same moment all
// get into one hold: who loses the race for the row enters, and is not told that
// the lock is held.
func TestExplicitHoldersMeetAtAFreeLock(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	stores := []*mysqlstore.Store{open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)}
	const leases, rounds = 8, 40
	for round := range rounds {
		key := fmt.Sprint("k", round)
		var mu sync.Mutex
		fences := make(map[uint64]int)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for i := range leases {
			all.Go(func() {
				req := ask(key, fmt.Sprint("l", i), time.Minute)
				req.Explicit, req.Token.Holder = true, "job"
				<-begin
				res, err := acquirePatiently(stores[i%len(stores)], req)
				if err != nil || !res.Granted {
					t.Errorf("round %d, lease %d: got granted %v, holder %q, error %v; wanted it to enter its own holder's hold",
						round, i, res.Granted, res.Token.Holder, err)
					return
				}
				mu.Lock()
				fences[res.Token.Fence]++
				mu.Unlock()
			})
		}
		close(begin)
		all.Wait()
		if t.Failed() {
			return
		}
		rec, err := stores[0].Inspect(t.Context(), name(key))
		if err != nil || rec.Holds != leases || len(fences) != 1 {
			t.Fatalf("round %d: %d leases in the hold (error %v), fences %v; wanted %d leases of one fence", round, rec.Holds, err, fences, leases)
		}
	}
}
