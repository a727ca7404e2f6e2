//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
)

// keysEach is how many keys a goroutine goes round: what a lock leaves beside
// its key is then met again, and the server does not fill up.
const keysEach = 64

const distinct = "distinct/"

// IsDistinct tells a workload of [Distinct] by its name.
func IsDistinct(workload string) bool { return strings.HasPrefix(workload, distinct) }

// Distinct is lock and unlock without contention.
func Distinct(goroutines int) Workload {
	return Workload{
		Name:  fmt.Sprint(distinct, goroutines),
		About: fmt.Sprintf("Goroutines: %d. Each locks and unlocks keys of its own.", goroutines),
		run: func(env Env, c contest.Contestant) (Result, error) {
			l, err := c.Open(env.Settings)
			if err != nil {
				return Result{}, err
			}
			return env.inProcess(drive{locker: l, goroutines: goroutines, keys: func(g int) []string {
				keys := make([]string, keysEach)
				for i := range keys {
					keys[i] = fmt.Sprintf("order-%d-%d", g, i)
				}
				return keys
			}})
		},
	}
}

const oneKey = "order-1"

func sameKey(int) []string { return []string{oneKey} }

// Contended is one key for all goroutines of one process.
func Contended(goroutines int) Workload {
	return Workload{
		Name:  fmt.Sprintf("contended/%d", goroutines),
		About: fmt.Sprintf("Goroutines: %d, in one process, with one key, which each wants again as soon as it has given it up.", goroutines),
		run: func(env Env, c contest.Contestant) (Result, error) {
			g, err := openGuard(env.guardFile())
			if err != nil {
				return Result{}, err
			}
			defer g.close()
			l, err := c.Open(env.Settings)
			if err != nil {
				return Result{}, err
			}
			return env.inProcess(drive{locker: l, goroutines: goroutines, keys: sameKey, guard: g})
		},
	}
}

// Refused is TryLock on a key that a client of its own holds.
func Refused(goroutines int) Workload {
	return Workload{
		Name:  fmt.Sprintf("refused/%d", goroutines),
		About: fmt.Sprintf("Goroutines: %d. Each tries again and again, without waiting, to lock a key that another client holds; a \"pair\" is one refusal.", goroutines),
		run: func(env Env, c contest.Contestant) (Result, error) {
			owner, err := c.Open(env.Settings)
			if err != nil {
				return Result{}, err
			}
			defer owner.Close()
			stop, err := hold(owner, oneKey, env.Settings.TTL)
			if err != nil {
				return Result{}, err
			}
			l, err := c.Open(env.Settings)
			if err != nil {
				return Result{}, errors.Join(err, stop())
			}
			r, err := env.inProcess(drive{locker: l, goroutines: goroutines, keys: sameKey, refused: true})
			if lost := stop(); err == nil && lost != nil {
				err = fmt.Errorf("the key was not held throughout: %w", lost)
			}
			return r, err
		},
	}
}

// hold takes a lock and keeps it until stop, which gives it up and tells
// whether it was lost.
func hold(l contest.Locker, key string, ttl time.Duration) (stop func() error, err error) {
	h, err := l.Lock(context.Background(), key)
	if err != nil {
		return nil, err
	}
	quit := make(chan struct{})
	var lost error
	var renewer sync.WaitGroup
	renewer.Go(func() { lost = keep(h, ttl, ttl/3, quit) })
	return func() error {
		close(quit)
		renewer.Wait()
		if lost == nil {
			lost = h.Renew(context.Background())
		}
		if lost != nil {
			return lost
		}
		return h.Unlock()
	}, nil
}

// keep renews a lock until quit, for the first time after the given time and
// then every third of its lease. It returns early when the lock is lost.
func keep(h contest.Held, ttl, first time.Duration, quit <-chan struct{}) error {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-quit:
			return nil
		case <-timer.C:
			if err := h.Renew(context.Background()); err != nil {
				return err
			}
			timer.Reset(ttl / 3)
		}
	}
}
