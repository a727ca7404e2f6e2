package watchdog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// Everything at once on the real clock, with a store that is slow, fails and
// loses leases: no deadlock, no race, and every lease either was stopped first
// or had its OnEnd, once, with the end that Stop tells.
func TestStress(t *testing.T) {
	var outstanding atomic.Int64 // leases in a call of Renew, twice is an error
	busy := sync.Map{}
	w := watchdog.New(watchdog.Config{CallTimeout: 10 * ms, Renew: func(ctx context.Context, batch []watchdog.Renewal) []error {
		errs := make([]error, len(batch))
		for i, r := range batch {
			if _, twice := busy.LoadOrStore(r.Lease, true); twice {
				t.Error("two renewals of one lease in flight")
			}
			outstanding.Add(1)
			switch rand.IntN(8) {
			case 0:
				errs[i] = errDown
			case 1:
				errs[i] = fmt.Errorf("fake: %w", watchdog.ErrNotHeld)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(15)) * ms):
		}
		for _, r := range batch {
			busy.Delete(r.Lease)
			outstanding.Add(-1)
		}
		return errs
	}})
	var stops, ends atomic.Int64
	var wg sync.WaitGroup
	until := time.Now().Add(time.Second)
	for range 64 {
		wg.Go(func() {
			for time.Now().Before(until) {
				var told atomic.Pointer[watchdog.End]
				spec := watchdog.Spec{
					Sent: watchdog.Now(), TTL: time.Duration(10+rand.IntN(80)) * ms,
					OnEnd: func(end watchdog.End) {
						if !told.CompareAndSwap(nil, &end) {
							t.Error("OnEnd twice")
						}
					},
					OnRenewed: func(watchdog.Renewed) {}, OnOverdue: func() {}, Overdue: 20 * ms,
				}
				if rand.IntN(3) == 0 {
					spec.Limit = time.Duration(1+rand.IntN(200)) * ms
				}
				l := w.Watch(spec)
				for range rand.IntN(4) {
					time.Sleep(time.Duration(rand.IntN(30)) * ms)
					switch rand.IntN(4) {
					case 0:
						l.Pause()
					case 1, 2:
						_ = l.Ensure(t.Context(), spec.TTL/2)
					case 3:
						if end, ended := l.End(); ended && l.Left() != 0 {
							t.Errorf("belief left after %+v", end)
						}
					}
				}
				end, ended := l.Stop(t.Context())
				if _, still := busy.Load(l); still {
					t.Error("Stop returned before the renewal in flight")
				}
				if !ended {
					stops.Add(1)
				} else {
					ends.Add(1)
					for told.Load() == nil { // a look's turn
						time.Sleep(ms)
					}
					if *told.Load() != end {
						t.Errorf("OnEnd got %+v, Stop %+v", *told.Load(), end)
					}
				}
				if !ended && told.Load() != nil {
					t.Errorf("OnEnd though Stop came first: %+v", *told.Load())
				}
			}
		})
	}
	wg.Wait()
	if n := w.Len(); n != 0 {
		t.Errorf("Len %d", n)
	}
	w.Close()
	if outstanding.Load() != 0 || goroutines() != 0 {
		t.Errorf("after Close: %d renewals, %d goroutines", outstanding.Load(), goroutines())
	}
	if stops.Load() == 0 || ends.Load() == 0 {
		t.Errorf("%d stopped, %d ended: nothing was tried", stops.Load(), ends.Load())
	}
}

// Close in the middle of everything: it returns, and no callback comes later.
func TestStressClose(t *testing.T) {
	for range 20 {
		w := watchdog.New(watchdog.Config{CallTimeout: 10 * ms, Renew: func(ctx context.Context, batch []watchdog.Renewal) []error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rand.IntN(15)) * ms):
			}
			return make([]error, len(batch))
		}})
		var closed atomic.Bool
		callback := func() {
			if closed.Load() {
				t.Error("callback after Close")
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for ctx.Err() == nil {
					l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: time.Duration(5+rand.IntN(30)) * ms, MaxRenewals: 3,
						OnEnd: func(watchdog.End) { callback() }, OnRenewed: func(watchdog.Renewed) { callback() }})
					_ = l.Ensure(ctx, 25*ms)
					time.Sleep(time.Duration(rand.IntN(20)) * ms)
					l.End()
					if rand.IntN(2) == 0 {
						l.Stop(ctx)
					}
				}
			})
		}
		time.Sleep(30 * ms)
		w.Close()
		closed.Store(true)
		if n := w.Len(); n != 0 {
			t.Errorf("Len %d after Close", n)
		}
		time.Sleep(20 * ms)
		cancel()
		wg.Wait()
	}
}
