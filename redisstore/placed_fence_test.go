package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// The script's decimal arithmetic gives what uint64 gives, for every kind of
// grant: Lua's own numbers are whole to 2^53 only.
func TestFenceOfAnyEpochIsExact(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	const last = 1<<49 - 2 // the largest record that has a successor
	type pair struct{ epoch, seq uint64 }
	var pairs []pair
	for _, epoch := range []uint64{1, 2, 15, 16, 17, 1000, 1776, 1777, 8191, 8192, 16382, 16383} {
		for _, seq := range []uint64{last, last - 1, 1<<48 - 1, 1 << 48, 499999999999998, 499999999999999, 500000000000000, 500000000578687, 500000000578688} {
			pairs = append(pairs, pair{epoch, seq})
		}
	}
	now := seqNow(t, srv) + 100*seqsPerSecond
	for range 400 {
		pairs = append(pairs, pair{1 + rand.Uint64N(16383), now + rand.Uint64N(last-now)})
	}
	for i, p := range pairs {
		req := ask("k", newLease(), time.Second)
		if i%2 == 1 {
			req = askAs("h", "k", newLease(), time.Second)
		}
		place := tierlock.Place{Epoch: uint16(p.epoch), Exclusive: i%4 > 1}
		record := fmt.Sprintf("%d %d", p.epoch, p.seq)
		if p.epoch == 1 {
			record = fmt.Sprint(p.seq)
		}
		srv.Do("SET", redisstore.FenceKey(name("k")), record, "PX", "60000")
		tok := mustAcquire(t, s, askIn(place, req))
		if want := p.epoch<<49 | (p.seq + 1); tok.Fence != want || tok.Epoch != p.epoch || tok.Seq != p.seq+1 {
			t.Errorf("after (%d, %d) %+v: got fence %d of epoch %d, seq %d; wanted %d", p.epoch, p.seq, place, tok.Fence, tok.Epoch, tok.Seq, want)
		}
		if stored := tokenOf(t, srv, "k"); stored != tok {
			t.Errorf("after (%d, %d): stored\n%+v\ngranted\n%+v", p.epoch, p.seq, stored, tok)
		}
		if got, want := recordOf(srv, "k"), fmt.Sprintf("%d %d", p.epoch, p.seq+1); got != want && (p.epoch > 1 || got != want[2:]) {
			t.Errorf("after (%d, %d): record %q; wanted %q", p.epoch, p.seq, got, want)
		}
		srv.Do("DEL", keyOf("k"))
	}
}

// The same where the fence comes from the clock: what the client computes is what
// the server stored.
func TestFenceOfAnyEpochFromTheClock(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for i := range 300 {
		epoch := uint16(1 + rand.IntN(16383))
		req := ask("k", newLease(), time.Second)
		req.Explicit = i%2 == 1
		srv.Do("FLUSHALL")
		before := seqNow(t, srv)
		tok := mustAcquire(t, s, askIn(tierlock.Place{Epoch: epoch, Exclusive: i%4 > 1}, req))
		if tok.Seq < before+seqsPerSecond || tok.Seq > before+61*seqsPerSecond || tok.Epoch != uint64(epoch) || tok.Fence != tok.Epoch<<49|tok.Seq {
			t.Errorf("epoch %d: got fence %d of epoch %d, seq %d; now is %d", epoch, tok.Fence, tok.Epoch, tok.Seq, before)
		}
		if stored := tokenOf(t, srv, "k"); stored != tok {
			t.Errorf("epoch %d: stored\n%+v\ngranted\n%+v", epoch, stored, tok)
		}
	}
}

// The record of a slot has the last word on the epoch of a grant that is not
// exclusive, and refuses one that is of an earlier epoch, also over its own key.
func TestEpochOfTheRecord(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		srv.Do("FLUSHALL")
		before := mustAcquire(t, s, askIn(exclusive(7), ask("k", "a", time.Second)))
		rel := drop("k", "a")
		rel.Place = exclusive(7)
		mustRelease(t, s, rel, tierlock.LeaseOwned)

		req := ask("k", newLease(), 30*time.Second)
		req.Explicit = explicit
		state := keyState(srv, "k")
		_, err := s.Acquire(t.Context(), askIn(exclusive(6), req))
		wantEpochError(t, "exclusive acquire of epoch 6 under a record of 7", err)
		wantEpochError(t, "exclusive adoption of epoch 6 under a record of 7", adoptOne(t, s, adoptIn(exclusive(6), req, 5, 1)).Err)
		if now := keyState(srv, "k"); now != state {
			t.Errorf("refused, but changed from\n%s\nto\n%s", state, now)
		}

		tok := mustAcquire(t, s, askIn(shared(6), req))
		if tok.Epoch != 7 || tok.Fence <= before.Fence || tok.Fence != 7<<49|tok.Seq {
			t.Errorf("shared grant of epoch 6: got %d of epoch %d after %d of 7; wanted it larger", tok.Fence, tok.Epoch, before.Fence)
		}
		if stored := tokenOf(t, srv, "k"); stored != tok {
			t.Errorf("stored\n%+v\ngranted\n%+v", stored, tok)
		}
		if got, want := recordOf(srv, "k"), fmt.Sprintf("7 %d", tok.Seq); got != want {
			t.Errorf("record %q; wanted %q", got, want)
		}
		srv.Do("DEL", keyOf("k"))
		next := mustAcquire(t, s, askIn(exclusive(8), ask("k", "b", time.Second)))
		if next.Epoch != 8 || next.Fence <= tok.Fence {
			t.Errorf("fence %d of epoch %d after %d of 7", next.Fence, next.Epoch, tok.Fence)
		}
	}
	// A key of one's own, and a record that was written for another lock.
	srv.Do("FLUSHALL")
	req := askIn(exclusive(6), ask("k", newLease(), 30*time.Second))
	mustAcquire(t, s, req)
	srv.Do("SET", redisstore.FenceKey(name("k")), "7 1", "PX", "60000")
	_, err := s.Acquire(t.Context(), req)
	wantEpochError(t, "again under a later record", err)
}

// A service that was on one store goes on to a chain, whose first epoch is that of
// the single store, and back: fences rise, and the record is the same.
func TestFencesRiseIntoAChainAndBack(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	ahead := seqNow(t, srv) + 30*seqsPerSecond // the clock was stepped back
	srv.Do("SET", redisstore.FenceKey(name("k")), fmt.Sprint(ahead), "PX", "60000")
	var last tierlock.Token
	for i, place := range []tierlock.Place{{}, shared(1), {}, exclusive(1), {}, shared(1), exclusive(2), shared(2), exclusive(3)} {
		tok := mustAcquire(t, s, askIn(place, ask("k", "x", time.Second)))
		if tok.Fence <= last.Fence {
			t.Errorf("step %d, %+v: fence %d after %d", i, place, tok.Fence, last.Fence)
		}
		if want := max(uint64(place.Epoch), 1); tok.Epoch != want {
			t.Errorf("step %d, %+v: epoch %d", i, place, tok.Epoch)
		}
		if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); tok.Epoch == 1 && (ttl < 80_000 || ttl > 92_100) || tok.Epoch > 1 && ttl < 50_000 {
			t.Errorf("step %d: the record lives for %d ms", i, ttl)
		}
		last = tok
		rel := drop("k", "x")
		rel.Place = place
		mustRelease(t, s, rel, tierlock.LeaseOwned)
	}
}

// A store by itself cannot give a larger fence than a chain that has come to its
// second epoch, so it takes no lock there, and leaves the record as it is.
func TestPlainCallsUnderAChainsRecord(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		for _, ahead := range []uint64{0, 30} {
			record := fmt.Sprintf("2 %d", seqNow(t, srv)+ahead*seqsPerSecond)
			srv.Do("SET", redisstore.FenceKey(name("k")), record, "PX", "60000")
			req := ask("k", newLease(), time.Second)
			req.Explicit = explicit
			_, err := s.Acquire(t.Context(), req)
			wantClass(t, "acquire without a place", err, tierlock.ErrMisconfigured)
			if !strings.Contains(err.Error(), "CHAIN locks here are those of a chain, in epoch 2") {
				t.Errorf("got %v", err)
			}
			if got, n := recordOf(srv, "k"), srv.Int("EXISTS", keyOf("k"), keyOf("k")+":holds"); got != record || n != 0 {
				t.Errorf("the record is %q, and %d keys are there; wanted %q and none", got, n, record)
			}
			if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl > 92_000 || ttl < 60_000+int64(ahead)*900 {
				t.Errorf("the record, %d s ahead, lives for %d ms", ahead, ttl)
			}
		}
	}
}

// The record of a later epoch lives until the clock has passed its seq, too.
func TestRecordOfALaterEpochAheadOfTheClock(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	ahead := seqNow(t, srv) + 30*seqsPerSecond
	srv.Do("SET", redisstore.FenceKey(name("k")), fmt.Sprintf("9 %d", ahead), "PX", "60000")
	for i, req := range []tierlock.AcquireRequest{
		ask("k", newLease(), time.Second), askAs("h", "k", newLease(), time.Second),
	} {
		tok := mustAcquire(t, s, askIn(shared(uint16(4+5*i)), req))
		if want := ahead + 1 + uint64(i); tok.Seq != want || tok.Epoch != 9 {
			t.Errorf("got epoch %d, seq %d; wanted 9, %d", tok.Epoch, tok.Seq, want)
		}
		if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl < 80_000 || ttl > 92_100 {
			t.Errorf("the record lives for %d ms; wanted about 91,000", ttl)
		}
		srv.Do("DEL", keyOf("k"))
	}
}

// A grant that takes its epoch from the record still counts from the clock.
func TestRecordOfALaterEpochBehindTheClock(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		srv.Do("SET", redisstore.FenceKey(name("k")), "9 5", "PX", "60000")
		req := askIn(shared(4), ask("k", newLease(), time.Second))
		req.Explicit = explicit
		before := seqNow(t, srv)
		if tok := mustAcquire(t, s, req); tok.Epoch != 9 || tok.Seq < before+seqsPerSecond {
			t.Errorf("got epoch %d, seq %d; wanted 9 and a second after %d", tok.Epoch, tok.Seq, before)
		}
		srv.Do("DEL", keyOf("k"))
	}
}

// What no lock has written into the record is no fence and no epoch.
func TestRecordOfAChainThatIsNone(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, junk := range []string{
		"", "x", "-1", "nan", "1e300", "9223372036854775807", "562949953421311", "1 2 3", " 1", "3 x", "3 562949953421311",
		"16384 5", "99999999999999999999 5", "-3 5", "3  5",
	} {
		for i := range 4 {
			req := askIn(tierlock.Place{Epoch: 2, Exclusive: i%2 == 1}, ask("k", newLease(), time.Second))
			req.Explicit = i > 1
			srv.Do("SET", redisstore.FenceKey(name("k")), junk)
			res, err := s.Acquire(background, req)
			now := seqNow(t, srv)
			if err != nil || !res.Granted || res.Token.Epoch != 2 {
				t.Errorf("record %q, %+v: got %+v, %v; wanted a grant", junk, req.Place, res, err)
			} else if seq := res.Token.Seq; seq > now+seqsPerSecond || seq+60*seqsPerSecond < now {
				t.Errorf("record %q: seq %d, and now is %d; wanted a second ahead of that", junk, seq, now)
			}
			if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl < 1 || ttl > 62_000 {
				t.Errorf("record %q: its successor lives for %d ms; wanted about 62,000", junk, ttl)
			}
			srv.Do("DEL", keyOf("k"))
		}
	}
}

// What somebody else wrote under the name of a lock is of no epoch: it counts as
// held by others.
func TestForeignKeyIsOfNoEpoch(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, value := range []string{
		"x", " ", `{"lease":"a"}`, `{"lease":"a","fence":"x","epoch":1,"seq":1,`, `["lease":"a","fence":"1","epoch":1,"seq":1,`,
		`{"lease":"a\",\"fence\":\"1\",\"epoch\":9,\"seq\":1,"`, "[] ", `{"lease":"a"} `,
	} {
		srv.Do("SET", keyOf("k"), value, "PX", "60000")
		for _, place := range []tierlock.Place{shared(5), exclusive(5)} {
			for _, explicit := range []bool{false, true} {
				req := askIn(place, ask("k", newLease(), time.Minute))
				req.Explicit = explicit
				if res, err := s.Acquire(background, req); err != nil || res.Granted {
					t.Errorf("%q, %+v: acquire: got %+v, %v; wanted held", value, place, res, err)
				}
				if res := adoptOne(t, s, adoptIn(place, req, 4, 4)); res.Err != nil || res.State != tierlock.LeaseTaken {
					t.Errorf("%q, %+v: adopt: got %+v; wanted taken", value, place, res)
				}
				rel := drop("k", req.Token.Lease)
				rel.Place, rel.Explicit = place, explicit
				mustRelease(t, s, rel, tierlock.LeaseTaken)
				if got := srv.Text("GET", keyOf("k")); got != value {
					t.Fatalf("%q became %q", value, got)
				}
			}
		}
	}
}

// An epoch that no fence has room for.
func TestEpochOutOfRange(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	place := shared(16384)
	_, err := s.Acquire(t.Context(), askIn(place, ask("k", "a", time.Second)))
	wantClass(t, "acquire", err, tierlock.ErrMisconfigured)
	rel := drop("k", "a")
	rel.Place = place
	_, err = s.Release(t.Context(), rel)
	wantClass(t, "release", err, tierlock.ErrMisconfigured)
	res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: "a", TTL: time.Second, Place: place}})
	wantClass(t, "renew", res[0].Err, tierlock.ErrMisconfigured)
	wantClass(t, "adopt", adoptOne(t, s, adoptIn(place, ask("k", "a", time.Second), 1, 1)).Err, tierlock.ErrMisconfigured)
	wantClass(t, "adopt without an epoch", adoptOne(t, s, adoptIn(tierlock.Place{}, ask("k", "a", time.Second), 1, 1)).Err, tierlock.ErrMisconfigured)
	if n := srv.Int("DBSIZE"); n != 0 {
		t.Errorf("%d keys after refused requests", n)
	}
}
