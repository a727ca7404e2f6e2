package sim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/sim"
)

// What a paused server has got meanwhile is executed when it goes on: a grant is
// too late by then, a release is not.
func TestPause(t *testing.T) {
	simTest(t, func(t *testing.T) {
		r := sim.NewRedis(sim.Options{})
		s := r.Client(sim.ClientOptions{})
		if res, err := simLock(s, "a", tierlock.Place{}, time.Second); err != nil || !res.Granted {
			t.Fatal(res, err)
		}
		r.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := s.Release(ctx, tierlock.ReleaseRequest{Name: simName, Lease: "a"}); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatalf("release while paused: %v", err)
		}
		if _, err := simLock(s, "b", tierlock.Place{}, time.Second); !errors.Is(err, tierlock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("acquire while paused: %v", err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Fatalf("two calls of a second took %v", took)
		}
		time.Sleep(time.Millisecond)
		r.Resume()
		if got := simHolder(t, s); got != "" {
			t.Fatalf("after the pause %q has the key", got)
		}
	})
}

// After a failover the old primary goes on for those who have not followed. With
// loss the new one lacks what was last.
func TestRedisFailover(t *testing.T) {
	simTest(t, func(t *testing.T) {
		r := sim.NewRedis(sim.Options{})
		s, other := r.Client(sim.ClientOptions{}), r.Client(sim.ClientOptions{})
		before := simProbe(t, s)
		p := tierlock.Place{Epoch: 1, Incarnation: before, Exclusive: true}
		if res, err := simLock(s, "a", p, time.Second); err != nil || !res.Granted {
			t.Fatal(res, err)
		}
		time.Sleep(3 * time.Second)
		r.Failover(0)
		other.Follow()
		if got := simHolder(t, other); got != "a" {
			t.Fatalf("a failover that keeps its data: %q has the key", got)
		}
		if simProbe(t, s) != before || simProbe(t, other) == before || r.Incarnation() != simProbe(t, other) {
			t.Fatal("the incarnations are not those of the old and the new primary")
		}
		if _, err := simLock(other, "b", p, time.Second); !errors.Is(err, tierlock.ErrEpoch) {
			t.Fatalf("exclusive acquire, meant for the old data: %v", err)
		}
		if own, err := s.Release(t.Context(), tierlock.ReleaseRequest{Name: simName, Lease: "a", Place: p}); own != tierlock.LeaseOwned {
			t.Fatalf("release on the old primary: %v, %v", own, err)
		}
		if simHolder(t, s) != "" || simHolder(t, other) != "a" {
			t.Fatal("a release on the old primary is not of the old primary alone")
		}
		r.KillOld()
		if simHolder(t, s) != "a" {
			t.Fatal("who was at the old primary has not followed")
		}

		// b takes over, and a failover forgets it.
		p = tierlock.Place{Epoch: 2, Incarnation: r.Incarnation(), Exclusive: true}
		if res, err := simLock(s, "b", p, time.Second); err != nil || !res.Granted {
			t.Fatal(res, err)
		}
		time.Sleep(time.Second)
		r.Failover(2 * time.Second)
		r.KillOld()
		if got := simHolder(t, s); got != "a" {
			t.Fatalf("after a failover that loses two seconds %q has the key, want who had it before", got)
		}
		r.Flush()
		if got := simHolder(t, s); got != "" {
			t.Fatalf("after FLUSHALL %q has the key", got)
		}
	})
}

// The server's clock is not ours.
func TestClock(t *testing.T) {
	simTest(t, func(t *testing.T) {
		r := sim.NewRedis(sim.Options{})
		s := r.Client(sim.ClientOptions{})
		left := func() time.Duration {
			rec, err := s.Inspect(t.Context(), simName)
			if err != nil {
				t.Fatal(err)
			}
			return rec.Left
		}
		if _, err := simLock(s, "a", tierlock.Place{}, time.Second); err != nil {
			t.Fatal(err)
		}
		r.SetClock(0, 10_000)
		time.Sleep(10 * time.Second)
		if got := left(); got != time.Minute-10100*time.Millisecond {
			t.Fatalf("after 10 s by a clock that is 1 %% fast %v are left", got)
		}
		r.SetClock(-20*time.Second, -10_000)
		time.Sleep(10 * time.Second)
		if got := left(); got != time.Minute {
			t.Fatalf("after a step back by 20 s, and 10 s by a clock that is 1 %% slow, %v are left", got)
		}
		r.SetClock(time.Minute, 0)
		if got := left(); got != 0 || len(r.Held()) != 0 {
			t.Fatalf("after a step of a minute %v are left, and %v are held", got, r.Held())
		}
	})
}

// A watch lives through a cut and a failover: it signals that something may have
// been missed.
func TestWatchMoves(t *testing.T) {
	simTest(t, func(t *testing.T) {
		r := sim.NewRedis(sim.Options{})
		waiter, owner := r.Client(sim.ClientOptions{}), r.Client(sim.ClientOptions{})
		w, err := waiter.Watch(t.Context(), simName)
		if err != nil {
			t.Fatal(err)
		}
		signalled := func() bool {
			synctest.Wait()
			select {
			case <-w.C():
				return true
			default:
				return false
			}
		}
		turn := func() {
			t.Helper()
			if _, err := simLock(owner, "a", tierlock.Place{}, time.Second); err != nil {
				t.Fatal(err)
			}
			if own, err := owner.Release(t.Context(), tierlock.ReleaseRequest{Name: simName, Lease: "a"}); own != tierlock.LeaseOwned {
				t.Fatal(own, err)
			}
		}
		turn()
		if !signalled() {
			t.Fatal("no signal after a release")
		}
		waiter.SetFaults(sim.Faults{CutReplies: true})
		turn()
		if signalled() {
			t.Fatal("a signal came through a cut way")
		}
		waiter.SetFaults(sim.Faults{})
		if !signalled() {
			t.Fatal("no signal when the way was whole again")
		}
		r.Failover(0)
		r.KillOld()
		if !signalled() {
			t.Fatal("no signal after a failover")
		}
		turn()
		if !signalled() {
			t.Fatal("no signal after a release on the new primary")
		}
		w.Close()
		turn()
		if signalled() {
			t.Fatal("a signal after Close")
		}
	})
}
