package tierlock

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// MinExclusiveTTL is the least TTL of a hold of an Exclusive resource.
const MinExclusiveTTL = 3 * time.Second

// Degrade sets the periods of a chain of Redis and MySQL. The zero value of each
// field means its default. They need not be the same in all processes.
type Degrade struct {
	// Permit is how long a process may use the present mode after it has last
	// heard from the arbiter, MySQL: for so long Exclusive resources survive its
	// absence, and up to so long a switch waits for a member that has died. It
	// counts when the chain is used for the first time and is kept in MySQL from
	// then on. 60 s; 3 s to 10 min.
	Permit time.Duration
	// Refresh is the time between two refreshes of the permit: 10 s, and never
	// more than a third of the permit.
	Refresh time.Duration
	// Poll is the time between two looks at the mode (1 s). With many processes
	// it is stretched, and so is Refresh.
	Poll time.Duration
	// Probe is the time between two probes of Redis while nothing fails (5 s),
	// Suspect the time while something does (1 s). Three failures in a row are a
	// vote for leaving Redis.
	Probe, Suspect time.Duration
	// Up is how long Redis has to be healthy before a return (30 s), Dwell the
	// shortest stay on MySQL (1 min), doubled with each return within the hour.
	Up, Dwell time.Duration
}

const (
	minPermit, maxPermit = 3 * time.Second, 10 * time.Minute
	minPeriod, maxPeriod = 10 * time.Millisecond, time.Hour
)

func (d *Degrade) fill() (problems []error) {
	one := func(name string, v *time.Duration, def, least, most time.Duration) {
		if *v == 0 {
			*v = def
		} else if *v < least || *v > most {
			problems = append(problems, invalid("Degrade."+name, *v, "%v to %v, or 0 for %v", least, most, def))
		}
	}
	one("Permit", &d.Permit, time.Minute, minPermit, maxPermit)
	one("Refresh", &d.Refresh, 10*time.Second, minPeriod, maxPeriod)
	one("Poll", &d.Poll, time.Second, minPeriod, maxPeriod)
	one("Probe", &d.Probe, 5*time.Second, minPeriod, maxPeriod)
	one("Suspect", &d.Suspect, time.Second, minPeriod, maxPeriod)
	one("Up", &d.Up, 30*time.Second, minPeriod, maxPeriod)
	one("Dwell", &d.Dwell, time.Minute, minPeriod, maxPeriod)
	return problems
}

// switchTime is how long it may take from an outage of Redis until holds are in
// MySQL, if all members answer: the probes, two polls and two statements.
func (c *Config) switchTime() time.Duration {
	d := c.Degrade
	return d.Probe + 2*d.Suspect + c.CallTimeout + 2*d.Poll + 2*c.CallTimeout
}

// fillChain checks the stores, and what the resources want of them.
func (c *Config) fillChain() (problems []error) {
	bad := func(field string, value any, bound string, args ...any) {
		problems = append(problems, invalid(field, value, bound, args...))
	}
	problems = append(problems, c.Degrade.fill()...)
	if n := len(c.Stores); n < 1 || n > 3 {
		bad("Stores", n, "one to three stores")
	}
	c.Stores = slices.Clone(c.Stores)
	tiers := map[Tier]bool{}
	var first, last Tier
	for i, s := range c.Stores {
		at := fmt.Sprintf("Stores[%d]", i)
		if s == nil {
			bad(at, nil, "a store")
			return problems // the rest would be guesses
		}
		t := s.Tier()
		if len(tiers) == 0 {
			first = t
		} else if t <= last {
			bad(at, t.String(), "of a later tier than the one before: Redis, MySQL, local, each once")
		}
		tiers[t], last = true, t
	}
	lowest := first // that any resource may go to
	arbiter := false
	for i := range c.Resources {
		r, at := &c.Resources[i], fmt.Sprintf("Resources[%d]", i)
		switch {
		case r.Floor == 0:
		case !tiers[r.Floor]:
			bad(at+".Floor", r.Floor.String(), "the tier of one of Stores, or 0 for the first")
		case r.Exclusive && r.Floor == Local:
			bad(at+".Floor", r.Floor.String(), "MySQL at most: a local lock excludes nobody in other processes, and this resource is Exclusive")
		}
		if r.Exclusive {
			arbiter = true
			if !tiers[MySQL] {
				bad(at+".Exclusive", true, "used with MySQL among Stores: Redis alone cannot keep exclusion over a failover")
			} else if first != MySQL && r.Floor != MySQL && r.Floor != Local {
				bad(at+".Floor", r.Floor.String(), "MySQL, since the resource is Exclusive: it goes where the chain goes")
			}
			if r.TTL < MinExclusiveTTL {
				bad(at+".TTL", r.TTL, "at least %v, since the resource is Exclusive", MinExclusiveTTL)
			}
		}
		lowest = max(lowest, r.Floor)
	}
	if arbiter {
		lowest = max(lowest, MySQL)
	}
	chained := c.needsArbiter()
	if n := len(c.Resources); chained && n > MaxChainResources {
		bad("Resources", n, "at most %d resources, since some go by a chain with MySQL", MaxChainResources)
	}
	for i, s := range c.Stores {
		at := fmt.Sprintf("Stores[%d]", i)
		if s.Tier() > lowest {
			bad(at, s.Tier().String(), "the Floor of a resource: none goes so low")
		}
		if !chained {
			continue
		}
		switch s.Tier() {
		case Redis:
			if _, ok := s.(Chained); !ok {
				bad(at, fmt.Sprintf("%T", s), "a Chained store")
			}
		case MySQL:
			if _, ok := s.(Arbiter); !ok {
				bad(at, fmt.Sprintf("%T", s), "an Arbiter")
			}
		}
	}
	return problems
}

// needsArbiter reports whether MySQL has to say which mode is in force: some locks
// are Exclusive, or go from Redis to MySQL and back.
func (c *Config) needsArbiter() bool {
	has := map[Tier]bool{}
	for _, s := range c.Stores {
		if s != nil {
			has[s.Tier()] = true
		}
	}
	for _, r := range c.Resources {
		if has[MySQL] && (r.Exclusive || has[Redis] && r.Floor >= MySQL) {
			return true
		}
	}
	return false
}

// lower reports whether there is more than one store for the resource, so that a call
// goes on while one is down.
func (r *ResourceHandle) lower() bool { return r.chained || r.local }

func (l *Locker) newResource(cfg Resource) *ResourceHandle {
	r := &ResourceHandle{locker: l, cfg: cfg, floor: cfg.Floor, best: min(l.store.Guarantee(), FencedOnly)}
	if r.floor == 0 {
		r.floor = l.store.Tier()
	}
	if c := l.chain; c != nil && (cfg.Exclusive || c.redis != nil && cfg.Floor >= MySQL) {
		r.chained = true
		r.best = c.best(cfg.Exclusive)
	}
	r.local = cfg.Floor == Local && l.local != nil
	return r
}

// warnShort says where a switch may take longer than the leases of a resource last
// without a renewal: what is held then is lost, though nobody else gets it.
func (l *Locker) warnShort(r Resource) {
	if l.chain == nil || l.chain.redis == nil || !l.resources[r.Name].chained {
		return
	}
	if d := l.cfg.switchTime(); d > r.TTL*56/100 {
		l.notify.say(slog.LevelWarn, "tierlock: a switch to another store may take longer than leases last: shorten Degrade.Probe, Suspect and Poll, or lengthen the TTL", Token{},
			slog.String("resource", r.Name), slog.Duration("ttl", r.TTL), slog.Duration("switch", d))
	}
}
