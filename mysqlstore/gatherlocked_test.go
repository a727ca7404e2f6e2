package mysqlstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Somebody's transaction has locked some of the rows, and the place of a row that
// is to be made. The calls for all others, which are sent together with those, are
// answered at once; those themselves as soon as the rows are free.
func TestLockedRowDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			s, other := open(t, srv.DSN(at(level)), calm), open(t, srv.DSN(""), calm)
			const calls = 60
			isLocked := map[int]bool{0: true, 8: true, 31: true, 44: true, calls - 1: true}
			key := func(kind string, i int) string {
				switch {
				case kind == "free" && i%2 == 1 && isLocked[i]:
					kind = "place"
				case kind == "free" && i%2 == 1:
					kind = "new"
				}
				return fmt.Sprint(level, "/", kind, "/", i)
			}
			// Who waits for a row at REPEATABLE READ keeps others from making one
			// just before it.
			execute(t, db, insertRow, key("o", 0))
			for i := range calls {
				mustAcquire(t, other, ask(key("held", i), key("held", i), patience))
				if i%2 == 0 {
					execute(t, db, insertRow, key("free", i))
				}
			}
			tx := foreign(t, db, "SELECT 1")
			for i := range isLocked {
				execute(t, tx, "UPDATE lock_record SET epoch=2 WHERE "+row(key("held", i)))
				if i%2 == 0 {
					execute(t, tx, "UPDATE lock_record SET epoch=2 WHERE "+row(key("free", i)))
				} else {
					execute(t, tx, insertRow, key("free", i))
				}
			}
			g := gatherCalls(t, s)
			takes, releases := make([]*gotten, calls), make([]*gotten, calls)
			var left sync.WaitGroup // to be answered while the rows are locked
			sent := make(chan time.Time, 1)
			var mu sync.Mutex
			var slowest time.Duration
			note := func(i int, got **gotten, f func(*gotten)) {
				*got = g.add(func(r *gotten) {
					if !isLocked[i] {
						left.Add(1)
						defer left.Done()
					}
					f(r)
					if !isLocked[i] {
						began := <-sent
						sent <- began
						mu.Lock()
						slowest = max(slowest, time.Since(began))
						mu.Unlock()
					}
				})
			}
			for i := range calls {
				note(i, &takes[i], func(r *gotten) {
					r.AcquireResult, r.err = s.Acquire(t.Context(), ask(key("free", i), newLease(), patience))
				})
				note(i, &releases[i], func(r *gotten) { r.own, r.err = s.Release(t.Context(), drop(key("held", i), key("held", i))) })
			}
			sent <- time.Now()
			g.send()
			left.Wait()
			t.Logf("the calls for other rows took up to %v", slowest)
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			g.calls.Wait()
			for i := range calls {
				// One that has to wait may have done so for as long as it may; who
				// waited for nothing is answered, and was, while the rows were locked.
				got := takes[i]
				if isLocked[i] && got.err != nil {
					wantNotInTime(t, got.AcquireResult, got.err)
				} else if got.err != nil || !got.Granted {
					t.Errorf("acquire %s: got %+v, %v", key("free", i), got.AcquireResult, got.err)
				}
				if rec := mustInspect(t, other, key("free", i)); got.err == nil && rec.Token != got.Token {
					t.Errorf("%s: stored is %+v, granted was %+v", key("free", i), rec, got)
				}
				got = releases[i]
				if isLocked[i] && got.err != nil {
					wantClass(t, "release", got.err, tierlock.ErrUnavailable)
				} else if got.err != nil || got.own != tierlock.LeaseOwned || mustInspect(t, other, key("held", i)).Held {
					t.Errorf("release %s: got %v, %v; wanted owned", key("held", i), got.own, got.err)
				}
			}
			nothingIsLeft(t, s)
		})
	}
}

// Calls that went by themselves, and wait for something in the server, keep others from
// going for a moment only: those are answered while they wait.
func TestWaitingCallsGiveWay(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	const stuck = 8
	// A locked row is waited for for a second at most, which may be over before the
	// others have come. At the gate the test decides how long.
	gate, err := db.Conn(background)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	execute(t, gate, "DO GET_LOCK('gate', 10)")
	execute(t, db, "CREATE TRIGGER gate BEFORE INSERT ON lock_record FOR EACH ROW "+
		"SET @passed = IF(NEW.business_id LIKE 'stuck%', GET_LOCK('gate', 60) + RELEASE_LOCK('gate'), 0)")
	waiting := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state='User lock'")
	}
	inspectSoon(t, s, "k")
	var stuckCalls sync.WaitGroup
	for i := range stuck {
		stuckCalls.Go(func() {
			_, _ = s.Acquire(background, ask(fmt.Sprint("stuck", i), newLease(), patience)) // its end does not matter
		})
		rig.Eventually(t, patience, fmt.Sprintf("%d calls wait", i+1), func() bool { return waiting() == int64(i+1) })
	}
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			k := fmt.Sprint(i)
			if res, err := s.Acquire(t.Context(), ask(k, k, patience)); err != nil || !res.Granted {
				t.Errorf("got %+v, %v", res, err)
			}
			if own, err := s.Release(t.Context(), drop(k, k)); err != nil || own != tierlock.LeaseOwned {
				t.Errorf("got %v, %v", own, err)
			}
		})
	}
	calls.Wait()
	if busy, _ := s.Rows(); busy < stuck {
		t.Errorf("%d of %d calls were still under way when all others had been answered", busy, stuck)
	}
	execute(t, gate, "DO RELEASE_LOCK('gate')")
	stuckCalls.Wait()
}

// What a statement for several has done is undone where one of its rows is locked,
// whatever the server undoes of a transaction.
func TestRefusedStatementLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, undo := range []string{"OFF", "ON"} {
		t.Run(undo, func(t *testing.T) {
			t.Parallel()
			srv := migrated(t, "--innodb-rollback-on-timeout="+undo)
			db := admin(t, srv)
			s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
			const calls = 20
			tx := foreign(t, db, insertRow, "z") // the last
			var takes []tierlock.AcquireRequest
			var releases []tierlock.ReleaseRequest
			for i := range calls {
				k := fmt.Sprint("held", i)
				mustAcquire(t, other, ask(k, k, patience))
				releases = append(releases, drop(k, k))
				takes = append(takes, ask(fmt.Sprint("free", i), newLease(), patience))
			}
			execute(t, tx, "UPDATE lock_record SET epoch=2 WHERE "+row("held9")) // the last in order
			err := s.TakeTogether(t.Context(), append(takes, ask("z", newLease(), patience)))
			wantRefused(t, "take", err)
			wantRefused(t, "release", s.ReleaseTogether(t.Context(), releases))
			for i := range calls {
				if mustInspect(t, other, fmt.Sprint("free", i)).Held {
					t.Errorf("free%d was taken", i)
				}
				if !mustInspect(t, other, fmt.Sprint("held", i)).Held {
					t.Errorf("held%d was released", i)
				}
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			noTransactions(t, db)
			if err := s.TakeTogether(t.Context(), append(takes, ask("z", newLease(), patience))); err != nil {
				t.Error(err)
			}
			if err := s.ReleaseTogether(t.Context(), releases); err != nil {
				t.Error(err)
			}
		})
	}
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || refused.Number != 1205 {
		t.Errorf("%s: got error %v; wanted 1205", what, err)
	}
}

// Of rows that were found locked a bounded number is known.
func TestLockedRowsAreForgotten(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), mysqlstore.Options{CallTimeout: 5 * time.Second})
	execute(t, db, insertRow, "a")
	tx := foreign(t, db, "SELECT COUNT(*) FROM lock_record WHERE namespace='test' FOR UPDATE") // and what is between
	inspectSoon(t, s, "a")
	var calls sync.WaitGroup
	for i := range 400 {
		calls.Go(func() {
			if res, err := s.Acquire(t.Context(), ask(fmt.Sprint(i), newLease(), patience)); err == nil {
				t.Errorf("got %+v for a row that is locked", res)
			}
		})
	}
	calls.Wait()
	nothingIsLeft(t, s)
	_, barred := s.Rows()
	if barred == 0 || barred > 256 {
		t.Errorf("%d rows are known to be locked; wanted some, and 256 at most", barred)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// Two processes take and release what both want, in the order that comes: one at a
// time holds a lock, fences rise, and each call is answered. Nobody meets a deadlock.
func TestGatheredRivals(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for i := range 2 * len(levels) {
		level, made := levels[i/2], i%2 == 0
		t.Run(fmt.Sprint(level, "/", made), func(t *testing.T) {
			const keys, rounds, again = 40, 40, 4
			for n := range keys {
				if made {
					execute(t, db, insertRow, fmt.Sprint(level, made, n))
				}
			}
			const rows = keys * rounds / again // where each few rounds have new keys
			var holders [rows]sync.Mutex       // of what is below
			var inside [rows]string
			var fences [rows]uint64
			before := deadlocksFound(t, db)
			var rivals sync.WaitGroup
			var granted atomic.Int64
			for range 2 {
				s := open(t, srv.DSN(at(level)), mysqlstore.Options{CallTimeout: 20 * time.Second})
				inspectSoon(t, s, "k")
				for range 48 {
					rivals.Go(func() {
						for round := range rounds {
							n := rand.IntN(keys)
							if !made {
								n += round / again * keys
							}
							k, lease := fmt.Sprint(level, made, n), newLease()
							res, err := acquirePatiently(s, ask(k, lease, time.Hour))
							if err != nil {
								t.Errorf("acquire: %v", err)
								return
							}
							if !res.Granted {
								continue
							}
							holders[n].Lock()
							if inside[n] != "" || res.Token.Fence <= fences[n] {
								t.Errorf("%s: granted fence %d, after %d, while %q holds it", k, res.Token.Fence, fences[n], inside[n])
							}
							inside[n], fences[n] = lease, res.Token.Fence
							holders[n].Unlock()
							runtime.Gosched()
							holders[n].Lock()
							inside[n] = ""
							holders[n].Unlock()
							granted.Add(1)
							if own, err := releasePatiently(s, drop(k, lease)); err != nil || own != tierlock.LeaseOwned {
								t.Errorf("release: %v, %v", own, err)
								return
							}
						}
					})
				}
			}
			rivals.Wait()
			if n := deadlocksFound(t, db) - before; n != 0 {
				t.Errorf("%d deadlocks", n)
			}
			t.Logf("%d granted", granted.Load())
		})
	}
}

// A lost reply to a statement for several: each caller is told on time that there
// is no answer, and gets the same grant when asked again.
func TestGatheredLostReply(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	clean := open(t, srv.DSN(""), calm)
	const calls = 20
	const limit = 6 * time.Second // and all calls are in the queue before that
	for _, what := range []string{"take", "release"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := rig.NewProxy(t, srv.Addr)
			db := pool(t, srv.DSNVia(proxy.Addr, ""))
			db.SetMaxOpenConns(1) // on which the statement is prepared
			s := mysqlstore.New(db, mysqlstore.Options{CallTimeout: limit})
			t.Cleanup(s.Close)
			send := func(kind string) (all []*gotten, g *gatheredCalls) {
				g = gatherCalls(t, s)
				for i := range calls {
					k := fmt.Sprint(what, kind, i)
					if what == "take" {
						all = append(all, g.acquire(t.Context(), ask(k, k, patience)))
					} else {
						all = append(all, g.release(t.Context(), drop(k, k)))
					}
				}
				return all, g
			}
			if what == "release" {
				for _, kind := range []string{"warm", "lost"} {
					for i := range calls {
						k := fmt.Sprint(what, kind, i)
						mustAcquire(t, clean, ask(k, k, patience))
					}
				}
			}
			_, g := send("warm")
			g.answers()
			all, g := send("lost")
			end := proxy.HoldReply()
			within(t, limit+slack, "the calls", g.answers)
			for i, got := range all {
				wantClass(t, what, got.err, tierlock.ErrUnavailable, "no answer")
				if mustInspect(t, clean, fmt.Sprint(what, "lost", i)).Held != (what == "take") {
					t.Fatalf("%d: the statement was not executed; the test is not what it should be", i)
				}
			}
			end()
			for i := range all {
				k := fmt.Sprint(what, "lost", i)
				if what == "release" {
					mustRelease(t, clean, drop(k, k), tierlock.LeaseGone)
					continue
				}
				stored := mustInspect(t, clean, k).Token
				if again := mustAcquire(t, clean, ask(k, k, patience)); again != stored {
					t.Errorf("again: got %v; stored was %v", again, stored)
				}
			}
		})
	}
}

// Releases of which some found nothing to release, and what they released was
// taken by others before they looked: each is told what became of its own.
func TestGatheredReleasesTakenAtOnce(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	proxy := rig.NewProxy(t, srv.Addr)
	s := open(t, srv.DSNVia(proxy.Addr, ""), calm)
	clean := open(t, srv.DSN(""), calm)
	g := gatherCalls(t, s)
	for i := range 12 {
		g.release(t.Context(), drop(fmt.Sprint("none", i), newLease())) // prepares the statement
	}
	g.answers()
	const each = 4
	for i := range each {
		for _, kind := range []string{"stays", "taken", "lost"} {
			k := fmt.Sprint(kind, i)
			mustAcquire(t, clean, ask(k, k, patience))
			if kind == "lost" {
				mustRelease(t, clean, drop(k, k), tierlock.LeaseOwned)
			}
		}
	}
	g = gatherCalls(t, s)
	results := make(map[string]*gotten)
	for i := range each {
		for _, kind := range []string{"stays", "taken", "lost"} {
			k := fmt.Sprint(kind, i)
			results[k] = g.release(t.Context(), drop(k, k))
		}
	}
	end := proxy.HoldReply()
	g.send()
	rig.Eventually(t, patience, "the statement was executed", func() bool { return !mustInspect(t, clean, "taken0").Held })
	for i := range each {
		mustAcquire(t, clean, ask(fmt.Sprint("taken", i), newLease(), patience))
	}
	end()
	g.calls.Wait()
	for k, got := range results {
		switch {
		case strings.HasPrefix(k, "stays"):
			if got.err != nil || got.own != tierlock.LeaseOwned {
				t.Errorf("%s: got %v, %v; wanted owned", k, got.own, got.err)
			}
		case got.err != nil:
			t.Errorf("%s: got error %v", k, got.err)
		case strings.HasPrefix(k, "taken") && got.own != tierlock.LeaseOwned:
			t.Errorf("%s: got %v; it was owned", k, got.own)
		case strings.HasPrefix(k, "lost") && got.own != tierlock.LeaseGone:
			t.Errorf("%s: got %v; it was lost before", k, got.own)
		}
	}
	nothingIsLeft(t, s)
}

// Releases of one lease id, of two locks, are not mistaken for each other: one of them
// goes by itself.
func TestGatheredReleasesOfOneLease(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	const twins = 16
	s := open(t, srv.DSN(""), calm)
	for i := range twins {
		for _, kind := range []string{"a", "b"} {
			if k := fmt.Sprint(kind, i); (kind == "a") == (i%2 == 0) {
				mustAcquire(t, s, ask(k, fmt.Sprint("l", i), patience))
			}
		}
	}
	g := gatherCalls(t, s)
	results := make(map[string]*gotten)
	for i := range twins {
		for _, kind := range []string{"a", "b"} {
			k := fmt.Sprint(kind, i)
			results[k] = g.release(t.Context(), drop(k, fmt.Sprint("l", i)))
		}
	}
	g.answers()
	for i := range twins {
		for _, kind := range []string{"a", "b"} {
			want := tierlock.LeaseGone
			if (kind == "a") == (i%2 == 0) {
				want = tierlock.LeaseOwned
			}
			if got := results[fmt.Sprint(kind, i)]; got.err != nil || got.own != want {
				t.Errorf("%s%d: got %v, %v; wanted %v", kind, i, got.own, got.err, want)
			}
		}
	}
}
