package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/singleflight"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Options configures a Store. The zero value is good for most.
type Options struct {
	// CallTimeout bounds each call, also where its ctx has no deadline.
	// 0 means 500 ms.
	CallTimeout time.Duration
	// MaxCalls bounds the statements that are under way at once, and so the
	// connections that the store takes from the pool; the background work takes
	// one more for each Locker. A quarter, and one at least, is kept for
	// renewals, so that calls that hang take no other lock's lease away. 0 means
	// 32; the least is 2, and the most is what the pool may open when New is
	// called (SetMaxOpenConns), since what waits for a connection waits for all.
	// A call's wait for its turn counts against CallTimeout: over a way of 30 ms,
	// 500 calls at once take more than 600 ms with 32. Where the store is the
	// arbiter of a chain, one to four of them are for that.
	MaxCalls int
	// Durable says, and nothing can check it, that there is one primary at a time
	// and that a commit it has acknowledged survives its failover: semi-synchronous
	// replication that never falls back, Group Replication, or a disk that moves
	// along; with sync_binlog=1 and innodb_flush_log_at_trx_commit=1. Only then are
	// holds of Exclusive resources worth tierlock.Exclusive.
	Durable bool
	// Logger hears of settings of the server that weaken the store, of
	// processes that ended without giving up their locks, and of a clean-up
	// that fails. Nil means slog.Default().
	Logger *slog.Logger
}

// check returns what is wrong with o.
func (o Options) check() error {
	var problems []error
	if o.CallTimeout < 0 {
		problems = append(problems, fmt.Errorf("Options.CallTimeout is negative: %v", o.CallTimeout))
	}
	if o.MaxCalls < 0 {
		problems = append(problems, fmt.Errorf("Options.MaxCalls is negative: %d", o.MaxCalls))
	}
	return errors.Join(problems...)
}

// Store is a [tierlock.Store] over a database. It is made by [New] and is safe
// for concurrent use.
//
// No method but Migrate outlasts its ctx or Options.CallTimeout. An error wraps
// [tierlock.ErrUnavailable], [tierlock.ErrLate] or
// [tierlock.ErrMisconfigured]; one that was caused by the ctx also wraps the
// ctx's error and cause.
type Store struct {
	db      *sqlx.DB
	timeout time.Duration
	log     *slog.Logger
	made    time.Time // where local time begins
	durable bool
	wrong   error // what is wrong with how the store was made

	clock contract.Clock
	era   atomic.Uint64 // of connections, see contract.Clock
	// floor is the latest time of the server that this process knows of, in
	// microseconds: the fence of a row that is made anew is not below it, should
	// the server's clock be stepped back.
	floor  atomic.Int64
	asking singleflight.Group
	server atomic.Pointer[server]
	stmts  sync.Map // prepared, by text; and those that were prepared twice, by address

	takes    gather[*attempt, tierlock.AcquireResult]
	releases gather[*tierlock.ReleaseRequest, tierlock.Ownership]
	rows     rows // of both
	left     leftRows

	pace    pace
	members sync.WaitGroup // registered processes

	places   places        // of all calls but renewals
	renewals places        // of renewals: they wait for no others
	arbiter  places        // of Arbitrate, nil where there are too few
	digests  digests       // read by Arbitrate
	reserve  sync.Once     // takes those from places
	quit     chan struct{} // closed by Close

	idle    chan func()    // to goroutines that wait for a call
	kept    atomic.Int32   // how many go on after a call
	workers sync.WaitGroup // all that execute calls, or wait for one

	mu     sync.Mutex // guards closed, and calls against Close
	closed bool
	calls  sync.WaitGroup
}

var (
	_ tierlock.Store     = (*Store)(nil)
	_ tierlock.Chained   = (*Store)(nil)
	_ tierlock.Updater   = (*Store)(nil)
	_ tierlock.Lingering = (*Store)(nil)
	_ tierlock.Registrar = (*Store)(nil)
)

// New makes a store over a pool of the caller's, which may serve other purposes
// too and must stay open until the store is closed. New does no I/O; the tables
// have to be there when the first lock is taken, see [Schema].
//
// A connection that somebody gave back to the pool in the middle of a transaction,
// as after db.Exec("BEGIN"), or with autocommit off or its time set, serves no
// lock: calls that meet it fail. MySQL, other than MariaDB, does not tell a
// transaction; there such a connection grants leases that go with a rollback.
//
// A nil pool or bad options make every call return an error that says so.
func New(db *sqlx.DB, opt Options) *Store {
	s := &Store{
		db: db, timeout: opt.CallTimeout, durable: opt.Durable, log: opt.Logger, made: time.Now(),
		quit: make(chan struct{}), idle: make(chan func()), wrong: opt.check(), pace: usualPace,
	}
	s.takes.s, s.takes.send = s, s.takeAll
	s.releases.s, s.releases.send = s, s.releaseAll
	if db == nil || db.DB == nil {
		s.wrong = errors.Join(s.wrong, errors.New("the pool is nil"))
	}
	if s.wrong != nil {
		s.wrong = fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, s.wrong)
	}
	if s.timeout <= 0 {
		s.timeout = 500 * time.Millisecond
	}
	if opt.MaxCalls <= 0 {
		opt.MaxCalls = 32
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.wrong == nil {
		if most := db.Stats().MaxOpenConnections; most > 0 {
			opt.MaxCalls = min(opt.MaxCalls, most)
		}
	}
	own := max(1, opt.MaxCalls/4)
	s.renewals, s.places = make(places, own), make(places, max(1, opt.MaxCalls-own))
	if n := cap(s.places); n > 1 {
		s.arbiter = make(places, max(1, min(4, n/6)))
	}
	return s
}

// Close ends the store, but not the pool. Calls that are under way end within
// CallTimeout, and Close returns when they have; a registered process then takes
// itself off the list, which may last as long again. Its statements are closed, too;
// a connection on which another query of the pool's owner runs longer than
// CallTimeout gives them up when that has ended. It is idempotent.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	s.members.Wait()
	s.calls.Wait()
	s.workers.Wait() // nothing begins any more
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		// Each waits for the connections that it was prepared on, whoever uses
		// them at the moment.
		s.stmts.Range(func(text, stmt any) bool {
			s.stmts.Delete(text)
			stmt.(*sqlx.Stmt).Close()
			return true
		})
	}()
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	select {
	case <-closed:
	case <-limit.C:
	}
}

// Tier is tierlock.MySQL.
func (s *Store) Tier() tierlock.Tier { return tierlock.MySQL }

// Guarantee is tierlock.Exclusive with Options.Durable, else tierlock.FencedOnly.
func (s *Store) Guarantee() tierlock.Guarantee {
	if s.durable {
		return tierlock.Exclusive
	}
	return tierlock.FencedOnly
}

// Linger is how long after a call was given up the server may still execute it:
// as long as a statement may wait for a row that another transaction holds.
func (s *Store) Linger() time.Duration {
	wait := time.Second
	if srv := s.server.Load(); srv != nil {
		wait = srv.lockWait
	}
	return wait + s.timeout
}

// local is t in microseconds since the store was made.
func (s *Store) local(t time.Time) int64 { return t.Sub(s.made).Microseconds() }

// learn takes in a time of the server's, read between began and now.
func (s *Store) learn(began time.Time, server int64, era uint64) {
	s.clock.Learn(s.local(began), s.local(time.Now()), server, era)
	s.raise(server)
}

// raise makes the floor at least the given time.
func (s *Store) raise(server int64) {
	for {
		known := s.floor.Load()
		if server <= known || s.floor.CompareAndSwap(known, server) {
			return
		}
	}
}

// known gives what was found out of the server. It serves what keeps and ends
// holds, also while the server is doubted.
func (s *Store) known(ctx context.Context, until time.Time) (*server, error) {
	if srv := s.server.Load(); srv != nil {
		return srv, nil
	}
	return s.ready(ctx, until)
}

// ready makes sure that the server has been asked what has to be known of it,
// before a lock is taken.
func (s *Store) ready(ctx context.Context, until time.Time) (*server, error) {
	if s.wrong != nil {
		return nil, s.wrong
	}
	if srv := s.server.Load(); srv != nil && !s.doubted(srv) {
		return srv, nil
	}
	if ctx.Err() != nil {
		return nil, contract.Ended(ctx)
	}
	// One asks for all. It has a deadline of its own: the first to ask may be
	// the first to leave.
	asked := s.asking.DoChan("server", func() (any, error) {
		return call(s, s.places, context.WithoutCancel(ctx), time.Now().Add(s.timeout), s.ask)
	})
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	select {
	case res := <-asked:
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Val.(*server), nil
	case <-ctx.Done():
		return nil, contract.Ended(ctx)
	case <-limit.C:
		return nil, fmt.Errorf("%w: no answer within %v", tierlock.ErrUnavailable, s.timeout)
	}
}
