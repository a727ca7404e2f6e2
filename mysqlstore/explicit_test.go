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

// Sixteen at once, on two stores, take one free lock under one holder id: one
// takes it and the others enter. None is told that it is held.
func TestManyTakeOneFreeLock(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	stores := []*mysqlstore.Store{open(t, srv.DSN(""), calm), open(t, srv.DSN(at("READ-COMMITTED")), calm)}
	for round := range 20 {
		key := fmt.Sprint("k", round)
		if round%2 == 1 {
			key = "again" // a row that is there
		}
		var tokens [16]tierlock.AcquireResult
		var all sync.WaitGroup
		reqs := make([]tierlock.AcquireRequest, len(tokens))
		for i := range tokens {
			reqs[i] = askAs("h", key, newLease(), patience)
			all.Go(func() {
				var err error
				if tokens[i], err = acquirePatiently(stores[i%2], reqs[i]); err != nil || !tokens[i].Granted {
					t.Errorf("round %d, %d: got %+v, %v; wanted a grant", round, i, tokens[i], err)
				}
			})
		}
		all.Wait()
		first := 0
		for i := range tokens {
			if !tokens[i].Reentered {
				first++
			}
			if tokens[i].Token.Fence != tokens[0].Token.Fence {
				t.Errorf("round %d: fences %d and %d in one hold", round, tokens[0].Token.Fence, tokens[i].Token.Fence)
			}
		}
		if first != 1 {
			t.Errorf("round %d: %d took it; wanted one", round, first)
		}
		if rec := mustInspect(t, stores[0], key); rec.Holds != len(tokens) {
			t.Errorf("round %d: %d leases in the hold; wanted %d", round, rec.Holds, len(tokens))
		}
		for i := range tokens {
			all.Go(func() {
				if got, err := releasePatiently(stores[(i+1)%2], dropAs(key, reqs[i].Token.Lease)); err != nil || got != tierlock.LeaseOwned {
					t.Errorf("round %d: release %d: %v, %v", round, i, got, err)
				}
			})
		}
		all.Wait()
		if rec := mustInspect(t, stores[0], key); rec.Held {
			t.Fatalf("round %d: held after the last release: %+v", round, rec)
		}
	}
}

// Sixteen enter and leave one hold on two stores for as long as they like; no
// change of one is lost to that of another, and the hold ends with its last.
func TestManyEnterAndLeave(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	stores := []*mysqlstore.Store{open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)}
	anchor := newLease()
	hold := mustAcquire(t, stores[0], askAs("h", "k", anchor, patience))
	end := time.Now().Add(2 * time.Second)
	rounds := make([]int, 16)
	var all sync.WaitGroup
	for i := range rounds {
		all.Go(func() {
			s := stores[i%2]
			for time.Now().Before(end) {
				lease := newLease()
				res, err := acquirePatiently(s, askAs("h", "k", lease, patience))
				if err != nil || !res.Granted || !res.Reentered || res.Token.Fence != hold.Fence {
					t.Errorf("enter: got %+v, %v; wanted the hold with fence %d", res, err, hold.Fence)
					return
				}
				var renewed tierlock.RenewResult
				if err := patiently(func() error {
					renewed = s.Renew(background, []tierlock.RenewRequest{{Name: name("k"), Lease: lease, Explicit: true, TTL: 2 * patience}})[0]
					return renewed.Err
				}); err != nil || renewed.State != tierlock.LeaseOwned {
					t.Errorf("renew: %+v", renewed)
				}
				if got, err := releasePatiently(s, dropAs("k", lease)); err != nil || got != tierlock.LeaseOwned {
					t.Errorf("leave: %v, %v", got, err)
				}
				rounds[i]++
			}
		})
	}
	all.Wait()
	t.Logf("rounds: %v", rounds)
	if rec := mustInspect(t, stores[1], "k"); rec.Holds != 1 || rec.Token != hold {
		t.Errorf("afterwards: %+v; wanted one lease of %+v", rec, hold)
	}
	mustRelease(t, stores[1], dropAs("k", anchor), tierlock.LeaseOwned)
	if mustInspect(t, stores[0], "k").Held {
		t.Error("held after the last release")
	}
}

// A hold ends, and another holder's begins, between two that enter: those who come
// late are told "held", and never enter the new hold by mistake.
func TestHoldersTakeTurns(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	stores := []*mysqlstore.Store{open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)}
	end := time.Now().Add(2 * time.Second)
	var mu sync.Mutex
	inside := map[string]int{}
	grants := map[string]int{}
	var all sync.WaitGroup
	for i := range 8 {
		holder := fmt.Sprint("h", i%3)
		all.Go(func() {
			s := stores[i%2]
			for time.Now().Before(end) {
				lease := newLease()
				res, err := acquirePatiently(s, askAs(holder, "k", lease, patience))
				switch {
				case errors.Is(err, tierlock.ErrUnavailable):
					t.Errorf("enter: %v", err)
				case err != nil:
					t.Errorf("enter: %v", err)
				case res.Granted:
					mu.Lock()
					inside[holder]++
					grants[holder]++
					for h, n := range inside {
						if h != holder && n > 0 {
							t.Errorf("%s is inside together with %s", h, holder)
						}
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					inside[holder]--
					mu.Unlock()
					if got, err := releasePatiently(s, dropAs("k", lease)); err != nil || got != tierlock.LeaseOwned {
						t.Errorf("leave: %v, %v", got, err)
					}
				case res.Token.Holder == holder:
					t.Errorf("%s is told that it is held by itself: %+v", holder, res)
				}
			}
		})
	}
	all.Wait()
	t.Logf("grants: %v", grants)
}
