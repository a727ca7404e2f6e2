package redisstore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

const seqsPerSecond = 500_000

// seqNow is the seq of the server's clock, without any lead.
func seqNow(t testing.TB, srv *rig.RedisServer) uint64 {
	t.Helper()
	now := srv.Do("TIME").([]any)
	sec, err1 := strconv.ParseUint(now[0].(string), 10, 64)
	us, err2 := strconv.ParseUint(now[1].(string), 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("TIME: %v", now)
	}
	return ((sec-1735689600)*1_000_000 + us) / 2
}

func wantRise(t *testing.T, what string, before, after tierlock.Token) {
	t.Helper()
	if after.Fence <= before.Fence {
		t.Errorf("%s: fence %d after %d; wanted it larger", what, after.Fence, before.Fence)
	}
	if after.Fence != after.Epoch<<49|after.Seq || after.Epoch != 1 {
		t.Errorf("%s: fence %d is not made of epoch %d and seq %d", what, after.Fence, after.Epoch, after.Seq)
	}
}

func TestFenceOfAFreshLockIsASecondAhead(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	before := seqNow(t, srv)
	tok := mustAcquire(t, s, ask("k", newLease(), time.Second))
	after := seqNow(t, srv)
	if tok.Seq < before+seqsPerSecond || tok.Seq > after+seqsPerSecond {
		t.Errorf("seq %d; wanted %d to %d", tok.Seq, before+seqsPerSecond, after+seqsPerSecond)
	}
	if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl < 40_000 || ttl > 62_000 {
		t.Errorf("the record lives for %d ms; wanted about 62,000", ttl)
	}
}

// Scenario 76: what is lost with the data must not bring an old fence back.
func TestFenceRisesOverLostData(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, lose := range []struct {
		name string
		f    func()
	}{
		{"FLUSHALL in mid hold", func() { srv.Do("FLUSHALL") }},
		{"lock deleted", func() { srv.Do("DEL", keyOf("k")) }},
		{"restart without persistence", func() { srv.Kill(); srv.Start() }},
	} {
		t.Run(lose.name, func(t *testing.T) {
			old := newLease()
			first := mustAcquire(t, s, ask("k", old, 30*time.Second))
			lose.f()
			if res := renewOne(t, s, "k", old, 30*time.Second); res.Err != nil || res.State != tierlock.LeaseGone {
				t.Fatalf("renewal of a lost lock: got %+v; wanted gone", res)
			}
			if n := srv.Int("EXISTS", keyOf("k")); n != 0 {
				t.Fatal("a renewal brought the lock back")
			}
			young := newLease()
			second := mustAcquire(t, s, ask("k", young, 30*time.Second))
			wantRise(t, lose.name, first, second)
			mustRelease(t, s, drop("k", old), tierlock.LeaseTaken)
			mustRelease(t, s, drop("k", young), tierlock.LeaseOwned)
		})
	}
}

// The record is ahead of the clock where that was stepped back.
func TestFenceRisesWhenTheClockIsSteppedBack(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	const ahead = 30 // seconds
	record := seqNow(t, srv) + ahead*seqsPerSecond
	srv.Do("SET", redisstore.FenceKey(name("k")), fmt.Sprint(record), "PX", "60000")
	var last tierlock.Token
	for i := range 5 {
		lease, ttl := newLease(), 100*time.Millisecond
		if i%2 == 0 {
			ttl = time.Minute
		}
		tok := mustAcquire(t, s, ask("k", lease, ttl))
		if want := record + 1 + uint64(i); tok.Seq != want {
			t.Errorf("seq %d; wanted %d, one more than the last", tok.Seq, want)
		}
		if i > 0 {
			wantRise(t, "with the record ahead", last, tok)
		}
		last = tok
		// It must live until the clock has passed seq by a minute.
		if ttl := srv.Int("PTTL", redisstore.FenceKey(name("k"))); ttl < (ahead+40)*1000 || ttl > (ahead+62)*1000 {
			t.Errorf("the record lives for %d ms; wanted about %d", ttl, (ahead+61)*1000)
		}
		if i%2 == 0 {
			mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
		} else { // nobody releases: the lock expires
			rig.Eventually(t, patience, "the lock expires", func() bool { return srv.Int("EXISTS", keyOf("k")) == 0 })
		}
	}
	explicit := mustAcquire(t, s, askAs("h", "k", newLease(), time.Second))
	wantRise(t, "an explicit hold with the record ahead", last, explicit)
}

func TestFenceRisesOverKeepAndExplicitHolds(t *testing.T) {
	srv := rig.Redis(t)
	a, b := open(t, srv.Addr), open(t, srv.Addr)
	lease := newLease()
	first := mustAcquire(t, a, ask("k", lease, 30*time.Second))
	kept := drop("k", lease)
	kept.Keep = 30 * time.Millisecond
	mustRelease(t, a, kept, tierlock.LeaseOwned)
	rig.Eventually(t, patience, "the kept lock expires", func() bool { return srv.Int("EXISTS", keyOf("k")) == 0 })
	second := mustAcquire(t, b, askAs("h", "k", "m1", 30*time.Second))
	wantRise(t, "after Keep", first, second)
	entered := mustAcquire(t, a, askAs("h", "k", "m2", 30*time.Second))
	if entered.Fence != second.Fence || entered.Lease != "m2" {
		t.Errorf("entered with fence %d, lease %q; wanted %d, %q", entered.Fence, entered.Lease, second.Fence, "m2")
	}
	for _, m := range []string{"m1", "m2"} {
		req := drop("k", m)
		req.Explicit = true
		mustRelease(t, b, req, tierlock.LeaseOwned)
	}
	third := mustAcquire(t, a, ask("k", newLease(), time.Second))
	wantRise(t, "after an explicit hold", second, third)
}

// The fence is exact to the last seq that there is, in the year 2060: Lua's
// numbers hold whole ones to 2^53.
func TestFenceIsExact(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for i := range 50 {
		key := fmt.Sprint("k", i)
		record := uint64(1)<<49 - 1000 + uint64(i)*7
		srv.Do("SET", redisstore.FenceKey(name(key)), fmt.Sprint(record), "PX", "60000")
		tok := mustAcquire(t, s, ask(key, newLease(), time.Second))
		if tok.Seq != record+1 || tok.Fence != 1<<49|tok.Seq {
			t.Errorf("fence %d, seq %d; wanted seq %d", tok.Fence, tok.Seq, record+1)
		}
	}
}

// What no lock has written into the record is no fence, and must not stop the
// locks of a whole slot, nor leave one behind that nobody was given.
func TestFenceRecordThatIsNone(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, junk := range []string{
		"", "x", "-1", "-inf", "inf", "nan", "1e300", "0x7fffffffffffffff", "9223372036854775807", "562949953421311",
	} {
		for _, req := range []tierlock.AcquireRequest{
			ask("k", newLease(), time.Second), askAs("h", "k", newLease(), time.Second),
		} {
			srv.Do("SET", redisstore.FenceKey(name("k")), junk)
			res, err := s.Acquire(background, req)
			now := seqNow(t, srv)
			if err != nil || !res.Granted {
				t.Errorf("record %q, explicit holder %v: got %+v, %v; wanted a grant", junk, req.Explicit, res, err)
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
