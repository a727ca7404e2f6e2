// Failover shows a chain of Redis and MySQL: Redis is killed while locks are held,
// they live on in MySQL, and all goes back when Redis has come back.
//
//	go run ./failover
//
// It starts a redis-server and a mariadbd of its own, in a temporary directory and on
// free ports, and ends them again; where they are not installed it says so.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// pod is what one process has. Here two of them are in one process.
type pod struct {
	*tierlock.Locker
	redis *redisstore.Store
	mysql *mysqlstore.Store
	db    *sqlx.DB
}

func newPod(ctx context.Context, app, redis, dsn string) (*pod, error) {
	rs, err := redisstore.Open(redisstore.RecommendedOptions(redis))
	if err != nil {
		return nil, err
	}
	db, err := sqlx.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(32)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	ms := mysqlstore.New(db, mysqlstore.Options{Logger: quiet})
	if err := ms.Migrate(ctx); err != nil {
		return nil, err
	}
	locker, err := tierlock.New(tierlock.Config{
		App: app, Namespace: "demo", Logger: quiet,
		Stores: []tierlock.Store{rs, ms}, // Redis first, MySQL after it
		Resources: []tierlock.Resource{
			// Goes to MySQL while Redis is away, and excludes on the way.
			{Name: "order:settle", Floor: tierlock.MySQL, Exclusive: true},
		},
		// With the defaults Redis is given up some nine seconds after it has died, and
		// used again after half a minute of health. Nobody wants to watch that.
		Degrade: tierlock.Degrade{Probe: 500 * time.Millisecond, Suspect: 300 * time.Millisecond, Up: 2 * time.Second, Dwell: 2 * time.Second},
	})
	if err != nil {
		return nil, err
	}
	return &pod{locker, rs, ms, db}, nil
}

func (p *pod) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := p.Close(ctx)
	p.redis.Close()
	p.mysql.Close()
	return errors.Join(err, p.db.Close())
}

// until takes locks of other orders until one comes from the tier.
func (p *pod) until(ctx context.Context, tier tierlock.Tier) (took time.Duration, err error) {
	begin := time.Now()
	for {
		lock, err := p.Lock(ctx, "order:settle", "7")
		if err == nil {
			from := lock.Token().Tier
			if err := lock.Unlock(); err != nil {
				return 0, err
			}
			if from == tier {
				return time.Since(begin), nil
			}
		} else if ctx.Err() != nil || !errors.Is(err, tierlock.ErrUnavailable) {
			return 0, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	redis, dsn, end, err := servers(ctx)
	if err != nil {
		return err
	}
	defer end()
	var pods [2]*pod
	for i := range pods {
		if pods[i], err = newPod(ctx, fmt.Sprintf("pod-%d", i+1), redis.addr, dsn); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pods[i].close()) }()
	}
	a, b := pods[0], pods[1]
	if _, err := a.until(ctx, tierlock.Redis); err != nil {
		return err
	}
	lock, err := a.Lock(ctx, "order:settle", "42")
	if err != nil {
		return err
	}
	first := lock.Token()
	fmt.Fprintf(out, "pod-1 holds order 42 by %v, fence %d\n", first.Tier, first.Fence)

	// intact checks that the hold lives, and that nobody else can have it.
	intact := func() error {
		if err := lock.Err(); err != nil {
			return fmt.Errorf("the lock was lost: %w", err)
		}
		_, err := b.TryLock(ctx, "order:settle", "42")
		for errors.Is(err, tierlock.ErrUnavailable) && ctx.Err() == nil { // they may move once more
			time.Sleep(20 * time.Millisecond)
			_, err = b.TryLock(ctx, "order:settle", "42")
		}
		if !errors.Is(err, tierlock.ErrHeld) {
			return fmt.Errorf("pod-2 should have been refused, got %w", err)
		}
		if lock.Token().Fence != first.Fence {
			return fmt.Errorf("fence %d has become %d", first.Fence, lock.Token().Fence)
		}
		fmt.Fprintf(out, "  pod-1 still holds order 42 with fence %d; pod-2 is refused\n", first.Fence)
		return nil
	}
	redis.kill()
	fmt.Fprintln(out, "Redis is killed")
	took, err := b.until(ctx, tierlock.MySQL)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  pod-2 gets locks again after %v, from MySQL\n", took.Round(10*time.Millisecond))
	if err := intact(); err != nil {
		return err
	}
	if err := redis.start(); err != nil {
		return err
	}
	fmt.Fprintln(out, "Redis is started again, empty")
	if took, err = b.until(ctx, tierlock.Redis); err != nil {
		return err
	}
	fmt.Fprintf(out, "  locks come from Redis again after %v: it has to be healthy for a while\n", took.Round(10*time.Millisecond))
	if err := intact(); err != nil {
		return err
	}
	if err := lock.Unlock(); err != nil {
		return err
	}
	lock, err = b.Lock(ctx, "order:settle", "42")
	if err != nil {
		return err
	}
	if lock.Token().Fence <= first.Fence {
		return fmt.Errorf("fence %d came after %d", lock.Token().Fence, first.Fence)
	}
	fmt.Fprintf(out, "pod-1 unlocks, and pod-2 holds order 42 by %v, fence %d\n", lock.Token().Tier, lock.Token().Fence)
	return lock.Unlock()
}
