package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// pushes says whether there are watches to check. Where the harness says that
// there are none, it checks that.
func (b *bench) pushes() bool {
	b.Helper()
	w, ok := b.a.Store.(tierlock.Watcher)
	switch {
	case !ok:
		b.Logf("the store is no Watcher: its waiters poll")
	case b.h.NoPush:
		b.in(func(ctx context.Context) {
			_, err := w.Watch(ctx, b.name("no push"))
			b.class("Watch without push", err, tierlock.ErrUnavailable)
		})
		return false
	}
	return ok
}

func (b *bench) watch(s *side, name tierlock.Name) tierlock.Watch {
	b.Helper()
	var w tierlock.Watch
	var err error
	b.in(func(ctx context.Context) { w, err = s.Store.(tierlock.Watcher).Watch(ctx, name) })
	if err != nil {
		b.Fatalf("Watch %s: got error %v, want a live watch", name, err)
	}
	b.watches = append(b.watches, w)
	return w
}

// closeWatches closes once more what a check has closed already, which has to
// do nothing.
func (b *bench) closeWatches() {
	for _, w := range b.watches {
		w.Close()
	}
}

// next waits for a signal for up to d and says what came.
func next(w tierlock.Watch, d time.Duration) (signal, open bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case _, open = <-w.C():
		return open, open
	case <-timer.C:
		return false, true
	}
}

func (b *bench) signalled(w tierlock.Watch, after string) {
	b.Helper()
	if signal, open := next(w, patience); !open {
		b.Fatalf("watch: C was closed after %s, want a value and C open", after)
	} else if !signal {
		b.Fatalf("watch: no signal after %s", after)
	}
}

// settle takes the signals that a watch may give for earlier events.
func settle(w tierlock.Watch) {
	for range 20 {
		if signal, _ := next(w, 100*time.Millisecond); !signal {
			return
		}
	}
}

func watchSignals(b *bench) {
	if !b.pushes() {
		return
	}
	for i, sides := range [][2]*side{{b.a, b.b}, {b.b, b.a}, {b.a, b.a}} {
		name, owner := b.name(fmt.Sprint("42/", i)), sides[0]
		h := b.lock(owner, name, long)
		w := b.watch(sides[1], name)
		b.release(owner, h.giveUp(0), tierlock.LeaseOwned)
		b.signalled(w, "a release")

		settle(w)
		h = b.lock(owner, name, long)
		b.release(owner, h.giveUp(100*time.Millisecond), tierlock.LeaseOwned)
		b.signalled(w, "a release with Keep")
		b.freeWithin(owner, name, patience)

		settle(w)
		h = b.grant(owner, b.explicit(owner, name, "job", long))
		b.release(owner, h.giveUp(0), tierlock.LeaseOwned)
		b.signalled(w, "the release of an explicit holder")

		// Signals nobody reads neither block a release nor get lost.
		settle(w)
		for range 20 {
			h = b.lock(owner, name, long)
			b.release(owner, h.giveUp(0), tierlock.LeaseOwned)
		}
		b.signalled(w, "20 releases")
		w.Close()
	}
}

// watchLive: from the return of Watch on, no release is missed. scenario 30
func watchLive(b *bench) {
	if !b.pushes() {
		return
	}
	for i := range 50 {
		name, owner, waiter := b.name(fmt.Sprint("42/", i%5)), b.side(i), b.side(i+1)
		h := b.lock(owner, name, long)
		w := b.watch(waiter, name)
		b.release(owner, h.giveUp(0), tierlock.LeaseOwned)
		b.signalled(w, "a release right after Watch returned")
		h = b.lock(waiter, name, long) // what the signal is for
		w.Close()
		b.release(waiter, h.giveUp(0), tierlock.LeaseOwned)
	}
}

func watchOtherKeys(b *bench) {
	if !b.pushes() {
		return
	}
	name := b.name("42")
	w := b.watch(b.a, name)
	settle(w)
	other := name
	other.Namespace += ".x"
	resource := name
	resource.Resource += "x"
	for i, name := range []tierlock.Name{b.name("4"), b.name("421"), b.name("42 "), b.name("{42}"), b.name("*"), other, resource} {
		h := b.lock(b.side(i), name, long)
		b.release(b.side(i), h.giveUp(0), tierlock.LeaseOwned)
	}
	if signal, open := next(w, 300*time.Millisecond); signal || !open {
		b.Fatalf("watch of %s: got a signal, or C closed, after releases of other keys only", name)
	}
	h := b.lock(b.b, name, long)
	b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
	b.signalled(w, "a release of its key after those of others")
}

// watchPassesOn: a store may wake one watcher at a time; then one that leaves
// must not take the wake-up along.
func watchPassesOn(b *bench) {
	if !b.pushes() {
		return
	}
	for i, read := range []bool{false, true} {
		name := b.name(fmt.Sprint("42/", i))
		h := b.lock(b.a, name, long)
		var watches []tierlock.Watch
		for j := range 6 {
			watches = append(watches, b.watch(b.side(j/2), name))
		}
		b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
		// All but the last leave: without having looked, or having looked
		// and thought better of it.
		for _, w := range watches[:len(watches)-1] {
			if read {
				b.signalled(w, "a release, with watchers before it that read their signal and left")
			}
			w.Close()
		}
		b.signalled(watches[len(watches)-1], "a release, with watchers before it that left without the key")
	}
}

func watchClose(b *bench) {
	if !b.pushes() {
		return
	}
	name := b.name("42")
	h := b.lock(b.a, name, long)
	w, stays := b.watch(b.b, name), b.watch(b.b, name)
	b.atOnce(8, func(int, *side) { w.Close() })
	w.Close()
	b.release(b.a, h.giveUp(0), tierlock.LeaseOwned) // must not panic on the closed one
	b.signalled(stays, "a release, with another watch of the key closed eight times")
	w.Close()

	h = b.lock(b.a, name, long)
	again := b.watch(b.b, name)
	stays.Close()
	b.release(b.a, h.giveUp(0), tierlock.LeaseOwned)
	b.signalled(again, "a release, on a watch opened after others were closed")
	again.Close()
}

func watchMany(b *bench) {
	if !b.pushes() {
		return
	}
	const watchers, keys = 200, 20
	holds := make([]hold, keys)
	for i := range holds {
		holds[i] = b.lock(b.side(i), b.name(fmt.Sprint("42/", i)), long)
	}
	// All are live before the first release; each leaves once signalled.
	var wg, live sync.WaitGroup
	live.Add(watchers)
	for i := range watchers {
		wg.Go(func() {
			ctx, cancel := b.ctx()
			defer cancel()
			w, err := b.side(i/keys).Store.(tierlock.Watcher).Watch(ctx, holds[i%keys].req.Name)
			live.Done()
			if err != nil {
				b.Errorf("Watch, 200 at once: got error %v, want a live watch", err)
				return
			}
			defer w.Close()
			if signal, open := next(w, 2*patience); !signal || !open {
				b.Errorf("watch of %s, one of 200: no signal after the release (C open: %v)", holds[i%keys].req.Name, open)
			}
		})
	}
	live.Wait()
	for i, h := range holds {
		b.release(b.side(i), h.giveUp(0), tierlock.LeaseOwned)
	}
	wg.Wait()

	// Opened and closed while keys are released, and all is well afterwards.
	for i := range watchers {
		wg.Go(func() {
			ctx, cancel := b.ctx()
			defer cancel()
			w, err := b.side(i).Store.(tierlock.Watcher).Watch(ctx, holds[i%keys].req.Name)
			if err != nil {
				b.Errorf("Watch, opened and closed 200 times at once: got error %v, want a live watch", err)
				return
			}
			w.Close()
		})
	}
	for i, h := range holds {
		h = b.lock(b.side(i), h.req.Name, long)
		b.release(b.side(i), h.giveUp(0), tierlock.LeaseOwned)
	}
	wg.Wait()
	for i, h := range holds {
		w := b.watch(b.side(i), h.req.Name)
		h = b.lock(b.side(i+1), h.req.Name, long)
		b.release(b.side(i+1), h.giveUp(0), tierlock.LeaseOwned)
		b.signalled(w, "a release, after 200 watches were opened and closed")
		w.Close()
	}
}
