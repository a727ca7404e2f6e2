package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/contract"
)

var _ degrade.Arbiter = (*Store)(nil)

// Arbitrate implements [degrade.Arbiter]: each action is one autocommit statement
// on the tables lock_mode and lock_permit, bounded by ctx and CallTimeout, and so
// is its wait for a row that another statement is writing. What it was refused
// for is not told: the caller reads the tables to know.
//
// A server that is read-only is refused, also to users who may write there, and
// so is a connection that somebody left in the middle of a transaction.
//
// Lock calls that hang do not keep it waiting. From the first call on, one to
// four of Options.MaxCalls are for the arbiter alone.
func (s *Store) Arbitrate(ctx context.Context, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	name, known := arbiterKinds[a.Kind]
	if !known {
		return degrade.Reply{}, fmt.Errorf("mysqlstore: arbiter: %w: action %d is none of the arbiter's", tierlock.ErrMisconfigured, a.Kind)
	}
	err := s.wrong
	if err == nil {
		if err = checkAction(self, a); err != nil {
			err = fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, err)
		}
	}
	var r degrade.Reply
	if err == nil {
		r, err = call(s, s.arbiterPlaces(), ctx, time.Now().Add(s.timeout), func(ctx context.Context) (degrade.Reply, error) {
			srv, err := s.ask(ctx)
			if err != nil {
				return degrade.Reply{}, err
			}
			return s.arbitrate(ctx, srv, self, a)
		})
	}
	if err != nil {
		return degrade.Reply{}, fmt.Errorf("mysqlstore: arbiter: %s of %s: %w", name, self.Namespace, classed(err))
	}
	return r, nil
}

var arbiterKinds = map[degrade.Kind]string{
	degrade.Poll: "poll", degrade.Create: "create", degrade.Refresh: "refresh", degrade.Start: "start", degrade.Ack: "ack",
	degrade.Open: "open", degrade.Takeover: "takeover", degrade.Remove: "remove", degrade.Leave: "leave",
}

// checkAction refuses what the columns cannot hold as it is: a server that is not
// strict would cut it, and a mode that was written would be another than is known.
func checkAction(self degrade.Self, a degrade.Action) error {
	errs := []error{contract.CheckName(tierlock.Name{Namespace: self.Namespace, Resource: "mode", Key: "-"})}
	fits := func(what, value string, most int) {
		if len(value) > most {
			errs = append(errs, fmt.Errorf("%s is %d bytes, wanted at most %d", what, len(value), most))
		}
	}
	if self.Member == "" {
		errs = append(errs, errors.New("the member has no id"))
	}
	fits("the member's id", self.Member, 64)
	fits("the digest", self.Digest, degrade.MaxDigest)
	fits("the member's id", a.Member, 64)
	fits("the incarnation", a.Vote.Incarnation, 4096)
	for _, m := range []degrade.Mode{a.From, a.To} {
		fits("the incarnation", m.Incarnation, 4096)
		fits("the server", m.Server, 512)
		if m != (degrade.Mode{}) && (m.Epoch < 1 || m.Epoch > degrade.MaxEpoch || m.Tier != degrade.Redis && m.Tier != degrade.MySQL ||
			m.Hard && !m.Drain || m.Term < time.Microsecond || m.Term%time.Microsecond != 0 || m.Drift < 0 || m.Drift > 999) {
			errs = append(errs, fmt.Errorf("the mode %+v cannot be written as a row", m))
		}
	}
	from, to := a.From, a.To
	right := true
	switch a.Kind {
	case degrade.Create:
		right = to.Known() && !to.Drain
	case degrade.Refresh:
		right = from.Known() && !from.Drain
	case degrade.Start:
		right = from.Known() && !from.Drain && to.Drain
	case degrade.Ack, degrade.Open:
		right = from.Drain
	case degrade.Takeover:
		right = from.Known() && to.Hard
	}
	if !right {
		errs = append(errs, fmt.Errorf("the action does not lead from %+v to %+v", from, to))
	}
	return errors.Join(errs...)
}

// arbiterPlaces are the places of the arbiter's statements. They are taken from
// those of lock calls when the first is asked for, so that the store takes no more
// connections than it may, and whoever has no chain loses none.
func (s *Store) arbiterPlaces() places {
	s.reserve.Do(func() {
		if s.arbiter == nil {
			return // a pool of two connections: with the renewals
		}
		go func() {
			for range cap(s.arbiter) {
				select {
				case s.places <- struct{}{}: // for good
				case <-s.quit:
					return
				}
			}
		}()
	})
	if s.arbiter == nil {
		return s.renewals
	}
	return s.arbiter
}

// arbitrate carries an action out.
func (s *Store) arbitrate(ctx context.Context, srv *server, self degrade.Self, a degrade.Action) (degrade.Reply, error) {
	db, done, err := s.clean(ctx, srv)
	if err != nil {
		return degrade.Reply{}, err
	}
	defer done()
	var r degrade.Reply
	switch a.Kind {
	case degrade.Poll:
		return s.poll(ctx, db, srv, self.Namespace)
	case degrade.Create:
		r.OK, err = changes(ctx, db, createMode(srv, self, a))
	case degrade.Refresh, degrade.Ack:
		r.OK, err = changes(ctx, db, writePermit(srv, self, a, newBeat()))
	case degrade.Start:
		r.OK, err = changes(ctx, db, startDrain(srv, self, a))
	case degrade.Open:
		r.OK, err = changes(ctx, db, openMode(srv, self, a))
	case degrade.Takeover:
		// No UPDATE tells who has executed it. So it is meant for one server.
		var here []byte
		if err = db.GetContext(ctx, &here, "SELECT "+identity); err == nil {
			r.Server = string(here)
			r.OK, err = changes(ctx, db, takeMode(srv, self, a, r.Server))
		}
	case degrade.Remove:
		r.OK, err = deletes(ctx, db, deletePermit(srv, self.Namespace, a.Member, &a.Beat))
	case degrade.Leave:
		r.OK, err = deletes(ctx, db, deletePermit(srv, self.Namespace, self.Member, nil))
	}
	return r, err
}

// newBeat is a number that no row of a member has had before. To count would not
// do: an arbiter that has lost the last writes would give their numbers again, and
// who has seen those would take a living member for a silent one.
func newBeat() uint64 { return 1 + rand.Uint64N(1<<63-1) }

// session is the pool, or one connection of it.
type session interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	GetContext(ctx context.Context, dest any, query string, args ...any) error
	SelectContext(ctx context.Context, dest any, query string, args ...any) error
}

// clean gives something to send a statement by. Where the server tells a
// transaction, the statement itself asks whether somebody has left one on its
// connection; else that is ended before. What such a transaction holds is bound to
// be rolled back, and a permit must not be.
func (s *Store) clean(ctx context.Context, srv *server) (db session, done func(), err error) {
	if srv.tells {
		return s.db, func() {}, nil
	}
	for try := 1; ; try++ {
		conn, err := s.db.Connx(ctx)
		if err != nil {
			return nil, nil, err
		}
		if _, err = conn.ExecContext(ctx, "ROLLBACK"); err == nil {
			return conn, func() { conn.Close() }, nil
		}
		conn.Close()
		// An idle one was closed by the server. The pool has a few of them, perhaps.
		if !errors.Is(err, driver.ErrBadConn) || try == 3 {
			return nil, nil, err
		}
	}
}

// changes sends a statement that changes one row and answers with a number where
// it did, with none where its conditions did not hold.
func changes(ctx context.Context, db session, q statement) (ok bool, err error) {
	err = again(ctx, func() error {
		res, err := db.ExecContext(ctx, q.String())
		if err != nil {
			return err
		}
		number, err := res.LastInsertId()
		ok = number != 0
		return err
	})
	return ok && err == nil, err
}

// deletes sends a statement that deletes one row. How many it did does not depend
// on the DSN.
func deletes(ctx context.Context, db session, q statement) (ok bool, err error) {
	err = again(ctx, func() error {
		res, err := db.ExecContext(ctx, q.String())
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		ok = n > 0
		return err
	})
	return ok && err == nil, err
}
