package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/sim"
)

var simSelf = degrade.Self{Namespace: "n", Member: "m"}

func simMode(server string) degrade.Mode {
	return degrade.Mode{Epoch: 1, Tier: degrade.Redis, Incarnation: "x", Server: server, Term: time.Minute, Drift: 10}
}

// simDone carries out what has to be done.
func simDone(t *testing.T, s *sim.MySQLStore, a degrade.Action) {
	t.Helper()
	if r, err := s.Arbitrate(t.Context(), simSelf, a); err != nil || !r.OK {
		t.Fatalf("kind %d: %+v, %v", a.Kind, r, err)
	}
}

// A failover keeps what was committed, and is seen by the server's identity; one
// with loss forgets.
func TestMySQLFailover(t *testing.T) {
	simTest(t, func(t *testing.T) {
		m := sim.NewMySQL(sim.Options{})
		s := m.Client(sim.ClientOptions{})
		server := simProbe(t, s)
		mode := simMode(server)
		simDone(t, s, degrade.Action{Kind: degrade.Create, To: mode})
		simDone(t, s, degrade.Action{Kind: degrade.Refresh, From: mode})
		if res, err := simLock(s, "a", tierlock.Place{Epoch: 1, Exclusive: true}, time.Second); err != nil || !res.Granted {
			t.Fatal(res, err)
		}
		m.Failover(0)
		if m.Mode("n") != mode || len(m.Members("n")) != 1 || simHolder(t, s) != "a" {
			t.Fatalf("after a failover: mode %+v, members %v, held by %q", m.Mode("n"), m.Members("n"), simHolder(t, s))
		}
		if simProbe(t, s) == server || m.Server() != simProbe(t, s) {
			t.Fatal("the identity is not the new server's")
		}
		if r, err := s.Arbitrate(t.Context(), simSelf, degrade.Action{Kind: degrade.Refresh, From: mode}); err != nil || r.OK {
			t.Fatalf("refresh of a mode of the old server: %+v, %v", r, err)
		}
		if _, err := simLock(s, "b", tierlock.Place{Epoch: 2, Incarnation: server, Exclusive: true}, time.Second); !errors.Is(err, tierlock.ErrEpoch) {
			t.Fatalf("a lock meant for the old server: %v", err)
		}
		time.Sleep(10 * time.Second)
		to := mode
		to.Epoch, to.Drain = 17, true
		simDone(t, s, degrade.Action{Kind: degrade.Takeover, From: mode, To: to})
		m.Failover(5 * time.Second)
		if m.Mode("n") != mode || len(m.Members("n")) != 1 || simHolder(t, s) != "a" {
			t.Fatalf("after a failover that loses 5 s: mode %+v, members %v, held by %q", m.Mode("n"), m.Members("n"), simHolder(t, s))
		}
		m.Failover(time.Minute)
		if m.Mode("n").Known() || len(m.Members("n")) != 0 || len(m.Held()) != 0 {
			t.Fatalf("after a failover that loses all: mode %+v, members %v, held %v", m.Mode("n"), m.Members("n"), m.Held())
		}
	})
}

// What a statement that was given up would still have done, a failover ends.
func TestMySQLFailoverEndsStatements(t *testing.T) {
	simTest(t, func(t *testing.T) {
		m := sim.NewMySQL(sim.Options{})
		s := m.Client(sim.ClientOptions{Limit: time.Second})
		m.Pause()
		if _, err := s.Arbitrate(t.Context(), simSelf, degrade.Action{Kind: degrade.Create, To: simMode("x")}); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatal(err)
		}
		m.Failover(0)
		m.Resume()
		if m.Mode("n").Known() {
			t.Fatal("a statement of the old server was executed")
		}
	})
}

func TestReadOnly(t *testing.T) {
	simTest(t, func(t *testing.T) {
		m := sim.NewMySQL(sim.Options{})
		s := m.Client(sim.ClientOptions{})
		m.SetReadOnly(true)
		if _, err := simLock(s, "a", tierlock.Place{}, time.Second); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatalf("acquire: %v", err)
		}
		if _, err := s.Probe(t.Context(), tierlock.ProbeRequest{Namespace: "n"}); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatalf("probe: %v", err)
		}
		if _, err := s.Arbitrate(t.Context(), simSelf, degrade.Action{Kind: degrade.Poll}); !errors.Is(err, tierlock.ErrUnavailable) {
			t.Fatalf("poll: %v", err)
		}
		if simHolder(t, s) != "" {
			t.Fatal("it was written all the same")
		}
		m.SetReadOnly(false)
		if res, err := simLock(s, "a", tierlock.Place{}, time.Second); err != nil || !res.Granted {
			t.Fatal(res, err)
		}
	})
}
