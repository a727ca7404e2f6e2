package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// The examples here are compiled and not run: they name a database that is not
// there. The program examples/guard runs the same, with a holder that is paused.

func ExampleGuard() {
	var (
		db     *sql.DB // of the business data; its migrations ran mysqlstore.GuardSchema()
		settle *tierlock.ResourceHandle
	)
	err := settle.Do(context.Background(), "42", func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// First: what is read before may be older than the latest write.
		if err := mysqlstore.Guard(ctx, tx, tierlock.TokenFrom(ctx)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'settled' WHERE id = ?", 42); err != nil {
			return err
		}
		return tx.Commit()
	})
	if errors.Is(err, mysqlstore.ErrFenced) {
		log.Print("another process has the order by now, and has written: ", err)
	}
}

func ExamplePruneGuard() {
	var (
		db    *sql.DB
		daily *tierlock.ResourceHandle // one process at a time is enough, though more do no harm
	)
	for range time.Tick(24 * time.Hour) {
		err := daily.Do(context.Background(), "prune the guard", func(ctx context.Context) error {
			n, err := mysqlstore.PruneGuard(ctx, db)
			log.Print(n, " rows pruned")
			return err
		})
		if err != nil && !errors.Is(err, tierlock.ErrHeld) {
			log.Print(err)
		}
	}
}
