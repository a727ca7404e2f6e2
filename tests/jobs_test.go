package tests_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenarios 75 and 81: a short job that several processes start on one schedule,
// each a little later than the other. With MinHold it runs once a period: the key
// outlives the job, its unlock, a lost answer to that, and the process.
func TestShiftedSchedulesRunAJobOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const minHold, period, shift = 2400 * time.Millisecond, 2900 * time.Millisecond, 600 * time.Millisecond
		res := tierlock.Resource{Name: "cron", TTL: 30 * time.Second, MinHold: minHold}
		proxy := rig.NewProxy(t, d.addr)
		instance := func(addr string) *tierlock.Locker {
			l, err := tierlock.New(config(d.open(t, addr), res))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		first := instance(proxy.Addr)
		late := newPeer(t, d.peer(d.addr, res))
		held := 0 // how often the others were told so
		for round, fault := range []func(unlock func() error) error{
			func(unlock func() error) error { return unlock() },
			func(unlock func() error) error { // its answer is lost
				proxy.DropReplies()
				defer proxy.Pass()
				if err := unlock(); !errors.Is(err, tierlock.ErrUnavailable) {
					t.Errorf("unlock without an answer: %v", err)
				}
				return nil
			},
			func(unlock func() error) error { // the process ends
				err := unlock()
				ctx, cancel := context.WithTimeout(bg, patience)
				defer cancel()
				return errors.Join(err, first.Close(ctx))
			},
		} {
			start := time.Now()
			k, err := first.Lock(bg, "cron", "report", tierlock.Wait(patience))
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			took := time.Now()
			time.Sleep(20 * time.Millisecond) // the job
			if err := fault(k.Unlock); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			// The other instances come while the key is kept: they leave the job.
			for d := shift; d < minHold-shift/2; d += shift {
				time.Sleep(time.Until(start.Add(d)))
				if time.Since(start) > minHold-700*time.Millisecond {
					break // on a busy machine
				}
				id := late.send(order{Op: "lock", Resource: "cron", Key: "report"})
				switch e := late.wait(id, "refused"); {
				case e.is("held"):
					held++
				case !e.is("unavailable"): // no answer in time, on a busy machine: it leaves the job as well
					t.Errorf("round %d, %v later: %s", round, d, e.Err)
				}
			}
			// And it is free for the next period, by the server's clock, which is
			// this machine's.
			if _, expiry, kept := d.look(t, "cron", "report"); kept {
				if expiry.Before(start.Add(minHold-2*time.Millisecond)) || expiry.After(took.Add(minHold+slack)) {
					t.Errorf("round %d: kept for %v, want %v", round, expiry.Sub(start), minHold)
				}
			} else if time.Since(start) < minHold {
				t.Errorf("round %d: free after %v", round, time.Since(start))
			}
			time.Sleep(time.Until(start.Add(period)))
			d.goneWithin(t, slack, "cron", "report")
		}
		if held == 0 {
			t.Error("nobody was told that the key is held")
		}
		id, _ := late.lock("cron", "report", patience)
		late.mustUnlock(id)
	})
}

// Scenarios 80 and 82: the section runs with the lock or not at all. Do cannot be
// gone on from without it, and a Lock that was interrupted gives no lock.
func TestNoLockNoSection(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		res := tierlock.Resource{Name: "job", TTL: 10 * time.Second, Wait: patience}
		proxy := rig.NewProxy(t, d.addr)
		holder, l := newLocker(t, d.open(t, d.addr), res), newLocker(t, d.open(t, proxy.Addr), res)
		k := mustLock(t, holder, "job", "k")
		never := func(context.Context) error {
			t.Error("the section ran")
			return nil
		}
		cancelled := func(after time.Duration) func() context.Context {
			return func() context.Context {
				ctx, cancel := context.WithCancel(bg)
				if after == 0 {
					cancel()
				}
				time.AfterFunc(after, cancel)
				return ctx
			}
		}
		plain := func() context.Context { return bg }
		for name, c := range map[string]struct {
			ctx  func() context.Context
			opts []tierlock.Option
			want []error
		}{
			"held":             {plain, []tierlock.Option{tierlock.NoWait()}, []error{tierlock.ErrHeld}},
			"wait over":        {plain, []tierlock.Option{tierlock.Wait(time.Second)}, []error{tierlock.ErrHeld}},
			"interrupted":      {cancelled(time.Second), nil, []error{context.Canceled, tierlock.ErrHeld}},
			"interrupted long": {cancelled(time.Second), []tierlock.Option{tierlock.UntilDone()}, []error{context.Canceled, tierlock.ErrHeld}},
			"ended before":     {cancelled(0), nil, []error{context.Canceled}},
			"nonsense":         {plain, []tierlock.Option{tierlock.TTL(time.Hour)}, []error{tierlock.ErrInvalid}},
		} {
			wantIs(t, "Do, "+name, l.Do(c.ctx(), "job", "k", never, c.opts...), c.want...)
			got, err := l.Lock(c.ctx(), "job", "k", c.opts...)
			if got != nil || err == nil {
				t.Errorf("%s: Lock gave %v, %v", name, got, err)
			}
		}
		proxy.BlackHole()
		wantIs(t, "Do, no answer", l.Do(bg, "job", "other", never, tierlock.Wait(150*time.Millisecond)), tierlock.ErrUnavailable)
		proxy.Pass()
		if k.Err() != nil {
			t.Error(k.Err())
		}
		mustUnlock(t, k)
		idle(t, l)
		d.wantGone(t, "job", "k")
		d.wantGone(t, "job", "other")
		ran := false
		if err := l.Do(bg, "job", "k", func(context.Context) error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("Do when it is free: %v, ran %v", err, ran)
		}
	})
}
