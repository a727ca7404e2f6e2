package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// atEpoch is a request of an exclusive place.
func atEpoch(req tierlock.AcquireRequest, epoch uint16) tierlock.AcquireRequest {
	req.Place = tierlock.Place{Epoch: epoch, Exclusive: true}
	return req
}

// What belongs to an epoch waits for the row of its lock, and meanwhile somebody
// gets that in a later one: as soon as the row is free the statement is executed,
// within its time, and must not touch what is there by then.
func TestStatementsOfAnEarlierEpochAreLate(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36") // on MariaDB no acquire waits
	db := admin(t, srv)
	for _, level := range levels {
		s := open(t, srv.DSN(at(level)), calm)
		for _, explicit := range []bool{false, true} {
			for _, take := range []string{"taken", "adopted", "adopted by the same lease"} {
				for op, call := range map[string]func(req tierlock.AcquireRequest) error{
					"acquire": func(req tierlock.AcquireRequest) error {
						_, err := s.Acquire(background, req)
						return err
					},
					"acquire by another": func(req tierlock.AcquireRequest) error {
						req.Token.Lease = newLease()
						_, err := s.Acquire(background, req)
						return err
					},
					"renew": func(req tierlock.AcquireRequest) error {
						return s.Renew(background, []tierlock.RenewRequest{{Name: req.Name, Lease: req.Token.Lease, Explicit: explicit, TTL: 2 * patience, Place: req.Place}})[0].Err
					},
					"release": func(req tierlock.AcquireRequest) error {
						_, err := s.Release(background, tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: explicit, Place: req.Place})
						return err
					},
					"keep": func(req tierlock.AcquireRequest) error {
						_, err := s.Release(background, tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: explicit, Place: req.Place, Keep: time.Millisecond})
						return err
					},
					"adopt": func(req tierlock.AcquireRequest) error {
						req.TTL = 2 * patience // so that what is there does not do
						return s.Adopt(background, []tierlock.AdoptRequest{adoptOf(req, 1<<49|7)})[0].Err
					},
				} {
					t.Run(fmt.Sprintf("%s/explicit %v/%s/%s", level, explicit, take, op), func(t *testing.T) {
						key := t.Name()
						req := ask(key, newLease(), patience)
						if explicit {
							req = askAs("me", key, newLease(), patience)
						}
						req = atEpoch(req, 2)
						mustAcquire(t, s, req)
						// Another's transaction has the row, and in it puts the row of
						// the later epoch there, as a statement of a later epoch does
						// that came just before.
						later := atEpoch(req, 3)
						if take != "adopted by the same lease" {
							later.Token.Lease = newLease()
							later.Token.Holder = "you"
						}
						want := copyOfLater(t, s, db, later, take)
						tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row(key)+" FOR UPDATE")
						var err error
						done := make(chan struct{})
						go func() { defer close(done); err = call(req) }()
						waits := func() bool {
							select {
							case <-done: // an adoption does not wait for rows
								return true
							default:
								return lockWaits(t, db) > 0
							}
						}
						rig.Eventually(t, patience, "the statement waits", waits)
						execute(t, tx, "REPLACE INTO lock_record SELECT namespace,resource_id,?,lease_id,holder_id,fence,epoch,attempt,reentrant,entries,token,expire_at,create_time FROM lock_record WHERE "+row("later "+key), key)
						if err := tx.Commit(); err != nil {
							t.Fatal(err)
						}
						<-done
						if op == "adopt" && errors.Is(err, tierlock.ErrUnavailable) {
							err = call(req) // it was locked; the next one comes later still
						}
						if !errors.Is(err, tierlock.ErrEpoch) {
							t.Errorf("got %v; wanted %v", err, tierlock.ErrEpoch)
						}
						noTransactions(t, db)
						if got := readPlaceRow(t, db, key); got.text != want.text {
							t.Errorf("the row changed from\n%s to\n%s", want.text, got.text)
						}
					})
				}
			}
		}
	}
}

// copyOfLater makes a row as the later grant would, of another key.
func copyOfLater(t *testing.T, s *mysqlstore.Store, db *sql.DB, later tierlock.AcquireRequest, take string) placeRow {
	t.Helper()
	later.Name.Key = "later " + later.Name.Key
	if take == "taken" {
		mustAcquire(t, s, later)
	} else {
		later.TTL = patience
		if res := s.Adopt(t.Context(), []tierlock.AdoptRequest{adoptOf(later, 1<<49|9)})[0]; res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Fatalf("adopt: %+v", res)
		}
	}
	return readPlaceRow(t, db, later.Name.Key)
}

// A server that is not the one that was meant refuses everything of an exclusive
// place, changes nothing, and serves what is not exclusive: by whichever statement a
// lock is taken, that for one call, that for several, that for the row of a lock that
// was released here, and that which enters.
func TestAnotherServerThanMeant(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	probed, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "test"})
	is := probed.Incarnation
	if err != nil || is == "" {
		t.Fatalf("probe: %q, %v", is, err)
	}
	together := open(t, srv.DSN(""), calm)
	together.GatherAlways()
	for _, explicit := range []bool{false, true} {
		request := func(key string) tierlock.AcquireRequest {
			req := ask(key, newLease(), patience)
			if explicit {
				req = askAs("me", key, newLease(), patience)
			}
			return req
		}
		here := tierlock.Place{Epoch: 2, Incarnation: is, Exclusive: true}
		there := tierlock.Place{Epoch: 2, Incarnation: is + "'", Exclusive: true}
		key := fmt.Sprint("held ", explicit)
		held := request(key)
		held.Place = here
		token := mustAcquire(t, s, held)
		left := held
		left.Name.Key = fmt.Sprint("left ", explicit)
		mustAcquire(t, s, left)
		mustRelease(t, s, tierlock.ReleaseRequest{Name: left.Name, Lease: left.Token.Lease, Explicit: explicit, Place: here}, tierlock.LeaseOwned)
		before, leftBefore := readPlaceRow(t, db, key), readPlaceRow(t, db, left.Name.Key)
		for _, epoch := range []uint16{1, 2, 3} { // whatever the row's
			there.Epoch = epoch
			all := map[string]error{}
			for _, key := range []string{key, left.Name.Key, "new"} {
				req := held
				req.Name.Key, req.Place = key, there
				_, all["acquire "+key] = s.Acquire(t.Context(), req)
				req.Token.Lease = newLease()
				_, all["acquire by another "+key] = s.Acquire(t.Context(), req)
				_, all["acquire with others "+key] = together.Acquire(t.Context(), req)
				s.NoteReleased(req.Name)
				_, all["acquire again "+key] = s.Acquire(t.Context(), req)
				res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: held.Token.Lease, Explicit: explicit, TTL: 2 * patience, Place: there}})
				all["renew "+key] = res[0].Err
				_, all["release "+key] = s.Release(t.Context(), tierlock.ReleaseRequest{Name: name(key), Lease: held.Token.Lease, Explicit: explicit, Place: there})
				req = held
				req.Name.Key, req.Place = key, there
				all["adopt "+key] = s.Adopt(t.Context(), []tierlock.AdoptRequest{adoptOf(req, 1<<49|7)})[0].Err
			}
			for what, err := range all {
				if !errors.Is(err, tierlock.ErrEpoch) {
					t.Errorf("%s at %+v: got %v; wanted %v", what, there, err, tierlock.ErrEpoch)
				}
			}
			if after := readPlaceRow(t, db, key); after.text != before.text {
				t.Fatalf("the row changed from\n%s to\n%s", before.text, after.text)
			}
			if after := readPlaceRow(t, db, left.Name.Key); after.text != leftBefore.text {
				t.Fatalf("the row of the lock that was released changed from\n%s to\n%s", leftBefore.text, after.text)
			}
			if n := number(t, db, "SELECT COUNT(*) FROM lock_record WHERE business_id='new'"); n != 0 {
				t.Fatalf("%d rows that were refused", n)
			}
		}
		there.Epoch = 2
		if explicit { // the server has changed since the row was read
			if written, err := s.EnterAt(t.Context(), held, there); err != nil || written {
				t.Errorf("entered: %v, %v", written, err)
			}
			if written, err := s.EnterAt(t.Context(), held, here); err != nil || !written {
				t.Errorf("entered where it was meant to be: %v, %v", written, err)
			}
		}
		// Several renewals in one statement, of both kinds of places.
		reqs := []tierlock.RenewRequest{
			{Name: name(key), Lease: held.Token.Lease, Explicit: explicit, TTL: 2 * patience, Place: there},
			{Name: name("none"), Lease: newLease(), Explicit: explicit, TTL: 2 * patience, Place: there},
			{Name: name(key), Lease: held.Token.Lease, Explicit: explicit, TTL: 2 * patience, Place: here},
			{Name: name("none"), Lease: newLease(), Explicit: explicit, TTL: 2 * patience, Place: here},
		}
		res := s.Renew(t.Context(), reqs)
		for i, want := range []tierlock.Ownership{0, 0, tierlock.LeaseOwned, tierlock.LeaseGone} {
			if res[i].State != want || (want == 0) != errors.Is(res[i].Err, tierlock.ErrEpoch) {
				t.Errorf("renewal %d: got %+v; wanted %v", i, res[i], want)
			}
		}
		// Not exclusive: any server will do.
		there.Exclusive = false
		best := request(fmt.Sprint("best effort ", explicit))
		best.Place = there
		mustAcquire(t, s, best)
		held.Place = there
		if again := mustAcquire(t, s, held); again != token {
			t.Errorf("got %+v; wanted %+v", again, token)
		}
		mustRelease(t, s, tierlock.ReleaseRequest{Name: held.Name, Lease: held.Token.Lease, Explicit: explicit, Place: there}, tierlock.LeaseOwned)
	}
}

// One lock, exclusive, in epochs that follow each other: takes, renewals, releases
// and adoptions of all epochs at once never undo the latest, and there is no
// deadlock.
func TestEpochsAtOnce(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	const keys, rounds, epochs = 40, 6, 5
	stores := []*mysqlstore.Store{open(t, srv.DSN(at("REPEATABLE-READ")), calm), open(t, srv.DSN(at("READ-COMMITTED")), calm)}
	before := number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Innodb_deadlocks'")
	highest := make([]uint64, keys) // of the fences granted for each key
	for round := range rounds {
		var all sync.WaitGroup
		var mu sync.Mutex
		for n := range 4 * epochs {
			epoch, s := uint16(round*epochs+n%epochs+1), stores[n%2]
			all.Go(func() {
				var renewals []tierlock.RenewRequest
				var adoptions []tierlock.AdoptRequest
				for k := range keys {
					req := atEpoch(ask(fmt.Sprint("k", k), newLease(), patience), epoch)
					if k%2 == n%2 { // adopted in one go
						adoptions = append(adoptions, adoptOf(req, uint64(epoch-1)<<49|uint64(100+n)))
						continue
					}
					res, err := acquirePatiently(s, req)
					switch {
					case err != nil && !errors.Is(err, tierlock.ErrEpoch):
						t.Errorf("acquire at %d: %v", epoch, err)
					case err == nil && res.Granted:
						mu.Lock()
						if res.Token.Epoch != uint64(epoch) || res.Token.Fence>>49 != uint64(epoch) {
							t.Errorf("granted %+v at epoch %d", res.Token, epoch)
						}
						highest[k] = max(highest[k], res.Token.Fence)
						mu.Unlock()
						renewals = append(renewals, tierlock.RenewRequest{Name: req.Name, Lease: req.Token.Lease, TTL: patience, Place: req.Place})
					}
				}
				for _, res := range s.Adopt(background, adoptions) {
					if res.Err != nil && !errors.Is(res.Err, tierlock.ErrEpoch) && !errors.Is(res.Err, tierlock.ErrUnavailable) {
						t.Errorf("adopt at %d: %v", epoch, res.Err)
					}
				}
				for i, res := range s.Renew(background, renewals) {
					if res.Err != nil && !errors.Is(res.Err, tierlock.ErrEpoch) && !errors.Is(res.Err, tierlock.ErrUnavailable) {
						t.Errorf("renew at %d: %v", epoch, res.Err)
					}
					if res.State == tierlock.LeaseOwned && i%2 == 0 {
						_, err := releasePatiently(s, tierlock.ReleaseRequest{Name: renewals[i].Name, Lease: renewals[i].Lease, Place: renewals[i].Place})
						if err != nil && !errors.Is(err, tierlock.ErrEpoch) {
							t.Errorf("release at %d: %v", epoch, err)
						}
					}
				}
			})
		}
		all.Wait()
		for k := range keys {
			r := readPlaceRow(t, db, fmt.Sprint("k", k))
			if want := uint16((round + 1) * epochs); r.epoch != want || r.fence < highest[k] {
				t.Errorf("round %d, key %d: epoch %d, fence %d; wanted epoch %d and at least %d", round, k, r.epoch, r.fence, want, highest[k])
			}
		}
	}
	if n := number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Innodb_deadlocks'") - before; n != 0 {
		t.Errorf("%d deadlocks; wanted none", n)
	}
}
