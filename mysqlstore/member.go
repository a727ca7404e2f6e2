package mysqlstore

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// pace is how often the background work is done. All but keep are counted by
// the clock of the process that does it.
type pace struct {
	// beat is how often each process says that it lives, and the cleaner looks
	// whether the others do.
	beat time.Duration
	// silent is how long a process is silent before it counts as dead.
	silent time.Duration
	// sweep is how often rows that are no longer needed are looked for, and keep
	// how long they are kept after the end of their lease.
	sweep, keep time.Duration
}

var usualPace = pace{beat: 10 * time.Second, silent: 35 * time.Second, sweep: time.Minute, keep: 10 * time.Minute}

// beatsPerSecond bounds what all processes write together: where there are
// many, each beats less often.
const beatsPerSecond = 200

// member is one registered process, and its background work.
type member struct {
	tierlock.Member
	s    *Store
	stop chan struct{}
	once sync.Once
	done chan struct{}

	cleaner cleaner
	failing bool
	period  time.Duration // of the beats: longer where there are many members
}

// Register implements [tierlock.Registrar]. Each process writes a row of
// lock_member every 10 s, less often where there are more than 2,000 processes.
// One of all takes the part of the cleaner, see [Store.Close].
func (s *Store) Register(m tierlock.Member) (leave func(ctx context.Context)) {
	r := &member{Member: m, s: s, period: s.pace.beat, stop: make(chan struct{}), done: make(chan struct{})}
	r.cleaner.member = r
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.wrong != nil {
		return func(context.Context) {}
	}
	s.members.Go(r.run)
	return func(ctx context.Context) {
		r.once.Do(func() { close(r.stop) })
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
}

// run beats and cleans until the process leaves or the store is closed.
func (m *member) run() {
	defer close(m.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-m.stop:
		case <-m.s.quit:
		}
		cancel()
	}()
	// The first beat comes soon, but not that of all processes of a deployment
	// at once.
	wait := rand.N(m.s.pace.beat / 10)
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			m.leave()
			return
		}
		others, err := m.beat(ctx)
		if err == nil {
			m.period = max(m.s.pace.beat, time.Duration(others)*time.Second/beatsPerSecond)
			err = m.cleaner.work(ctx)
		}
		m.tell(ctx, err)
		wait = m.period - m.period/10 + rand.N(m.period/5)
		// What failed is not done sooner for being overdue.
		if next, ok := m.cleaner.next(); ok && err == nil {
			wait = min(wait, max(next, time.Millisecond))
		}
	}
}

// tell logs that the background work fails, once, and that it is done again.
func (m *member) tell(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !m.failing:
		m.failing = true
		m.s.log.Warn("tierlock: mysql: background work fails", slog.String("member", m.ID), slog.Any("err", classed(err)))
	case err == nil && m.failing:
		m.failing = false
		m.s.log.Info("tierlock: mysql: background work is done again", slog.String("member", m.ID))
	}
}

// beat says that the process lives, by one statement, counts all that do, and
// learns the latest time that they know of the server.
func (m *member) beat(ctx context.Context) (members int, err error) {
	s := m.s
	if srv := s.server.Load(); srv != nil && time.Since(srv.asked) > 6*s.pace.beat {
		if _, err := background(s, ctx, s.timeout, func(ctx context.Context, _ *server) (int, error) { return 0, s.askAnew(ctx) }); err != nil {
			return 0, err
		}
	}
	// Not cut when the process leaves: the statement could be executed after the one
	// that takes it off the list.
	_, err = background(s, context.WithoutCancel(ctx), s.timeout, func(ctx context.Context, srv *server) (int64, error) {
		// The number that comes back is that of the beat: a row was written.
		beat, err := s.write(ctx, srv, "INSERT INTO lock_member (namespace,member,beat,floor,holds,app,host,pid,started_at) "+
			"SELECT ?,?,LAST_INSERT_ID(1),?,?,?,?,?,UTC_TIMESTAMP(6) FROM DUAL WHERE "+srv.sound+" ON DUPLICATE KEY UPDATE "+
			"beat=LAST_INSERT_ID(beat+1),floor=GREATEST(floor,VALUES(floor)),holds=VALUES(holds)",
			m.Namespace, m.ID, s.floor.Load(), m.Holds(), clip(m.App, 64), clip(m.Host, 255), m.PID)
		if err == nil && beat == 0 {
			err = errNoEffect // the next beat may have another connection
		}
		return beat, err
	})
	if err != nil {
		return 0, fmt.Errorf("beat of member %s: %w", m.ID, err)
	}
	type all struct {
		Count int   `db:"members"`
		Floor int64 `db:"floor"`
	}
	others, err := background(s, ctx, s.timeout, func(ctx context.Context, _ *server) (a all, err error) {
		stmt, err := s.prepared(ctx, "SELECT COUNT(*) AS members, COALESCE(MAX(floor),0) AS floor FROM lock_member")
		if err == nil {
			err = stmt.GetContext(ctx, &a)
		}
		return a, err
	})
	s.raise(others.Floor) // before rows go whose fences reach up to it: see sweep
	return others.Count, err
}

// leave takes the process off the list. It is silent where that fails: its row
// is then removed by others.
func (m *member) leave() {
	s := m.s
	_, _ = background(s, context.Background(), s.timeout, func(ctx context.Context, srv *server) (int64, error) {
		m.cleaner.resign(ctx, srv)
		return s.write(ctx, srv, "DELETE FROM lock_member WHERE namespace=? AND member=? AND "+srv.sound, m.Namespace, m.ID)
	})
}

// background is call for the work that nobody waits for. It goes on while the
// store is being closed, as Close waits for it.
func background[T any](s *Store, ctx context.Context, limit time.Duration, f func(context.Context, *server) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	srv := s.server.Load()
	if srv == nil {
		var err error
		if srv, err = s.ask(ctx); err != nil {
			var none T
			return none, err
		}
	}
	return f(ctx, srv)
}

func clip(s string, most int) string { return s[:min(len(s), most)] }
