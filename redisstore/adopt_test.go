package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

func dropIn(p tierlock.Place, key, lease string, explicit bool) tierlock.ReleaseRequest {
	rel := drop(key, lease)
	rel.Place, rel.Explicit = p, explicit
	return rel
}

func renewIn(t testing.TB, s tierlock.Store, p tierlock.Place, key, lease string, explicit bool, ttl time.Duration) tierlock.RenewResult {
	t.Helper()
	return s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: lease, Explicit: explicit, TTL: ttl, Place: p}})[0]
}

// An adopted hold is in the new epoch what it was, with its fence: it is read,
// renewed and released there, and blocks others.
func TestAdoptedHoldIsAHold(t *testing.T) {
	srv := rig.Redis(t)
	s, other := open(t, srv.Addr), open(t, srv.Addr)
	for _, place := range []tierlock.Place{shared(3), exclusive(3)} {
		for _, explicit := range []bool{false, true} {
			what := fmt.Sprintf("%+v, explicit %v", place, explicit)
			lease := newLease()
			req := ask("k", lease, 30*time.Second)
			if explicit {
				req = askAs("h", "k", lease, 30*time.Second)
			}
			adopt := adoptIn(place, req, 1, 123456)
			mustAdopt(t, s, adopt)
			want := adopt.Token
			want.Epoch = 3
			if stored := tokenOf(t, srv, "k"); stored != want {
				t.Errorf("%s: stored\n%+v\nwanted\n%+v", what, stored, want)
			}
			if value, _ := want.MarshalJSON(); strings.TrimSuffix(srv.Text("GET", keyOf("k")), " ") != string(value) {
				t.Errorf("%s: stored\n%s\nwanted\n%s", what, srv.Text("GET", keyOf("k")), value)
			}
			if ttl := srv.Int("PTTL", keyOf("k")); ttl > 30_000 || ttl < 29_000 {
				t.Errorf("%s: %d ms left; wanted 30,000", what, ttl)
			}
			if rec, err := other.Inspect(t.Context(), name("k")); err != nil || rec.Token != want || rec.Holds != 1 {
				t.Errorf("%s: inspect: got %+v, %v", what, rec, err)
			}
			res, err := other.Acquire(t.Context(), askIn(place, ask("k", newLease(), time.Second)))
			if err != nil || res.Granted || res.Token != want {
				t.Errorf("%s: acquire: got %+v, %v; wanted to hear who has it", what, res, err)
			}
			if again, err := s.Acquire(t.Context(), askIn(place, req)); err != nil || !again.Granted || again.Token != want {
				t.Errorf("%s: acquire by the holder: got %+v, %v; wanted its own hold", what, again, err)
			}
			if explicit {
				joined, err := other.Acquire(t.Context(), askIn(place, askAs("h", "k", "joined", 30*time.Second)))
				if err != nil || !joined.Reentered || joined.Token.Fence != want.Fence || joined.Token.Epoch != 3 || joined.Token.Seq != want.Seq {
					t.Errorf("%s: entering: got %+v, %v; wanted the fence of the hold", what, joined, err)
				}
				mustRelease(t, other, dropIn(place, "k", "joined", true), tierlock.LeaseOwned)
			}
			if res := renewIn(t, s, place, "k", lease, explicit, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Errorf("%s: renew: got %+v", what, res)
			}
			if place.Exclusive {
				wantEpochError(t, what+": renewal where it was granted", renewIn(t, s, exclusive(1), "k", lease, explicit, time.Minute).Err)
				_, err := s.Release(t.Context(), dropIn(exclusive(1), "k", lease, explicit))
				wantEpochError(t, what+": release where it was granted", err)
			}
			mustRelease(t, s, dropIn(place, "k", lease, explicit), tierlock.LeaseOwned)
			next := mustAcquire(t, other, askIn(place, ask("k", newLease(), time.Second)))
			if next.Fence <= want.Fence || next.Epoch != 3 {
				t.Errorf("%s: fence %d of epoch %d after the adopted %d", what, next.Fence, next.Epoch, want.Fence)
			}
			srv.Do("FLUSHALL")
		}
	}
}

// The record that fences are counted from is raised to the adopted fence, and
// never lowered.
func TestAdoptionAndTheRecord(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	now := seqNow(t, srv)
	for _, c := range []struct {
		record     string
		epoch, seq uint64
		want       string
		life       int64 // at most, in ms; at least 15 s less
	}{
		{"", 1, 1000, "1000", 62_000},
		{"", 2, 1000, "2 1000", 62_000},
		{"x", 2, 1000, "2 1000", 62_000},
		{"999", 1, 1000, "1000", 62_000},
		{"1001", 1, 1000, "1001", 60_000},
		{"5000", 2, 1000, "2 1000", 62_000},
		{"2 5000", 1, 9000, "2 5000", 60_000},
		{"2 5000", 2, 4000, "2 5000", 60_000},
		{"2 5000", 2, 6000, "2 6000", 62_000},
		{"2 5000", 3, 1, "3 1", 62_000},
		{"4 1", 3, 5000, "4 1", 60_000},
		// Written by a database whose clock is ahead by a minute.
		{"", 2, now + 60*seqsPerSecond, fmt.Sprintf("2 %d", now+60*seqsPerSecond), 122_000},
		{"", 16383, 1<<49 - 1 - 7, fmt.Sprintf("16383 %d", uint64(1)<<49-1-7), 1 << 50},
	} {
		srv.Do("FLUSHALL")
		if c.record != "" {
			srv.Do("SET", redisstore.FenceKey(name("k")), c.record, "PX", "60000")
		}
		mustAdopt(t, s, adoptIn(exclusive(16383), ask("k", newLease(), time.Second), c.epoch, c.seq))
		if got := recordOf(srv, "k"); got != c.want {
			t.Errorf("record %q, fence (%d, %d): got %q; wanted %q", c.record, c.epoch, c.seq, got, c.want)
		}
		if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl > c.life || ttl < c.life-15_000 && c.life < 1<<50 {
			t.Errorf("record %q, fence (%d, %d): it lives for %d ms; wanted %d", c.record, c.epoch, c.seq, ttl, c.life)
		}
	}
}

// An adoption that is repeated, also late, shortens nothing and takes back nothing
// that the hold has written since.
func TestAdoptionIsIdempotent(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, place := range []tierlock.Place{shared(3), exclusive(3)} {
		for _, explicit := range []bool{false, true} {
			srv.Do("FLUSHALL")
			what := fmt.Sprintf("%+v, explicit %v", place, explicit)
			req := ask("k", newLease(), time.Minute)
			if explicit {
				req = askAs("h", "k", newLease(), time.Minute)
			}
			first := adoptIn(place, req, 2, 1000)
			mustAdopt(t, s, first)
			score := srv.Do("ZSCORE", keyOf("k")+":holds", req.Token.Lease)
			state := keyState(srv, "k")
			again := first
			again.TTL = 10 * time.Second
			mustAdopt(t, s, again)
			if now := keyState(srv, "k"); now != state {
				t.Errorf("%s: repeated, it made\n%s\nof\n%s", what, now, state)
			}
			if left := srv.Int("PTTL", keyOf("k")); left < 50_000 {
				t.Errorf("%s: repeated with a shorter TTL, it left %d ms", what, left)
			}
			if explicit {
				if now := srv.Do("ZSCORE", keyOf("k")+":holds", req.Token.Lease); now != score {
					t.Errorf("%s: repeated with a shorter TTL, it made %v of the lease's end %v", what, now, score)
				}
			}
			again.TTL = 2 * time.Minute
			mustAdopt(t, s, again)
			if left := srv.Int("PTTL", keyOf("k")); left < 110_000 {
				t.Errorf("%s: with a longer TTL, it left %d ms", what, left)
			}
			if explicit {
				continue
			}
			// The hold has got a larger fence under the same lease.
			newer := adoptIn(place, req, 3, 2000)
			mustAdopt(t, s, newer)
			mustAdopt(t, s, first)
			if tok := tokenOf(t, srv, "k"); tok.Fence != newer.Token.Fence {
				t.Errorf("%s: the late one brought back the fence %d after %d", what, tok.Fence, newer.Token.Fence)
			}
		}
	}
}

// Leases of one explicit holder have one fence and share the key, in whatever
// order they come; the last release frees it.
func TestAdoptionOfAnExplicitHold(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, place := range []tierlock.Place{shared(3), exclusive(3)} {
		srv.Do("FLUSHALL")
		a := adoptIn(place, askAs("h", "k", "a", 20*time.Second), 2, 1000)
		b := adoptIn(place, askAs("h", "k", "b", 40*time.Second), 2, 1000)
		for _, res := range s.Adopt(t.Context(), []tierlock.AdoptRequest{a, b, a}) {
			if res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Fatalf("%+v: adopt: got %+v", place, res)
			}
		}
		rec, err := s.Inspect(t.Context(), name("k"))
		if err != nil || rec.Holds != 2 || rec.Token.Fence != a.Token.Fence || rec.Token.Epoch != 3 || rec.Left < 30*time.Second {
			t.Errorf("%+v: inspect: got %+v, %v; wanted two holds for 40 s", place, rec, err)
		}
		for _, lease := range []string{"a", "b"} {
			if res := renewIn(t, s, place, "k", lease, true, 30*time.Second); res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Errorf("%+v: renewal of %s: got %+v", place, lease, res)
			}
		}
		mustRelease(t, s, dropIn(place, "k", "b", true), tierlock.LeaseOwned)
		if rec, err := s.Inspect(t.Context(), name("k")); err != nil || rec.Holds != 1 {
			t.Errorf("%+v: after one release: got %+v, %v; wanted one hold", place, rec, err)
		}
		mustRelease(t, s, dropIn(place, "k", "a", true), tierlock.LeaseOwned)
		if n := srv.Int("EXISTS", keyOf("k"), keyOf("k")+":holds"); n != 0 {
			t.Errorf("%+v: %d keys are left after the last release", place, n)
		}
	}
}

// Fences are compared as numbers, and one fence under another holder's id is
// another hold.
func TestAdoptionComparesFences(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, place := range []tierlock.Place{shared(30), exclusive(30)} {
		srv.Do("FLUSHALL")
		try := func(holder string, epoch, seq uint64, want tierlock.Ownership) {
			t.Helper()
			req := ask("k", newLease(), time.Minute)
			if holder != "" {
				req = askAs(holder, "k", newLease(), time.Minute)
			}
			if res := adoptOne(t, s, adoptIn(place, req, epoch, seq)); res.Err != nil || res.State != want {
				t.Errorf("%+v: fence (%d, %d): got %+v; wanted %v", place, epoch, seq, res, want)
			}
		}
		// 15, 16 and 17 digits.
		try("", 1, 5, tierlock.LeaseOwned)
		try("", 2, 5, tierlock.LeaseOwned)
		try("", 1, 6, tierlock.LeaseTaken)
		try("", 18, 5, tierlock.LeaseOwned)
		try("", 8, 5, tierlock.LeaseTaken)
		try("g", 19, 5, tierlock.LeaseOwned)
		try("g", 19, 5, tierlock.LeaseOwned)
		try("h", 19, 5, tierlock.LeaseOwned)
		if rec, err := s.Inspect(t.Context(), name("k")); err != nil || rec.Holds != 1 || rec.Token.Holder != "h" {
			t.Errorf("%+v: got %+v, %v; wanted the one hold of h", place, rec, err)
		}
	}
}

// Over the same data, as when the arbiter alone has failed over: what is not
// adopted is, for an exclusive hold, not there. Otherwise the lease alone counts.
func TestAdoptionOverTheHoldItself(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, place := range []tierlock.Place{shared(19), exclusive(19)} {
		srv.Do("FLUSHALL")
		old := place
		old.Epoch = 3
		tok := mustAcquire(t, s, askIn(old, askAs("h", "k", "a", 30*time.Second)))
		mustAcquire(t, s, askIn(old, askAs("h", "k", "b", time.Minute)))
		mustAdopt(t, s, adoptIn(place, askAs("h", "k", "a", 30*time.Second), tok.Epoch, tok.Seq))
		rec, err := s.Inspect(t.Context(), name("k"))
		if err != nil || rec.Token.Epoch != 19 || rec.Token.Fence != tok.Fence {
			t.Fatalf("%+v: inspect: got %+v, %v", place, rec, err)
		}
		late := renewIn(t, s, old, "k", "b", true, time.Minute)
		if place.Exclusive {
			if rec.Holds != 1 || rec.Left > 30*time.Second {
				t.Errorf("exclusive: got %+v; wanted the one adopted hold, for 30 s", rec)
			}
			wantEpochError(t, "renewal of what was not adopted", late.Err)
		} else if rec.Holds != 2 || rec.Left < 50*time.Second || late.Err != nil || late.State != tierlock.LeaseOwned {
			t.Errorf("shared: got %+v, and renewing the other %+v; wanted both holds", rec, late)
		}
		mustAdopt(t, s, adoptIn(place, askAs("h", "k", "b", time.Minute), tok.Epoch, tok.Seq))
		for _, lease := range []string{"a", "b"} {
			mustRelease(t, s, dropIn(place, "k", lease, true), tierlock.LeaseOwned)
		}
		if n := srv.Int("EXISTS", keyOf("k")); n != 0 {
			t.Errorf("%+v: the key stays", place)
		}
	}
}

// A batch: each result in its place, whatever the server has forgotten, and
// requests that cannot be sent among them.
func TestAdoptionInABatch(t *testing.T) {
	srv := rig.Redis(t)
	s := openWith(t, patient(srv.Addr), redisstore.Options{CallTimeout: 20 * time.Second})
	const n = 1100 // more than a pipeline holds
	var reqs []tierlock.AdoptRequest
	for i := range n {
		req := ask(fmt.Sprint(i), newLease(), time.Minute)
		req.Explicit = i%3 == 1
		place := exclusive(4)
		place.Exclusive = i%2 == 0
		if i%5 == 0 {
			mustAcquire(t, s, askIn(shared(4), ask(fmt.Sprint(i), newLease(), time.Minute)))
		}
		adopt := adoptIn(place, req, 2, uint64(i))
		if i == 7 {
			adopt.TTL = 0
		}
		reqs = append(reqs, adopt)
	}
	for range 2 {
		srv.Do("SCRIPT", "FLUSH")
		res := s.Adopt(t.Context(), reqs)
		if len(res) != n {
			t.Fatalf("%d results for %d requests", len(res), n)
		}
		for i, r := range res {
			switch {
			case i == 7:
				wantClass(t, "adoption for no time", r.Err, tierlock.ErrMisconfigured)
			case r.Err != nil, i%5 == 0 && r.State != tierlock.LeaseTaken, i%5 != 0 && r.State != tierlock.LeaseOwned:
				t.Fatalf("adoption %d: got %+v", i, r)
			}
		}
	}
	if res := s.Adopt(t.Context(), nil); len(res) != 0 {
		t.Errorf("%d results for nothing", len(res))
	}
	noEternalKeys(t, srv)
}

// An adoption tells watchers only what may let them have the lock sooner.
func TestAdoptionWakesNobodyForNothing(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	w := watch(t, open(t, srv.Addr), "k")
	published := func() int { return int(srv.CommandsOf("spublish")) }
	wakes := func(what string, want int, f func()) {
		t.Helper()
		before := published()
		f()
		if got := published() - before; got != want {
			t.Errorf("%s: %d messages; wanted %d", what, got, want)
		}
		if want > 0 && !signalled(w, 5*time.Second) {
			t.Errorf("%s: no signal", what)
		}
	}
	for _, place := range []tierlock.Place{shared(3), exclusive(3)} {
		a := adoptIn(place, ask("k", "a", 30*time.Second), 2, 1000)
		wakes("over a free key", 0, func() { mustAdopt(t, s, a) })
		wakes("repeated", 0, func() { mustAdopt(t, s, a) })
		brief := a
		brief.TTL = time.Second
		wakes("repeated for less, which shortens nothing", 0, func() { mustAdopt(t, s, brief) })
		longer := adoptIn(place, ask("k", "b", time.Minute), 2, 2000)
		wakes("over a smaller fence, for longer", 0, func() { mustAdopt(t, s, longer) })
		shorter := adoptIn(place, ask("k", "c", 10*time.Second), 2, 3000)
		wakes("over a smaller fence, for less", 1, func() { mustAdopt(t, s, shorter) })
		lost := adoptIn(place, ask("k", "d", time.Second), 2, 2500)
		wakes("not taken", 0, func() {
			if res := adoptOne(t, s, lost); res.Err != nil || res.State != tierlock.LeaseTaken {
				t.Errorf("got %+v; wanted taken", res)
			}
		})
		if place.Exclusive {
			next := exclusive(4)
			wakes("a grant over an earlier epoch's key, for less", 1, func() {
				mustAcquire(t, s, askIn(next, ask("k", "e", 5*time.Second)))
			})
			wakes("a grant over an earlier epoch's key, for longer", 0, func() {
				mustAcquire(t, s, askIn(exclusive(5), ask("k", "f", time.Minute)))
			})
		}
		srv.Do("FLUSHALL")
	}
}
