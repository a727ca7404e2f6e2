package tierlock_test

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// diary observes everything. before is called first in each func, with its
// name.
type diary struct {
	events[any]
	before func(name string)
}

func (d *diary) observer() tierlock.Observer {
	note := func(name string, e any) {
		if d.before != nil {
			defer d.add(e)
			d.before(name)
			return
		}
		d.add(e)
	}
	return tierlock.Observer{
		AcquireStart: func(ctx context.Context, e tierlock.AcquireStart) context.Context {
			note("AcquireStart", e)
			return ctx
		},
		AcquireEnd:   func(_ context.Context, e tierlock.AcquireEnd) { note("AcquireEnd", e) },
		Queued:       func(e tierlock.QueuedEvent) { note("Queued", e) },
		Reentered:    func(e tierlock.ReenteredEvent) { note("Reentered", e) },
		Renewed:      func(e tierlock.RenewedEvent) { note("Renewed", e) },
		Lost:         func(e tierlock.LostEvent) { note("Lost", e) },
		BoundReached: func(e tierlock.BoundEvent) { note("BoundReached", e) },
		Overdue:      func(e tierlock.OverdueEvent) { note("Overdue", e) },
		TooManyHolds: func(e tierlock.TooManyHoldsEvent) { note("TooManyHolds", e) },
		Released:     func(e tierlock.ReleasedEvent) { note("Released", e) },
		HandedOver:   func(e tierlock.HandedOverEvent) { note("HandedOver", e) },
		StoreChanged: func(e tierlock.StoreEvent) { note("StoreChanged", e) },
		Draining:     func(e tierlock.ChainEvent) { note("Draining", e) },
		TierChanged:  func(e tierlock.ChainEvent) { note("TierChanged", e) },
		LocalAlarm:   func(e tierlock.LocalAlarmEvent) { note("LocalAlarm", e) },
		Adopted:      func(e tierlock.AdoptedEvent) { note("Adopted", e) },
	}
}

func (d *diary) watch(c *tierlock.Config) { c.Observer = d.observer() }

// kinds is the events so far as their types' names.
func (d *diary) kinds() (kinds []string) {
	for _, e := range d.all() {
		kinds = append(kinds, strings.TrimSuffix(reflect.TypeOf(e).Name(), "Event"))
	}
	return kinds
}

// ofChains is the number of events that come with several stores only.
const ofChains = 4

// A diary that knows less than all of an Observer would let events go unseen.
func TestDiaryIsComplete(t *testing.T) {
	o := reflect.ValueOf((&diary{}).observer())
	for i := range o.NumField() {
		if o.Field(i).IsNil() {
			t.Errorf("%s is not observed", o.Type().Field(i).Name)
		}
	}
}

// Scenario 100: each event once, in order, with labels, token and values.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		l, _, s, _, _ := twoLockers(t, d.watch)
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: 30 * time.Millisecond, Times: 1})
		begin := time.Now()
		k := mustLock(t, l, "re", "1", tierlock.RequestID("q"))
		got := time.Now()
		inner := mustLockCtx(t, k.Context(), l, "re", "1")
		synctest.Wait() // AcquireStart is told on the spot, all else in the background
		w := lockAsync(bg, l, "re", "1", tierlock.UntilDone())
		time.Sleep(1500 * time.Millisecond)
		mustUnlock(t, inner)
		released := time.Now()
		mustUnlock(t, k)
		r := <-w
		if r.err != nil {
			t.Fatal(r.err)
		}
		all := d.all()
		labels := tierlock.Labels{App: "test", Resource: "re", Tier: tierlock.Local}
		ttl := 3 * time.Second
		want := []any{
			tierlock.AcquireStart{Labels: labels, Key: "1", At: begin},
			tierlock.AcquireEnd{Labels: labels, Key: "1", At: got, Token: k.Token(), Waited: 30 * time.Millisecond, Latency: 30 * time.Millisecond},
			tierlock.ReenteredEvent{Labels: labels, At: got, Token: k.Token(), Handles: 2},
			tierlock.AcquireStart{Labels: labels, Key: "1", At: got},
			tierlock.QueuedEvent{Labels: labels, Key: "1", At: got, Length: 1},
			tierlock.RenewedEvent{Labels: labels, At: begin.Add(time.Second), Token: k.Token(), TTL: ttl, Count: 1},
			tierlock.ReleasedEvent{Labels: labels, At: released, Token: k.Token(), Held: released.Sub(begin)},
			tierlock.AcquireEnd{Labels: labels, Key: "1", At: r.at, Token: r.k.Token(), Waited: r.at.Sub(got)},
		}
		if len(all) != len(want) {
			t.Fatalf("events %v, want %d", d.kinds(), len(want))
		}
		// The release of one and the end of the next one's call are told by
		// two goroutines.
		if _, ok := all[6].(tierlock.AcquireEnd); ok {
			all[6], all[7] = all[7], all[6]
		}
		for i := range want {
			if all[i] != want[i] {
				t.Errorf("event %d\n%+v, want\n%+v", i, all[i], want[i])
			}
		}
		mustUnlock(t, r.k)
		if k.Token().RequestID != "q" {
			t.Errorf("token %v", k.Token())
		}
	})
}

// How calls end, as the label that AcquireEnd gives.
func TestResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends events[tierlock.AcquireEnd]
		space := localstore.NewSpace()
		s := storetest.WithFaults(localstore.New(localstore.Options{Space: space}))
		l := newLocker(t, s, withResources(tierlock.Resource{Name: "r", TTL: 3 * time.Second, MaxWaiters: 1}), func(c *tierlock.Config) {
			c.Observer.AcquireEnd = func(_ context.Context, e tierlock.AcquireEnd) { ends.add(e) }
		})
		want := []string{"ok", "held", "queue-full", "held", "canceled", "unavailable", "misconfigured", "closed"}
		k := mustLock(t, l, "r", "1")
		_, _ = l.TryLock(bg, "r", "1")
		w := lockAsync(bg, l, "r", "1", tierlock.Wait(2*time.Second))
		synctest.Wait()
		_, _ = l.Lock(bg, "r", "1")
		<-w
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Slow, Delay: time.Minute})
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(10*time.Millisecond, cancel)
		_, _ = l.Lock(ctx, "r", "2")
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
		_, _ = l.TryLock(bg, "r", "2")
		s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before, Err: tierlock.ErrMisconfigured})
		_, _ = l.TryLock(bg, "r", "2")
		mustUnlock(t, k)
		s.ClearAll()
		s.Wait()
		if err := l.Close(bg); err != nil {
			t.Error(err)
		}
		_, _ = l.TryLock(bg, "r", "1")
		var got []string
		for _, e := range ends.all() {
			got = append(got, e.Result())
			if (e.Err == nil) != (e.Result() == "ok") || (e.Token.IsZero()) != (e.Err != nil) {
				t.Errorf("%s: %+v", e.Result(), e)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("results %v, want %v", got, want)
		}
	})
}

// An observer that is slow, panics or ends its goroutine delays no lock, breaks
// none, and costs no other event. (AcquireStart has its 5 ms.)
func TestBadObserver(t *testing.T) {
	for what, bad := range map[string]func(string){
		"slow":   func(string) { time.Sleep(time.Second) },
		"panics": func(string) { panic("boom") },
		"Goexit": func(string) { runtime.Goexit() },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good, d := &diary{}, &diary{before: bad}
				run := func(d *diary) time.Duration {
					s := storetest.WithFaults(localstore.New(localstore.Options{}))
					l := newLocker(t, s, d.watch, withResources(
						tierlock.Resource{Name: "re", TTL: 3 * time.Second, Reentrant: true, Expect: 500 * time.Millisecond, MaxHolds: 1},
						tierlock.Resource{Name: "short", TTL: 3 * time.Second, MaxHold: time.Second}))
					start := time.Now()
					k := mustLock(t, l, "re", "0")
					first := lockAsync(bg, l, "re", "0", tierlock.UntilDone())
					time.Sleep(100 * time.Millisecond) // also after a slow AcquireStart
					second := lockAsync(bg, l, "re", "0", tierlock.UntilDone())
					time.Sleep(100 * time.Millisecond)
					for _, next := range []<-chan result{first, second} { // the second by hand-over
						mustUnlock(t, k)
						k = (<-next).k
					}
					mustUnlock(t, k)
					k = mustLock(t, l, "re", "1")
					mustUnlock(t, mustLockCtx(t, k.Context(), l, "re", "1"))
					k2 := mustLock(t, l, "re", "2")
					short := mustLock(t, l, "short", "1")
					_, err := l.Lock(bg, "re", "1", tierlock.Wait(2500*time.Millisecond))
					wantIs(t, "Lock", err, tierlock.ErrHeld)
					wantIs(t, "bound", short.Unlock(), tierlock.ErrLeaseExceeded)
					mustUnlock(t, k)
					s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Refuse, Answer: tierlock.LeaseGone})
					<-k2.Context().Done()
					wantLost(t, "Unlock", k2.Unlock(), "gone")
					s.Set(storetest.OpRelease, storetest.Fault{Kind: storetest.Before})
					s.Set(storetest.OpAcquire, storetest.Fault{Kind: storetest.Before})
					for range 3 {
						_, err := l.TryLock(bg, "re", "3")
						wantIs(t, "outage", err, tierlock.ErrUnavailable)
					}
					s.ClearAll()
					took := time.Since(start)
					idle(t, l)
					time.Sleep(time.Minute) // the slow one gets through
					return took
				}
				undisturbed := run(good)
				disturbed := run(d)
				starts := time.Duration(0)
				for _, kind := range good.kinds() {
					if kind == "AcquireStart" {
						starts += 5 * time.Millisecond
					}
				}
				if delay := disturbed - undisturbed; delay > starts {
					t.Errorf("%v longer than with a good observer, want at most 5 ms for each AcquireStart, %v", delay, starts)
				}
				want, got := good.kinds(), d.kinds()
				slices.Sort(want)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("events\n%v, want\n%v", got, want)
				}
				if all := slices.Compact(want); len(all) != reflect.TypeFor[tierlock.Observer]().NumField()-ofChains {
					t.Errorf("only these events happened: %v", all)
				}
			})
		})
	}
}

type ctxKey struct{}

// What AcquireStart returns goes all the way: a span that it opened is around
// the whole hold.
func TestAcquireStartContext(t *testing.T) {
	start := func(f func(context.Context) context.Context) (func(*tierlock.Config), *events[any]) {
		seen := &events[any]{}
		return func(c *tierlock.Config) {
			c.Observer.AcquireStart = func(ctx context.Context, _ tierlock.AcquireStart) context.Context { return f(ctx) }
			c.Observer.AcquireEnd = func(ctx context.Context, _ tierlock.AcquireEnd) { seen.add(ctx.Value(ctxKey{})) }
		}, seen
	}
	for _, c := range []struct {
		what string
		f    func(context.Context) context.Context
		want any
		took time.Duration
	}{
		{"a context of its own", func(ctx context.Context) context.Context { return context.WithValue(ctx, ctxKey{}, "span") }, "span", 0},
		{"in 4 ms", func(ctx context.Context) context.Context {
			time.Sleep(4 * time.Millisecond)
			return context.WithValue(ctx, ctxKey{}, "span")
		}, "span", 4 * time.Millisecond},
		{"too late", func(ctx context.Context) context.Context {
			time.Sleep(6 * time.Millisecond)
			return context.WithValue(ctx, ctxKey{}, "span")
		}, nil, 5 * time.Millisecond},
		{"never", func(ctx context.Context) context.Context { time.Sleep(time.Hour); return ctx }, nil, 5 * time.Millisecond},
		{"nil", func(context.Context) context.Context { return nil }, nil, 0},
		{"panic", func(context.Context) context.Context { panic("boom") }, nil, 0},
		{"Goexit", func(context.Context) context.Context { runtime.Goexit(); return nil }, nil, 5 * time.Millisecond},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change, seen := start(c.f)
				l := newLocker(t, newSpy(nil), change)
				ctx, cancel := context.WithCancel(bg)
				begin := time.Now()
				k, err := l.Lock(ctx, "r", "1")
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(begin); d != c.took {
					t.Errorf("took %v, want %v", d, c.took)
				}
				if got := k.Context().Value(ctxKey{}); got != c.want {
					t.Errorf("the hold's context has %v, want %v", got, c.want)
				}
				if all := seen.all(); len(all) != 1 || all[0] != c.want {
					t.Errorf("AcquireEnd's contexts have %v, want %v", all, c.want)
				}
				if tierlock.TokenFrom(k.Context()) != k.Token() {
					t.Error("no token in the hold's context")
				}
				cancel() // it derives from the caller's
				synctest.Wait()
				wantIs(t, "cause", context.Cause(k.Context()), context.Canceled)
				mustUnlock(t, k)
				time.Sleep(2 * time.Hour) // the late ones end
			})
		})
	}
}

// Events that nobody takes are dropped and counted, and those that come later
// are told.
func TestDroppedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		var told events[tierlock.ReenteredEvent]
		var once sync.Once
		l := newLocker(t, newSpy(nil), func(c *tierlock.Config) {
			c.Observer.Reentered = func(e tierlock.ReenteredEvent) {
				once.Do(func() { <-stop })
				told.add(e)
			}
		})
		k := mustLock(t, l, "re", "1")
		reenter := func(n int) {
			for range n {
				mustUnlock(t, mustLockCtx(t, k.Context(), l, "re", "1"))
			}
		}
		reenter(1)
		synctest.Wait() // that one is being told, and hangs
		start := time.Now()
		reenter(8192)
		if n := l.Status().DroppedEvents; n != 0 {
			t.Errorf("%d events dropped of 8192", n)
		}
		reenter(100)
		if n := l.Status().DroppedEvents; n != 100 {
			t.Errorf("%d events dropped, want 100", n)
		}
		if time.Since(start) != 0 {
			t.Errorf("that took %v", time.Since(start))
		}
		close(stop)
		synctest.Wait()
		reenter(1)
		if n := len(told.all()); n != 8194 {
			t.Errorf("%d events told, want 8194", n)
		}
		if n := l.Status().DroppedEvents; n != 100 {
			t.Errorf("%d events dropped, want still 100", n)
		}
		mustUnlock(t, k)
	})
}

// No event and no log line is told twice, or with another's token, however
// many locks there are at once.
func TestEventsOfManyLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		l := newLocker(t, newSpy(nil), d.watch)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				k := mustLock(t, l, "r", fmt.Sprint(i))
				time.Sleep(1500 * time.Millisecond)
				mustUnlock(t, k)
			})
		}
		wg.Wait()
		count := map[string]int{}
		for _, e := range d.all() {
			switch e := e.(type) {
			case tierlock.AcquireStart:
				count["start "+e.Key]++
			case tierlock.AcquireEnd:
				count["end "+e.Token.Key]++
			case tierlock.RenewedEvent:
				count["renewed "+e.Token.Key]++
			case tierlock.ReleasedEvent:
				count["released "+e.Token.Key]++
			default:
				t.Errorf("event %+v", e)
			}
		}
		if len(count) != 800 {
			t.Errorf("%d different events, want 800", len(count))
		}
		for what, n := range count {
			if n != 1 {
				t.Errorf("%s: %d times", what, n)
			}
		}
	})
}
