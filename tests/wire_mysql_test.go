package tests_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

var (
	// wholeNumber finds what can be a time as a number, and dateTime one as a literal.
	wholeNumber = regexp.MustCompile(`\b\d{10,19}\b`)
	dateTime    = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	// clientTime is for people: when the holder asked, by its own clock. Nothing
	// reads it.
	clientTime = regexp.MustCompile(`\\*"clientTime\\*":\d+`)
)

// timesNear are the times in a statement that lie within half an hour of at.
func timesNear(text string, at time.Time) (found []string) {
	near := func(u time.Time) bool { return u.Sub(at).Abs() < 30*time.Minute }
	for _, n := range wholeNumber.FindAllString(text, -1) {
		v, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			continue
		}
		if near(time.Unix(v, 0)) || near(time.UnixMilli(v)) || near(time.UnixMicro(v)) || near(time.Unix(0, v)) {
			found = append(found, n)
		}
	}
	for _, n := range dateTime.FindAllString(text, -1) {
		if u, err := time.Parse(time.DateTime, n); err == nil && near(u) {
			found = append(found, n)
		}
	}
	return found
}

// Scenario 74, over a database whose clock is an hour ahead of the client's, and an
// hour behind it: the client's clock decides nothing. No statement carries a time of
// the client's; those that carry one at all have the database's own. Leases last as
// long as they should and no longer, and the times in the token are the database's.
func TestNoClientTimeReachesTheDatabase(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl, limit = 4 * time.Second, 2 * time.Second
			srv, clock := rig.MariaDBWithClock(t)
			clock.Step(off)
			ctx, cancel := context.WithTimeout(bg, patience)
			defer cancel()
			if err := openMySQL(t, srv.DSN(""), mysqlstore.Options{}).Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			db := mysqlPool(t, srv.DSN("")).DB
			logSQL(t, db)
			rs := []tierlock.Resource{
				{Name: "job", TTL: ttl}, {Name: "shared", TTL: ttl, Reentrant: true}, {Name: "cron", TTL: ttl, MinHold: time.Second},
			}
			locker := func() *tierlock.Locker {
				cfg := config(openMySQL(t, srv.DSN(mysqlParams), mysqlstore.Options{CallTimeout: limit}), rs...)
				cfg.CallTimeout = limit
				return lockerOf(t, cfg)
			}
			l, other := locker(), locker()
			var held []*tierlock.Lock
			for _, r := range rs {
				var opts []tierlock.Option
				if r.Reentrant {
					opts = append(opts, tierlock.Holder("h"))
				}
				k := mustLock(t, l, r.Name, "k", append(opts, tierlock.Wait(patience))...)
				held = append(held, k)
				between(t, "the database's time of the grant", k.Token().ServerTime.Sub(time.Now().Add(off)).Abs(), 0, limit+slack)
				if d := k.Token().ExpireAt.Sub(k.Token().ServerTime); d != ttl {
					t.Errorf("%s: it expires %v after its grant, want %v", r.Name, d, ttl)
				}
			}
			for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); {
				for _, r := range rs {
					_, err := other.Lock(bg, r.Name, "k", tierlock.Wait(time.Second))
					wantIs(t, "another, of "+r.Name, err, tierlock.ErrHeld)
				}
			}
			if rec, err := other.Inspect(bg, "job", "k"); err != nil || !rec.Held || rec.Left <= 0 || rec.Left > ttl {
				t.Errorf("Inspect: %+v, %v", rec, err)
			}
			for _, k := range held {
				mustUnlock(t, k)
			}
			// And who does not renew has it no longer than that: a hold that is let
			// go by its context.
			ctx, leave := context.WithCancel(bg)
			defer leave()
			k, err := l.Lock(ctx, "job", "left", tierlock.Wait(patience))
			if err != nil {
				t.Fatal(err)
			}
			locked := time.Now()
			leave()
			next := mustLock(t, other, "job", "left", tierlock.Wait(patience))
			between(t, "from the lock to the next", time.Since(locked), 0, ttl+slack)
			if d := next.Token().ServerTime.Sub(k.Token().ServerTime); d < ttl {
				t.Errorf("the next was granted %v after it, want %v at least", d, ttl)
			}
			wantIs(t, "Unlock", k.Unlock(), tierlock.ErrLost)
			mustUnlock(t, next)

			execSQL(t, db, "SET GLOBAL general_log=0")
			rows, err := db.Query("SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE command_type IN ('Query','Execute')")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			seen := map[string]int{}
			times, clients := 0, 0
			for rows.Next() {
				var text string
				if err := rows.Scan(&text); err != nil {
					t.Fatal(err)
				}
				for _, kind := range []string{"INSERT INTO lock_record", "UPDATE lock_record", "INSERT INTO lock_member", "SELECT lease_id"} {
					if strings.Contains(text, kind) {
						seen[kind]++
					}
				}
				clients += len(clientTime.FindAllString(text, -1))
				text = clientTime.ReplaceAllString(text, "")
				if found := timesNear(text, time.Now()); len(found) > 0 {
					t.Errorf("the client's time, %v, in %s", found, text)
				}
				times += len(timesNear(text, time.Now().Add(off)))
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			// That they are found where they are: each grant has a bound, and its
			// token the client's time.
			if times < 10 || clients < 10 || len(seen) != 4 {
				t.Errorf("%d times of the database, %d of the client in tokens, statements %v", times, clients, seen)
			}
		})
	}
}

func TestTimesNear(t *testing.T) {
	now := time.Now()
	for i, n := range []int64{now.Unix(), now.UnixMilli(), now.UnixMicro(), now.UnixNano()} {
		if text := fmt.Sprint("VALUES (", n, ",'x')"); len(timesNear(text, now)) != 1 || len(timesNear(text, now.Add(time.Hour))) != 0 {
			t.Errorf("%d: %v, %v", i, timesNear(text, now), timesNear(text, now.Add(time.Hour)))
		}
	}
	if text := "WHERE expire_at>'" + now.UTC().Format(time.DateTime) + ".123456'"; len(timesNear(text, now)) != 1 || len(timesNear(text, now.Add(time.Hour))) != 0 {
		t.Error(text)
	}
	for _, text := range []string{"'2000-01-01'", "30000", "593148558362838"} {
		if found := timesNear(text, now); len(found) > 0 {
			t.Errorf("%s: %v", text, found)
		}
	}
}
