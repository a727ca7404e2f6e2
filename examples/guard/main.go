// Guard shows what a lock alone cannot do: a holder that was paused for longer
// than its lease wakes up and writes, and the database refuses.
//
// The lock lives in an embedded Redis, the data in a MySQL or MariaDB database
// that you give, best an empty one:
//
//	go run ./guard -dsn 'user:password@tcp(127.0.0.1:3306)/test'
//
// The tables are tierlock_guard, which stays, and tierlock_example, which is
// dropped at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

func main() {
	log.SetFlags(0)
	dsn := flag.String("dsn", os.Getenv("TIERLOCK_DSN"), "the database, in the form of github.com/go-sql-driver/mysql")
	flag.Parse()
	if *dsn == "" {
		log.Fatal("give a database by -dsn or TIERLOCK_DSN, such as user:password@tcp(127.0.0.1:3306)/test")
	}
	if err := run(*dsn, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(dsn string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }

	db, err := sqlx.ConnectContext(ctx, "mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, statement := range []string{
		mysqlstore.GuardSchema(), // in a service: one of its migrations
		"DROP TABLE IF EXISTS tierlock_example",
		"CREATE TABLE tierlock_example (id INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE=InnoDB",
		"INSERT INTO tierlock_example VALUES (7, 100)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	defer func() {
		_, e := db.ExecContext(context.WithoutCancel(ctx), "DROP TABLE tierlock_example")
		err = errors.Join(err, e)
	}()

	redis, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer redis.Close()
	redis.ClockTTL(true) // let TTLs run by the clock, as in a real server
	pod1, end1, err := newPod("pod-1", redis.Addr())
	if err != nil {
		return err
	}
	defer end1()
	pod2, end2, err := newPod("pod-2", redis.Addr())
	if err != nil {
		return err
	}
	defer end2()

	// pod-1 gets the lock and is paused before its write: it may hold for
	// 300 ms only, and does not look at its context.
	paused, err := pod1.Lock(ctx, "account", "7", tierlock.Lease(300*time.Millisecond))
	if err != nil {
		return err
	}
	say("pod-1 has the lock of account 7, fence %d, and is paused", paused.Token().Fence)
	<-paused.Context().Done()

	// Meanwhile pod-2 gets the lock, and writes twice.
	err = pod2.Do(ctx, "account", "7", func(ctx context.Context) error {
		for _, amount := range []int64{30, 5} {
			balance, err := withdraw(ctx, db, tierlock.TokenFrom(ctx), amount)
			if err != nil {
				return err
			}
			say("pod-2 withdraws %d with fence %d: the balance is %d", amount, tierlock.TokenFrom(ctx).Fence, balance)
		}
		return nil
	})
	if err != nil {
		return err
	}

	// pod-1 wakes up and goes on where it was.
	_, err = withdraw(ctx, db, paused.Token(), 80)
	if !errors.Is(err, mysqlstore.ErrFenced) {
		return fmt.Errorf("the paused holder's write should have been refused, got: %v", err)
	}
	say("pod-1 wakes up and withdraws 80: %v", err)
	say("pod-1 unlocks: %v", paused.Unlock())

	var balance int64
	if err := db.GetContext(ctx, &balance, "SELECT balance FROM tierlock_example WHERE id = 7"); err != nil {
		return err
	}
	say("the balance is %d", balance)
	if balance != 65 {
		return fmt.Errorf("the balance is %d, want 65", balance)
	}
	return nil
}

// withdraw is a business transaction: it reads, computes and writes back.
func withdraw(ctx context.Context, db *sqlx.DB, token tierlock.Token, amount int64) (balance int64, err error) {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	// Before the first read, so that this sees what the holder before wrote.
	if err := mysqlstore.Guard(ctx, tx, token); err != nil {
		return 0, err
	}
	if err := tx.GetContext(ctx, &balance, "SELECT balance FROM tierlock_example WHERE id = ?", token.Key); err != nil {
		return 0, err
	}
	balance -= amount
	if _, err := tx.ExecContext(ctx, "UPDATE tierlock_example SET balance = ? WHERE id = ?", balance, token.Key); err != nil {
		return 0, err
	}
	return balance, tx.Commit()
}

// newPod makes what one process would: a store and a Locker over it.
func newPod(app, addr string) (*tierlock.Locker, func(), error) {
	opt := redisstore.RecommendedOptions(addr)
	opt.AlwaysRESP2 = true // the embedded server speaks no RESP3; with no push, waiters poll
	rdb, err := redisstore.Open(opt)
	if err != nil {
		return nil, nil, err
	}
	locker, err := tierlock.New(tierlock.Config{
		App: app, Namespace: "demo", Stores: []tierlock.Store{rdb},
		Resources: []tierlock.Resource{{Name: "account", TTL: 10 * time.Second, Wait: 10 * time.Second}},
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		rdb.Close()
		return nil, nil, err
	}
	return locker, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = locker.Close(ctx) // a service would log this
		rdb.Close()
	}, nil
}
