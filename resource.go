package tierlock

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"
	"unicode/utf8"
)

// Bounds and defaults of the configuration.
const (
	// MinTTL and MaxTTL bound Resource.TTL and the options TTL and Lease.
	MinTTL = 100 * time.Millisecond
	MaxTTL = 60 * time.Second
	// DefaultTTL, DefaultWait, DefaultMaxWaiters and DefaultCallTimeout stand
	// for a zero field.
	DefaultTTL         = 30 * time.Second
	DefaultWait        = time.Second
	DefaultMaxWaiters  = 1000
	DefaultCallTimeout = 500 * time.Millisecond

	minCallTimeout = 10 * time.Millisecond
	maxCallTimeout = 10 * time.Second
	maxKeyChars    = 128
	maxHolderBytes = 64
	maxRequestID   = 128
)

// Config is what [New] takes. New copies it.
type Config struct {
	// App names the service in tokens and labels: [A-Za-z0-9_.:-]{1,64}.
	// Required.
	App string
	// Namespace keeps environments and teams that share a store apart:
	// [A-Za-z0-9_.:-]{1,32}. Required: there is no safe default.
	Namespace string
	// Stores is the chain, in the order Redis, MySQL, local, each at most once.
	// The first serves all resources; the others those whose Floor says so.
	Stores []Store
	// Resources are the kinds of lock this process may take; at least one, and at
	// most MaxChainResources where some go by a chain with MySQL.
	Resources []Resource
	// Degrade sets the periods of a chain of several stores.
	Degrade Degrade
	// Logger gets what happens: lock and unlock at Debug, a lost lock and an
	// overdue one at Warn. Nil means slog.Default().
	Logger *slog.Logger
	// Observer gets the same as typed events. Its zero value observes nothing.
	Observer Observer
	// CallTimeout bounds one call to a store: 10 ms to 10 s, 0 means 500 ms.
	CallTimeout time.Duration
}

// Resource is a registered kind of lock, such as "order:settle". It carries
// the policy for all keys inside it and is a label of metrics, so there should
// be a bounded number of them.
type Resource struct {
	// Name matches [A-Za-z0-9_.:-]{1,64}. Required, unique.
	Name string
	// TTL is the lease: how long a key outlives a crashed holder. It is
	// renewed every TTL/3, so it does not bound the work. 100 ms to 60 s in
	// whole milliseconds, 0 means 30 s. Under 3 s is fragile: a pause of a
	// second costs the lock. It should be 20 round trips to the store at
	// least: a request that arrives later than TTL/20 is refused as late.
	TTL time.Duration
	// Wait is how long Lock waits for a held key; 0 means 1 s.
	Wait time.Duration
	// MaxHold bounds a hold, however often it is renewed: its context ends a
	// margin (a tenth of the last lease) earlier with ErrLeaseExceeded and
	// its key ends on time. 0 means no bound; else at least 100 ms.
	MaxHold time.Duration
	// MaxRenewals bounds a hold in the number of its renewals, with the same
	// effect. 0 means no bound.
	MaxRenewals int
	// MinHold keeps the key for at least that long, also if the lock is
	// released sooner: a job that must not run twice because another process
	// starts it a little later. At most TTL and MaxHold; 0 means none.
	MinHold time.Duration
	// Expect is how long a hold is expected to last. One that lasts three
	// times as long is reported, not ended. 0 means no expectation.
	Expect time.Duration
	// Floor is the lowest tier that the locks of this resource may be kept in
	// while those before it cannot be used. 0 means that only the first of Stores
	// will do: while it is away there is no lock. With a floor, and unless
	// Exclusive, locking rather fails to exclude now and then than stops: holds
	// are FencedOnly at most, and ProcessLocal where the floor is Local and no
	// other store can be used.
	Floor Tier
	// Exclusive keeps exclusion over failovers and over every switch of the chain,
	// as far as the stores can (see Exclusive, the Guarantee), and gives
	// ErrUnavailable where it cannot. It needs MySQL among Stores, and with Redis
	// before it Floor: MySQL. The TTL is 3 s at least. All processes of a
	// namespace that have the resource have to agree on it; while they do not, its
	// holds are FencedOnly.
	Exclusive bool
	// Reentrant lets a call whose context carries a hold of the key, or the
	// option Holder, enter that hold. Without it such a call is refused with
	// ErrReentrant.
	Reentrant bool
	// MaxWaiters bounds the callers that wait in this process for keys of
	// this resource; one more gets ErrQueueFull. 0 means 1000.
	MaxWaiters int
	// MaxHolds is the number of keys of this resource that this process is
	// expected to hold at most. More are reported, not refused. 0 means no
	// expectation.
	MaxHolds int
}

var (
	resourcePattern  = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
	namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,32}$`)
)

// fill checks the configuration, all of it, and puts the defaults in.
func (c *Config) fill() error {
	var problems []error
	bad := func(field string, value any, bound string, args ...any) {
		problems = append(problems, invalid(field, value, bound, args...))
	}
	if !resourcePattern.MatchString(c.App) {
		bad("App", c.App, "1 to 64 characters of A-Z a-z 0-9 _ . : -")
	}
	if !namespacePattern.MatchString(c.Namespace) {
		bad("Namespace", c.Namespace, "1 to 32 characters of A-Z a-z 0-9 _ . : -")
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = DefaultCallTimeout
	} else if c.CallTimeout < minCallTimeout || c.CallTimeout > maxCallTimeout {
		bad("CallTimeout", c.CallTimeout, "%v to %v, or 0 for %v", minCallTimeout, maxCallTimeout, DefaultCallTimeout)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(c.Resources) == 0 {
		bad("Resources", 0, "at least one resource")
	}
	c.Resources = append([]Resource(nil), c.Resources...)
	seen := map[string]int{}
	for i := range c.Resources {
		r := &c.Resources[i]
		if j, ok := seen[r.Name]; ok {
			bad(fmt.Sprintf("Resources[%d].Name", i), r.Name, "unique, but Resources[%d] has it", j)
		}
		seen[r.Name] = i
		problems = append(problems, r.fill(fmt.Sprintf("Resources[%d]", i))...)
	}
	problems = append(problems, c.fillChain()...)
	return errors.Join(problems...)
}

func (r *Resource) fill(at string) (problems []error) {
	bad := func(field string, value any, bound string, args ...any) {
		problems = append(problems, invalid(at+"."+field, value, bound, args...))
	}
	if !resourcePattern.MatchString(r.Name) {
		bad("Name", r.Name, "1 to 64 characters of A-Z a-z 0-9 _ . : -")
	}
	switch {
	case r.TTL == 0:
		r.TTL = DefaultTTL
	case r.TTL < MinTTL || r.TTL > MaxTTL:
		bad("TTL", r.TTL, "%v to %v, or 0 for %v", MinTTL, MaxTTL, DefaultTTL)
	case r.TTL%time.Millisecond != 0:
		bad("TTL", r.TTL, "a whole number of milliseconds")
	}
	if r.Wait == 0 {
		r.Wait = DefaultWait
	} else if r.Wait < 0 {
		bad("Wait", r.Wait, "positive, or 0 for %v", DefaultWait)
	}
	if r.MaxHold != 0 && r.MaxHold < MinTTL {
		bad("MaxHold", r.MaxHold, "at least %v, or 0 for no bound", MinTTL)
	}
	r.MaxHold = r.MaxHold.Truncate(time.Millisecond)
	if r.MaxRenewals < 0 {
		bad("MaxRenewals", r.MaxRenewals, "positive, or 0 for no bound")
	}
	switch {
	case r.MinHold == 0: // else a bad TTL would be told twice
	case r.MinHold < 0:
		bad("MinHold", r.MinHold, "positive, or 0 for none")
	case r.MinHold > r.TTL:
		bad("MinHold", r.MinHold, "at most the TTL, %v", r.TTL)
	case r.MaxHold > 0 && r.MinHold > r.MaxHold:
		bad("MinHold", r.MinHold, "at most MaxHold, %v", r.MaxHold)
	}
	if r.Expect < 0 {
		bad("Expect", r.Expect, "positive, or 0 for no expectation")
	}
	if r.MaxWaiters == 0 {
		r.MaxWaiters = DefaultMaxWaiters
	} else if r.MaxWaiters < 0 {
		bad("MaxWaiters", r.MaxWaiters, "positive, or 0 for %d", DefaultMaxWaiters)
	}
	if r.MaxHolds < 0 {
		bad("MaxHolds", r.MaxHolds, "positive, or 0 for no expectation")
	}
	return problems
}

func checkKey(key string) error {
	if n := utf8.RuneCountInString(key); n < 1 || n > maxKeyChars || !utf8.ValidString(key) {
		return invalid("key", key, "valid UTF-8 of 1 to %d characters", maxKeyChars)
	}
	return nil
}
