package contest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/internal/rig"
)

// patience is for what has to happen, soon, but on a busy machine.
const patience = 20 * time.Second

func open(t *testing.T, c contest.Contestant, srv *rig.RedisServer) contest.Locker {
	t.Helper()
	l, err := c.Open(contest.Settings{Addr: srv.Addr, TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func eachContestant(t *testing.T, f func(t *testing.T, c contest.Contestant, srv *rig.RedisServer)) {
	for _, c := range contest.All(contest.Redis) {
		t.Run(c.Name, func(t *testing.T) {
			rig.NoLeak(t)
			f(t, c, rig.Redis(t))
		})
	}
}

// What the benchmark relies on: locks of two clients exclude, and have a TTL.
func TestLocksExclude(t *testing.T) {
	eachContestant(t, func(t *testing.T, c contest.Contestant, srv *rig.RedisServer) {
		a, b := open(t, c, srv), open(t, c, srv)
		held, err := a.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if h, err := b.TryLock(t.Context(), "k"); err != contest.ErrHeld {
				t.Fatalf("TryLock of a held key: %v, %v, want ErrHeld", h, err)
			}
		}
		ttls := 0
		for _, key := range srv.Do("KEYS", "*").([]any) {
			if ttl := srv.Int("PTTL", key.(string)); ttl > 5000 && ttl <= 10000 {
				ttls++
			} else if ttl < 0 {
				t.Errorf("key %v has no TTL", key)
			}
		}
		if ttls != 1 {
			t.Errorf("%d keys with a TTL of some 10 s, want one", ttls)
		}
		if err := held.Renew(t.Context()); err != nil {
			t.Errorf("Renew of a held lock: %v", err)
		}
		other, err := b.Lock(t.Context(), "k2")
		if err != nil {
			t.Fatalf("Lock of another key: %v", err)
		}
		if err := other.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if err := held.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		again, err := b.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("TryLock of a free key: %v", err)
		}
		if err := again.Unlock(); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestLockWaits(t *testing.T) {
	eachContestant(t, func(t *testing.T, c contest.Contestant, srv *rig.RedisServer) {
		a, b := open(t, c, srv), open(t, c, srv)
		held, err := a.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		// One whose context ends gets nothing.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if h, err := b.Lock(ctx, "k"); err == nil || ctx.Err() == nil {
			t.Fatalf("Lock of a held key: %v, %v, before its context ended (%v)", h, err, ctx.Err())
		}
		got := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			h, err := b.Lock(ctx, "k")
			if err == nil {
				err = h.Unlock()
			}
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("Lock did not wait: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := held.Unlock(); err != nil {
			t.Fatal(err)
		}
		err = <-got
		if c.Name == "rueidislock-readme" && errors.Is(err, context.DeadlineExceeded) {
			// On a busy machine one in thirty of its waiters on a key that nobody else
			// uses misses the release, and all that comes after it. That is not ours
			// to mend, and with other users of the key it goes on.
			t.Log("the waiter has missed the release")
		} else if err != nil {
			t.Fatalf("Lock after the release: %v", err)
		}
	})
}

// A lock that was lost is noticed by who has to renew it; those that renew by
// themselves notice in their own time.
func TestRenewTellsALoss(t *testing.T) {
	eachContestant(t, func(t *testing.T, c contest.Contestant, srv *rig.RedisServer) {
		l, err := c.Open(contest.Settings{Addr: srv.Addr, TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		held, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		srv.Do("FLUSHALL")
		if !c.Renews {
			if held.Renew(t.Context()) == nil {
				t.Error("renewed a lock that is gone")
			}
			if held.Unlock() == nil {
				t.Error("Unlock of a lock that is gone says nothing")
			}
			return
		}
		rig.Eventually(t, patience, "the loss is noticed", func() bool { return held.Renew(t.Context()) != nil })
		if held.Unlock() == nil {
			t.Error("Unlock of a lock that is gone says nothing")
		}
	})
}

// Those that do not need it from outside outlive their TTL.
func TestRenews(t *testing.T) {
	for _, c := range contest.All(contest.Redis) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			srv := rig.Redis(t)
			const ttl = 9 * time.Second
			l, err := c.Open(contest.Settings{Addr: srv.Addr, TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			held, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); time.Sleep(time.Second) {
				if !c.Renews {
					if err := held.Renew(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if h, err := l.TryLock(t.Context(), "k"); err != contest.ErrHeld {
				t.Errorf("after one and a half TTLs TryLock gave %v, %v, want ErrHeld", h, err)
			}
			if err := held.Unlock(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The references floor and full do the work of tierlock, a value of the same size
// included.
func TestFloorStoresAsMuch(t *testing.T) {
	srv := rig.Redis(t)
	length := make(map[string]int64)
	for _, c := range contest.All(contest.Redis) {
		if c.Name != contest.Subject && c.Name != "floor" && c.Name != "full" {
			continue
		}
		srv.Do("FLUSHALL")
		h, err := open(t, c, srv).Lock(t.Context(), "order-12-34")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range srv.Do("KEYS", "*").([]any) {
			length[c.Name] = max(length[c.Name], srv.Int("STRLEN", key.(string)))
		}
		if err := h.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	own := length[contest.Subject]
	for _, name := range []string{"floor", "full"} {
		if n := length[name]; n < own*90/100 || n > own*110/100 {
			t.Errorf("the value of %s has %d bytes, tierlock's %d: want a tenth apart at most", name, n, own)
		}
	}
}

func TestNamed(t *testing.T) {
	all, err := contest.Named(contest.Redis, "")
	if err != nil || len(all) != len(contest.All(contest.Redis)) {
		t.Errorf("without a name: %d, %v, want all", len(all), err)
	}
	some, err := contest.Named(contest.Redis, "bare,tierlock")
	if err != nil || len(some) != 2 || some[0].Name != "tierlock" || some[1].Name != "bare" {
		t.Errorf("got %v, %v, want tierlock and bare in this order", some, err)
	}
	for _, none := range []string{"bare,nobody", "insert"} {
		if _, err := contest.Named(contest.Redis, none); err == nil {
			t.Errorf("%s: no error for a name that there is not", none)
		}
	}
	if some, err := contest.Named(contest.MySQL, "insert"); err != nil || len(some) != 1 || some[0].Name != "insert" {
		t.Errorf("over MySQL: %v, %v, want insert", some, err)
	}
}
