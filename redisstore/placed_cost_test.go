package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// A call of a place that is not exclusive has the server execute what one without
// a place does; an exclusive one adds its reads.
func TestCommandsOfAPlace(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, ask("warm", newLease(), time.Minute)) // the clock is known
	plain := placeCommands(t, srv, s, tierlock.Place{})
	for _, place := range []tierlock.Place{shared(1), shared(2), shared(16383)} {
		if got := placeCommands(t, srv, s, place); !slices.Equal(got, plain) {
			t.Errorf("%+v:\n%s\nwithout a place:\n%s", place, strings.Join(got, "\n"), strings.Join(plain, "\n"))
		}
	}
	place := exclusive(3)
	want := []string{
		"acquire: time 1 set 2 get 3 info 1",
		"again: time 1 set 1 get 4 pttl 1 info 1",
		"refused: time 1 set 1 get 4 pttl 1 info 1",
		"renew: get 2 getrange 1 pttl 1 pexpire 1 info 1",
		"release: get 2 getrange 1 del 1 spublish 1 info 1",
	}
	got := placeCommands(t, srv, s, place)
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("exclusive:\n%s\nwanted\n%s", strings.Join(got[:len(want)], "\n"), strings.Join(want, "\n"))
	}
	for i, line := range got {
		if !strings.Contains(line, "info 1") {
			t.Errorf("exclusive: %s; plain: %s: it does not look at the data", line, plain[i])
		}
	}
}

// placeCommands is what the server executes for each step of a hold, by name and
// number, first for one without and then for one with an explicit holder.
func placeCommands(t *testing.T, srv *rig.RedisServer, s *redisstore.Store, place tierlock.Place) (said []string) {
	t.Helper()
	names := strings.Fields("time set get getrange del pttl pexpire zadd zrem zscore zcard zcount zrange zremrangebyscore spublish info")
	step := func(what string, f func()) {
		before := make(map[string]int64)
		for _, n := range names {
			before[n] = srv.CommandsOf(n)
		}
		f()
		what += ":"
		for _, n := range names {
			if d := srv.CommandsOf(n) - before[n]; d != 0 {
				what += fmt.Sprintf(" %s %d", n, d)
			}
		}
		said = append(said, what)
	}
	srv.Do("FLUSHALL")
	if place.Exclusive {
		place.Incarnation = mustProbe(t, s)
	}
	for _, explicit := range []bool{false, true} {
		req := askIn(place, ask("k", newLease(), 20*time.Second))
		req.Explicit = explicit
		step("acquire", func() { mustAcquire(t, s, req) })
		again := req
		again.TTL = 5 * time.Second // nothing is to be prolonged
		step("again", func() { mustAcquire(t, s, again) })
		step("refused", func() {
			if res, err := s.Acquire(t.Context(), askIn(place, ask("k", newLease(), time.Second))); err != nil || res.Granted {
				t.Errorf("got %+v, %v; wanted held", res, err)
			}
		})
		lease := req.Token.Lease
		step("renew", func() {
			if res := renewIn(t, s, place, "k", lease, explicit, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
				t.Errorf("renew: got %+v", res)
			}
		})
		step("release", func() { mustRelease(t, s, dropIn(place, "k", lease, explicit), tierlock.LeaseOwned) })
	}
	return said
}
