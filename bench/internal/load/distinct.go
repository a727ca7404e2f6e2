package load

import (
	"fmt"

	"github.com/tierlock/tierlock/bench/internal/contest"
)

// keysEach is how many keys a goroutine goes round: what a lock leaves beside
// its key is then met again, and the server does not fill up.
const keysEach = 64

// Distinct is lock and unlock without contention: each goroutine has keys of
// its own.
func Distinct(goroutines int) Workload {
	return Workload{
		Name:  fmt.Sprintf("distinct/%d", goroutines),
		About: fmt.Sprintf("%d goroutines lock and unlock keys of their own", goroutines),
		Run: func(env Env, c contest.Contestant) (Result, error) {
			l, err := c.Open(env.Settings)
			if err != nil {
				return Result{}, err
			}
			defer l.Close()
			d := drive{locker: l, goroutines: goroutines, keys: func(g int) []string {
				keys := make([]string, keysEach)
				for i := range keys {
					keys[i] = fmt.Sprintf("order-%d-%d", g, i)
				}
				return keys
			}}
			return d.measuredIn(env)
		},
	}
}

// measuredIn warms up and then measures.
func (d drive) measuredIn(env Env) (Result, error) {
	if _, err := d.run(env.WarmUp); err != nil {
		return Result{}, err
	}
	return env.measured(func() (tally, error) { return d.run(env.Duration) })
}
