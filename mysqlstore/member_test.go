package mysqlstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// logged collects what is logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// paced is a store whose background work is quick, and what it logs.
func paced(t *testing.T, srv *rig.MariaDBServer) (*mysqlstore.Store, *logged) {
	t.Helper()
	log := new(logged)
	opt := calm
	opt.Logger = slog.New(slog.NewTextHandler(log, nil))
	s := open(t, srv.DSN(""), opt)
	s.SetPace(100*time.Millisecond, 1500*time.Millisecond, 300*time.Millisecond, time.Hour)
	return s, log
}

func memberID(n int) string { return fmt.Sprintf("%032x", n) }

func register(s *mysqlstore.Store, n int) (leave func(context.Context)) {
	return s.Register(tierlock.Member{ID: memberID(n), Namespace: "test", App: "app", Host: "host", PID: n, Holds: func() int { return 7 }})
}

func TestMembersBeatAndLeave(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	const term = 6 * time.Second // of the cleaner, which it keeps by its beats
	s, _ := paced(t, srv)
	s.SetPace(100*time.Millisecond, term, 300*time.Millisecond, time.Hour)
	leave := register(s, 1)
	other, _ := paced(t, srv)
	other.SetPace(100*time.Millisecond, term, 300*time.Millisecond, time.Hour)
	register(other, 2)
	beat := func(n int) int64 {
		return number(t, db.DB, "SELECT COALESCE(MAX(beat), 0) FROM lock_member WHERE member=? AND namespace='test' AND holds=7 AND floor>0", memberID(n))
	}
	rig.Eventually(t, patience, "both beat", func() bool { return beat(1) >= 3 && beat(2) >= 3 })
	// One is the cleaner, and stays it.
	cleaner := func() (lease string) {
		if err := db.Get(&lease, "SELECT lease_id FROM lock_record WHERE resource_id='tierlock/cleaner' AND expire_at>UTC_TIMESTAMP(6)"); err != nil {
			t.Fatal(err)
		}
		return lease
	}
	first := cleaner()
	time.Sleep(term + time.Second)
	if now := cleaner(); now != first {
		t.Errorf("the cleaner changed from %s to %s; wanted it to stay while it lives", first, now)
	}
	leave(t.Context())
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(1)); n != 0 {
		t.Errorf("%d rows of a member that left; wanted none", n)
	}
	other.Close()
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE member<>''"); n != 0 {
		t.Errorf("%d rows of members of a closed store; wanted none", n)
	}
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_record WHERE expire_at>UTC_TIMESTAMP(6)"); n != 0 {
		t.Errorf("%d locks held when all have left; wanted none", n)
	}
}

// A beat that is under way when its process leaves is not executed after that: the
// process would be on the list again, and be said to have died.
func TestNoBeatComesAfterLeaving(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s, _ := paced(t, srv)
	leave := register(s, 1)
	rows := func() int64 { return number(t, db, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(1)) }
	rig.Eventually(t, patience, "it is on the list", func() bool { return rows() == 1 })
	gate, err := db.Conn(background)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	execute(t, gate, "DO GET_LOCK('gate', 10)")
	execute(t, db, "CREATE TRIGGER gate BEFORE INSERT ON lock_member FOR EACH ROW SET @passed = GET_LOCK('gate', 60) + RELEASE_LOCK('gate')")
	waiting := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state='User lock'")
	}
	rig.Eventually(t, patience, "a beat is under way", func() bool { return waiting() == 1 })
	left := make(chan struct{})
	go func() {
		defer close(left)
		leave(background)
	}()
	select {
	case <-left: // without waiting for it
	case <-time.After(500 * time.Millisecond):
	}
	execute(t, gate, "DO RELEASE_LOCK('gate')")
	<-left
	rig.Eventually(t, patience, "the beat has ended", func() bool { return waiting() == 0 })
	noTransactions(t, db)
	if n := rows(); n != 0 {
		t.Errorf("%d rows of a process that has left; wanted none", n)
	}
}

// What a dead process holds is reported, and freed when it has expired, not
// before; that of a living one is let alone, however it ended.
func TestDeadMembersAreFound(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	living, log := paced(t, srv)
	register(living, 1)
	mustAcquire(t, living, ask("living", memberID(1)+"-a", 500*time.Millisecond))
	// This process beats once and never again.
	if _, err := db.Exec("INSERT INTO lock_member VALUES ('test', ?, 5, 0, 2, 'app', 'dead', 2, UTC_TIMESTAMP(6))", memberID(2)); err != nil {
		t.Fatal(err)
	}
	const ttl = 15 * time.Second
	began := time.Now()
	mustAcquire(t, living, ask("dead", memberID(2)+"-a", ttl))
	mustAcquire(t, living, ask("released", memberID(2)+"-b", ttl))
	if _, err := living.Release(t.Context(), tierlock.ReleaseRequest{Name: name("released"), Lease: memberID(2) + "-b"}); err != nil {
		t.Fatal(err)
	}
	released := func(key string) bool {
		return number(t, db.DB, "SELECT COUNT(*) FROM lock_record WHERE business_id=? AND expire_at='2000-01-01'", key) == 1
	}
	rig.Eventually(t, patience, "the dead member is reported", func() bool { return log.count("lock=test:order:settle/dead ") == 1 })
	if n := log.count("lock="); n != 1 {
		t.Errorf("%d locks reported; wanted the one that the dead process holds", n)
	}
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(2)); n != 0 {
		t.Errorf("the dead member is still on the list")
	}
	rig.Eventually(t, patience, "its lock is freed", func() bool { return released("dead") })
	if took := time.Since(began); took < ttl {
		t.Errorf("freed after %v; wanted not before its lease ended after %v", took, ttl)
	}
	if released("living") {
		t.Error("the lock of a living process was marked as released")
	}
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE member=?", memberID(1)); n != 1 {
		t.Error("a living member was taken off the list")
	}
	if n := log.count("held by a process"); n != 1 {
		t.Errorf("reported %d times; wanted once", n)
	}
}

// A process that comes back from a pause keeps what it renews.
func TestMemberThatWasPaused(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	living, log := paced(t, srv)
	register(living, 1)
	if _, err := db.Exec("INSERT INTO lock_member VALUES ('test', ?, 5, 0, 1, 'app', 'paused', 2, UTC_TIMESTAMP(6))", memberID(2)); err != nil {
		t.Fatal(err)
	}
	paused := open(t, srv.DSN(""), calm)
	lease := memberID(2) + "-a"
	const ttl = 15 * time.Second
	mustAcquire(t, paused, ask("k", lease, ttl))
	taken := time.Now()
	rig.Eventually(t, patience, "it is taken for dead", func() bool { return log.count("lock=test:order:settle/k ") == 1 })
	for time.Since(taken) < ttl+3*time.Second {
		time.Sleep(500 * time.Millisecond)
		res := paused.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, TTL: ttl}})
		if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Fatalf("renewal by a process that was taken for dead: got %+v; wanted owned", res[0])
		}
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	s := open(t, srv.DSN(""), calm)
	const keep = time.Hour
	s.SetPace(time.Hour, time.Hour, time.Hour, keep)
	var old []tierlock.Token
	for i := range 1300 { // more than two batches
		old = append(old, mustAcquire(t, s, ask(fmt.Sprint("released ", i), fmt.Sprint("l", i), time.Minute)))
		if own, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: name(fmt.Sprint("released ", i)), Lease: fmt.Sprint("l", i)}); own != tierlock.LeaseOwned {
			t.Fatal(own, err)
		}
	}
	mustAcquire(t, s, ask("held", "h", 3*keep))
	mustAcquire(t, s, ask("expired long ago", "x", time.Millisecond))
	mustAcquire(t, s, ask("expired lately", "y", keep+keep/2))
	if n, err := s.Sweep(t.Context()); err != nil || n != 0 {
		t.Fatalf("swept %d rows of which none is old, error %v", n, err)
	}
	// Two hours later, by what the rows say.
	execute(t, db, "UPDATE lock_record SET fence=fence-?, expire_at=expire_at-INTERVAL ? MICROSECOND", (2*keep).Microseconds()/2, (2 * keep).Microseconds())
	mustAcquire(t, s, ask("released lately", "z", time.Minute))
	if _, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: name("released lately"), Lease: "z"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := db.Select(&left, "SELECT business_id FROM lock_record ORDER BY 1"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(left, ", "); got != "expired lately, held, released lately" {
		t.Errorf("left: %s; wanted what is held, and what was taken or ended lately", got)
	}
	// What the fences of the rows that went were is known to a process that
	// starts now, whatever the server's clock says then.
	floor := number(t, db.DB, "SELECT floor FROM lock_member WHERE member=''")
	if sweeper := s.Floor(); floor == 0 || floor > sweeper {
		t.Errorf("the floor is %d; wanted a time up to %d", floor, sweeper)
	}
	again := mustAcquire(t, open(t, srv.DSN(""), calm), ask("released 0", "again", time.Minute))
	if again.Fence <= old[0].Fence {
		t.Errorf("fence %d after the row went; wanted more than %d", again.Fence, old[0].Fence)
	}
}

// The fences of a lock rise although its row would have gone, and the server's
// clock was stepped back after that: a row stays until processes that have heard
// nothing of the server since could learn of the time.
func TestFencesRiseWhereRowsAreSwept(t *testing.T) {
	t.Parallel()
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	idle, busy := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	mustAcquire(t, idle, ask("other", "o", time.Second))
	clock.Step(time.Hour)
	first := mustAcquire(t, busy, ask("k", "1", time.Second))
	if _, err := busy.Release(t.Context(), tierlock.ReleaseRequest{Name: name("k"), Lease: "1"}); err != nil {
		t.Fatal(err)
	}
	clock.Step(time.Hour)
	if _, err := busy.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Step(-2 * time.Hour)
	second := mustAcquire(t, idle, ask("k", "2", time.Second))
	if second.Fence <= first.Fence {
		t.Errorf("fence %d after %d; wanted more", second.Fence, first.Fence)
	}
	// The next sweep may take it.
	if _, err := idle.Release(t.Context(), tierlock.ReleaseRequest{Name: name("k"), Lease: "2"}); err != nil {
		t.Fatal(err)
	}
	clock.Step(2 * time.Hour)
	if n, err := busy.Sweep(t.Context()); err != nil || n == 0 {
		t.Errorf("the second sweep deleted %d, error %v; wanted what is old", n, err)
	}
	if n := number(t, db.DB, "SELECT COUNT(*) FROM lock_record WHERE business_id='k'"); n != 0 {
		t.Error("the row is still there after the second sweep")
	}
}

// Each process learns the latest time that the others know of the server, the
// cleaner or not.
func TestMembersLearnTheFloor(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	var stores []*mysqlstore.Store
	for i := range 2 {
		s, _ := paced(t, srv)
		register(s, i+1)
		stores = append(stores, s)
	}
	rig.Eventually(t, patience, "both beat, and one is the cleaner", func() bool {
		return number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE beat>1 AND member<>''") == 2
	})
	far := time.Now().Add(time.Hour).UnixMicro()
	db.MustExec("INSERT INTO lock_member VALUES ('elsewhere', ?, 1, ?, 0, 'app', 'host', 2, UTC_TIMESTAMP(6))", memberID(9), far)
	rig.Eventually(t, patience, "both know", func() bool { return stores[0].Floor() >= far && stores[1].Floor() >= far })
}

// A refusal for lateness that only the step of the server's clock explains is not
// the answer: it tells the time, and the attempt is repeated.
func TestStepForwardIsNoLateness(t *testing.T) {
	t.Parallel()
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	s := open(t, srv.DSN(""), calm)
	mustAcquire(t, s, ask("before", "l", time.Hour))
	mustRelease(t, s, drop("before", "l"), tierlock.LeaseOwned)
	for _, step := range []time.Duration{20 * time.Second, time.Hour, -time.Hour, 24 * time.Hour} {
		clock.Step(step)
		mustAcquire(t, s, ask(fmt.Sprint("new ", step), "l", time.Minute))
	}
	clock.Step(time.Hour)
	mustAcquire(t, s, ask("before", "after", time.Minute)) // a row that is there
}

// A server whose clock was set back by years, or never set, grants fences that
// are those of the rows, and rise.
func TestFencesOfAClockBeforeTheOrigin(t *testing.T) {
	t.Parallel()
	srv, clock := rig.MariaDBWithClock(t)
	migrate(t, srv)
	const year = 365 * 24 * time.Hour
	old, last := open(t, srv.DSN(""), calm), make(map[string]uint64)
	take := func(when, key string) {
		t.Helper()
		for i, s := range []*mysqlstore.Store{old, open(t, srv.DSN(""), calm)} {
			lease := fmt.Sprint(when, i)
			tok := mustAcquire(t, s, ask(key, lease, time.Minute))
			rec, err := s.Inspect(t.Context(), name(key))
			if err != nil || rec.Token != tok {
				t.Errorf("%s, %s: granted %+v, stored %+v, error %v; wanted the same", when, key, tok, rec.Token, err)
			}
			if tok.Fence <= last[key] || tok.Epoch != 1 {
				t.Errorf("%s, %s: fence %d after %d, in epoch %d; wanted more, in epoch 1", when, key, tok.Fence, last[key], tok.Epoch)
			}
			last[key] = tok.Fence
			if own, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: name(key), Lease: lease}); own != tierlock.LeaseOwned {
				t.Fatal(own, err)
			}
		}
	}
	clock.Step(-5 * year)
	take("years ago", "never before")
	clock.Step(5 * year)
	take("now", "k")
	clock.Step(-22 * year)
	take("decades ago", "k")
	take("decades ago", "new")
	clock.Step(22 * year)
	take("now again", "new")
	take("now again", "never before")
}

// An outage of the server, in which nobody can beat, is nobody's death: not if the
// cleaner is back before the others.
func TestOutageIsNobodysDeath(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	var log *logged
	for i := range 6 {
		s, l := paced(t, srv)
		beat := 800 * time.Millisecond
		if i == 0 {
			beat, log = 100*time.Millisecond, l
		}
		s.SetPace(beat, 3*time.Second, time.Hour, time.Hour)
		register(s, i+1)
		rig.Eventually(t, patience, "the member beats", func() bool {
			return number(t, db.DB, "SELECT COUNT(*) FROM lock_member WHERE beat>1") == int64(i+1)
		})
	}
	srv.Kill()
	time.Sleep(4 * time.Second)
	srv.Start()
	rig.Eventually(t, patience, "the cleaner is back", func() bool { return log.count("is done again") > 0 })
	time.Sleep(2 * time.Second)
	if n := log.count("a process stopped beating"); n != 0 {
		t.Errorf("%d of 5 living processes are said to have stopped; wanted none", n)
	}
}

// Where there are so many processes that each beats less often, each may be silent
// for longer.
func TestManyMembersMayBeSilentForLonger(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	db.MustExec("INSERT INTO lock_member SELECT 'n', LPAD(HEX(seq), 32, 'f'), 1, 0, 0, 'app', 'host', 2, UTC_TIMESTAMP(6) FROM seq_1_to_2000")
	s, log := paced(t, srv) // 1.5 s of silence, beats of 100 ms; of 10 s with so many
	register(s, 1)
	// A beat has to come that is sooner than 10 s for the cleaner to look again.
	mustAcquire(t, s, ask("dead", memberID(2)+"-a", time.Minute))
	deadline := time.Now().Add(14 * time.Second)
	n := 0
	for ; n == 0 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		n = log.count("a process stopped beating")
	}
	if n > 0 && time.Now().Before(deadline) {
		t.Errorf("%d processes that beat each 10 s are said to have stopped after less than 14 s; wanted none", n)
	}
}

// A process that ends in the middle of taking the cleaner's part does not keep it:
// the acquire is executed although its answer is not awaited.
func TestCleanerEndsWhileItTakesThePart(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t, "--version=8.0.36") // on MariaDB no acquire waits
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	const part = "FROM lock_record WHERE namespace='' AND resource_id='tierlock/cleaner' AND business_id='-'"
	open := func() *mysqlstore.Store {
		s, _ := paced(t, srv)
		s.SetPace(100*time.Millisecond, time.Minute, time.Hour, time.Hour)
		register(s, 1)
		return s
	}
	first := open()
	rig.Eventually(t, patience, "there is a cleaner", func() bool { return number(t, db.DB, "SELECT COUNT(*) "+part) == 1 })
	first.Close()

	tx := db.MustBegin()
	defer tx.Rollback()
	tx.MustExec("SELECT 1 " + part + " FOR UPDATE")
	second := open()
	waiting := func() bool {
		return number(t, db.DB, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%INSERT INTO lock_record%' AND ID<>CONNECTION_ID()") > 0
	}
	rig.Eventually(t, patience, "it takes the part", waiting)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		second.Close()
	}()
	time.Sleep(100 * time.Millisecond) // its statement is cut, and goes on
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	<-closed
	rig.Eventually(t, patience, "the statement has ended", func() bool { return !waiting() })
	if n := number(t, db.DB, "SELECT COUNT(*) "+part+" AND expire_at>UTC_TIMESTAMP(6)"); n != 0 {
		t.Error("the part is held by a process that has left; wanted it free")
	}
}
