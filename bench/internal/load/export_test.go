//go:build unix

package load

import (
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
)

// Drive drives one key, and returns how many pairs were done, in time and at
// all, and the errors.
func Drive(l contest.Locker, goroutines int, d time.Duration) (inTime, pairs, errors int, first string, err error) {
	t, err := drive{locker: l, goroutines: goroutines, keys: sameKey}.run(d)
	return t.InTime, len(t.Pair), t.Errors, t.First, err
}

const StuckAfter = stuckAfter

// Guard is what processes share.
type Guard = guard

func OpenGuard(path string) (*Guard, error) { return openGuard(path) }

func (g *Guard) Pass() bool   { return g.pass() }
func (g *Guard) Close() error { return g.close() }

// GuardFile is the file of the guard of a run on this server.
func GuardFile(e Env) string { return e.guardFile() }

// Inside is the counter itself.
func (g *Guard) Inside() *int32 { return g.inside }
