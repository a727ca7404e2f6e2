package watchdog

import (
	"container/heap"
	"time"
)

const (
	// tick is how often the clocks are compared at least: the timer stands still
	// while the machine is suspended.
	tick = 250 * time.Millisecond
	// maxEarly bounds how much early a renewal is taken along when others are
	// due: at most this, and at most a hundredth of its TTL. Leases then
	// gather in batches instead of being sent one by one.
	maxEarly = 50 * time.Millisecond
)

// look is what the one timer calls: it looks at the leases whose time has come,
// ends belief, queues renewals and sets the timer anew. It never waits for a
// renewal. One look is under way at a time.
//
// Where no lease is watched any more the timer runs out and is not set anew, so
// that a process that has one lock at a time wakes nobody at each unlock.
func (w *Watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looking || w.closed.Load() {
		return
	}
	w.looking = true
	w.wg.Add(1) // closed is set under mu, so Close waits for this
	defer w.wg.Done()
	defer func() { w.looking = false }()
	w.set = false
	for {
		now := Now()
		w.due = w.popDueLocked(w.due[:0], now)
		owed := w.owed
		w.owed = nil
		if len(w.due) == 0 && len(owed) == 0 {
			if w.count > 0 && !w.closed.Load() {
				w.setLocked(now)
			}
			return
		}
		w.mu.Unlock()
		w.lookAt(w.due, owed, now)
		clear(w.due)
		w.mu.Lock()
	}
}

// setLocked sets the timer to when the next lease is due.
func (w *Watchdog) setLocked(now Instant) {
	sleep := tick
	if len(w.wakes) > 0 {
		sleep = min(sleep, w.wakes[0].wake.Sub(now))
	}
	w.set, w.sleeping = true, now.add(sleep)
	if w.timer == nil {
		w.timer = time.AfterFunc(sleep, w.look)
	} else {
		w.timer.Reset(sleep)
	}
}

// lookAt handles leases whose time has come. All are queued before the first
// batch is made, so that after a late wake-up the batches go by the end of
// belief, and are full; callbacks come last.
func (w *Watchdog) lookAt(due, owed []*Lease, now Instant) {
	ended, overdue := owed, []*Lease(nil)
	for _, l := range due {
		e, o := l.wakeUp(now)
		if e {
			ended = append(ended, l)
		}
		if o {
			overdue = append(overdue, l)
		}
	}
	w.mu.Lock()
	w.spawnLocked()
	w.mu.Unlock()
	for _, l := range ended {
		l.tellEnd()
	}
	for _, l := range overdue {
		l.spec.OnOverdue()
	}
}

// wakeUp does what is to be done with the lease at now.
func (l *Lease) wakeUp(now Instant) (ended, overdue bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expireLocked(now) {
		l.w.forget(l, false)
		return true, false
	}
	if l.stopped || l.ended {
		return false, false
	}
	if l.awaitsOverdueLocked() && !now.before(l.overdueLocked()) {
		l.overdue = true
		overdue = true
	}
	if l.renewableLocked() && l.call == nil && l.due.Sub(now) <= early(l) {
		l.queued = true
	}
	l.placeLocked()
	return false, overdue
}

func (l *Lease) awaitsOverdueLocked() bool {
	return l.spec.Overdue > 0 && l.spec.OnOverdue != nil && !l.overdue
}

func (l *Lease) overdueLocked() Instant { return l.spec.Sent.add(l.spec.Overdue) }

// tellEnd calls OnEnd. Only whoever ended the belief, or took the lease from
// Watchdog.owed, may; end is fixed by then.
func (l *Lease) tellEnd() {
	if l.spec.OnEnd != nil {
		l.spec.OnEnd(l.end)
	}
}

// placeLocked tells the Watchdog when to look at the lease next and whether it
// waits for a batch. It runs under the lease's mutex from the reading of the
// state to the placing, so that a stale place never replaces a newer one.
func (l *Lease) placeLocked() {
	until := l.untilLocked()
	wake, renewing := until, false
	if l.renewableLocked() && l.call == nil && !l.queued && l.due.before(wake) {
		wake, renewing = l.due, true
	}
	if l.awaitsOverdueLocked() && l.overdueLocked().before(wake) {
		wake, renewing = l.overdueLocked(), false
	}

	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !l.watched {
		return
	}
	l.wake, l.renewing, l.until = wake, renewing, until
	if l.wakeAt < 0 {
		heap.Push(&w.wakes, l)
	} else {
		heap.Fix(&w.wakes, l.wakeAt)
	}
	switch {
	case l.queued && l.readyAt < 0:
		heap.Push(&w.ready, l)
	case l.queued:
		heap.Fix(&w.ready, l.readyAt)
	case l.readyAt >= 0:
		heap.Remove(&w.ready, l.readyAt)
	}
	if wake.before(w.sleeping) {
		w.lookNowLocked()
	}
}

// forget ends the watch; with owe the next look has to call OnEnd.
func (w *Watchdog) forget(l *Lease, owe bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !l.watched {
		return
	}
	l.watched = false
	w.count--
	if l.wakeAt >= 0 {
		heap.Remove(&w.wakes, l.wakeAt)
	}
	if l.readyAt >= 0 {
		heap.Remove(&w.ready, l.readyAt)
	}
	if owe {
		w.owed = append(w.owed, l)
	}
	if owe {
		w.lookNowLocked()
	}
}

// popDueLocked takes out the leases whose time has come and, if there are any,
// those whose renewal is due so soon that it may as well go along.
func (w *Watchdog) popDueLocked(due []*Lease, now Instant) []*Lease {
	for len(w.wakes) > 0 {
		l := w.wakes[0]
		wait := l.wake.Sub(now)
		if wait > 0 && (len(due) == 0 || !l.renewing || wait > early(l)) {
			break
		}
		due = append(due, heap.Pop(&w.wakes).(*Lease))
	}
	return due
}

func early(l *Lease) time.Duration { return min(maxEarly, l.spec.TTL/100) }

// lookNowLocked makes a look happen at once, or go on where one is under way: it
// ends only when there is nothing to do.
func (w *Watchdog) lookNowLocked() {
	if w.looking || w.timer == nil {
		return
	}
	w.set, w.sleeping = true, Instant{}
	w.timer.Reset(0)
}

// wakeHeap orders leases by when to look at them.
type wakeHeap []*Lease

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].wake.before(h[j].wake) }
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].wakeAt, h[j].wakeAt = i, j
}

func (h *wakeHeap) Push(x any) {
	l := x.(*Lease)
	l.wakeAt = len(*h)
	*h = append(*h, l)
}

func (h *wakeHeap) Pop() any {
	n := len(*h) - 1
	l := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	l.wakeAt = -1
	return l
}

// readyHeap orders leases that wait for a batch by when belief in them ends.
type readyHeap []*Lease

func (h readyHeap) Len() int           { return len(h) }
func (h readyHeap) Less(i, j int) bool { return h[i].until.before(h[j].until) }
func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].readyAt, h[j].readyAt = i, j
}

func (h *readyHeap) Push(x any) {
	l := x.(*Lease)
	l.readyAt = len(*h)
	*h = append(*h, l)
}

func (h *readyHeap) Pop() any {
	n := len(*h) - 1
	l := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	l.readyAt = -1
	return l
}
