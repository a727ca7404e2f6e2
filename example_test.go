package tierlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// newExample makes a Locker within the process; a service would give it a
// store of package redisstore.
func newExample() *tierlock.Locker {
	locker, err := tierlock.New(tierlock.Config{
		App: "order", Namespace: "example",
		Stores: []tierlock.Store{localstore.New(localstore.Options{})},
		Resources: []tierlock.Resource{
			{Name: "order:settle", Wait: 3 * time.Second},
			{Name: "order:ship", Reentrant: true},
			{Name: "report:daily", MinHold: 10 * time.Second},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

func ExampleResourceHandle_Do() {
	locker := newExample()
	defer locker.Close(context.Background())
	settle, err := locker.Resource("order:settle")
	if err != nil {
		log.Fatal(err)
	}
	err = settle.Do(context.Background(), "42", func(ctx context.Context) error {
		token := tierlock.TokenFrom(ctx)
		fmt.Printf("settling %s under %s\n", token.Key, token.Resource)
		return nil
	}, tierlock.RequestID("req-7"))
	fmt.Println("error:", err)
	// Output:
	// settling 42 under order:settle
	// error: <nil>
}

func ExampleResourceHandle_Lock() {
	locker := newExample()
	defer locker.Close(context.Background())
	ctx := context.Background()

	lock, err := locker.Lock(ctx, "order:settle", "42")
	if err != nil {
		log.Fatal(err)
	}
	// Work with lock.Context(): it ends when the lock is lost.
	fmt.Println("held:", lock.Err() == nil)

	_, err = locker.Lock(ctx, "order:settle", "42", tierlock.Wait(50*time.Millisecond))
	fmt.Println("another caller is refused:", errors.Is(err, tierlock.ErrHeld))

	fmt.Println("unlock:", lock.Unlock())
	fmt.Println("context:", errors.Is(context.Cause(lock.Context()), tierlock.ErrReleased))
	// Output:
	// held: true
	// another caller is refused: true
	// unlock: <nil>
	// context: true
}

// What a caller does about each error.
func Example_errors() {
	locker := newExample()
	defer locker.Close(context.Background())

	pay := func() error {
		return locker.Do(context.Background(), "order:settle", "42", func(ctx context.Context) error {
			return nil // charge the card
		})
	}
	switch err := pay(); {
	case err == nil:
		fmt.Println("done")
	case errors.Is(err, tierlock.ErrLost), errors.Is(err, tierlock.ErrLeaseExceeded):
		fmt.Println("outcome unknown: reconcile, do not repeat")
	case errors.Is(err, tierlock.ErrHeld):
		fmt.Println("somebody else is at it: answer busy")
	case errors.Is(err, tierlock.ErrUnavailable):
		fmt.Println("nothing was done: try again later")
	default:
		fmt.Println("a bug, or the work's own error:", err)
	}
	// Output: done
}

func ExampleResource_reentrant() {
	locker := newExample()
	defer locker.Close(context.Background())
	err := locker.Do(context.Background(), "order:ship", "42", func(ctx context.Context) error {
		outer := tierlock.TokenFrom(ctx)
		return locker.Do(ctx, "order:ship", "42", func(ctx context.Context) error {
			fmt.Println("the same hold:", tierlock.TokenFrom(ctx) == outer)
			return nil
		})
	})
	fmt.Println("error:", err)
	// Output:
	// the same hold: true
	// error: <nil>
}

// A job that every pod starts at about the same time, and that must run once:
// MinHold keeps the key although the job is done at once.
func ExampleResource_minHold() {
	locker := newExample()
	defer locker.Close(context.Background())
	for pod := 1; pod <= 2; pod++ {
		err := locker.Do(context.Background(), "report:daily", "2026-01-31", func(context.Context) error {
			fmt.Printf("pod %d runs the report\n", pod)
			return nil
		}, tierlock.NoWait())
		if errors.Is(err, tierlock.ErrHeld) {
			fmt.Printf("pod %d leaves it\n", pod)
		}
	}
	// Output:
	// pod 1 runs the report
	// pod 2 leaves it
}
