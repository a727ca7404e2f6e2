// Package load has the workloads and runs a contestant under one.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
)

// stuckAfter is how long a call may last beyond the end of a run before its
// context is cancelled, and then before the whole run counts as hung. It is
// longer than any lease.
const stuckAfter = 20 * time.Second

// drive is a number of goroutines that lock and unlock for a time.
type drive struct {
	locker     contest.Locker
	goroutines int
	keys       func(goroutine int) []string
	// guard checks exclusion where goroutines share keys; nil elsewhere.
	guard *Guard
}

// tally is what came of a drive.
type tally struct {
	Elapsed       time.Duration
	Acquire, Pair measure.Latencies // sorted
	Each          []int             // pairs of each goroutine
	Errors        int
	FirstError    string
}

// run returns an error where a call did not return; errors of calls are counted
// in the tally.
func (d drive) run(duration time.Duration) (tally, error) {
	workers := make([]worker, d.goroutines)
	var wg sync.WaitGroup
	start := make(chan struct{})
	var end time.Time
	for i := range workers {
		w := &workers[i]
		keys := d.keys(i)
		// A context of its own for each, as requests have them; cancelled only
		// if the drive is stuck.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.cancel = cancel
		w.acquire = make(measure.Latencies, 0, 1024)
		w.pair = make(measure.Latencies, 0, 1024)
		wg.Go(func() {
			<-start
			w.loop(ctx, d, keys, end)
		})
	}
	done := make(chan struct{})
	began := time.Now()
	end = began.Add(duration)
	close(start)
	go func() {
		wg.Wait()
		close(done)
	}()
	var ended time.Duration
	stuck := false
	limit := time.NewTimer(duration + stuckAfter)
	defer limit.Stop()
	for ended == 0 {
		select {
		case <-done:
			ended = time.Since(began)
		case <-limit.C:
			if stuck {
				return tally{}, fmt.Errorf("load: calls did not return %v after their contexts ended", stuckAfter)
			}
			stuck = true
			for i := range workers {
				workers[i].cancel()
			}
			limit.Reset(stuckAfter)
		}
	}
	t := tally{Elapsed: ended}
	var acquire, pair []measure.Latencies
	for i := range workers {
		w := &workers[i]
		acquire = append(acquire, w.acquire)
		pair = append(pair, w.pair)
		t.Each = append(t.Each, len(w.pair))
		t.Errors += w.errors
		if t.FirstError == "" && w.first != nil {
			t.FirstError = w.first.Error()
		}
	}
	t.Acquire, t.Pair = measure.Merge(acquire...), measure.Merge(pair...)
	if stuck {
		t.Errors++
		t.FirstError = "calls hung until their contexts were cancelled"
	}
	return t, nil
}

type worker struct {
	cancel        context.CancelFunc
	acquire, pair measure.Latencies
	errors        int
	first         error
}

func (w *worker) loop(ctx context.Context, d drive, keys []string, end time.Time) {
	for i := 0; ; i++ {
		start := time.Now()
		if !start.Before(end) {
			return
		}
		h, err := d.locker.Lock(ctx, keys[i%len(keys)])
		held := time.Now()
		if err == nil {
			if d.guard != nil {
				d.guard.enter()
				d.guard.leave()
			}
			err = h.Unlock()
		}
		if err != nil {
			if w.fail(err); ctx.Err() != nil {
				return
			}
			continue
		}
		w.acquire = append(w.acquire, held.Sub(start))
		w.pair = append(w.pair, time.Since(start))
	}
}

// fail counts an error, and waits so that errors at once do not become a load
// of their own.
func (w *worker) fail(err error) {
	if w.errors++; w.first == nil || errors.Is(w.first, context.Canceled) {
		w.first = err
	}
	time.Sleep(time.Millisecond)
}
