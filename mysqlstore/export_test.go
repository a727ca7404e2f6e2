package mysqlstore

import (
	"context"
	"time"
)

// SetPace makes the background work of a store faster, before it is registered.
func (s *Store) SetPace(beat, silent, sweep, keep time.Duration) {
	s.pace = pace{beat: beat, silent: silent, sweep: sweep, keep: keep}
}

// Sweep deletes old rows at once.
func (s *Store) Sweep(ctx context.Context) (int64, error) {
	return s.sweep(ctx, new(sweeping), func(context.Context) bool { return true })
}

// Floor is the latest time of the server that the store knows of.
func (s *Store) Floor() int64 { return s.floor.Load() }
