package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

// faulty gives a database with a mode, and a client with faults that has a row.
func faulty(t *testing.T, f sim.Faults) (*sim.MySQL, *sim.MySQLStore, degrade.Action) {
	m := sim.NewMySQL(sim.Options{Seed: 7, Broken: sim.Broken{BeatFromOne: true}}) // beats count
	s := m.Client(sim.ClientOptions{Seed: 1, Limit: 30 * time.Second})
	mode := simMode(m.Server())
	simDone(t, s, degrade.Action{Kind: degrade.Create, To: mode})
	refresh := degrade.Action{Kind: degrade.Refresh, From: mode}
	simDone(t, s, refresh)
	s.SetFaults(f)
	return m, s, refresh
}

// simBeat is the beat of the one member.
func simBeat(t *testing.T, m *sim.MySQL) uint64 {
	t.Helper()
	r, err := m.Client(sim.ClientOptions{}).Arbitrate(t.Context(), simSelf, degrade.Action{Kind: degrade.Poll})
	if err != nil || len(r.Members) != 1 {
		t.Fatal(r, err)
	}
	return r.Members[0].Beat
}

// Each fault does what it says: how many of a hundred calls are answered, and how
// many are executed, before they are given up and ever.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		f                      sim.Faults
		answered, atOnce, ever int
	}{
		"none":         {sim.Faults{Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond}, 100, 100, 100},
		"requests":     {sim.Faults{LoseRequest: 1}, 0, 0, 0},
		"replies":      {sim.Faults{LoseReply: 1}, 0, 100, 100},
		"doubles":      {sim.Faults{Double: 1}, 100, 200, 200},
		"cut requests": {sim.Faults{CutRequests: true}, 0, 0, 0},
		"cut replies":  {sim.Faults{CutReplies: true}, 0, 100, 100},
		"far":          {sim.Faults{Delay: 2 * time.Second}, 0, 0, 100},
	} {
		t.Run(name, func(t *testing.T) {
			simTest(t, func(t *testing.T) {
				m, s, refresh := faulty(t, c.f)
				before := simBeat(t, m)
				answered := 0
				for range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err := s.Arbitrate(ctx, simSelf, refresh)
					cancel()
					switch {
					case err == nil:
						answered++
					case !errors.Is(err, tierlock.ErrUnavailable):
						t.Fatal(err)
					}
				}
				atOnce := simBeat(t, m) - before
				if c.f.Delay > time.Second {
					atOnce = min(atOnce, 98) - 98 // all but the last have arrived since
				}
				time.Sleep(time.Minute)
				ever := simBeat(t, m) - before
				if answered != c.answered || int(atOnce) != c.atOnce || int(ever) != c.ever {
					t.Errorf("%d answered, %d executed at once, %d ever; want %d, %d, %d", answered, atOnce, ever, c.answered, c.atOnce, c.ever)
				}
			})
		})
	}
}

// Requests that are late come within their bound, some after their caller left.
func TestLate(t *testing.T) {
	simTest(t, func(t *testing.T) {
		m, s, refresh := faulty(t, sim.Faults{Late: 1, LateBy: 10 * time.Second})
		before := simBeat(t, m)
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			s.Arbitrate(ctx, simSelf, refresh)
			cancel()
		}
		if n := simBeat(t, m) - before; n > 10 {
			t.Errorf("%d of 50 were executed at once", n)
		}
		time.Sleep(10 * time.Second)
		if n := simBeat(t, m) - before; n != 50 {
			t.Errorf("%d of 50 were executed within their bound", n)
		}
	})
}

// The same seed gives the same run, another one another.
func TestSeeds(t *testing.T) {
	run := func(seed uint64) (s string) {
		simTest(t, func(t *testing.T) {
			m := sim.NewMySQL(sim.Options{Seed: seed})
			c := m.Client(sim.ClientOptions{Seed: 3, Limit: time.Second,
				Faults: sim.Faults{Jitter: time.Second, LoseRequest: 0.2, LoseReply: 0.2, Late: 0.2, LateBy: 3 * time.Second}})
			for range 50 {
				_, err := c.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "n"})
				s += fmt.Sprint(err == nil, time.Now().UnixNano(), " ")
			}
		})
		return s
	}
	if a, b, c := run(1), run(1), run(2); a != b || a == c {
		t.Errorf("runs with seeds 1, 1 and 2:\n%s\n%s\n%s", a, b, c)
	}
}

// After Close nothing of a client comes any more, and nothing of it is left.
func TestClose(t *testing.T) {
	simTest(t, func(t *testing.T) {
		m, s, refresh := faulty(t, sim.Faults{Delay: time.Second})
		before := simBeat(t, m)
		ended := make(chan error, 1)
		go func() {
			_, err := s.Arbitrate(t.Context(), simSelf, refresh)
			ended <- err
		}()
		synctest.Wait()
		s.Close()
		if _, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "n"}); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("a call after Close: %v", err)
		}
		if err := <-ended; !errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("the call that was under way: %v", err)
		}
		if simBeat(t, m) != before {
			t.Error("the request that was under way arrived")
		}
	})
}
