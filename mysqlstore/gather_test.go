package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/storetest"
)

// The contract is the same where calls go together, whatever the session is like.
func TestConformanceGathered(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	for what, params := range map[string]string{
		"found rows, elsewhere":  "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27",
		"characters of 3 bytes":  "charset=utf8&innodb_lock_wait_timeout=1",
		"characters that differ": "charset=gbk&sql_mode=%27%27",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{NoPush: true, Open: func(t *testing.T) tierlock.Store {
					s := open(t, srv.DSN(params), calm)
					s.GatherAlways()
					return s
				}}
			})
		})
	}
}

// gatheredCalls are calls that are sent together.
type gatheredCalls struct {
	t     testing.TB
	s     *mysqlstore.Store
	send  func()
	calls sync.WaitGroup
	n     int
}

// gatherCalls keeps what is called until it is sent.
func gatherCalls(t testing.TB, s *mysqlstore.Store) *gatheredCalls {
	t.Helper()
	inspectSoon(t, s, "warm") // the server is known
	return &gatheredCalls{t: t, s: s, send: s.Gather()}
}

// gotten is what came of a call.
type gotten struct {
	tierlock.AcquireResult
	own  tierlock.Ownership
	err  error
	took time.Duration // since it was sent
}

// acquire and release call, and return when the call is in the queue.
func (g *gatheredCalls) acquire(ctx context.Context, req tierlock.AcquireRequest) *gotten {
	g.t.Helper()
	return g.add(func(got *gotten) { got.AcquireResult, got.err = g.s.Acquire(ctx, req) })
}

func (g *gatheredCalls) release(ctx context.Context, req tierlock.ReleaseRequest) *gotten {
	g.t.Helper()
	return g.add(func(got *gotten) { got.own, got.err = g.s.Release(ctx, req) })
}

func (g *gatheredCalls) add(f func(*gotten)) *gotten {
	g.t.Helper()
	g.n++
	got, began := new(gotten), time.Now()
	g.calls.Go(func() {
		f(got)
		got.took = time.Since(began)
	})
	rig.Eventually(g.t, patience, fmt.Sprintf("%d calls are in the queue", g.n), func() bool { return g.s.Queued() == g.n })
	return got
}

// leave cancels a call in the queue, which leaves it.
func (g *gatheredCalls) leave(cancel func()) {
	g.t.Helper()
	cancel()
	g.n--
	rig.Eventually(g.t, patience, "the call leaves the queue", func() bool { return g.s.Queued() == g.n })
}

// answers sends all and waits for the answers.
func (g *gatheredCalls) answers() {
	g.t.Helper()
	g.send()
	g.calls.Wait()
	nothingIsLeft(g.t, g.s)
}

// nothingIsLeft checks that no call is counted any more.
func nothingIsLeft(t testing.TB, s *mysqlstore.Store) {
	t.Helper()
	rig.Eventually(t, patience, "nothing is under way", func() bool {
		busy, _ := s.Rows()
		return s.Queued() == 0 && busy == 0
	})
}

// executed is how many statements the server has executed.
func executed(t testing.TB, srv *rig.MariaDBServer) (n int64) {
	t.Helper()
	var v string
	if err := admin(t, srv).QueryRow("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").Scan(new(string), &v); err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(v, &n)
	return n
}

// Many acquires at once, of every kind: each gets its own outcome.
func TestGatheredAcquires(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			s, other := open(t, srv.DSN(at(level)), calm), open(t, srv.DSN(""), calm)
			key := func(kind string, i int) string { return fmt.Sprint(level, "/", kind, "/", i) }
			const each = 9
			before := make(map[string]tierlock.Token)
			own := make(map[string]string)
			for i := range each {
				for _, kind := range []string{"held", "own", "free", "ahead"} {
					k, lease := key(kind, i), newLease()
					before[k], own[k] = mustAcquire(t, other, ask(k, lease, patience)), lease
					if kind == "free" || kind == "ahead" {
						mustRelease(t, other, drop(k, lease), tierlock.LeaseOwned)
					}
					if kind == "ahead" {
						execute(t, db, "UPDATE lock_record SET fence=fence+7200000000 WHERE "+row(k))
					}
				}
			}
			g := gatherCalls(t, s)
			sent := executed(t, srv)
			results, leases := make(map[string]*gotten), make(map[string]string)
			for i := range each {
				for _, kind := range []string{"new", "held", "own", "free", "ahead", "late", "left"} {
					k := key(kind, i)
					req := ask(k, newLease(), patience)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					switch kind {
					case "own":
						req.Token.Lease = own[k]
					case "late":
						req.Budget = time.Millisecond
					}
					leases[k] = req.Token.Lease
					results[k] = g.acquire(ctx, req)
					if kind == "left" {
						g.leave(cancel)
					}
				}
			}
			time.Sleep(5 * time.Millisecond) // more than the budget of the late ones
			g.answers()
			if n := executed(t, srv) - sent; n > 3*each {
				t.Errorf("%d statements for %d calls", n, 6*each)
			}
			for i := range each {
				for _, kind := range []string{"new", "free", "ahead", "own"} {
					k := key(kind, i)
					got := results[k]
					if got.err != nil || !got.Granted || got.Reentered || got.Token.Lease != leases[k] {
						t.Errorf("%s: got %+v; wanted a grant", k, got)
						continue
					}
					rec := mustInspect(t, other, k)
					if rec.Token != got.Token {
						t.Errorf("%s: stored is\n%+v, granted was\n%+v", k, rec.Token, got.Token)
					}
					if kind == "own" && got.Token != before[k] {
						t.Errorf("%s: repeated gives\n%+v, after\n%+v", k, got.Token, before[k])
					}
					if kind == "free" && got.Token.Fence <= before[k].Fence || kind == "ahead" && got.Token.Fence != before[k].Fence+7200000001 {
						t.Errorf("%s: fence %d after %d", k, got.Token.Fence, before[k].Fence)
					}
					if rec.Left < patience/2 || rec.Left > patience {
						t.Errorf("%s: %v left of %v", k, rec.Left, patience)
					}
					mustRelease(t, other, drop(k, leases[k]), tierlock.LeaseOwned)
				}
				k := key("held", i)
				if got := results[k]; got.err != nil || got.Granted || got.Token != before[k] || got.Left < patience/2 || got.Left > patience {
					t.Errorf("%s: got %+v; wanted held by %v", k, got, before[k])
				}
				if rec := mustInspect(t, other, k); rec.Token != before[k] {
					t.Errorf("%s: the refused call has changed the lock: %+v", k, rec)
				}
				for _, kind := range []string{"late", "left"} {
					k := key(kind, i)
					want := tierlock.ErrLate
					if kind == "left" {
						want = tierlock.ErrUnavailable
						if !errors.Is(results[k].err, context.Canceled) {
							t.Errorf("%s: got error %v; wanted the ctx's", k, results[k].err)
						}
					}
					wantClass(t, k, results[k].err, want)
					if n := number(t, db, "SELECT COUNT(*) FROM lock_record WHERE "+row(k)); n != 0 {
						t.Errorf("%s: it has a row", k)
					}
				}
			}
		})
	}
}

// Many releases at once.
func TestGatheredReleases(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	for _, level := range levels {
		for _, allOwned := range []bool{true, false} {
			t.Run(fmt.Sprint(level, "/", allOwned), func(t *testing.T) {
				s, other := open(t, srv.DSN(at(level)), calm), open(t, srv.DSN("clientFoundRows=true"), calm)
				kinds := []string{"owned", "another's", "released", "none", "explicit", "kept", "left"}
				if allOwned {
					kinds = []string{"owned"}
				}
				key := func(kind string, i int) string { return fmt.Sprint(level, "/", allOwned, "/", kind, "/", i) }
				const each = 10
				for i := range each {
					for _, kind := range kinds {
						if k := key(kind, i); kind == "explicit" {
							mustAcquire(t, other, askAs("h", k, k, patience))
						} else if kind != "none" {
							mustAcquire(t, other, ask(k, k, patience))
							if kind == "released" {
								mustRelease(t, other, drop(k, k), tierlock.LeaseOwned)
							}
						}
					}
				}
				g := gatherCalls(t, s)
				sent := executed(t, srv)
				results := make(map[string]*gotten)
				for i := range each {
					for _, kind := range kinds {
						k := key(kind, i)
						req := drop(k, k)
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						if kind == "another's" {
							req.Lease = newLease()
						}
						if kind == "kept" {
							continue
						}
						results[k] = g.release(ctx, req)
						if kind == "left" {
							g.leave(cancel)
						}
					}
				}
				g.answers()
				if n := executed(t, srv) - sent; n > 5 {
					t.Errorf("%d statements for %d calls", n, each*len(kinds))
				}
				want := map[string]tierlock.Ownership{"owned": tierlock.LeaseOwned, "another's": tierlock.LeaseTaken,
					"released": tierlock.LeaseGone, "none": tierlock.LeaseGone, "explicit": tierlock.LeaseTaken}
				for i := range each {
					for _, kind := range kinds {
						k := key(kind, i)
						got, rec := results[k], mustInspect(t, other, k)
						switch kind {
						case "left":
							wantClass(t, k, got.err, tierlock.ErrUnavailable)
						case "kept": // nobody has called
						default:
							if got.err != nil || got.own != want[kind] {
								t.Errorf("%s: got %v, %v; wanted %v", k, got.own, got.err, want[kind])
							}
						}
						if held := strings.Contains("another's explicit kept left", kind); rec.Held != held {
							t.Errorf("%s: held is %v; wanted %v", k, rec.Held, held)
						}
					}
				}
			})
		}
	}
}

// One key is not in one statement twice: of two calls one goes by itself, at once.
func TestGatheredOneKeyTwice(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN(""), calm)
	g := gatherCalls(t, s)
	first := g.acquire(t.Context(), ask("k", "first", patience))
	mustAcquire(t, s, ask("k", "second", patience))
	g.acquire(t.Context(), ask("other", newLease(), patience))
	g.answers()
	if first.err != nil || first.Granted || first.Token.Lease != "second" {
		t.Errorf("got %+v; wanted held by the one that went by itself", first)
	}
}

// The server does not know how not to wait: each call goes by itself.
func TestNothingGathersOnMySQL(t *testing.T) {
	t.Parallel()
	srv := migrated(t, "--version=8.0.36")
	s := open(t, srv.DSN("innodb_lock_wait_timeout=1"), calm)
	inspectSoon(t, s, "k")
	defer s.Gather()()
	mustAcquire(t, s, ask("k", "l", patience))
	mustRelease(t, s, drop("k", "l"), tierlock.LeaseOwned)
}

// What is too large to be sent with others is sent by itself: a long token at once,
// and several calls where the driver, or the server, refuses the statement for all.
func TestTooLargeToGather(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN("maxAllowedPacket=6000"), calm) // the text for one is some 3,000
	g := gatherCalls(t, s)
	long := ask("long", newLease(), patience)
	long.Token.RequestID = strings.Repeat("r", 2000)
	mustAcquire(t, s, long)
	var all []*gotten
	for i := range 30 {
		all = append(all, g.acquire(t.Context(), ask(fmt.Sprint(i), newLease(), patience)))
	}
	g.answers()
	for i, got := range all {
		if rec := mustInspect(t, s, fmt.Sprint(i)); got.err != nil || !got.Granted || rec.Token != got.Token {
			t.Errorf("%d: got %+v, %v; stored is %+v", i, got.AcquireResult, got.err, rec)
		}
	}
}

// What waits in the queue is told when the store is closed, and nothing goes on.
func TestCloseEndsTheQueue(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	g := gatherCalls(t, s)
	var all []*gotten
	for i := range 40 {
		all = append(all, g.acquire(t.Context(), ask(fmt.Sprint(i), newLease(), patience)))
	}
	s.Close()
	g.answers()
	for i, got := range all {
		wantClass(t, "acquire", got.err, tierlock.ErrUnavailable, "closed")
		if mustInspect(t, other, fmt.Sprint(i)).Held {
			t.Errorf("%d is held", i)
		}
	}
}

// The end of a call in the queue is its own.
func TestGatheredCallsEndOnTime(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	const limit = 6 * time.Second
	s := open(t, srv.DSN(""), mysqlstore.Options{CallTimeout: limit})
	g := gatherCalls(t, s)
	within(t, limit+slack, "the calls", func() {
		stores := g.acquire(t.Context(), ask("store's", newLease(), patience))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := s.Acquire(ctx, ask("own", newLease(), patience))
		if n := s.Queued(); n != 1 {
			t.Errorf("%d calls are in the queue when one has left it; wanted the other", n)
		}
		wantClass(t, "own", err, tierlock.ErrUnavailable)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v; wanted the ctx's error", err)
		}
		g.calls.Wait()
		wantClass(t, "store's", stores.err, tierlock.ErrUnavailable, "no answer")
		if errors.Is(stores.err, context.DeadlineExceeded) {
			t.Errorf("got %v; wanted no error of a ctx", stores.err)
		}
	})
	g.answers()
}
