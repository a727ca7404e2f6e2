package mysqlstore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tierlock/tierlock"
)

// cleaner is the part of one process of all that use a database: it finds the
// processes that died, reports what they held, frees it when it has expired, and
// deletes rows that are no longer needed. Whose part it is is decided by a lock
// as any other, of a name that no user's lock can have; nothing depends on there
// being one at a time but the load.
type cleaner struct {
	*member
	lease   string // while it is ours
	term    int
	seen    map[memberID]sighting
	looked  time.Time // when they were seen last
	orphans []orphan
	swept   time.Time // when the last sweep began
	sweep   sweeping  // while it has not ended
}

type memberID struct {
	Namespace string `db:"namespace"`
	Member    string `db:"member"`
}

// sighting is a beat, and when it was seen first, by the clock of this process.
type sighting struct {
	beat  uint64
	since time.Time
}

// orphan is a lock of a process that died. Times are as in row.
type orphan struct {
	Namespace string `db:"namespace"`
	Resource  string `db:"resource_id"`
	Key       string `db:"business_id"`
	Lease     string `db:"lease_id"`
	Left      int64  `db:"remaining"` // µs, when it was read
	at        time.Time
}

// cleaning is the name of the lock: no resource has a slash.
var cleaning = tierlock.Name{Resource: "tierlock/cleaner", Key: "-"}

// term is how long the part is kept without being renewed.
func (c *cleaner) termTTL() time.Duration { return c.s.pace.silent.Truncate(time.Millisecond) }

// work does what is due, if the part is ours or can be had.
func (c *cleaner) work(ctx context.Context) error {
	mine, err := background(c.s, ctx, c.s.timeout, c.stand)
	if err != nil {
		return fmt.Errorf("becoming the cleaner: %w", err)
	}
	if !mine {
		c.seen, c.orphans, c.swept, c.sweep = nil, nil, time.Time{}, sweeping{}
		return nil
	}
	if c.seen == nil {
		c.seen, c.swept = make(map[memberID]sighting), time.Now()
	}
	if err := c.observe(ctx); err != nil {
		return fmt.Errorf("looking after members: %w", err)
	}
	if err := c.free(ctx); err != nil {
		return fmt.Errorf("freeing the locks of dead members: %w", err)
	}
	if c.sweep == (sweeping{}) {
		// Whoever lives has beaten since the one before, and so has read its floor.
		if time.Since(c.swept) < max(c.s.pace.sweep, 2*c.period) {
			return nil
		}
		c.swept = time.Now()
	}
	// A long one is interrupted for the next beat.
	until := time.Now().Add(c.period / 2)
	if _, err := c.s.sweep(ctx, &c.sweep, func(ctx context.Context) bool { return time.Now().Before(until) && c.alone(ctx) }); err != nil {
		return fmt.Errorf("deleting old rows: %w", err)
	}
	return nil
}

// stand keeps the part or takes it, where nobody has it.
func (c *cleaner) stand(ctx context.Context, srv *server) (bool, error) {
	s, ttl := c.s, c.termTTL()
	if c.lease != "" {
		states, err := s.renew(ctx, srv, []tierlock.RenewRequest{{Name: cleaning, Lease: c.lease, TTL: ttl}},
			batch{resource: cleaning.Resource, ttl: ttl, index: []int{0}})
		if err != nil {
			return false, err
		}
		switch states[0] {
		case tierlock.LeaseOwned:
			return true, nil
		case 0:
			return false, errUnrenewed
		}
		c.lease = ""
	}
	if r, err := s.read(ctx, &cleaning); err != nil || r.live() {
		return false, err
	}
	c.term++
	lease := fmt.Sprintf("%s-clean%d", c.ID, c.term)
	res, err := s.acquire(ctx, time.Now(), newAttempt(&tierlock.AcquireRequest{Name: cleaning, TTL: ttl, Budget: s.timeout,
		Token: tierlock.Token{Lease: lease, ID: lease, Resource: cleaning.Resource, Key: cleaning.Key,
			Holder: fmt.Sprintf("%s@%s#%d", c.App, c.Host, c.PID), App: c.App, Host: c.Host, PID: c.PID,
			Tier: tierlock.MySQL, TTL: ttl, ClientTime: time.Now()}}))
	if err != nil {
		c.lease = lease // perhaps: the next renewal tells, or it is given up
		return false, err
	}
	if res.Granted {
		c.lease = lease
	}
	return res.Granted, nil
}

// alone renews the part in the middle of long work, and tells whether it still
// is ours.
func (c *cleaner) alone(ctx context.Context) bool {
	mine, err := background(c.s, ctx, c.s.timeout, c.stand)
	return err == nil && mine
}

// resign gives the part up.
func (c *cleaner) resign(ctx context.Context, srv *server) {
	if c.lease != "" {
		_, _ = c.s.release(ctx, srv, &tierlock.ReleaseRequest{Name: cleaning, Lease: c.lease})
		c.lease = ""
	}
}

// observe looks whose beat has changed. A member is dead whose beat was seen
// unchanged for long enough, by the clock of this process alone: no clock of
// another, and no time that was written by one, is compared. While nobody looks
// nothing is seen: after an outage of the server, in which no member could beat,
// all of them begin anew.
func (c *cleaner) observe(ctx context.Context) error {
	type line struct {
		memberID
		Beat  uint64 `db:"beat"`
		Floor int64  `db:"floor"`
		Holds int    `db:"holds"`
		App   string `db:"app"`
		Host  string `db:"host"`
		PID   int    `db:"pid"`
	}
	now := time.Now() // before the reading: what is seen is at least as old
	lines, err := background(c.s, ctx, c.s.timeout, func(ctx context.Context, _ *server) (all []line, err error) {
		return all, c.s.db.SelectContext(ctx, &all, "SELECT namespace,member,beat,floor,holds,app,host,pid FROM lock_member WHERE member<>'' LIMIT 1000000") // the session's own may be less
	})
	if err != nil {
		return err
	}
	seen := make(map[memberID]sighting, len(lines))
	silent := max(c.s.pace.silent, 7*c.period/2)
	if now.Sub(c.looked) > max(c.period*2, silent/2) {
		c.seen = nil
	}
	c.looked = time.Now()
	for _, l := range lines {
		c.s.raise(l.Floor)
		last, known := c.seen[l.memberID]
		if !known || last.beat != l.Beat || l.Member == c.ID {
			seen[l.memberID] = sighting{l.Beat, time.Now()}
			continue
		}
		seen[l.memberID] = last
		if now.Sub(last.since) < silent {
			continue
		}
		if err := c.bury(ctx, l.memberID, l.Beat, slog.Group("process", slog.String("app", l.App), slog.String("host", l.Host),
			slog.Int("pid", l.PID), slog.Int("holds", l.Holds))); err != nil {
			return err
		}
	}
	c.seen = seen
	return nil
}

// mostOrphans bounds what is remembered; the rest expires all the same.
const mostOrphans = 10_000

// bury takes a member off the list, and reports what it held. If it did beat
// meanwhile, or another cleaner was faster, nothing is done and said.
func (c *cleaner) bury(ctx context.Context, id memberID, beat uint64, who slog.Attr) error {
	removed := false
	left, err := background(c.s, ctx, c.s.timeout+10*time.Second, func(ctx context.Context, srv *server) (all []orphan, err error) {
		if err = again(ctx, func() error {
			res, err := c.s.db.ExecContext(ctx, srv.prefix+"DELETE FROM lock_member WHERE namespace=? AND member=? AND beat=? AND "+srv.sound,
				id.Namespace, id.Member, beat)
			if err == nil {
				var n int64
				n, err = res.RowsAffected()
				removed = n > 0
			}
			return err
		}); err != nil || !removed {
			return nil, err
		}
		// By the primary key, as there is no index on the lease; this is rare.
		var q statement
		q.add("SELECT namespace,resource_id,business_id,lease_id,TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expire_at) AS remaining " +
			"FROM lock_record WHERE namespace=")
		q.text(id.Namespace)
		q.add(" AND lease_id LIKE ")
		q.text(id.Member + "%") // hexadecimal digits: nothing in it is a pattern
		q.add(" AND expire_at>UTC_TIMESTAMP(6) LIMIT ")
		q.int(mostOrphans)
		return all, c.s.db.SelectContext(ctx, &all, q.String())
	})
	if err != nil || !removed {
		return err
	}
	now := time.Now()
	c.s.log.Warn("tierlock: mysql: a process stopped beating; what it holds is free when its lease ends",
		slog.String("namespace", id.Namespace), slog.String("member", id.Member), slog.Int("locks", len(left)), who)
	for i, o := range left {
		o.at = now
		if i < 20 {
			c.s.log.Warn("tierlock: mysql: held by a process that stopped beating",
				slog.String("lock", tierlock.Name{Namespace: o.Namespace, Resource: o.Resource, Key: o.Key}.String()),
				slog.String("lease", o.Lease), slog.Duration("left", time.Duration(o.Left)*time.Microsecond), who)
		}
		if len(c.orphans) < mostOrphans {
			c.orphans = append(c.orphans, o)
		}
	}
	return nil
}

// next is when the next orphan can be freed.
func (c *cleaner) next() (time.Duration, bool) {
	var least time.Duration
	for i, o := range c.orphans {
		if wait := time.Until(o.at.Add(time.Duration(o.Left) * time.Microsecond)); i == 0 || wait < least {
			least = wait
		}
	}
	return least, len(c.orphans) > 0
}

// free marks as released what orphans have expired by now. One that was renewed
// belongs to a process that lives after all, and one that was taken to another;
// both are forgotten.
func (c *cleaner) free(ctx context.Context) error {
	var later []orphan
	for i, o := range c.orphans {
		if time.Since(o.at) < time.Duration(o.Left)*time.Microsecond {
			later = append(later, o)
			continue
		}
		_, err := background(c.s, ctx, c.s.timeout, func(ctx context.Context, srv *server) (int64, error) {
			return c.s.write(ctx, srv, "UPDATE lock_record SET expire_at="+released+" WHERE "+named+
				" AND lease_id=? AND expire_at<=LEAST(UTC_TIMESTAMP(6),"+given+") AND "+srv.sound, o.Namespace, o.Resource, o.Key, o.Lease, c.s.explained())
		})
		if err != nil {
			c.orphans = append(later, c.orphans[i:]...)
			return err
		}
	}
	c.orphans = later
	return nil
}
