package tests_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 14, 21, 23, 24 and 36: the holder's link to Redis becomes a black
// hole (nothing is reset) at a random moment, while a second process waits for
// the key. Belief must be over before the other enters, every time; the signal
// comes once; nothing renews after it, nor does what the black hole held back
// touch the new owner's key when it is delivered; and the Locker takes the key
// again afterwards.
func TestLossComesBeforeTheNextHolder(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl, links, rounds = 2 * time.Second, 10, 5
		const least = 100 * time.Millisecond // half the margin
		res := tierlock.Resource{Name: "job", TTL: ttl, Wait: patience}
		other := newPeer(t, d.peer(d.addr, res))

		type lossRound struct {
			key    string
			lock   *tierlock.Lock
			last   time.Time    // the last moment at which it was believed in
			ended  atomic.Int64 // Unix ns; when the context was seen to end
			signal atomic.Int64 // times that it was
		}
		type link struct {
			proxy  *rig.Proxy
			spy    *spy
			locker *tierlock.Locker
		}
		var mu sync.Mutex
		lost := make(map[string]int) // by hold id, as the observer was told
		var at [links]link
		for i := range at {
			proxy := rig.NewProxy(t, d.addr)
			s := newSpy(d.open(t, proxy.Addr))
			cfg := config(s, res)
			cfg.Observer.Lost = func(e tierlock.LostEvent) {
				mu.Lock()
				defer mu.Unlock()
				lost[e.Token.ID]++
			}
			at[i] = link{proxy, s, lockerOf(t, cfg)}
		}
		smallest, largest := time.Hour, time.Duration(0)
		for n := range rounds {
			var rs [links]lossRound
			var waits [links]int
			var entered [links]tierlock.Token
			each(links, func(i int) error {
				r := &rs[i]
				r.key = fmt.Sprint("k", i)
				// The breaker may still be open from the round before.
				k, err := at[i].locker.Lock(bg, "job", r.key, tierlock.UntilDone())
				if err != nil {
					return err
				}
				r.lock = k
				context.AfterFunc(k.Context(), func() {
					r.ended.Store(time.Now().UnixNano())
					r.signal.Add(1)
				})
				return nil
			}, t)
			var believed sync.WaitGroup
			for i := 0; i < links; i += 2 { // the others' contexts end without anybody's look
				believed.Go(func() { rs[i].last = lastBelief(rs[i].lock) })
			}
			for i := range rs {
				waits[i] = other.send(order{Op: "lock", Resource: "job", Key: rs[i].key, Wait: patience})
			}
			each(links, func(i int) error {
				// Anywhere in the period of a renewal, or in its round trip.
				time.Sleep(rand.N(ttl / 3))
				at[i].proxy.BlackHole()
				return nil
			}, t)
			believed.Wait()
			for i := range rs {
				r := &rs[i]
				waitEnd(t, r.lock)
				entered[i] = *other.wait(waits[i], "locked").Token
				// The grant's own time, by the clock of the same machine, is the
				// earliest at which the other can have entered.
				if i%2 == 0 {
					margin := entered[i].ServerTime.Sub(r.last)
					smallest, largest = min(smallest, margin), max(largest, margin)
					if margin < least {
						t.Errorf("round %d, %s: belief ended %v before the next grant, want at least %v", n, r.key, margin, least)
					}
				}
				if entered[i].Fence <= r.lock.Token().Fence {
					t.Errorf("round %d, %s: fence %d after %d", n, r.key, entered[i].Fence, r.lock.Token().Fence)
				}
			}
			for i := range at {
				at[i].proxy.Pass()
			}
			each(links, func(i int) error {
				r := &rs[i]
				err := r.lock.Unlock()
				var loss *tierlock.LostError
				if !errors.As(err, &loss) || loss.Reason != tierlock.Unconfirmed && loss.Reason != tierlock.Expired {
					return fmt.Errorf("unlock of the lost lock: %w, want an unconfirmed loss, or that it expired in a stop", err)
				}
				if !errors.Is(context.Cause(r.lock.Context()), tierlock.ErrLost) {
					return fmt.Errorf("cause %w", context.Cause(r.lock.Context()))
				}
				return nil
			}, t)
			// By then the store is connected again, what was held back has arrived,
			// and the release that Unlock could not confirm has been repeated.
			for i := range rs {
				idle(t, at[i].locker)
			}
			for i := range rs {
				r := &rs[i]
				if now, _, held := d.look(t, "job", r.key); !held || now.Lease != entered[i].Lease {
					t.Errorf("round %d, %s: it is held by %v, want the new owner, %v", n, r.key, now, entered[i])
				}
				other.mustUnlock(waits[i])
				d.wantGone(t, "job", r.key)
				if after := at[i].spy.renewedAfter(r.lock.Token().Lease, time.Unix(0, r.ended.Load())); after != 0 {
					t.Errorf("round %d, %s: %d renewals began after the signal", n, r.key, after)
				}
				if got := r.signal.Load(); got != 1 {
					t.Errorf("round %d, %s: %d signals", n, r.key, got)
				}
			}
			mu.Lock()
			for i := range rs {
				if got := lost[rs[i].lock.Token().ID]; got != 1 {
					t.Errorf("round %d, %s: %d loss events", n, rs[i].key, got)
				}
			}
			mu.Unlock()
		}
		t.Logf("belief ended %v to %v before the next grant", smallest, largest)
	})
}

// lastBelief waits until a lock is over by Lock.Err, and returns the last moment at
// which it was not. The clock is read before the look, so that a process that stops
// between the two is not taken for one that believes.
func lastBelief(k *tierlock.Lock) (last time.Time) {
	for {
		at := time.Now()
		if k.Err() != nil {
			return last
		}
		last = at
		time.Sleep(time.Millisecond)
	}
}

// each runs f n times at once, waits, and reports the errors.
func each(n int, f func(i int) error, t testing.TB) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	failed := false
	for i, err := range errs {
		if err != nil {
			t.Errorf("%d: %v", i, err)
			failed = true
		}
	}
	if failed {
		t.FailNow()
	}
}
