package mysqlstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// The database's clock is stepped in mid hold. Each step is met by a store that
// knew the clock before, by one that did not, and by the holder's.

func steppable(t *testing.T, args ...string) (*rig.MariaDBServer, *rig.WallClock) {
	t.Helper()
	srv, clock := rig.MariaDBWithClock(t, args...)
	migrate(t, srv)
	return srv, clock
}

// soonAcquire repeats an acquire as long as it is refused for lateness, which a
// step causes once, and a machine that stands still perhaps once more.
func soonAcquire(t testing.TB, s tierlock.Store, req tierlock.AcquireRequest) tierlock.AcquireResult {
	t.Helper()
	for try := 1; ; try++ {
		res, err := s.Acquire(t.Context(), req)
		switch {
		case err == nil:
			return res
		case !errors.Is(err, tierlock.ErrLate) || try == 3:
			t.Fatalf("acquire %s, try %d: %v", req.Name, try, err)
		}
	}
}

// Forward: a lease whose end has come by the new clock may be taken, as the
// package comment says of every clock that decides; the fence tells the younger,
// the former holder is told at once, and a free lock is never said to be held.
func TestClockSteppedForward(t *testing.T) {
	t.Parallel()
	srv, clock := steppable(t)
	holder, knowing := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	var last uint64
	for i, step := range []time.Duration{time.Minute, time.Hour, 48 * time.Hour} {
		lease := newLease()
		res := soonAcquire(t, holder, ask("k", lease, 10*time.Second))
		if !res.Granted || res.Token.Fence <= last {
			t.Fatalf("%v: %+v; wanted a grant above fence %d", step, res, last)
		}
		warm := fmt.Sprint("warm", i)
		soonAcquire(t, knowing, ask(warm, newLease(), time.Second))
		if got := soonAcquire(t, knowing, ask("k", newLease(), time.Second)); got.Granted || got.Left > 10*time.Second {
			t.Fatalf("before the step: %+v; wanted held for ten seconds", got)
		}
		clock.Step(step)
		if got := soonAcquire(t, knowing, ask(fmt.Sprint("free", i), newLease(), time.Second)); !got.Granted {
			t.Errorf("%v: a free lock: %+v", step, got)
		}
		fresh := open(t, srv.DSN(""), calm)
		took := soonAcquire(t, fresh, ask("k", newLease(), 10*time.Second))
		if !took.Granted || took.Token.Fence <= res.Token.Fence {
			t.Errorf("%v: got %+v; wanted a grant above fence %d", step, took, res.Token.Fence)
		}
		last = took.Token.Fence
		if got := holder.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, TTL: 10 * time.Second}}); got[0].Err != nil || got[0].State != tierlock.LeaseTaken {
			t.Errorf("%v: the former holder's renewal: %+v", step, got[0])
		}
		mustRelease(t, holder, drop("k", lease), tierlock.LeaseTaken)
		mustRelease(t, holder, drop("k", took.Token.Lease), tierlock.LeaseOwned)
	}
}

// Back: no lease ends sooner, nothing is granted twice, fences rise all the same,
// also where the row has been cleaned away; and what was released stays free.
func TestClockSteppedBack(t *testing.T) {
	t.Parallel()
	srv, clock := steppable(t)
	db := admin(t, srv)
	holder, knowing := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	for i, step := range []time.Duration{-2 * time.Second, -time.Hour, -48 * time.Hour} {
		lease := newLease()
		held := soonAcquire(t, holder, ask("k", lease, time.Hour))
		freed := newLease()
		free := soonAcquire(t, holder, ask("freed", freed, 10*time.Second))
		mustRelease(t, holder, drop("freed", freed), tierlock.LeaseOwned)
		gone := newLease()
		cleaned := soonAcquire(t, holder, ask("cleaned", gone, 10*time.Second))
		mustRelease(t, holder, drop("cleaned", gone), tierlock.LeaseOwned)
		// The clean-up takes a row away when the clock has passed its fence by ten
		// minutes; and no process has been idle since.
		passed := time.Duration(i+1) * 11 * time.Minute // the fences of the round before are that far ahead
		clock.Step(passed)
		mustInspect(t, holder, "freed")
		execute(t, db, "DELETE FROM lock_record WHERE "+row("cleaned"))
		clock.Step(step - passed)
		fresh := open(t, srv.DSN(""), calm)
		for who, s := range map[string]tierlock.Store{"knowing": knowing, "fresh": fresh, "the holder's": holder} {
			if got := soonAcquire(t, s, ask("k", newLease(), time.Second)); got.Granted || got.Token.Lease != lease || got.Left < 30*time.Minute {
				t.Errorf("%v: the %s store got %+v; wanted held by %v", step, who, got, held.Token)
			}
			next := newLease()
			got := soonAcquire(t, s, ask("freed", next, time.Second))
			if !got.Granted || got.Token.Fence <= free.Token.Fence {
				t.Errorf("%v: the %s store got %+v; wanted a grant above fence %d", step, who, got, free.Token.Fence)
			}
			free = got
			mustRelease(t, s, drop("freed", next), tierlock.LeaseOwned)
		}
		again := newLease()
		if got := soonAcquire(t, holder, ask("cleaned", again, time.Second)); !got.Granted || got.Token.Fence <= cleaned.Token.Fence {
			t.Errorf("%v: where the row is gone: got %+v; wanted a grant above fence %d", step, got, cleaned.Token.Fence)
		} else if rec := mustInspect(t, fresh, "cleaned"); rec.Token != got.Token {
			t.Errorf("%v: where the row is gone: stored %+v, granted %+v", step, rec.Token, got.Token)
		}
		mustRelease(t, holder, drop("cleaned", again), tierlock.LeaseOwned)
		// The end is where it was, or later: a renewal takes nothing off.
		if got := holder.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, TTL: time.Second}}); got[0].Err != nil || got[0].State != tierlock.LeaseOwned {
			t.Errorf("%v: renewal: %+v", step, got[0])
		}
		if rec := mustInspect(t, fresh, "k"); rec.Left < 30*time.Minute-step {
			t.Errorf("%v: %v left", step, rec.Left)
		}
		mustRelease(t, holder, drop("k", lease), tierlock.LeaseOwned)
		clock.Step(passed - step)
	}
}

// The clock is stepped while a statement waits for a row, for longer than the
// caller wanted: late either way, whatever the clock says. (A step back that just
// undoes the wait cannot be told from no wait; then the grant is one that its
// caller counts from before it was sent, or undoes.)
func TestClockSteppedWhileAStatementWaits(t *testing.T) {
	t.Parallel()
	srv, clock := steppable(t, "--version=8.0.36") // on MariaDB no acquire waits
	db := admin(t, srv)
	for _, step := range []time.Duration{0, -10 * time.Second, 10 * time.Second} {
		t.Run(step.String(), func(t *testing.T) {
			// A server whose row waits last longer than the second that the
			// store asks for would do it too; the budget is what counts here.
			s := open(t, srv.DSN(""), calm)
			key := t.Name()
			execute(t, db, insertRow, key)
			soonAcquire(t, s, ask("warm"+key, newLease(), time.Second))
			tx := foreign(t, db, "SELECT * FROM lock_record WHERE "+row(key)+" FOR UPDATE")
			req := ask(key, newLease(), time.Minute)
			req.Budget = 4 * time.Second
			got := make(chan error, 1)
			wanted := time.Now().Add(req.Budget)
			go func() {
				_, err := s.Acquire(background, req)
				got <- err
			}()
			rig.Eventually(t, patience, "the statement waits", func() bool { return lockWaits(t, db) == 1 })
			time.Sleep(time.Until(wanted.Add(500 * time.Millisecond)))
			clock.Step(step)
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			wantClass(t, "acquire", <-got, tierlock.ErrLate)
			if n := number(t, db, "SELECT COUNT(*) FROM lock_record WHERE lease_id<>'' AND "+row(key)); n != 0 {
				t.Error("the late statement took the lock")
			}
		})
	}
}
