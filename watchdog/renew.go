package watchdog

import (
	"container/heap"
	"context"
	"fmt"
	"time"
)

const (
	maxWorkers = 8   // batches in flight
	maxBatch   = 256 // leases in one of them
)

// call is one call of Config.Renew.
type call struct {
	sent  Instant       // read before the batch was made, so before it is sent
	limit time.Duration // deadline of the call, counted from sent
	done  chan struct{} // closed when all answers have been taken in
}

func newCall(sent Instant, limit time.Duration) *call {
	return &call{sent: sent, limit: limit, done: make(chan struct{})}
}

// spawnLocked starts a worker if there is something to do for one more. Each
// worker that has taken a batch does the same, so their number follows the
// load.
func (w *Watchdog) spawnLocked() {
	if len(w.ready) > 0 && w.workers < maxWorkers && !w.closed.Load() {
		w.workers++
		w.wg.Add(1)
		go w.work()
	}
}

// work sends batches until none is left.
func (w *Watchdog) work() {
	defer w.wg.Done()
	for {
		leases, c := w.takeBatch()
		if c == nil {
			return
		}
		batch := make([]Renewal, 0, len(leases))
		for _, l := range leases {
			l.mu.Lock()
			if r, ok := l.beginLocked(c); ok {
				batch = append(batch, r)
			}
			l.mu.Unlock()
		}
		if len(batch) > 0 {
			w.send(c, batch)
		}
	}
}

// takeBatch takes leases from the queue, soonest end of belief first. A lease
// whose belief ends before a full CallTimeout shortens the call, so it is
// joined only by others that have hardly more left than itself. One that is not
// alone shortens it by a quarter more: another of the batch may keep the answers
// of all until the call ends, and by the end of belief they are worth nothing.
func (w *Watchdog) takeBatch() ([]*Lease, *call) {
	sent := Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	var batch []*Lease
	limit, shared := w.cfg.CallTimeout, w.cfg.CallTimeout
	for len(w.ready) > 0 && len(batch) < maxBatch && !w.closed.Load() {
		left := w.ready[0].until.Sub(sent)
		if len(batch) == 0 && left > 0 {
			limit = min(limit, left)
			shared = min(limit, left-left/4)
		}
		if limit < w.cfg.CallTimeout && (left >= w.cfg.CallTimeout || left > limit+limit/4) {
			break
		}
		l := heap.Pop(&w.ready).(*Lease)
		if left > 0 { // else a look is about to end it
			batch = append(batch, l)
		}
	}
	if len(batch) == 0 {
		w.workers--
		return nil, nil
	}
	if len(batch) > 1 {
		limit = shared
	}
	w.spawnLocked()
	return batch, newCall(sent, limit)
}

// goSend sends a batch in a goroutine of its own; false after Close.
func (w *Watchdog) goSend(c *call, batch []Renewal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return false
	}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		w.send(c, batch)
	}()
	return true
}

// send calls Renew and takes in the answers.
func (w *Watchdog) send(c *call, batch []Renewal) {
	errs := w.callRenew(c, batch)
	verdicts := make([]verdict, len(batch))
	for i, r := range batch {
		l := r.Lease
		l.mu.Lock()
		v := l.answerLocked(c, r.TTL, errs[i])
		if v.ended {
			w.forget(l, false)
		} else {
			l.placeLocked()
		}
		l.mu.Unlock()
		verdicts[i] = v
	}
	// Before the callbacks: a Stop waits for the renewal, not for those.
	close(c.done)
	for i, v := range verdicts {
		l := batch[i].Lease
		if v.ended {
			l.tellEnd()
		}
		if v.renewed && l.spec.OnRenewed != nil {
			l.spec.OnRenewed(v.Renewed)
		}
	}
}

func (w *Watchdog) callRenew(c *call, batch []Renewal) []error {
	ctx, cancel := context.WithDeadline(w.running, c.sent.t.Add(c.limit))
	defer cancel()
	// The process may have been stopped since the batch was made, or the
	// machine suspended, which ctx would not notice: then belief may be over,
	// and a lease that somebody was told is lost must not be renewed.
	var errs []error
	err := errUnsent
	if Since(c.sent) < c.limit {
		errs = w.cfg.Renew(ctx, batch)
		err = fmt.Errorf("watchdog: Renew gave %d results for %d renewals", len(errs), len(batch))
	}
	if len(errs) == len(batch) {
		return errs
	}
	errs = make([]error, len(batch))
	for i := range errs {
		errs[i] = err
	}
	return errs
}
