// Mysql is the MySQL tier by itself: two processes share a database as their
// only store of locks.
//
//	go run ./mysql -dsn 'user:password@tcp(127.0.0.1:3306)/test'
//
// The tables of mysqlstore.Schema are made where they are missing, and stay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
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

// pod is what one process has: a pool, a store over it, and a Locker.
type pod struct {
	*tierlock.Locker
	db    *sqlx.DB
	store *mysqlstore.Store
}

func newPod(ctx context.Context, app, dsn string) (*pod, error) {
	db, err := sqlx.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(32) // the default of 2 closes and dials all the time
	store := mysqlstore.New(db, mysqlstore.Options{})
	if err := store.Migrate(ctx); err != nil { // or Schema, in your own migrations
		db.Close()
		return nil, err
	}
	locker, err := tierlock.New(tierlock.Config{
		App: app, Namespace: "demo", Stores: []tierlock.Store{store},
		Resources: []tierlock.Resource{{Name: "stock", TTL: 30 * time.Second, Wait: 10 * time.Second}},
	})
	if err != nil {
		store.Close()
		db.Close()
		return nil, err
	}
	return &pod{locker, db, store}, nil
}

func (p *pod) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := p.Close(ctx)
	p.store.Close()
	return errors.Join(err, p.db.Close())
}

func run(dsn string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var pods [2]*pod
	for i := range pods {
		if pods[i], err = newPod(ctx, fmt.Sprintf("pod-%d", i+1), dsn); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pods[i].close()) }()
	}

	// One holds, the other is refused, and sees by whom.
	lock, err := pods[0].Lock(ctx, "stock", "sku-7")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "pod-1 holds %v\n", lock.Token())
	if _, err = pods[1].TryLock(ctx, "stock", "sku-7"); !errors.Is(err, tierlock.ErrHeld) {
		return fmt.Errorf("pod-2 should have been refused, got %w", err)
	}
	fmt.Fprintf(out, "pod-2 tries: %v\n", err)
	if err := lock.Unlock(); err != nil {
		return err
	}

	// A counter that only the lock protects.
	stock, calls := 100, 20
	var last uint64
	var wg sync.WaitGroup
	failed := make([]error, calls)
	for i := range calls {
		wg.Go(func() {
			failed[i] = pods[i%2].Do(ctx, "stock", "sku-7", func(ctx context.Context) error {
				if fence := tierlock.TokenFrom(ctx).Fence; fence > last {
					last = fence
				} else {
					return fmt.Errorf("fence %d came after %d", fence, last)
				}
				left := stock
				time.Sleep(5 * time.Millisecond)
				stock = left - 1
				return nil
			})
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if stock != 100-calls {
		return fmt.Errorf("%d left, wanted %d", stock, 100-calls)
	}
	fmt.Fprintf(out, "%d calls by both took one each of 100: %d are left, the last under fence %d\n", calls, stock, last)
	return nil
}
