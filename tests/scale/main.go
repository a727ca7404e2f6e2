// Command scale is the process that the tests of scale start: compiled without
// the race detector, so that thousands of waits and a million of locks take
// seconds. It does what its arguments say, a line from its standard input lets it
// go on to the next step, and each step ends with a line of JSON. It exits at the
// end of its input, so it does not outlive the test.
//
//	scale waiters addr keys
//	scale locks addr keys
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/redisstore"
)

const (
	resource = "job"
	workers  = 512
	// timeout is longer than the default: a busy machine may let 5,000 calls
	// at once wait, and that is not what is looked at here.
	timeout = 10 * time.Second
)

var bg = context.Background()

// report is what a step has come to.
type report struct {
	Step       string
	Took       time.Duration
	Goroutines int
	Heap       uint64 // bytes in use after a collection
	Errors     []string
}

type scale struct {
	addr   string
	keys   int
	stores []*redisstore.Store
	lines  *bufio.Scanner
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: scale waiters|locks addr keys")
	}
	keys, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	s := &scale{addr: args[1], keys: keys, lines: bufio.NewScanner(os.Stdin)}
	switch args[0] {
	case "waiters":
		return s.waiters()
	case "locks":
		return s.locks()
	}
	return fmt.Errorf("no mode %q", args[0])
}

// locker makes a Locker with a store of its own.
func (s *scale) locker() (*tierlock.Locker, error) {
	store, err := redisstore.OpenWith(redisstore.RecommendedOptions(s.addr), redisstore.Options{CallTimeout: timeout})
	if err != nil {
		return nil, err
	}
	s.stores = append(s.stores, store)
	return tierlock.New(tierlock.Config{
		App: "scale", Namespace: "scen", Stores: []tierlock.Store{store}, CallTimeout: timeout,
		Resources: []tierlock.Resource{{Name: resource, TTL: tierlock.MaxTTL, Wait: time.Minute, MaxWaiters: s.keys + 1}},
		Logger:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

// each runs f for every key, on some goroutines, and returns the first errors.
func (s *scale) each(f func(key string) error) (errs []string) {
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= s.keys {
					return
				}
				if err := f(strconv.Itoa(i)); err != nil {
					mu.Lock()
					if len(errs) < 5 {
						errs = append(errs, err.Error())
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errs
}

// tell reports a step and waits to be told to go on.
func (s *scale) tell(step string, took time.Duration, errs []string) error {
	r := report{Step: step, Took: took, Goroutines: settled(), Errors: errs}
	runtime.GC()
	runtime.GC() // what a pool kept goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Heap = m.HeapAlloc
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	if !s.lines.Scan() {
		return errors.New("no more orders")
	}
	return nil
}

// settled is the number of goroutines when it has not fallen for a second: what has
// told that it is done, and what it no longer needs, take a moment to end, on a busy
// machine a longer one.
func settled() int {
	least := runtime.NumGoroutine()
	for still := 0; still < 10; still++ {
		time.Sleep(100 * time.Millisecond)
		if now := runtime.NumGoroutine(); now < least {
			least, still = now, 0
		}
	}
	return least
}

// close ends all, and reports what is left then.
func (s *scale) close(lockers ...*tierlock.Locker) error {
	start := time.Now()
	var errs []string
	for _, l := range lockers {
		if err := l.Close(bg); err != nil {
			errs = append(errs, err.Error())
		}
	}
	for _, store := range s.stores {
		store.Close()
	}
	for end := time.Now().Add(timeout); runtime.NumGoroutine() > 1 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	return s.tell("closed", time.Since(start), errs)
}

// waiters waits for all keys at once, twice: until it is cancelled, and until the
// keys are released.
func (s *scale) waiters() error {
	holder, err := s.locker()
	if err != nil {
		return err
	}
	waiter, err := s.locker()
	if err != nil {
		return err
	}
	start := time.Now()
	locks := make([]*tierlock.Lock, s.keys)
	errs := s.each(func(key string) error {
		i, _ := strconv.Atoi(key)
		k, err := holder.Lock(bg, resource, key)
		locks[i] = k
		return err
	})
	// One wait goes on all the time and keeps the connection for messages: when
	// that ends, all subscriptions do.
	always, err := holder.Lock(bg, resource, "always")
	if err != nil {
		return err
	}
	stay, leave := context.WithCancel(bg)
	defer leave()
	stayed := make(chan error, 1)
	go func() {
		_, err := waiter.Lock(stay, resource, "always", tierlock.UntilDone())
		stayed <- err
	}()
	if err := s.tell("held", time.Since(start), errs); err != nil {
		return err
	}

	for _, round := range []string{"cancelled", "released"} {
		ctx, cancel := context.WithCancel(bg)
		ends := make(chan error, s.keys)
		start := time.Now()
		for i := range s.keys {
			go func() {
				k, err := waiter.Lock(ctx, resource, strconv.Itoa(i), tierlock.UntilDone())
				switch {
				case round == "released" && err == nil:
					err = k.Unlock()
				case round == "cancelled" && errors.Is(err, context.Canceled) && errors.Is(err, tierlock.ErrHeld):
					err = nil
				case err == nil:
					err = errors.New("locked what is held")
				}
				ends <- err
			}()
		}
		if err := s.tell("waiting", time.Since(start), nil); err != nil {
			cancel()
			return err
		}
		var errs []string
		start = time.Now()
		if round == "released" {
			errs = s.each(func(key string) error {
				i, _ := strconv.Atoi(key)
				return locks[i].Unlock()
			})
		} else {
			cancel()
		}
		for range s.keys {
			if err := <-ends; err != nil && len(errs) < 5 {
				errs = append(errs, err.Error())
			}
		}
		took := time.Since(start)
		cancel()
		for end := time.Now().Add(timeout); waiter.Status().Undos+waiter.Status().Holds > 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if err := s.tell(round, took, errs); err != nil {
			return err
		}
	}
	leave()
	if err := <-stayed; !errors.Is(err, tierlock.ErrHeld) {
		return fmt.Errorf("the wait that goes on all the time: %w", err)
	}
	if err := always.Unlock(); err != nil {
		return err
	}
	return s.close(holder, waiter)
}

// locks locks and unlocks every key once.
func (s *scale) locks() error {
	l, err := s.locker()
	if err != nil {
		return err
	}
	cycle := func(key string) error {
		k, err := l.Lock(bg, resource, key)
		if err == nil {
			err = k.Unlock()
		}
		return err
	}
	all := s.keys
	s.keys = 10_000 // so that every pool and table is there
	start := time.Now()
	errs := s.each(func(key string) error { return cycle("warm" + key) })
	if err := s.tell("warm", time.Since(start), errs); err != nil {
		return err
	}
	s.keys = all
	start = time.Now()
	errs = s.each(cycle)
	if err := s.tell("done", time.Since(start), errs); err != nil {
		return err
	}
	return s.close(l)
}
