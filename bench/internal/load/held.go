//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
)

// Holding is what it costs a process to hold many locks, while it does nothing
// else.
type Holding struct {
	Locks int
	// Taken and Freed are how many locks a second were taken and given up, by
	// takers goroutines.
	Taken, Freed float64
	// Lost is how many of them were.
	Lost int
	// In the measured time, as shares of one core, and a second.
	ServerShare, ClientShare float64
	Commands, Allocs         float64
	// At its end.
	Goroutines int
	RSS, Heap  uint64
}

// takers is how many goroutines take and give up the locks that are held.
const takers = 64

// Held is a process, a child, that holds many locks for some renewals.
func Held() Workload {
	return Workload{
		Name: "held", Holding: true,
		About: "A process takes many locks and holds them. Where the library leaves renewal to the caller, a goroutine for each lock renews it every third of its lease.",
		run: func(env Env, c contest.Contestant) (Result, error) {
			settings := env.Settings
			settings.TTL = env.HeldTTL
			o := order{
				Store: env.Server.Store(), Contestant: c.Name, Settings: settings, Held: env.Held,
				// Every lock is renewed once before.
				WarmUp: env.HeldTTL / 3, Duration: env.HeldFor,
			}
			ch, err := env.spawn(holdRole, o)
			if err != nil {
				return Result{}, err
			}
			return env.hold(ch, o)
		},
	}
}

func (e Env) hold(ch *child, o order) (Result, error) {
	var h Holding
	var ok bool
	if err := ch.answer(&ok, takeWithin+o.WarmUp); err != nil {
		return Result{}, err
	}
	before, err := e.Server.Served()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	ch.goOn()
	if err := ch.answer(&ok, o.Duration); err != nil {
		return Result{}, err
	}
	served, err := e.Server.Served()
	if err != nil {
		return Result{}, err
	}
	served = served.Sub(before)
	elapsed := time.Since(began).Seconds()
	ch.goOn()
	if err := ch.answer(&h, takeWithin); err != nil {
		return Result{}, err
	}
	h.ServerShare = served.CPU.Seconds() / elapsed
	h.Commands = float64(served.Total()) / elapsed
	r := Result{Holding: &h, Errors: h.Lost, Deadlocks: served.Deadlocks}
	if h.Lost > 0 {
		r.First = "a lock was lost"
	}
	return r, ch.end()
}

// takeWithin bounds the taking, and the giving up, of all locks.
const takeWithin = time.Minute

// holdChild is the other side.
func holdChild(o order, l contest.Locker, say func(any) error, next func() error) error {
	held := make([]contest.Held, o.Held)
	began := time.Now()
	if err := each(o.Held, func(i int) (err error) {
		held[i], err = l.Lock(context.Background(), fmt.Sprintf("order-%d", i))
		return err
	}); err != nil {
		return fmt.Errorf("taking locks: %w", err)
	}
	h := Holding{Locks: o.Held, Taken: float64(o.Held) / time.Since(began).Seconds()}

	quit := make(chan struct{})
	lost := make([]bool, o.Held) // each by one goroutine at a time
	var renewers sync.WaitGroup
	c, err := contest.Named(o.Store, o.Contestant)
	if err != nil {
		return err
	}
	if !c[0].Renews {
		for i, k := range held {
			renewers.Go(func() {
				// Spread, as calls that come at their own times would be.
				lost[i] = keep(k, o.Settings.TTL, rand.N(o.Settings.TTL/3), quit) != nil
			})
		}
	}
	time.Sleep(o.WarmUp)
	if err := say(true); err != nil {
		return err
	}
	if err := next(); err != nil {
		return err
	}
	used, began := measure.ReadClient(), time.Now()
	time.Sleep(o.Duration)
	used = measure.ReadClient().Sub(used)
	h.ClientShare = used.CPU.Seconds() / time.Since(began).Seconds()
	h.Allocs = float64(used.Allocs) / time.Since(began).Seconds()
	if err := say(true); err != nil {
		return err
	}
	if err := next(); err != nil {
		return err
	}
	h.Goroutines = runtime.NumGoroutine()
	if h.RSS, err = measure.RSS(); err != nil {
		return err
	}
	h.Heap = measure.LiveHeap()
	close(quit)
	renewers.Wait()

	began = time.Now()
	if err := each(o.Held, func(i int) error {
		if held[i].Unlock() != nil {
			lost[i] = true
		}
		return nil
	}); err != nil {
		return err
	}
	h.Freed = float64(o.Held) / time.Since(began).Seconds()
	for _, l := range lost {
		if l {
			h.Lost++
		}
	}
	return say(h)
}

// each calls f for 0 to n-1, on takers goroutines, and returns the first error.
func each(n int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range takers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}
