package mysqlstore_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// arbiterCall carries an action out elsewhere.
func arbiterCall(s *mysqlstore.Store, self degrade.Self, a degrade.Action) <-chan degrade.Reply {
	done := make(chan degrade.Reply, 1)
	go func() {
		r, err := s.Arbitrate(background, self, a)
		if err != nil {
			r.Lost = true
		}
		done <- r
	}()
	return done
}

func waitsForRow(t *testing.T, srv *rig.MariaDBServer, waiting int64) {
	t.Helper()
	db := admin(t, srv)
	rig.Eventually(t, patience, "a statement waits for a row", func() bool { return lockWaits(t, db) == waiting })
}

// patientServer is one on which a statement waits for a row for as long as a test
// may take.
func patientServer(t *testing.T) (srv *rig.MariaDBServer, dsn func(level string) string) {
	srv = migrated(t, "--version=8.0.36")
	return srv, func(level string) string { return srv.DSN("innodb_lock_wait_timeout=60&" + at(level)) }
}

// A refresh and a start conflict, and so do an ack and an opening: whichever is
// stopped before its commit, the other waits for it, and then sees what it has done.
func TestArbiterStatementsConflict(t *testing.T) {
	t.Parallel()
	srv, dsn := patientServer(t)
	db := admin(t, srv)
	for _, level := range levels {
		for _, c := range []struct {
			what          string
			member, other degrade.Kind
		}{{"refresh and start", degrade.Refresh, degrade.Start}, {"ack and open", degrade.Ack, degrade.Open}} {
			t.Run(level+"/"+c.what, func(t *testing.T) {
				s, clean := open(t, dsn(level), mysqlstore.Options{CallTimeout: time.Minute}), open(t, srv.DSN(""), calm)
				mode := firstMode(t, s)
				if c.member == degrade.Ack {
					mode = drainOf(mode)
				}
				member, other := degrade.Action{Kind: c.member, From: mode}, degrade.Action{Kind: c.other, From: mode}
				stalled := "UPDATE lock_mode SET phase='OPEN' WHERE namespace=?"
				if c.other == degrade.Start {
					other.To = drainOf(mode)
					stalled = "UPDATE lock_mode SET epoch=epoch+1, phase='DRAIN', tier='MYSQL', incarnation='' WHERE namespace=?"
				}
				for _, commits := range []bool{true, false} {
					// The one that changes the mode is stopped.
					name := newChainName()
					self := chainSelf(name, 1)
					putMode(t, db, name, mode)
					tx := foreign(t, db, stalled, name)
					reply := arbiterCall(s, self, member)
					waitsForRow(t, srv, 1)
					if commits {
						execute(t, tx, "COMMIT")
					}
					_ = tx.Rollback()
					if r := <-reply; r.Lost || r.OK == commits {
						t.Errorf("after the other, committed %v: %+v", commits, r)
					}
					if n := len(pollMode(t, clean, name).Members); (n == 0) != commits {
						t.Errorf("after the other, committed %v: %d rows", commits, n)
					}
				}
				// The member's is stopped, between its condition and its effect.
				name := newChainName()
				self := chainSelf(name, 1)
				putMode(t, db, name, mode)
				if r := arbitrate(t, s, self, member); !r.OK {
					t.Fatal("refused")
				}
				first := pollMode(t, clean, name)
				tx := foreign(t, db, "SELECT * FROM lock_permit WHERE namespace='"+name+"' FOR UPDATE")
				reply := arbiterCall(s, self, member)
				waitsForRow(t, srv, 1)
				second := arbiterCall(s, self, other)
				waitsForRow(t, srv, 2)
				if got := pollMode(t, clean, name); fmt.Sprint(got) != fmt.Sprint(first) {
					t.Errorf("while both wait: %+v", got)
				}
				_ = tx.Rollback()
				if r := <-reply; !r.OK {
					t.Errorf("stopped and released: %+v", r)
				}
				if r := <-second; !r.OK {
					t.Errorf("the one that waited for it: %+v", r)
				}
				got := pollMode(t, clean, name)
				if got.Members[0].Beat == first.Members[0].Beat || got.Mode == mode {
					t.Errorf("nothing has come of it: %+v", got)
				}
			})
		}
	}
}

// A statement whose caller has gone does not do what is wanted no more: the mode
// that it is for is over when its turn comes.
func TestArbiterLateRefresh(t *testing.T) {
	t.Parallel()
	srv, dsn := patientServer(t)
	db := admin(t, srv)
	const limit = 5 * time.Second
	s := open(t, dsn(levels[0]), mysqlstore.Options{CallTimeout: limit})
	name := newChainName()
	mode := firstMode(t, s)
	mode.Epoch = 1
	putMode(t, db, name, mode)
	tx := foreign(t, db, "UPDATE lock_mode SET phase='DRAIN', epoch=2 WHERE namespace=?", name)
	refresh := func(ctx context.Context, member int) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.Arbitrate(ctx, chainSelf(name, member), degrade.Action{Kind: degrade.Refresh, From: mode})
			done <- err
		}()
		waitsForRow(t, srv, int64(member))
		return done
	}
	within(t, limit+slack, "refresh", func() {
		given := refresh(background, 1)
		ctx, cancel := context.WithCancel(background)
		left := refresh(ctx, 2)
		cancel()
		wantClass(t, "refresh of one who leaves", <-left, tierlock.ErrUnavailable)
		wantClass(t, "refresh", <-given, tierlock.ErrUnavailable)
	})
	waitsForRow(t, srv, 2)
	execute(t, tx, "COMMIT")
	_ = tx.Rollback()
	noTransactions(t, db)
	if n := number(t, db, "SELECT COUNT(*) FROM lock_permit WHERE namespace=?", name); n != 0 {
		t.Errorf("%d late refreshes wrote", n)
	}
}

// A row that somebody's transaction has locked costs an action its answer, on
// time, and leaves no statement behind. A reading does not mind.
func TestArbiterAtALockedRow(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), quick)
	name := newChainName()
	self := chainSelf(name, 1)
	rig.Eventually(t, patience, "the store answers", func() bool {
		_, err := s.Arbitrate(background, self, degrade.Action{Kind: degrade.Poll})
		return err == nil
	})
	mode := firstMode(t, open(t, srv.DSN(""), calm))
	putMode(t, db, name, mode)
	tx := foreign(t, db, "SELECT * FROM lock_mode WHERE namespace='"+name+"' FOR UPDATE")
	defer tx.Rollback()
	drain, taken := drainOf(mode), drainOf(mode)
	taken.Hard = true
	for _, a := range []degrade.Action{
		{Kind: degrade.Create, To: mode}, {Kind: degrade.Refresh, From: mode}, {Kind: degrade.Start, From: mode, To: drain},
		{Kind: degrade.Ack, From: drain}, {Kind: degrade.Open, From: drain}, {Kind: degrade.Takeover, From: mode, To: taken, Known: 9},
		{Kind: degrade.Remove, Member: "m"}, {Kind: degrade.Leave},
	} {
		within(t, quick.CallTimeout+slack, "action", func() {
			_, err := s.Arbitrate(background, self, a)
			wantClass(t, fmt.Sprint("action ", a.Kind), err, tierlock.ErrUnavailable)
		})
	}
	if r := pollMode(t, open(t, srv.DSN(""), calm), name); r.Mode != mode {
		t.Errorf("poll: %+v", r)
	}
	rig.Eventually(t, patience, "no statement waits", func() bool { return lockWaits(t, db) == 0 })
}

// All statements at once, as fast as they go: no deadlock; and what a switch rests
// on: once the drain has begun no member of the epoch before it appears or beats.
func TestArbiterStress(t *testing.T) {
	t.Parallel()
	srv, dsn := patientServer(t) // to wait for a row for long is no fault here
	db := admin(t, srv)
	const members, lasts = 16, 8 * time.Second
	deadlocks := func() int64 {
		return number(t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='Innodb_deadlocks'")
	}
	before := deadlocks()
	controller := open(t, dsn(levels[0]), mysqlstore.Options{CallTimeout: time.Minute})
	name := newChainName()
	first := firstMode(t, controller)
	putMode(t, db, name, first)
	var current atomic.Pointer[degrade.Mode] // as far as it is known to be committed
	current.Store(&first)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	var all sync.WaitGroup
	var refreshed, refused, acked, removed atomic.Int64
	switches, began := 0, time.Now()
	enough := func() bool {
		return switches >= 5 && refreshed.Load() >= 100 && refused.Load() > 0 && acked.Load() >= 20 && removed.Load() > 0
	}
	for i := range members {
		s := open(t, dsn(levels[i%2]), mysqlstore.Options{CallTimeout: time.Minute})
		self := chainSelf(name, i)
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				mode := *current.Load()
				a := degrade.Action{Kind: degrade.Refresh, From: mode}
				switch {
				case mode.Drain:
					a.Kind = degrade.Ack
				case n%41 == 40:
					a = degrade.Action{Kind: degrade.Leave}
				case n%23 == 22: // of a member that beats as well, or is just leaving
					r := arbitrate(t, s, self, degrade.Action{Kind: degrade.Poll})
					if len(r.Members) == 0 {
						continue
					}
					m := r.Members[n%len(r.Members)]
					a = degrade.Action{Kind: degrade.Remove, Member: m.ID, Beat: m.Beat}
				}
				r, err := s.Arbitrate(background, self, a)
				switch {
				case err != nil:
					t.Errorf("action %d: %v", a.Kind, err)
				case a.Kind == degrade.Refresh && r.OK:
					refreshed.Add(1)
				case a.Kind == degrade.Refresh:
					refused.Add(1)
				case a.Kind == degrade.Ack && r.OK:
					acked.Add(1)
				case a.Kind == degrade.Remove && r.OK:
					removed.Add(1)
				}
			}
		})
	}
	for ; time.Since(began) < lasts || !enough() && time.Since(began) < 4*lasts; switches++ {
		time.Sleep(20 * time.Millisecond)
		mode := *current.Load()
		drain := drainOf(mode)
		if r := arbitrate(t, controller, chainSelf(name, 99), degrade.Action{Kind: degrade.Start, From: mode, To: drain}); !r.OK {
			t.Fatal("start refused")
		}
		unacked := func() map[string]uint64 {
			beats := make(map[string]uint64)
			for _, m := range pollMode(t, controller, name).Members {
				if m.Acked != drain.Epoch {
					beats[m.ID] = m.Beat
				}
				if m.Epoch >= drain.Epoch {
					t.Errorf("a member of epoch %d in the drain into %d", m.Epoch, drain.Epoch)
				}
			}
			return beats
		}
		at := unacked()
		time.Sleep(5 * time.Millisecond) // refreshes that are under way come to nothing
		later := unacked()
		maps.DeleteFunc(later, func(id string, beat uint64) bool { return at[id] == beat })
		if len(later) > 0 {
			t.Errorf("after the start of %d these wrote: %v", drain.Epoch, later)
		}
		current.Store(&drain)
		time.Sleep(20 * time.Millisecond)
		if r := arbitrate(t, controller, chainSelf(name, 99), degrade.Action{Kind: degrade.Open, From: drain}); !r.OK {
			t.Fatal("open refused")
		}
		next := opened(drain)
		current.Store(&next)
	}
	cancel()
	all.Wait()
	t.Logf("%d switches, %d refreshes, %d refused, %d acks, %d removals", switches, refreshed.Load(), refused.Load(), acked.Load(), removed.Load())
	if !enough() {
		t.Error("that is no trial")
	}
	if n := deadlocks() - before; n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// Lock calls and renewals that hang, as many as there are places, do not keep the
// arbiter waiting, also through a pool of few connections. With two of them it
// shares the one of the renewals.
func TestHangingCallsLeaveRoomForTheArbiter(t *testing.T) {
	t.Parallel()
	srv, dsn := patientServer(t)
	admins := admin(t, srv)
	for _, c := range []struct {
		connections int
		hanging     int64
		renewals    bool
	}{{0, 28, true}, {2, 1, false}, {3, 2, true}, {4, 3, true}} {
		t.Run(fmt.Sprint(c.connections), func(t *testing.T) {
			db := pool(t, dsn(levels[0]))
			db.SetMaxOpenConns(c.connections)
			s := mysqlstore.New(db, mysqlstore.Options{CallTimeout: time.Minute})
			t.Cleanup(s.Close)
			key := func(i int) string { return fmt.Sprint(c.connections, "hot", i) }
			const hot = 40
			for i := range hot {
				mustAcquire(t, s, ask(key(i), "h", time.Hour))
			}
			namespace := newChainName()
			mode := firstMode(t, s)
			putMode(t, admins, namespace, mode)
			tx := pool(t, srv.DSN("")).MustBegin()
			defer tx.Rollback()
			tx.MustExec("SELECT 1 FROM lock_record WHERE namespace='test' AND resource_id='order:settle' FOR UPDATE")
			ctx, cancel := context.WithCancel(background)
			var callers sync.WaitGroup
			defer callers.Wait()
			defer cancel()
			for i := range hot {
				callers.Go(func() {
					if _, err := s.Acquire(ctx, ask(key(i), "other", time.Hour)); err == nil {
						t.Error("an acquire of a locked row was answered; the test is not what it should be")
					}
				})
				if c.renewals {
					callers.Go(func() {
						s.Renew(ctx, []tierlock.RenewRequest{{Name: name(key(i)), Lease: "h", TTL: time.Hour}})
					})
				}
			}
			rig.Eventually(t, patience, "all places are taken", func() bool { return lockWaits(t, admins) == c.hanging })
			for range 10 {
				for _, kind := range []degrade.Kind{degrade.Poll, degrade.Refresh} {
					ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
					if r, err := s.Arbitrate(ctx, chainSelf(namespace, 1), degrade.Action{Kind: kind, From: mode}); err != nil || !r.OK {
						t.Errorf("action %d: %+v, %v", kind, r, err)
					}
					cancel()
				}
			}
			if n := lockWaits(t, admins); n != c.hanging {
				t.Errorf("%d calls hang, wanted %d", n, c.hanging)
			}
		})
	}
}

// The answer is lost: the caller hears of none, and the statement was executed.
func TestArbiterLostAnswer(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	proxy := rig.NewProxy(t, srv.Addr)
	s := open(t, srv.DSNVia(proxy.Addr, ""), mysqlstore.Options{CallTimeout: 5 * time.Second})
	clean := open(t, srv.DSN(""), calm)
	mode := firstMode(t, clean)
	putMode(t, db, "n", mode)
	self, a := chainSelf("n", 1), degrade.Action{Kind: degrade.Refresh, From: mode}
	answers := func() bool {
		r, err := s.Arbitrate(background, self, a)
		return err == nil && r.OK
	}
	rig.Eventually(t, patience, "it is refreshed", answers)
	first := pollMode(t, clean, "n").Members[0].Beat
	proxy.DropReplies()
	_, err := s.Arbitrate(background, self, a)
	wantClass(t, "refresh", err, tierlock.ErrUnavailable)
	if !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
	var second uint64
	rig.Eventually(t, patience, "it is executed", func() bool {
		second = pollMode(t, clean, "n").Members[0].Beat
		return second != first
	})
	proxy.Pass()
	proxy.Cut()
	rig.Eventually(t, patience, "it is refreshed again", answers)
	if third := pollMode(t, clean, "n").Members[0].Beat; third == second {
		t.Error("not executed again")
	}
}
