package tierlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// parted is a store with a part for each first letter of a key, of which "a" may
// be away.
type parted struct {
	tierlock.Store
	away  atomic.Bool
	tried atomic.Int32 // acquires that met it away
}

func (s *parted) Part(n tierlock.Name) string { return n.Key[:1] }

func (s *parted) gone(n tierlock.Name) bool { return s.away.Load() && s.Part(n) == "a" }

func (s *parted) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	if s.gone(req.Name) {
		s.tried.Add(1)
		return tierlock.AcquireResult{}, fmt.Errorf("part a is away: %w", tierlock.ErrUnavailable)
	}
	return s.Store.Acquire(ctx, req)
}

func (s *parted) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	results := s.Store.Renew(ctx, reqs)
	for i, req := range reqs {
		if s.gone(req.Name) {
			results[i] = tierlock.RenewResult{Err: tierlock.ErrUnavailable}
		}
	}
	return results
}

func (s *parted) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	if s.gone(req.Name) {
		return 0, tierlock.ErrUnavailable
	}
	return s.Store.Release(ctx, req)
}

var _ tierlock.Partitioned = (*parted)(nil)

// A part of a store that fails is not tried for a moment; the others are, and
// their answers, those to renewals in the same batch included, do not make it
// pass for well.
func TestPartsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &parted{Store: localstore.New(localstore.Options{Space: localstore.NewSpace()})}
		var changed events[tierlock.StoreEvent]
		l := newLocker(t, s, func(c *tierlock.Config) {
			c.Resources = append(c.Resources, tierlock.Resource{Name: "long", TTL: 30 * time.Second})
			c.Observer.StoreChanged = changed.add
		})
		theirs, ours := mustLock(t, l, "long", "a0"), mustLock(t, l, "long", "b0")
		s.away.Store(true)
		for i := range 10 {
			_, err := l.TryLock(bg, "r", fmt.Sprint("a", i+1))
			wantIs(t, "a lock of the part that is away", err, tierlock.ErrUnavailable)
			mustUnlock(t, mustLock(t, l, "r", fmt.Sprint("b", i+1)))
			time.Sleep(time.Millisecond)
		}
		if n := s.tried.Load(); n != 3 && n != 2 { // an undo counts as well
			t.Errorf("the part was tried %d times, want 3", n)
		}
		if l.Status().Stores[0].Available {
			t.Error("the store counts as well")
		}
		time.Sleep(10500 * time.Millisecond) // one renewal of both holds
		before := s.tried.Load()
		for i := range 10 {
			_, err := l.TryLock(bg, "r", fmt.Sprint("a", i+1))
			wantIs(t, "a lock of the part that is away", err, tierlock.ErrUnavailable)
		}
		if n := s.tried.Load() - before; n != 1 {
			t.Errorf("after a batch of renewals the part was tried %d times, want the one try of a second", n)
		}
		s.away.Store(false)
		time.Sleep(time.Second)
		mustUnlock(t, mustLock(t, l, "r", "a1"))
		if !l.Status().Stores[0].Available {
			t.Error("the store counts as down")
		}
		mustUnlock(t, theirs)
		mustUnlock(t, ours)
		idle(t, l)
		if e := changed.all(); len(e) != 2 || e[0].Err == nil || e[1].Err != nil {
			t.Errorf("events %+v, want that it failed, and that it is back", e)
		}
	})
}
