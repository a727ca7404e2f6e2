// Quickstart is a tour of tierlock with nothing installed but Go: it starts an
// embedded Redis and plays two processes, "pod-1" and "pod-2", that share it.
//
//	go run ./quickstart
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/redisstore"
)

var bg = context.Background()

// lease is how long the locks of the tour last: not long, so that nobody has to wait
// to see one renewed, or lost.
var lease = time.Second

func main() {
	log.SetFlags(0)
	if err := tour(); err != nil {
		log.Fatal(err)
	}
}

func tour() error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true) // let TTLs run by the clock, as in a real server
	pod1, end1, err := newPod("pod-1", server.Addr())
	if err != nil {
		return err
	}
	defer end1()
	pod2, end2, err := newPod("pod-2", server.Addr())
	if err != nil {
		return err
	}
	defer end2()

	for _, step := range []func() error{
		func() error { return lockAndToken(pod1, pod2, server) },
		func() error { return waiter(pod1, pod2) },
		func() error { return renewal(pod1, pod2) },
		func() error { return reentry(pod1) },
		func() error { return fencedWrite(pod1, pod2) },
		local,
		func() error { return loss(pod1, server) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// newPod makes what one process would: a store and a Locker over it.
func newPod(app, addr string) (*tierlock.Locker, func(), error) {
	opt := redisstore.RecommendedOptions(addr)
	opt.AlwaysRESP2 = true // the embedded server speaks no RESP3; with no push, waiters poll
	rdb, err := redisstore.OpenWith(opt, redisstore.Options{CallTimeout: lease / 2})
	if err != nil {
		return nil, nil, err
	}
	locker, err := tierlock.New(config(app, rdb))
	if err != nil {
		rdb.Close()
		return nil, nil, err
	}
	return locker, func() {
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		// At the end of the tour the server is gone, so that not every
		// release can be confirmed; a service would log this error.
		_ = locker.Close(ctx)
		rdb.Close()
	}, nil
}

func config(app string, store tierlock.Store) tierlock.Config {
	return tierlock.Config{
		App: app, Namespace: "demo", Stores: []tierlock.Store{store}, CallTimeout: lease / 2,
		Resources: []tierlock.Resource{
			{Name: "order:settle", TTL: lease, Wait: 3 * lease},
			{Name: "order:ship", TTL: lease, Reentrant: true},
			{Name: "account", TTL: lease},
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})),
	}
}

func lockAndToken(pod1, pod2 *tierlock.Locker, server *miniredis.Miniredis) error {
	title("A lock and its token")
	lock, err := pod1.Lock(bg, "order:settle", "42", tierlock.RequestID("req-7"))
	if err != nil {
		return err
	}
	say("pod-1 holds %v", lock.Token())
	say("worth: %v", lock.Guarantee())
	const key = "lock:demo:{order:settle/42}"
	value, err := server.Get(key)
	if err != nil {
		return err
	}
	say("redis-cli GET '%s'\n      %s", key, value)
	_, err = pod2.TryLock(bg, "order:settle", "42")
	if !errors.Is(err, tierlock.ErrHeld) {
		return fmt.Errorf("pod-2 should have been refused, got %v", err)
	}
	say("pod-2 tries: %v", err)
	return lock.Unlock()
}

func waiter(pod1, pod2 *tierlock.Locker) error {
	title("A waiter")
	lock, err := pod1.Lock(bg, "order:settle", "42")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var waited time.Duration
	var werr error
	wg.Go(func() {
		start := time.Now()
		werr = pod2.Do(bg, "order:settle", "42", func(ctx context.Context) error {
			waited = time.Since(start)
			return nil
		})
	})
	time.Sleep(400 * time.Millisecond)
	say("pod-1 unlocks after 400ms")
	if err := lock.Unlock(); err != nil {
		return err
	}
	wg.Wait()
	say("pod-2 waited %v and ran", waited.Round(time.Millisecond))
	return werr
}

func renewal(pod1, pod2 *tierlock.Locker) error {
	title("Renewal past the TTL")
	return pod1.Do(bg, "order:settle", "42", func(ctx context.Context) error {
		work := 2 * lease
		say("pod-1 holds a lease of %v and works for %v", lease, work)
		time.Sleep(work)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := pod2.TryLock(ctx, "order:settle", "42")
		if !errors.Is(err, tierlock.ErrHeld) {
			return fmt.Errorf("pod-2 should have been refused, got %v", err)
		}
		say("still held, pod-2 is still refused")
		return nil
	})
}

func reentry(pod1 *tierlock.Locker) error {
	title("Re-entry")
	return pod1.Do(bg, "order:ship", "42", func(ctx context.Context) error {
		outer := tierlock.TokenFrom(ctx).Fence
		return pod1.Do(ctx, "order:ship", "42", func(ctx context.Context) error {
			say("a nested call enters the hold: fence %d = %d", tierlock.TokenFrom(ctx).Fence, outer)
			_, err := pod1.Lock(ctx, "order:ship", "42", tierlock.Holder("somebody else"))
			say("another holder id cannot: %v", err)
			return nil
		})
	})
}

// table stands for a business table with a fence column.
type table struct {
	mu             sync.Mutex
	balance, fence uint64
}

// deposit is UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?
func (t *table) deposit(amount, fence uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fence > fence {
		return false
	}
	t.balance, t.fence = t.balance+amount, fence
	return true
}

func fencedWrite(pod1, pod2 *tierlock.Locker) error {
	title("A fenced write refused")
	var account table
	// pod-1 may hold for 300ms only, and does not look at its context: it
	// stands for a process that is paused in the middle of its work.
	stale, err := pod1.Lock(bg, "account", "7", tierlock.Lease(300*time.Millisecond))
	if err != nil {
		return err
	}
	time.Sleep(350 * time.Millisecond)
	say("pod-1 was paused; its context says: %v", context.Cause(stale.Context()))
	err = pod2.Do(bg, "account", "7", func(ctx context.Context) error {
		fence := tierlock.TokenFrom(ctx).Fence
		say("pod-2 writes with fence %d: %v; again: %v", fence, account.deposit(100, fence), account.deposit(1, fence))
		return nil
	})
	if err != nil {
		return err
	}
	ok := account.deposit(1000, stale.Token().Fence)
	say("pod-1 wakes up and writes with fence %d: %v", stale.Token().Fence, ok)
	if ok || account.balance != 101 {
		return fmt.Errorf("the stale write went through, balance %d", account.balance)
	}
	say("pod-1 unlocks: %v", stale.Unlock())
	return nil
}

func local() error {
	title("The same within one process, without any server")
	locker, err := tierlock.New(config("batch", localstore.New(localstore.Options{})))
	if err != nil {
		return err
	}
	defer locker.Close(bg)
	return locker.Do(bg, "order:settle", "42", func(ctx context.Context) error {
		say("holds %v", tierlock.TokenFrom(ctx))
		return nil
	})
}

func loss(pod1 *tierlock.Locker, server *miniredis.Miniredis) error {
	title("Loss")
	lock, err := pod1.Lock(bg, "order:settle", "42")
	if err != nil {
		return err
	}
	say("pod-1 holds a lease of %v; the server stops now", lease)
	server.Close()
	start := time.Now()
	select {
	case <-lock.Context().Done():
	case <-time.After(5 * lease):
		return errors.New("the loss was not noticed")
	}
	say("after %v the context ended: %v", time.Since(start).Round(10*time.Millisecond), context.Cause(lock.Context()))
	err = lock.Unlock()
	if !errors.Is(err, tierlock.ErrLost) {
		return fmt.Errorf("unlocking should tell of the loss, got %v", err)
	}
	_, err = pod1.TryLock(bg, "order:settle", "43")
	if !errors.Is(err, tierlock.ErrUnavailable) {
		return fmt.Errorf("want ErrUnavailable, got %v", err)
	}
	say("a new lock: %v", err)
	return nil
}

func title(s string) { fmt.Printf("\n== %s\n", s) }

func say(format string, args ...any) { fmt.Printf("   "+format+"\n", args...) }
