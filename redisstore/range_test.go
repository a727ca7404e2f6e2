package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// askRange asks for 64 further fences.
func askRange(key, lease string) tierlock.AcquireRequest {
	req := ask(key, lease, 10*time.Second)
	req.Fences = 64
	return req
}

// acquireRange gives the answer, and the last token of the range.
func acquireRange(t *testing.T, s *redisstore.Store, req tierlock.AcquireRequest) (tierlock.AcquireResult, tierlock.Token) {
	t.Helper()
	res, err := s.Acquire(background, req)
	if err != nil || !res.Granted {
		t.Fatalf("acquire: got %+v, %v; wanted a grant", res, err)
	}
	last := res.Token
	last.Fence += uint64(res.Fences)
	last.Seq += uint64(res.Fences)
	return res, last
}

// The range ends a second ahead of the clock, so that no fence of it comes again
// where the record is lost; and so without a record there is none.
func TestRangeEndsASecondAhead(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, lose := range []func(){func() {}, func() { srv.Do("FLUSHALL") }, func() { srv.Kill(); srv.Start() }} {
		lose()
		lease := newLease()
		first, before := acquireRange(t, s, askRange("k", lease))
		if first.Fences != 0 {
			t.Fatalf("without a record: got %d further fences; wanted none", first.Fences)
		}
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
		for range 3 {
			from := seqNow(t, srv)
			lease := newLease()
			res, last := acquireRange(t, s, askRange("k", lease))
			if res.Fences != 64 {
				t.Errorf("got %d further fences; wanted 64", res.Fences)
			}
			if to := seqNow(t, srv); last.Seq < from+seqsPerSecond || last.Seq > to+seqsPerSecond {
				t.Errorf("the last seq of the range is %d; wanted %d to %d", last.Seq, from+seqsPerSecond, to+seqsPerSecond)
			}
			wantRise(t, "the next range", before, res.Token)
			before = last
			again, _ := acquireRange(t, s, askRange("k", lease))
			if again.Fences != res.Fences || again.Token != res.Token {
				t.Errorf("a repeat: got %+v; wanted %+v", again, res)
			}
			mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
		}
		srv.Do("DEL", redisstore.FenceKey(name("k")))
		after := mustAcquire(t, s, ask("k", "after", time.Second))
		wantRise(t, "after the record was lost", before, after)
		mustRelease(t, s, drop("k", "after"), tierlock.LeaseOwned)
	}
}

// The range begins above the record, and is smaller for it.
func TestRangeBeginsAboveTheRecord(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, ask("warm", newLease(), time.Second)) // the clock is known
	for _, ahead := range []int{-1_000_000, 0, 300, 3000} { // in ms, of a record made now
		record := seqNow(t, srv) + seqsPerSecond + uint64(ahead*seqsPerSecond/1000)
		srv.Do("SET", redisstore.FenceKey(name("k")), fmt.Sprint(record), "PX", "60000")
		lease := newLease()
		res, last := acquireRange(t, s, askRange("k", lease))
		if res.Token.Seq <= record {
			t.Errorf("record %d ms ahead: seq %d; wanted more than the record's %d", ahead, res.Token.Seq, record)
		}
		if none := ahead > 0; none != (res.Fences == 0) {
			t.Errorf("record %d ms ahead: got %d further fences; wanted none %v", ahead, res.Fences, none)
		}
		if stored := uint64(srv.Int("GET", redisstore.FenceKey(name("k")))); stored != last.Seq {
			t.Errorf("record %d ms ahead: %d is stored; wanted the end of the range, %d", ahead, stored, last.Seq)
		}
		again, _ := acquireRange(t, s, askRange("k", lease))
		if again.Fences != res.Fences || again.Token != res.Token {
			t.Errorf("record %d ms ahead, a repeat: got %+v; wanted %+v", ahead, again, res)
		}
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	}
	for _, junk := range []string{"", "x", "-1", "nan", "1e300"} {
		srv.Do("SET", redisstore.FenceKey(name("k")), junk)
		lease := newLease()
		if res, _ := acquireRange(t, s, askRange("k", lease)); res.Fences != 0 {
			t.Errorf("record %q: got %d further fences; wanted none, it tells nothing", junk, res.Fences)
		}
		mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	}
}

// A grant of a part of the range: the record is just behind the clock.
func TestRangeInPart(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	parts := 0
	var before tierlock.Token
	for i := range 300 {
		// Locks of one slot push each other's fences.
		key, lease := "{slot}"+fmt.Sprint(i%2), newLease()
		req := askRange(key, lease)
		req.Fences = 1024
		res, last := acquireRange(t, s, req)
		if i > 0 && res.Fences > 0 && res.Fences < 1024 {
			parts++
		}
		if i%2 == 0 {
			wantRise(t, "in part", before, res.Token)
			before = last
		}
		mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
	}
	if parts == 0 {
		t.Error("no range was given in part: the test shows nothing")
	}
}
