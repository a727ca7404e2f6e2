package mysqlstore_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

func TestZZ(t *testing.T) {
	srv := rig.MariaDB(t, strings.Fields(os.Getenv("MARGS"))...)
	migrate(t, srv)
	db := pool(t, srv.DSN("innodb_lock_wait_timeout=1"))
	db.MustExec("CREATE TABLE plain (k VARBINARY(64) PRIMARY KEY, v VARBINARY(64))")
	run := func(name string, n int, f func(i, j int) error) {
		var ops atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(2 * time.Second)
		start := time.Now()
		for i := range n {
			wg.Go(func() {
				for j := 0; time.Now().Before(end); j++ {
					if err := f(i, j); err != nil {
						t.Error(err)
						return
					}
					ops.Add(1)
				}
			})
		}
		wg.Wait()
		fmt.Printf("%s %d: %.0f pairs/s\n", name, n, float64(ops.Load())/time.Since(start).Seconds())
	}
	ctx := context.Background()
	for _, mc := range []int{16, 32, 64} {
		s := mysqlstore.New(pool(t, srv.DSN("innodb_lock_wait_timeout=1")), mysqlstore.Options{CallTimeout: 20 * time.Second, MaxCalls: mc})
		l, err := tierlock.New(tierlock.Config{App: "x", Namespace: "n", Stores: []tierlock.Store{s}, CallTimeout: 5 * time.Second, Resources: []tierlock.Resource{{Name: "r", Wait: 60 * time.Second}}})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := l.Resource("r")
		for _, n := range []int{1, 64, 512} {
			if os.Getenv("REF") != "" {
				db.SetMaxOpenConns(mc)
				run(fmt.Sprintf("plain(%d)", mc), n, func(i, j int) error {
					if _, err := db.ExecContext(ctx, "INSERT INTO plain (k,v) VALUES (?,?)", fmt.Sprintf("g%d", i), "x"); err != nil {
						return err
					}
					_, err := db.ExecContext(ctx, "DELETE FROM plain WHERE k=? AND v=?", fmt.Sprintf("g%d", i), "x")
					return err
				})
			}
			run(fmt.Sprintf("locker(%d)", mc), n, func(i, j int) error {
				k, err := r.Lock(ctx, fmt.Sprintf("g%d", i))
				if err != nil {
					return err
				}
				return k.Unlock()
			})
		}
		run("one key", 64, func(i, j int) error {
			k, err := r.Lock(ctx, "one")
			if err != nil {
				return err
			}
			return k.Unlock()
		})
		l.Close(ctx)
		s.Close()
	}
}
