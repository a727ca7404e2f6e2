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
	// as is what part "a" is called now, if not nil; any other is never away.
	as atomic.Pointer[string]
	// meanwhile, if not nil, is called in the middle of an acquire that fails.
	// Nothing else fails then.
	meanwhile func()
}

func (s *parted) Part(n tierlock.Name) string {
	if as := s.as.Load(); as != nil && n.Key[:1] == "a" {
		return *as
	}
	return n.Key[:1]
}

func (s *parted) gone(n tierlock.Name) bool {
	p := s.Part(n)
	return s.away.Load() && (p == "a" || p == "")
}

func (s *parted) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	if s.gone(req.Name) {
		s.tried.Add(1)
		if s.meanwhile != nil {
			s.meanwhile()
		}
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
	if s.meanwhile == nil && s.gone(req.Name) {
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

// A part that has failed and serves nothing any more, since another has taken
// over, does not count for ever: nobody will ask it again.
func TestPartsThatAreReplaced(t *testing.T) {
	for _, c := range []struct{ name, before, after string }{
		{"by another part", "a", "a2"},
		{"where the part was not known", "", "a2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &parted{Store: localstore.New(localstore.Options{Space: localstore.NewSpace()})}
				var changed events[tierlock.StoreEvent]
				l := newLocker(t, s, func(cfg *tierlock.Config) { cfg.Observer.StoreChanged = changed.add })
				s.as.Store(&c.before)
				s.away.Store(true)
				for range 5 {
					_, err := l.TryLock(bg, "r", "a1")
					wantIs(t, "a lock of the part that is away", err, tierlock.ErrUnavailable)
					mustUnlock(t, mustLock(t, l, "r", "b1"))
				}
				if l.Status().Stores[0].Available {
					t.Error("the store counts as well")
				}
				s.as.Store(&c.after)
				if !l.Status().Stores[0].Available {
					t.Error("the store counts as down, for a part that is asked nothing any more")
				}
				mustUnlock(t, mustLock(t, l, "r", "a1"))
				if e := changed.all(); len(e) != 2 || e[0].Err == nil || e[1].Err != nil {
					t.Errorf("events %+v, want that it failed, and that it is back", e)
				}
				s.away.Store(false)
				idle(t, l)
			})
		})
	}
}

// What a part that is away left unanswered says nothing about the one that has
// taken over meanwhile.
func TestPartsAreNotBlamedForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &parted{Store: localstore.New(localstore.Options{Space: localstore.NewSpace()})}
		l := newLocker(t, s)
		next := "a2"
		s.meanwhile = func() { s.as.Store(&next) }
		s.away.Store(true)
		for i := range 3 {
			s.as.Store(nil)
			_, err := l.TryLock(bg, "r", fmt.Sprint("a", i))
			wantIs(t, "a lock of the part that is away", err, tierlock.ErrUnavailable)
		}
		mustUnlock(t, mustLock(t, l, "r", "a3"))
		idle(t, l)
	})
}
