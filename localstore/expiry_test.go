package localstore_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

func TestLeaseEndsAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, ttl := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Hour} {
			r.lock(request("k", "one", ttl))
			time.Sleep(ttl - 1)
			r.want("k", 1, 1)
			if res := r.acquire(request("k", "two", ttl)); res.Granted || res.Left != 1 {
				t.Errorf("1 ns before the end: got granted %v with %v left, want held for 1ns", res.Granted, res.Left)
			}
			time.Sleep(time.Nanosecond)
			r.renew("k", "one", ttl, tierlock.LeaseGone)
			r.lock(request("k", "two", ttl))
			r.renew("k", "one", ttl, tierlock.LeaseTaken)
			r.release("k", "two", 0, tierlock.LeaseOwned)
		}
	})
}

func TestAbsurdDurationsDoNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		time.Sleep(time.Hour)
		r.lock(request("k", "one", math.MaxInt64))
		r.want("k", math.MaxInt64-time.Hour, 1)
		r.renew("k", "one", math.MaxInt64, tierlock.LeaseOwned)
		r.release("k", "one", math.MaxInt64, tierlock.LeaseOwned)
		r.want("k", math.MaxInt64-time.Hour, 1)
	})
}

// Keys that nobody comes back to vanish with the next call on any key.
func TestExpiredKeysVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		const keys = 10_000
		for i := range keys {
			r.lock(request(fmt.Sprint(i), "one", time.Minute+time.Duration(i*7919%keys)*time.Millisecond))
		}
		if entries, heap, _ := r.space.Size(); entries != keys || heap != keys {
			t.Fatalf("got %d entries and %d on the heap, want %d", entries, heap, keys)
		}
		time.Sleep(time.Minute + keys/2*time.Millisecond)
		r.want("other", 0, 0)
		if entries, heap, _ := r.space.Size(); entries != keys/2-1 || heap != keys/2-1 {
			t.Errorf("half-way: got %d entries and %d on the heap, want %d", entries, heap, keys/2-1)
		}
		time.Sleep(time.Minute)
		r.want("other", 0, 0)
		if entries, heap, _ := r.space.Size(); entries != 0 || heap != 0 {
			t.Errorf("at the end: got %d entries and %d on the heap, want none", entries, heap)
		}
	})
}

// Whatever moves an end, keys go in the order of their ends.
func TestHeapFollowsChangedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(request("later", "one", time.Second))
		r.lock(request("sooner", "one", time.Hour))
		r.lock(job("again", "one", time.Second))
		r.lock(job("less", "one", time.Second))
		r.lock(job("less", "two", time.Hour))
		r.lock(request("as it was", "one", 2*time.Second))
		r.renew("later", "one", 3*time.Second, tierlock.LeaseOwned)
		r.release("sooner", "one", time.Second, tierlock.LeaseOwned)
		r.lock(job("again", "one", 4*time.Second))
		r.release("less", "two", 0, tierlock.LeaseOwned)
		for i, want := range []int{5, 3, 2, 1, 0} {
			r.want("other", 0, 0)
			if entries, heap, _ := r.space.Size(); entries != want || heap != want {
				t.Errorf("after %d s: got %d entries and %d on the heap, want %d", i, entries, heap, want)
			}
			time.Sleep(time.Second)
		}
	})
}

// A key under an explicit holder ends with the longest of its leases; the ones
// that ended before take no room.
func TestMembersEndOnTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(job("k", "one", 10*time.Second))
		for i := range 100 {
			r.lock(job("k", fmt.Sprint("short ", i), time.Second))
		}
		r.want("k", 10*time.Second, 101)
		time.Sleep(time.Second)
		r.renew("k", "short 7", time.Minute, tierlock.LeaseTaken)
		r.want("k", 9*time.Second, 1)
		r.lock(job("k", "short 7", time.Second))
		time.Sleep(time.Second)
		r.release("k", "short 7", time.Minute, tierlock.LeaseTaken)
		r.want("k", 8*time.Second, 1)
		r.lock(job("k", "long", time.Minute))
		r.want("k", time.Minute, 2)
		r.release("k", "long", 0, tierlock.LeaseOwned)
		r.want("k", 8*time.Second, 1)
	})
}

// A member that is kept shortens nobody else's time; the key is kept as long
// as any of them asks for. scenario 75
func TestKeepOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(job("k", "one", time.Minute))
		r.lock(job("k", "two", 30*time.Second))
		r.release("k", "one", 20*time.Second, tierlock.LeaseOwned)
		r.want("k", 30*time.Second, 2)
		r.release("k", "two", 5*time.Second, tierlock.LeaseOwned)
		r.want("k", 20*time.Second, 2)
		time.Sleep(time.Second)
		r.release("k", "one", 20*time.Second, tierlock.LeaseOwned) // a repeat
		r.want("k", 19*time.Second, 2)
		time.Sleep(19 * time.Second)
		r.want("k", 0, 0)
	})
}

func TestReenteredIsToldOfEntrantsOnly(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		lease string
		want  bool
	}{{"one", false}, {"two", true}, {"one", false}, {"two", true}} {
		if res := r.acquire(job("k", c.lease, time.Minute)); res.Reentered != c.want || res.Token.Lease != c.lease {
			t.Errorf("Acquire by %s: got Reentered %v with lease %s, want %v with its own", c.lease, res.Reentered, res.Token.Lease, c.want)
		}
	}
	r.release("k", "one", 0, tierlock.LeaseOwned)
	if res := r.acquire(job("k", "one", time.Minute)); !res.Reentered {
		t.Errorf("Acquire by one, back in a hold that went on: got Reentered false, want true")
	}
}
