package degrade

import "time"

// Instant is a reading of one process's own clock, which never runs backwards
// and goes on through a suspend: the time since some moment of its choice.
// Instants of two processes are never compared.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Tier is a place where locks are kept.
type Tier uint8

// The tiers of a chain.
const (
	NoTier Tier = iota
	Redis
	MySQL
)

// String gives the word that stands in the mode row.
func (t Tier) String() string {
	switch t {
	case Redis:
		return "REDIS"
	case MySQL:
		return "MYSQL"
	}
	return "NONE"
}

// MaxEpoch is the largest epoch that there is: 14 bits of a fence. A chain that
// has come so far refuses further switches.
const MaxEpoch = 1<<14 - 1

// jump is how far the epoch rises when the arbiter may have lost commits: over
// any number of switches that can have got lost, since each takes a drain.
const jump = 16

// Mode is what the arbiter's one row says: where locks of this namespace are
// kept now or, in a drain, where they will be. The zero Mode is "not known".
type Mode struct {
	Epoch uint16
	// Drain means that Epoch has begun and is not open yet: nobody grants.
	Drain bool
	// Hard marks a drain after which acknowledgements prove nothing, because the
	// arbiter may have lost some: only time opens it.
	Hard bool
	// Tier is the tier in force or, in a drain, the coming one.
	Tier Tier
	// Incarnation is the replication id of the Redis data that Epoch is about
	// (in a Cluster: those of all shards in one string); empty with MySQL.
	Incarnation string
	// Server is the identity of the arbiter that last wrote the row by start or
	// takeover.
	Server string
	// Term is how long a permit lasts (Tp), and Drift by how much the rates of
	// two clocks may differ, in thousandths (ρ). They live in the row and no
	// process has a setting of its own: a permit and the wait for its end have
	// to agree.
	Term  time.Duration
	Drift int
}

// Known reports whether m is a mode at all.
func (m Mode) Known() bool { return m.Epoch != 0 }

// after reports whether m is later in the chain's history than n. An epoch is
// first drained into and then open.
func (m Mode) after(n Mode) bool {
	if m.Epoch != n.Epoch {
		return m.Epoch > n.Epoch
	}
	return !m.Drain && n.Drain
}

// wait is W: how long one clock has to run until every permit that was given
// before has ended by every other clock. The holder's clock may be slow by ρ and
// this one fast by ρ. A hard drain waits longer, by grace: what began it may have
// been seen by others earlier or later, and the old arbiter may have lingered.
func (m Mode) wait(grace time.Duration) time.Duration {
	up, down := time.Duration(1000+m.Drift), time.Duration(1000-m.Drift)
	// Term is at most hours and Drift under a thousand: no overflow.
	w := (m.Term*up + down - 1) / down
	if m.Hard {
		w = max(w, m.Term+grace)
	}
	return w
}

// next is the drain that leads from the open mode m to tier.
func (m Mode) next(tier Tier, incarnation string) Mode {
	m.Epoch++
	m.Drain, m.Hard = true, false
	m.Tier, m.Incarnation = tier, incarnation
	return m
}

// opened is what the drain m becomes.
func (m Mode) opened() Mode {
	m.Drain, m.Hard = false, false
	return m
}
