package localstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

func (r rig) watch(key string) tierlock.Watch {
	r.Helper()
	w, err := r.Watch(bg, name(key))
	if err != nil {
		r.Fatalf("Watch: %v", err)
	}
	return w
}

// told says which of the watches have a signal, and takes it.
func told(watches ...tierlock.Watch) string {
	var s []byte
	for _, w := range watches {
		select {
		case <-w.C():
			s = append(s, '!')
		default:
			s = append(s, '.')
		}
	}
	return string(s)
}

func (r rig) wantTold(what, want string, watches ...tierlock.Watch) {
	r.Helper()
	if got := told(watches...); got != want {
		r.Errorf("%s: got signals %q, want %q", what, got, want)
	}
}

func (r rig) cycle(key string) {
	r.Helper()
	r.lock(request(key, "cycle", time.Minute))
	r.release(key, "cycle", 0, tierlock.LeaseOwned)
}

// Waiters that behave as a Locker does get the key in their order.
func TestWakeUpIsFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(request("k", "first", time.Hour))
		const waiters = 20
		got := make(chan int, waiters)
		for i := range waiters {
			go func() {
				w := r.watch("k")
				<-w.C()
				lease := string(rune('A' + i))
				r.lock(request("k", lease, time.Hour)) // nobody else was woken
				w.Close()
				got <- i
				time.Sleep(time.Second)
				r.release("k", lease, 0, tierlock.LeaseOwned)
			}()
			synctest.Wait()
		}
		r.release("k", "first", 0, tierlock.LeaseOwned)
		for i := range waiters {
			if g := <-got; g != i {
				t.Errorf("waiter %d got the key as number %d", g, i)
			}
		}
		time.Sleep(time.Minute) // for the last to release
		r.want("k", 0, 0)
	})
}

func TestOneWatcherIsToldAtATime(t *testing.T) {
	r := newRig(t)
	a, b, c := r.watch("k"), r.watch("k"), r.watch("k")
	other := r.watch("other")
	r.cycle("k")
	r.wantTold("first release", "!...", a, b, c, other)
	r.cycle("k")
	r.wantTold("second release: the first in line again", "!...", a, b, c, other)
	r.cycle("k")
	r.cycle("k") // a has not read: it is passed over
	r.wantTold("two releases", "!!..", a, b, c, other)
	for range 10 {
		r.cycle("k")
	}
	r.wantTold("ten releases", "!!!.", a, b, c, other)
	r.wantTold("read", "....", a, b, c, other)
	r.cycle("other")
	r.wantTold("release of the other", "...!", a, b, c, other)
}

func TestCloseHandsTheWakeUpOn(t *testing.T) {
	r := newRig(t)
	a, b, c, d := r.watch("k"), r.watch("k"), r.watch("k"), r.watch("k")
	r.cycle("k")
	a.Close()
	a.Close()
	r.wantTold("closed unread", "!..", b, c, d)
	b.Close()
	r.wantTold("closed after reading, with the key free", "!.", c, d)
	r.lock(request("k", "one", time.Minute))
	c.Close()
	r.wantTold("closed after reading, with the key held", ".", d)
	c = r.watch("k")
	r.release("k", "one", 30*time.Second, tierlock.LeaseOwned)
	d.Close() // it did not read that the time left is shorter now
	r.wantTold("closed unread, with the key held", "!", c)
	c.Close()
	if entries, _, watched := r.space.Size(); entries != 1 || watched != 0 {
		t.Errorf("got %d entries and %d keys watched, want 1 and 0", entries, watched)
	}
}

func TestExpiryWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lock(request("k", "one", time.Minute))
		if r.space.Ticking() {
			t.Errorf("the timer runs with nothing watched")
		}
		w, next := r.watch("k"), r.watch("k")
		start := time.Now()
		at := func(want time.Duration) {
			t.Helper()
			<-w.C()
			if got := time.Since(start); got != want {
				t.Errorf("signal after %v, want %v", got, want)
			}
			r.wantTold("the next in line", ".", next)
		}
		at(time.Minute)
		r.lock(request("k", "one", time.Minute))
		r.lock(request("sooner", "one", time.Second)) // moves the timer
		r.renew("k", "one", 2*time.Minute, tierlock.LeaseOwned)
		at(3 * time.Minute)
		r.lock(request("k", "one", time.Hour))
		r.release("k", "one", time.Second, tierlock.LeaseOwned)
		at(3 * time.Minute) // the time left became shorter
		at(3*time.Minute + time.Second)
		r.lock(request("k", "one", time.Second))
		at(3*time.Minute + 2*time.Second)
		if entries, _, _ := r.space.Size(); entries != 0 {
			t.Errorf("got %d entries after the last expiry, with no call since, want 0", entries)
		}
		r.lock(request("k", "one", time.Hour))
		r.lock(job("job", "one", time.Hour))
		r.lock(job("job", "two", time.Minute))
		r.release("job", "one", 0, tierlock.LeaseOwned) // moves the end of a key, and the timer
		time.Sleep(time.Minute)
		synctest.Wait() // for what else happens at this instant
		if entries, _, _ := r.space.Size(); entries != 1 {
			t.Errorf("got %d entries after the expiry of one of two, with no call since, want 1", entries)
		}
		w.Close()
		if !r.space.Ticking() {
			t.Errorf("the timer does not run with a key held and watched")
		}
		next.Close()
		if r.space.Ticking() {
			t.Errorf("the timer runs after the last watch was closed")
		}
		w = r.watch("k")
		start = time.Now()
		time.Sleep(59*time.Minute - 1)
		r.wantTold("just before the expiry", ".", w)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		r.wantTold("at the expiry", "!", w)
		w.Close()
	})
}
