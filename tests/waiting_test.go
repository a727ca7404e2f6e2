package tests_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// The cost of waiting: a hundred callers of one process wait for a key that
// another process holds. With push and without, they cost Redis at most 20
// commands a second, those that scripts call included. (The holder's lease is
// so long that nothing is renewed meanwhile.) Cancelled, they leave nothing: no
// key, no channel, no goroutine. Scenario 56, with one key instead of many.
func TestWaitersAreCheapAndLeaveNothing(t *testing.T) {
	for name, noPush := range map[string]bool{"push": false, "poll": true} {
		t.Run(name, func(t *testing.T) {
			noLeak(t)
			const waiters, lasting, most = 100, 10 * time.Second, 20
			res := tierlock.Resource{Name: "job", TTL: time.Minute}
			srv := rig.Redis(t)
			holder := newPeer(t, peerConfig{Addr: srv.Addr, Resources: []tierlock.Resource{res}})
			held, _ := holder.lock("job", "k", patience)
			store := open(t, srv.Addr, redisstore.Options{NoPush: noPush})
			l := newLocker(t, store, res)
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			before := runtime.NumGoroutine()
			errs := make(chan error, waiters)
			for range waiters {
				go func() {
					_, err := l.Lock(ctx, "job", "k", tierlock.UntilDone())
					errs <- err
				}()
			}
			rig.Eventually(t, patience, "all wait", func() bool { return l.Status().Waiters == waiters-1 })
			channels := func() int { return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) }
			wantChannels := 1
			if noPush {
				wantChannels = 0
			}
			rig.Eventually(t, patience, "the subscription is there", func() bool { return channels() == wantChannels })
			time.Sleep(time.Second) // the commands of the beginning

			from, start := srv.Commands(), time.Now()
			time.Sleep(lasting)
			rate := float64(srv.Commands()-from) / time.Since(start).Seconds()
			t.Logf("%.1f commands a second", rate)
			if rate > most {
				t.Errorf("%d waiters cost %.1f commands a second, want at most %d", waiters, rate, most)
			}
			if rate == 0 {
				t.Error("nobody asked: a lost message would leave them waiting for ever")
			}

			cancel()
			for range waiters {
				err := <-errs
				wantIs(t, "a cancelled waiter", err, context.Canceled, tierlock.ErrHeld)
			}
			idle(t, l)
			rig.Eventually(t, patience, "no channel is left", func() bool { return channels() == 0 })
			// The store keeps an idle worker and the connection for a while.
			rig.Eventually(t, patience, "no goroutine of the waiters is left", func() bool { return runtime.NumGoroutine() <= before+10 })
			holder.mustUnlock(held)
			wantGone(t, srv, "job", "k")
		})
	}
}

// loopLasts is how long the loops run that look for a lost wake-up.
func loopLasts() time.Duration {
	if testing.Short() {
		return 3 * time.Second
	}
	return time.Minute
}

// Scenario 30: lock and unlock in a loop, in two goroutines of one process and
// in two processes, for a minute. No wait is longer than the poll behind the
// push, and next to none is ended by it: that would be a lost wake-up.
func TestNoLostWakeUp(t *testing.T) {
	t.Parallel()
	const bound = time.Second + slack
	res := tierlock.Resource{Name: "job", TTL: 10 * time.Second}
	srv := rig.Redis(t)
	calls := redisstore.Options{CallTimeout: unhurried}
	a, b := unhurriedLocker(t, open(t, srv.Addr, calls), res), unhurriedLocker(t, open(t, srv.Addr, calls), res)
	p := newPeer(t, peerConfig{Addr: srv.Addr, Resources: []tierlock.Resource{res}, CallTimeout: unhurried})
	// Between processes nothing is fair: one that asks again at once mostly
	// wins against one that has to be woken. So they pause now and then.
	const pause = 4 * time.Millisecond
	remote := p.send(order{Op: "loop", Resource: "job", Key: "two processes", For: loopLasts(), Pause: pause})
	var results [3]loopResult
	each(len(results), func(i int) error {
		switch i {
		case 0, 1:
			results[i] = loop(a, "job", "two goroutines", loopLasts(), 0)
		case 2:
			results[i] = loop(b, "job", "two processes", loopLasts(), pause)
		}
		return nil
	}, t)
	all := append(results[:], *p.waitFor(remote, "looped", patience).Loop)
	for i, r := range all {
		t.Logf("%d rounds, longest wait %v, %d slow", r.Rounds, r.Longest, r.Slow)
		if len(r.Errors) > 0 {
			t.Errorf("loop %d: %q", i, r.Errors)
		}
		if r.Longest > bound || r.Slow > r.Rounds/1000 {
			t.Errorf("loop %d: longest wait %v, %d of 900 ms and more; want at most %v and %d", i, r.Longest, r.Slow, bound, r.Rounds/1000)
		}
		if r.Rounds < 100 {
			t.Errorf("loop %d: only %d rounds", i, r.Rounds)
		}
	}
}

// Scenario 62: 64 waiters with sections of 10 ms and a wait of 10 s, in one
// process and in four. All get the lock.
func TestManyWaitersAllSucceed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const waiters, wait, section = 64, 10 * time.Second, 10 * time.Millisecond
		res := tierlock.Resource{Name: "job", TTL: 10 * time.Second}
		for _, processes := range []int{1, 4} {
			t.Run(strconv.Itoa(processes), func(t *testing.T) {
				// Lockers are as independent as processes; the sections must not
				// overlap, which one process can see.
				lockers := make([]*tierlock.Locker, processes)
				for i := range lockers {
					lockers[i] = newLocker(t, d.open(t, d.addr), res)
				}
				inside := make(chan int, 1)
				start := time.Now()
				each(waiters, func(i int) error {
					k, err := lockers[i%processes].Lock(bg, "job", "k", tierlock.Wait(wait))
					if err != nil {
						return err
					}
					select {
					case inside <- i:
					default:
						return fmt.Errorf("another is inside")
					}
					time.Sleep(section)
					<-inside
					return k.Unlock()
				}, t)
				t.Logf("%d sections in %v", waiters, time.Since(start))
			})
		}
	})
}

// Scenario 57: the connection for messages is killed while the key is released,
// a little before, at the same time, or a little after. The waiter looks again
// when it has subscribed anew, or by its poll at the latest.
func TestPushConnectionKilledAtTheRelease(t *testing.T) {
	t.Parallel()
	res := tierlock.Resource{Name: "job", TTL: 10 * time.Second}
	srv := rig.Redis(t)
	a, b := newLocker(t, open(t, srv.Addr), res), newLocker(t, open(t, srv.Addr), res)
	var took []time.Duration
	for _, after := range []time.Duration{-20, -10, -5, -5, -3, -3, -2, -1, -1, 0, 0, 0, 1, 5, 20, 50} {
		k := mustLock(t, a, "job", "k")
		type outcome struct {
			lock *tierlock.Lock
			at   time.Time
			err  error
		}
		got := make(chan outcome)
		go func() {
			k, err := b.Lock(bg, "job", "k", tierlock.Wait(patience))
			got <- outcome{k, time.Now(), err}
		}()
		channel := keyOf("job", "k") + ":wake"
		rig.Eventually(t, patience, "the waiter has subscribed", func() bool {
			n := srv.Do("PUBSUB", "SHARDNUMSUB", channel).([]any)
			return n[1].(int64) == 1
		})
		released := make(chan time.Time)
		go func() {
			time.Sleep(max(0, -after) * time.Millisecond)
			if err := k.Unlock(); err != nil {
				t.Error(err)
			}
			released <- time.Now()
		}()
		time.Sleep(max(0, after) * time.Millisecond)
		srv.Do("CLIENT", "KILL", "TYPE", "pubsub")
		at := <-released
		o := <-got
		if o.err != nil {
			t.Fatal(o.err)
		}
		between(t, fmt.Sprintf("from the release to the lock (killed %d ms after it)", after), o.at.Sub(at), -slack, time.Second+slack)
		took = append(took, o.at.Sub(at))
		mustUnlock(t, o.lock)
	}
	slices.Sort(took)
	t.Logf("from the release to the lock: %v", took)
	if slow := took[len(took)-3]; slow > 700*time.Millisecond {
		t.Errorf("the poll alone has ended some waits: %v", took)
	}
}
