package mysqlstore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// drained is holds of another store, some of explicit holders, to be adopted into
// an epoch.
func drained(prefix string, n int, epoch uint16) []tierlock.AdoptRequest {
	reqs := make([]tierlock.AdoptRequest, n)
	for i := range reqs {
		req := atEpoch(ask(fmt.Sprintf("%s %d 'ключ", prefix, i), newLease(), time.Hour), epoch)
		req.Name.Resource = []string{"order:settle", "order:close"}[i%2]
		if i%10 == 3 {
			req.Explicit, req.Token.Holder = true, fmt.Sprint("me ", i)
		}
		reqs[i] = adoptOf(req, uint64(epoch-1)<<49|uint64(1000+i))
	}
	return reqs
}

// A drain has 256 holds adopted in one call: it takes a few statements, whatever
// is there, and every hold is as it was in the other store.
func TestAdoptionOfManyInFewStatements(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	if _, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"}); err != nil {
		t.Fatal(err)
	}
	statements := func() int64 {
		return number(t, db, "SELECT SUM(variable_value) FROM information_schema.global_status WHERE variable_name IN ('Com_insert_select','Com_insert','Com_select','Com_update','Com_stmt_execute')")
	}
	reqs := drained("many", 256, 4)
	before := statements()
	for i, res := range s.Adopt(t.Context(), reqs) {
		if res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Fatalf("%s: %+v", reqs[i].Name, res)
		}
	}
	if n := statements() - before - 1; n > 8 { // two for 250, two for the rest; the clock
		t.Errorf("%d statements for %d holds", n, len(reqs))
	}
	for _, req := range reqs {
		rec, err := s.Inspect(t.Context(), req.Name)
		want := req.Token
		want.Epoch = 4
		if err != nil || rec.Token != want || rec.Left < 50*time.Minute || rec.Holds != 1 {
			t.Fatalf("got %+v, %v; wanted %+v", rec, err, want)
		}
		state, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit, Place: req.Place})
		if err != nil || state != tierlock.LeaseOwned {
			t.Fatalf("release: %v, %v", state, err)
		}
	}
}

// Rows and places of rows that somebody's transaction has locked: their holds alone
// are not adopted. It is the same with the statements that MySQL gets, but for the
// places of rows that are not there: nothing tells that they are locked.
func TestLockedRowsKeepNoOtherHoldFromAdoption(t *testing.T) {
	t.Parallel()
	for version, args := range map[string][]string{"MariaDB": nil, "as MySQL": {"--version=8.0.36"}} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			srv := migrated(t, args...)
			db := admin(t, srv)
			s := open(t, srv.DSN("innodb_lock_wait_timeout=1"), calm)
			// No more than fit on one page of the index: where one is split, the lock
			// of a row becomes one of what is before it, too.
			reqs := drained("locked", 12, 4)
			lock := map[int]bool{0: true, 7: true, 11: true}
			for i := range lock {
				old := ask(reqs[i].Name.Key, newLease(), patience)
				old.Name, old.Place.Epoch = reqs[i].Name, 3
				mustAcquire(t, s, old)
			}
			tx := foreign(t, db, "SET @nothing=0")
			for i := range lock { // by their whole key: not what is between them
				execute(t, tx, fmt.Sprintf("SELECT * FROM lock_record WHERE namespace='test' AND resource_id='%s' AND business_id=x'%x' FOR UPDATE", reqs[i].Name.Resource, reqs[i].Name.Key))
			}
			if args == nil {
				const absent = 4
				lock[absent] = true
				execute(t, tx, "INSERT INTO lock_record SELECT 'test',?,?,'','',1,1,1,0,NULL,'','2000-01-01','2000-01-01'", reqs[absent].Name.Resource, reqs[absent].Name.Key)
			}
			var results []tierlock.RenewResult
			within(t, 3*time.Second, "adopt", func() { results = s.Adopt(t.Context(), reqs) })
			for i, res := range results {
				switch {
				case lock[i]:
					wantClass(t, fmt.Sprint("adopt ", i), res.Err, tierlock.ErrUnavailable)
				case res.Err != nil || res.State != tierlock.LeaseOwned:
					t.Errorf("adopt %d: %+v", i, res)
				}
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			noTransactions(t, db)
			for i, res := range s.Adopt(t.Context(), reqs) {
				if res.Err != nil || res.State != tierlock.LeaseOwned {
					t.Errorf("adopt %d, of a free row: %+v", i, res)
				}
			}
		})
	}
}

// An adoption that is executed when its call is over writes nothing, over no row and
// over one: the hold may have been released by then.
func TestLateAdoptionWritesNothing(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	reqs := drained("late", 30, 4)
	for i := range 10 {
		old := ask(reqs[i].Name.Key, newLease(), patience)
		old.Name, old.Place.Epoch = reqs[i].Name, 3
		mustAcquire(t, s, old)
	}
	adopted := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM lock_record WHERE business_id LIKE 'late%' AND epoch=4")
	}
	if written, err := s.AdoptWithin(t.Context(), reqs, -time.Millisecond); err != nil || written || adopted() != 0 {
		t.Errorf("late: written %v, %v, %d rows; wanted none", written, err, adopted())
	}
	if written, err := s.AdoptWithin(t.Context(), reqs, patience); err != nil || !written || adopted() != 30 {
		t.Errorf("in time: written %v, %v, %d rows; wanted all", written, err, adopted())
	}
}

// Several processes adopt, take, renew and release what is of each other at the
// same time, as in a drain. There is no deadlock, and nothing is half done.
func TestAdoptionsAtOnce(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	var stores []*mysqlstore.Store
	for i := range 6 {
		stores = append(stores, open(t, srv.DSN(at(levels[i%2])), calm))
	}
	before := number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Innodb_deadlocks'")
	for round := range 5 {
		epoch := uint16(3 + round)
		all := drained("at once", 240, epoch) // new leases each time, of the same locks
		var calls sync.WaitGroup
		for i, s := range stores {
			calls.Go(func() {
				mine := append([]tierlock.AdoptRequest(nil), all[i*40:(i+1)*40]...)
				// Every other one is somebody's that is slower, with a smaller fence.
				for _, req := range all[:40] {
					req.Token.Lease, req.Token.Fence, req.Token.Seq = newLease(), uint64(epoch-1)<<49|uint64(i), uint64(i)
					req.Token.Holder += "'s friend"
					mine = append(mine, req)
				}
				for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
					left := mine[:0:0]
					for k, res := range s.Adopt(background, mine) {
						switch {
						case errors.Is(res.Err, tierlock.ErrUnavailable) && time.Now().Before(end):
							left = append(left, mine[k])
						case res.Err != nil:
							t.Errorf("adopt %s: %v", mine[k].Name, res.Err)
						}
					}
					if mine = left; len(mine) == 0 {
						break
					}
				}
			})
			calls.Go(func() {
				for k := range 40 {
					req := all[k*6].Token
					lost := atEpoch(ask(req.Key, newLease(), patience), epoch-1)
					lost.Name = all[k*6].Name
					if res, err := acquirePatiently(s, lost); err != nil && !errors.Is(err, tierlock.ErrEpoch) || res.Granted && round > 0 && res.Token.Epoch != uint64(epoch-1) {
						t.Errorf("acquire at the former epoch: %+v, %v", res, err)
					}
					s.Renew(background, []tierlock.RenewRequest{{Name: lost.Name, Lease: lost.Token.Lease, TTL: patience, Place: lost.Place}})
				}
			})
		}
		calls.Wait()
		for _, req := range all { // each has the largest fence of those of its lock
			rec, err := stores[0].Inspect(background, req.Name)
			if err != nil || rec.Token.Lease != req.Token.Lease || rec.Token.Epoch != uint64(epoch) {
				t.Errorf("round %d: %s: got %+v, %v; wanted %s", round, req.Name, rec.Token, err, req.Token.Lease)
			}
		}
	}
	if n := number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Innodb_deadlocks'") - before; n != 0 {
		t.Errorf("%d deadlocks; wanted none", n)
	}
}
