// Package contest has the contestants of the benchmark: lock libraries, and
// references that are no libraries, behind one interface that costs them next to
// nothing. Those over Redis compete with each other, and so do those over MySQL.
package contest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock/redisstore"
)

// Locker is one contestant's client, connected to one server. Its methods are
// safe for concurrent use.
type Locker interface {
	// Lock waits until the key is held or ctx ends.
	Lock(ctx context.Context, key string) (Held, error)
	// TryLock does not wait: where others hold the key the error is ErrHeld.
	TryLock(ctx context.Context, key string) (Held, error)
	// Close ends the client. Nothing may be held.
	Close()
}

// Held is one lock that is held.
type Held interface {
	// Unlock gives it up, and returns an error where it was lost before, as far
	// as the contestant tells.
	Unlock() error
	// Renew is what a caller has to do from time to time to keep it, and what
	// tells that it was lost. Where the library renews by itself it only looks.
	Renew(ctx context.Context) error
}

// ErrHeld is the refusal of TryLock. It is returned as it is: to wrap it would
// cost an allocation that is not the contestant's.
var ErrHeld = errors.New("held by others")

// Settings are common to all contestants.
type Settings struct {
	// Addr is the server's: host:port of Redis, the data source name of MySQL.
	Addr string
	// TTL is the lease of every lock.
	TTL time.Duration
	// Poll is the pause of those that wait by polling; 0 is each one's default.
	Poll time.Duration
	// FlushDelay is rueidis' MaxFlushDelay, for all that use it.
	FlushDelay time.Duration
	// Pool is how many connections a client over MySQL has at most.
	Pool int
}

// Contestant is what takes part.
type Contestant struct {
	Name string
	// About says in one line how it is configured.
	About string
	// Renews says that it keeps its locks by itself.
	Renews bool
	// Endless says that its locks have no lease, so that to hold many costs
	// nothing, or a connection each, and is not compared.
	Endless bool
	Open    func(Settings) (Locker, error)
}

// Subject is the contestant that the others are compared with.
const Subject = "tierlock"

// What the contestants keep their locks in.
const (
	Redis = "redis"
	MySQL = "mysql"
)

// Stores are all of these.
var Stores = []string{Redis, MySQL}

// All are the contestants over a store, in the order of the report.
func All(store string) []Contestant {
	if store == MySQL {
		return []Contestant{
			mysqlstoreContestant,
			insertContestant,
			rowContestant,
			getLockContestant,
		}
	}
	return []Contestant{
		tierlockContestant,
		bareContestant,
		floorContestant,
		fullContestant,
		rueidislockContestant,
		rueidislockReadmeContestant,
		redsyncRueidisContestant,
		redsyncGoRedisContestant,
		redislockContestant,
	}
}

// Named picks contestants out of All by their names, with commas between them;
// empty picks all. The order stays that of All.
func Named(store, names string) ([]Contestant, error) {
	all := All(store)
	if names == "" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(c Contestant) bool { return c.Name == name }) {
			return nil, fmt.Errorf("no contestant %q over %s", name, store)
		}
	}
	return slices.DeleteFunc(all, func(c Contestant) bool { return !slices.Contains(wanted, c.Name) }), nil
}

// recommended are the client options that tierlock recommends, which all
// contestants over rueidis use, but for the row that says otherwise.
func recommended(s Settings) rueidis.ClientOption {
	o := redisstore.RecommendedOptions(s.Addr)
	o.MaxFlushDelay = s.FlushDelay
	return o
}
