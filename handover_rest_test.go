package tierlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

// restMoment brings a Locker to the moment at which it has just released a lease that
// was handed over: the next of its callers leaves the key to others for 25 ms. It
// is one of a store that is polled and takes 10 ms for a grant.
func restMoment(t *testing.T, change ...func(*tierlock.Config)) (l *tierlock.Locker, rest func()) {
	t.Helper()
	s := newRanger()
	acquire := s.acquire
	s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
		defer time.Sleep(10 * time.Millisecond)
		return acquire(ctx, req)
	}
	freed := make(chan struct{}, 100)
	s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
		defer func() { freed <- struct{}{} }()
		return s.Store.Release(ctx, req)
	}
	l = newLocker(t, pollOnly{s}, change...)
	k := mustLock(t, l, "r", "1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
			mustUnlock(t, k)
		})
	}
	synctest.Wait()
	mustUnlock(t, k)
	<-freed // without a rest: nothing was handed over yet
	<-freed
	synctest.Wait()
	time.Sleep(time.Millisecond)
	return l, wg.Wait
}

// A key that this process leaves to others for a moment is wanted by many. That is
// contention, and no caller is told of an outage, however short its wait.
func TestShortWaitDuringARest(t *testing.T) {
	for what, opts := range map[string][]tierlock.Option{
		"Wait":   {tierlock.Wait(5 * time.Millisecond)},
		"ctx":    {tierlock.UntilDone()},
		"NoWait": {tierlock.NoWait()},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, rest := restMoment(t, func(c *tierlock.Config) { c.CallTimeout = 20 * time.Millisecond })
				defer rest()
				ctx := bg
				if what == "ctx" {
					c, cancel := context.WithTimeout(bg, 5*time.Millisecond)
					defer cancel()
					ctx = c
				}
				k, err := l.Lock(ctx, "r", "1", opts...)
				if err == nil {
					mustUnlock(t, k)
					t.Fatal("it got the lock before those that wait: the test shows nothing")
				}
				wantIs(t, "Lock", err, tierlock.ErrHeld)
				if errors.Is(err, tierlock.ErrUnavailable) {
					t.Errorf("Lock: %v; the store has answered all the time", err)
				}
			})
		})
	}
}

// Where the store says, when it is told of a hold by hand-over, that the lease is
// gone or another's, that is as definite as the answer to a renewal.
func TestUpdateTellsOfALoss(t *testing.T) {
	for reason, taken := range map[string]bool{"gone": false, "taken": true} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: 30 * time.Second}))
				k := newHanded(t, l, "r", nil, nil).unlocked(true)
				begun := time.Now()
				s.Store.Release(bg, tierlock.ReleaseRequest{Name: name("r", "1"), Lease: k.Token().Lease})
				if taken {
					defer mustUnlock(t, mustLock(t, newLocker(t, s.Store), "r", "1"))
				}
				<-k.Context().Done()
				if d := time.Since(begun); d > 200*time.Millisecond {
					t.Errorf("told after %v, but the store had said so after 100 ms", d)
				}
				wantLost(t, "Unlock", k.Unlock(), reason)
			})
		})
	}
}

// The rest leaves a caller whose wait is soon over the time to ask: a key that nobody
// else wants is not refused.
func TestRestLeavesTimeToAsk(t *testing.T) {
	for _, by := range []string{"Wait", "ctx"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRanger()
				acquire := s.acquire
				s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
					defer time.Sleep(2 * time.Millisecond)
					return acquire(ctx, req)
				}
				l := newLocker(t, pollOnly{s})
				k := mustLock(t, l, "r", "1")
				for range 7 { // of one lease, which is then released, and 12 ms of rest
					go func() {
						k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(8 * time.Millisecond)
						mustUnlock(t, k)
					}()
				}
				synctest.Wait()
				wait := (2 + 7*8 + 8) * time.Millisecond
				var last <-chan result
				if by == "Wait" {
					last = lockAsync(bg, l, "r", "1", tierlock.Wait(wait))
				} else {
					ctx, cancel := context.WithTimeout(bg, wait)
					defer cancel()
					last = lockAsync(ctx, l, "r", "1", tierlock.UntilDone())
				}
				synctest.Wait()
				begun := time.Now()
				mustUnlock(t, k)
				r := <-last
				if r.err != nil {
					t.Fatalf("Lock of a key that is free for the last 8 ms of the wait: %v", r.err)
				}
				if d := r.at.Sub(begun); d < 2*time.Millisecond+7*8*time.Millisecond+3*time.Millisecond {
					t.Errorf("granted after %v: there was no rest, and the test shows nothing", d)
				}
				mustUnlock(t, r.k)
			})
		})
	}
}
