package tests_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// business is a table that locks protect, and at most one transaction on it. A
// peer is told by the orders
//
//	look      to look at the lock, as one does before a write
//	begin     to begin a transaction, pass the guard and deposit an amount
//	commit    to commit it
type business struct {
	db *sql.DB
	tx *sql.Tx
}

func openBusiness(dsn string) (*business, error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	return &business{db: db}, nil
}

// begin does not look at the lock. It reads by a plain SELECT and writes back
// what it has computed.
func (b *business) begin(token tierlock.Token, amount int64) error {
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	tx, err := b.db.Begin()
	if err != nil {
		return err
	}
	if err := b.deposit(ctx, tx, token, amount); err != nil {
		tx.Rollback()
		return err
	}
	b.tx = tx
	return nil
}

func (b *business) deposit(ctx context.Context, tx *sql.Tx, token tierlock.Token, amount int64) error {
	if err := mysqlstore.Guard(ctx, tx, token); err != nil {
		return err
	}
	var balance int64
	if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 7").Scan(&balance); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE account SET balance = ? WHERE id = 7", balance+amount)
	return err
}

func (b *business) commit() error { return b.tx.Commit() }

// write is both, by this process.
func (b *business) write(t *testing.T, token tierlock.Token, amount int64) {
	t.Helper()
	if err := b.begin(token, amount); err != nil {
		t.Fatal(err)
	}
	if err := b.commit(); err != nil {
		t.Fatal(err)
	}
}

func (b *business) wantBalance(t *testing.T, want int64) {
	t.Helper()
	var balance int64
	if err := b.db.QueryRow("SELECT balance FROM account WHERE id = 7").Scan(&balance); err != nil || balance != want {
		t.Errorf("the balance is %d (%v), want %d", balance, err, want)
	}
}

// Scenario 78, with processes that are really stopped: the lock is in Redis, the
// data in MariaDB, and the guard refuses a holder that was stopped between its
// look at the lock and its write, lets no younger one pass one that was stopped
// between its write and its commit, and lets it pass when that one is dead.
func TestStoppedHolderIsFenced(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	res := tierlock.Resource{Name: "account", TTL: ttl}
	redis, maria := rig.Redis(t), rig.MariaDB(t)
	own, err := openBusiness(maria.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.db.Close() })
	for _, statement := range []string{
		mysqlstore.GuardSchema(),
		"CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE=InnoDB",
		"INSERT INTO account VALUES (7, 0)",
	} {
		if _, err := own.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	l := newLocker(t, open(t, redis.Addr), res)
	holder := func() (*peer, int) {
		p := newPeer(t, peerConfig{Addr: redis.Addr, Resources: []tierlock.Resource{res}, DSN: maria.DSN("")})
		id, _ := p.lock("account", "7", patience)
		p.send(order{ID: id, Op: "look"})
		if e := p.wait(id, "looked"); e.Err != "" {
			t.Fatalf("the holder: %s", e.Err)
		}
		return p, id
	}
	begin := func(p *peer, id int, amount int64) event {
		p.send(order{ID: id, Op: "begin", Amount: amount})
		return p.wait(id, "begun")
	}

	// Stopped before its first write, so that the key has no row yet.
	p, id := holder()
	p.p.Pause()
	k := mustLock(t, l, "account", "7", tierlock.Wait(patience))
	own.write(t, k.Token(), 10)
	own.write(t, k.Token(), 1)
	p.p.Resume()
	if e := begin(p, id, 1000); !e.is("fenced") {
		t.Errorf("the write of the stopped holder: %q, want ErrFenced", e.Err)
	}
	own.wantBalance(t, 11)
	mustUnlock(t, k)

	// Stopped between its write and its commit.
	p, id = holder()
	if e := begin(p, id, 100); e.Err != "" {
		t.Fatal(e.Err)
	}
	p.p.Pause()
	k = mustLock(t, l, "account", "7", tierlock.Wait(patience))
	younger := make(chan error, 1)
	go func() { younger <- own.begin(k.Token(), 2) }()
	select {
	case err := <-younger:
		t.Fatalf("the younger passed a write that is not committed: %v", err)
	case <-time.After(ttl):
	}
	p.p.Resume()
	p.send(order{ID: id, Op: "commit"})
	if e := p.wait(id, "committed"); e.Err != "" {
		t.Errorf("the commit of the resumed holder: %s", e.Err)
	}
	if err := <-younger; err != nil {
		t.Fatal(err)
	}
	if err := own.commit(); err != nil {
		t.Fatal(err)
	}
	own.wantBalance(t, 113) // both writes: the younger has seen the older's
	if e := begin(p, id, 1000); !e.is("fenced") {
		t.Errorf("another write of the stopped holder: %q, want ErrFenced", e.Err)
	}
	mustUnlock(t, k)

	// Dead between its write and its commit.
	p, id = holder()
	if e := begin(p, id, 1000); e.Err != "" {
		t.Fatal(e.Err)
	}
	p.p.Kill()
	k = mustLock(t, l, "account", "7", tierlock.Wait(patience))
	own.write(t, k.Token(), 5)
	own.wantBalance(t, 118)
	mustUnlock(t, k)
}
