package tierlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// All that belongs to a hold is done before the next of its key begins, with and
// without a hand-over: one key makes one hold at a time for MaxHolds, and an Observer
// is told of the end of one before the beginning of the next. Callers that come and
// go at the moment of the hand-over look for the lease before they are told of it.
func TestOneHoldEndsBeforeTheNext(t *testing.T) {
	for what, most := range map[string]int{"handed over": 1000, "released": 0} {
		t.Run(what, func(t *testing.T) {
			var mu sync.Mutex
			tooMany, early := 0, 0
			begun := map[string]bool{} // the next of that hold has, and it has not ended
			observe := func(c *tierlock.Config) {
				c.Observer.TooManyHolds = func(tierlock.TooManyHoldsEvent) {
					mu.Lock()
					defer mu.Unlock()
					tooMany++
				}
				c.Observer.HandedOver = func(e tierlock.HandedOverEvent) {
					mu.Lock()
					defer mu.Unlock()
					begun[e.From.ID] = true
				}
				c.Observer.Released = func(e tierlock.ReleasedEvent) {
					mu.Lock()
					defer mu.Unlock()
					if begun[e.Token.ID] {
						early++
					}
				}
			}
			s := newRanger()
			s.most = most
			l := newLocker(t, s, observe, withResources(tierlock.Resource{Name: "r", TTL: time.Minute, MaxHolds: 1}))
			end := time.Now().Add(1500 * time.Millisecond)
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					for time.Now().Before(end) {
						ctx, cancel := bg, context.CancelFunc(func() {})
						if i >= 4 {
							ctx, cancel = context.WithTimeout(bg, time.Duration(rand.IntN(300))*time.Microsecond)
						}
						k, err := l.Lock(ctx, "r", "1", tierlock.UntilDone())
						cancel()
						if err == nil {
							mustUnlock(t, k)
						}
					}
				})
			}
			for range 2 { // in the way of the book-keeping
				wg.Go(func() {
					for time.Now().Before(end) {
						l.Status()
					}
				})
			}
			wg.Wait()
			idle(t, l)
			mu.Lock()
			defer mu.Unlock()
			if tooMany > 0 || early > 0 {
				t.Errorf("%d times too many holds of one key, %d times the next began before the end of the last", tooMany, early)
			}
		})
	}
}
