//go:build unix

package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
)

// stuckAfter is how long a call may last beyond the end of a drive before its
// context is cancelled, and after that before the drive counts as hung. By then
// nobody wants the keys any more, so only a wake-up that was lost, or a lock
// that nobody holds, makes anybody wait for longer.
const stuckAfter = 5 * time.Second

// drive is a number of goroutines that lock and unlock for a time.
type drive struct {
	locker     contest.Locker
	goroutines int
	// keys are what a goroutine locks in turn.
	keys func(goroutine int) []string
	// guard checks exclusion, where goroutines share keys.
	guard *guard
	// refused says that the keys are held by somebody else, and that the
	// goroutines only try.
	refused bool
}

// tally is what came of a drive. Processes send it to each other as JSON.
type tally struct {
	Elapsed time.Duration // until the last call returned
	InTime  int           // pairs that were done before the time was over
	Acquire measure.Latencies
	Pair    measure.Latencies
	Each    []int // pairs of each goroutine
	Broken  int64 // how often exclusion was
	Errors  int
	First   string // of the errors
}

// merge is the tally of drives that ran side by side.
func merge(parts ...tally) tally {
	var all tally
	var acquire, pair []measure.Latencies
	for _, p := range parts {
		all.Elapsed = max(all.Elapsed, p.Elapsed)
		all.InTime += p.InTime
		all.Each = append(all.Each, p.Each...)
		all.Broken += p.Broken
		all.Errors += p.Errors
		if all.First == "" {
			all.First = p.First
		}
		acquire, pair = append(acquire, p.Acquire), append(pair, p.Pair)
	}
	all.Acquire, all.Pair = measure.Merge(acquire...), measure.Merge(pair...)
	return all
}

// run drives for the given time. Errors of calls are counted; it returns one
// itself where a call does not return at all.
func (d drive) run(duration time.Duration) (tally, error) {
	workers := make([]worker, d.goroutines)
	var all, ready sync.WaitGroup
	start := make(chan struct{})
	var end time.Time
	for i := range workers {
		// A context of its own for each, as requests have them. It is
		// cancelled only if the drive is stuck.
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		workers[i] = worker{
			drive: d, keys: d.keys(i), cancel: cancel,
			// Room enough that growing does not count among the allocations.
			acquire: make(measure.Latencies, 0, 1024), pair: make(measure.Latencies, 0, 1024),
		}
		ready.Add(1)
		all.Go(func() {
			ready.Done()
			<-start
			workers[i].loop(ctx, end)
		})
	}
	ready.Wait()
	done := make(chan struct{})
	began := time.Now()
	end = began.Add(duration)
	close(start)
	go func() {
		all.Wait()
		close(done)
	}()
	limit := time.NewTimer(duration + stuckAfter)
	defer limit.Stop()
	stuck := false
	select {
	case <-done:
	case <-limit.C:
		stuck = true
		for i := range workers {
			workers[i].cancel()
		}
		limit.Reset(stuckAfter)
		select {
		case <-done:
		case <-limit.C:
			return tally{}, fmt.Errorf("calls did not return within %v after their contexts had ended", stuckAfter)
		}
	}
	var parts []tally
	for i := range workers {
		parts = append(parts, workers[i].tally())
	}
	t := merge(parts...)
	t.Elapsed = time.Since(began)
	if stuck {
		t.Errors++
		t.First = fmt.Sprintf("a call waited still %v after the end, until its context was cancelled", stuckAfter)
	}
	return t, nil
}

type worker struct {
	drive
	keys          []string
	cancel        context.CancelFunc
	acquire, pair measure.Latencies
	inTime        int
	broken        int64
	errors        int
	first         string
}

func (w *worker) tally() tally {
	return tally{
		InTime: w.inTime, Acquire: w.acquire, Pair: w.pair, Each: []int{len(w.pair)},
		Broken: w.broken, Errors: w.errors, First: w.first,
	}
}

func (w *worker) loop(ctx context.Context, end time.Time) {
	for i := 0; ; i++ {
		start := time.Now()
		if !start.Before(end) {
			return
		}
		held, err := w.step(ctx, w.keys[i%len(w.keys)])
		done := time.Now()
		if err != nil {
			w.fail(err)
			if ctx.Err() != nil {
				return
			}
			continue
		}
		w.acquire = append(w.acquire, held.Sub(start))
		w.pair = append(w.pair, done.Sub(start))
		if !done.After(end) {
			w.inTime++
		}
	}
}

// step is one lock and unlock, or one refusal. It tells when the answer came.
func (w *worker) step(ctx context.Context, key string) (time.Time, error) {
	if w.refused {
		h, err := w.locker.TryLock(ctx, key)
		now := time.Now()
		if err == contest.ErrHeld {
			return now, nil
		}
		if err == nil {
			w.broken++
			err = h.Unlock()
		}
		return now, err
	}
	h, err := w.locker.Lock(ctx, key)
	now := time.Now()
	if err != nil {
		return now, err
	}
	if w.guard != nil {
		if !w.guard.pass() {
			w.broken++
		}
	}
	return now, h.Unlock()
}

// fail counts an error, and waits so that errors that come at once do not
// become a load of their own.
func (w *worker) fail(err error) {
	w.errors++
	if w.first == "" {
		w.first = err.Error()
	}
	time.Sleep(time.Millisecond)
}
