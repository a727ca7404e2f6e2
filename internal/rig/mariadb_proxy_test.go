package rig_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// behindSQL is a server with a proxy in front: a table k, a pool of one
// connection through the proxy that has been used, and a pool past it.
func behindSQL(t *testing.T) (p *rig.Proxy, through, past *sql.DB) {
	t.Helper()
	rig.NoLeak(t)
	s := rig.MariaDB(t)
	p = rig.NewProxy(t, s.Addr)
	past, through = openSQL(t, s.DSN("")), openSQL(t, s.DSNVia(p.Addr, ""))
	through.SetMaxOpenConns(1)
	execSQL(t, past, "CREATE TABLE k (id INT PRIMARY KEY)")
	wantSQL(t, through, "0", "SELECT COUNT(*) FROM k")
	return p, through, past
}

// tryFor runs a statement for at most the time given.
func tryFor(db *sql.DB, within time.Duration, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := db.ExecContext(ctx, statement)
	return err
}

// start runs a statement until giveUp, which returns how it ended, ends its
// context. It is for the test to give up only when the statement is where it is
// meant to be lost: a time limit might be over before.
func start(db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, statement string) (giveUp func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(ctx, statement)
		done <- err
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// The latency counts once each way for a statement.
func TestMariaDBDelayed(t *testing.T) {
	p, through, _ := behindSQL(t)
	const each = 60 * time.Millisecond
	p.Delay(each, each)
	began := time.Now()
	execSQL(t, through, "INSERT INTO k VALUES (1)")
	if took := time.Since(began); took < 2*each {
		t.Errorf("a statement took %v over a link of %v each way", took, each)
	}
	p.Delay(0, 0)
	wantSQL(t, through, "1", "SELECT COUNT(*) FROM k")
}

// The statement is executed, its reply is lost; the pool goes on with a new
// connection.
func TestMariaDBReplyDropped(t *testing.T) {
	p, through, past := behindSQL(t)
	p.DropReplies()
	giveUp := start(through, "INSERT INTO k VALUES (1)")
	rig.Eventually(t, soon, "the row of the lost reply", func() bool {
		return textSQL(t, past, "SELECT COUNT(*) FROM k") == "1"
	})
	if err := giveUp(); !errors.Is(err, context.Canceled) {
		t.Errorf("without a reply the statement ended with %v", err)
	}
	p.Pass()
	wantSQL(t, through, "1", "SELECT COUNT(*) FROM k")
}

// The reply of one statement, and only that, is late; meanwhile its effect is
// there.
func TestMariaDBReplyHeld(t *testing.T) {
	p, through, past := behindSQL(t)
	release := p.HoldReply()
	done := make(chan error, 1)
	go func() { done <- tryFor(through, soon, "INSERT INTO k VALUES (1)") }()
	rig.Eventually(t, soon, "the reply held", func() bool { _, c := p.Waiting(); return c > 0 })
	wantSQL(t, past, "1", "SELECT COUNT(*) FROM k")
	select {
	case err := <-done:
		t.Errorf("the statement ended with %v while its reply was held", err)
	default:
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A link that is cut in mid statement: an error at once, no matter that the
// caller had time, and a new connection for the next.
func TestMariaDBCut(t *testing.T) {
	p, through, past := behindSQL(t)
	release := p.HoldReply()
	defer release()
	done := make(chan error, 1)
	go func() { done <- tryFor(through, 6*soon, "INSERT INTO k VALUES (1)") }()
	rig.Eventually(t, soon, "the reply held", func() bool { _, c := p.Waiting(); return c > 0 })
	p.Cut()
	release()
	began := time.Now()
	if err := <-done; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cut off, the statement ended with %v", err)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("the statement ended %v after the cut", took)
	}
	wantSQL(t, past, "1", "SELECT COUNT(*) FROM k")
	wantSQL(t, through, "1", "SELECT COUNT(*) FROM k")
}

// In a black hole nobody hears the server's greeting, with which a connection
// begins; a statement sent into it is executed when it ends, although its sender
// has gone.
func TestMariaDBBlackHole(t *testing.T) {
	p, through, past := behindSQL(t)
	p.BlackHole()
	giveUp := start(through, "INSERT INTO k VALUES (1)")
	rig.Eventually(t, soon, "the statement held", func() bool { s, _ := p.Waiting(); return s > 0 })
	if err := giveUp(); !errors.Is(err, context.Canceled) {
		t.Errorf("in a black hole the statement ended with %v", err)
	}
	// The pool has given up its connection, so this is about a new one.
	if err := tryFor(through, 200*time.Millisecond, "INSERT INTO k VALUES (2)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in a black hole connecting ended with %v", err)
	}
	wantSQL(t, past, "0", "SELECT COUNT(*) FROM k")
	p.Pass()
	rig.Eventually(t, soon, "the late row", func() bool {
		return textSQL(t, past, "SELECT COUNT(*) FROM k") == "1"
	})
	wantSQL(t, through, "1", "SELECT GROUP_CONCAT(id) FROM k")
}

// A server that goes and comes back behind the same proxy.
func TestMariaDBRestartedBehindAProxy(t *testing.T) {
	rig.NoLeak(t)
	s := rig.MariaDB(t)
	p := rig.NewProxy(t, s.Addr)
	db := openSQL(t, s.DSNVia(p.Addr, ""))
	execSQL(t, db, "CREATE TABLE k (id INT PRIMARY KEY)")
	s.Kill()
	if err := tryFor(db, soon, "INSERT INTO k VALUES (1)"); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a server the statement ended with %v", err)
	}
	s.Start()
	execSQL(t, db, "INSERT INTO k VALUES (2)")
	wantSQL(t, db, "2", "SELECT GROUP_CONCAT(id) FROM k")
}
