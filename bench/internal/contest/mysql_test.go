//go:build unix

package contest_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/internal/rig"
)

// overMySQL runs f for each contestant over MySQL, on an empty server, which has
// the tables.
func overMySQL(t *testing.T, f func(t *testing.T, c contest.Contestant, srv load.Server)) {
	srv := load.MySQL(t, 1)
	for _, c := range contest.All(contest.MySQL) {
		t.Run(c.Name, func(t *testing.T) {
			rig.NoLeak(t)
			if err := srv.Empty(); err != nil {
				t.Fatal(err)
			}
			f(t, c, srv)
		})
	}
}

func openMySQL(t *testing.T, c contest.Contestant, srv load.Server) contest.Locker {
	t.Helper()
	l, err := c.Open(contest.Settings{Addr: srv.Addr(), TTL: 10 * time.Second, Pool: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestMySQLLocksExclude(t *testing.T) {
	overMySQL(t, func(t *testing.T, c contest.Contestant, srv load.Server) {
		a, b := openMySQL(t, c, srv), openMySQL(t, c, srv)
		held, err := a.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		// More often than there are connections: none is kept.
		for range 6 {
			if h, err := b.TryLock(t.Context(), "k"); err != contest.ErrHeld {
				t.Fatalf("TryLock of a held key: %v, %v, want ErrHeld", h, err)
			}
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
		for range 6 {
			again, err := b.TryLock(t.Context(), "k")
			if err != nil {
				t.Fatalf("TryLock of a free key: %v", err)
			}
			if err := again.Unlock(); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		}
	})
}

func TestMySQLLockWaits(t *testing.T) {
	overMySQL(t, func(t *testing.T, c contest.Contestant, srv load.Server) {
		a, b := openMySQL(t, c, srv), openMySQL(t, c, srv)
		held, err := a.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
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
		if err := <-got; err != nil {
			t.Fatalf("Lock after the release: %v", err)
		}
	})
}

// What keeps the lock goes: rows, or the connection.
func TestMySQLRenewTellsALoss(t *testing.T) {
	overMySQL(t, func(t *testing.T, c contest.Contestant, srv load.Server) {
		l, err := c.Open(contest.Settings{Addr: srv.Addr(), TTL: 3 * time.Second, Pool: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		held, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("mysql", srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var owner sql.NullInt64
		if err := db.QueryRow("SELECT IS_USED_LOCK('k')").Scan(&owner); err != nil {
			t.Fatal(err)
		}
		if owner.Valid != (c.Name == "getlock") {
			t.Errorf("connection %v owns the name", owner)
		}
		if owner.Valid {
			if _, err := db.Exec("KILL ?", owner.Int64); err != nil {
				t.Fatal(err)
			}
		} else if err := srv.Empty(); err != nil {
			t.Fatal(err)
		}
		if c.Renews {
			rig.Eventually(t, patience, "the loss is noticed", func() bool { return held.Renew(t.Context()) != nil })
		} else if held.Renew(t.Context()) == nil {
			t.Error("renewed a lock that is gone")
		}
		if held.Unlock() == nil {
			t.Error("Unlock of a lock that is gone says nothing")
		}
	})
}
