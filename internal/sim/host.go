package sim

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// host is one server process with its data: what a Redis or a MySQL has one of,
// and after a failover another.
type host struct {
	mu          sync.Mutex
	clock       Clock
	incarnation string // of its data; MySQL: the server's identity
	locks       table
	arbiter     map[string]*namespace // MySQL's
	epochs      map[string]uint16     // of namespaces, as probes have named them
	unsafe      string                // what it says of its settings
	journal     journal
	dead        bool     // executes nothing any more
	readOnly    bool     // writes nothing
	paused      bool     // executes later, what …
	queue       []func() // … came meanwhile

	watches map[tierlock.Name]map[*watch]struct{}
}

func newHost(incarnation string, forgets bool, b Broken) *host {
	h := &host{
		clock: newClock(), incarnation: incarnation,
		arbiter: make(map[string]*namespace), epochs: make(map[string]uint16), watches: make(map[tierlock.Name]map[*watch]struct{}),
	}
	h.locks = table{rows: make(map[tierlock.Name]row), journal: &h.journal, forgets: forgets, broken: b}
	return h
}

// deliver runs a request under the mutex, now or when the pause is over. It must
// not be called with the mutex held.
func (h *host) deliver(exec func()) {
	h.mu.Lock()
	switch {
	case h.dead:
		h.mu.Unlock()
	case h.paused:
		h.queue = append(h.queue, exec)
		h.mu.Unlock()
	default:
		h.mu.Unlock()
		exec()
	}
}

func (h *host) pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = true
}

// resume executes what has come in the pause, in that order, before anything else
// that comes: for as long as the queue is not empty the pause is not over.
func (h *host) resume() {
	for {
		h.mu.Lock()
		queue := h.queue
		h.queue = nil
		if len(queue) == 0 || h.dead {
			h.paused = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		for _, exec := range queue {
			exec()
		}
	}
}

// noteLocked notes the epoch of a probe, and gives the one that is noted then.
func (h *host) noteLocked(req tierlock.ProbeRequest) uint16 {
	b := h.locks.broken
	if is := h.epochs[req.Namespace]; req.Epoch > is || b.ProbeLowers && req.Epoch != 0 {
		h.epochs[req.Namespace] = req.Epoch
	}
	if b.ProbeForgets {
		return 0
	}
	return h.epochs[req.Namespace]
}

func (h *host) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead, h.queue = true, nil
}

func (h *host) setClock(step time.Duration, ppm int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock.set(step, ppm)
}

func (h *host) step(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock.set(d, h.clock.ppm)
}

func (h *host) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clock.now()
}

func (h *host) held() []tierlock.Name {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locks.held(h.clock.now())
}

// copyLocked is a host with the same data, but for what is younger than loss.
func (h *host) copyLocked(incarnation string, loss time.Duration) *host {
	c := newHost(incarnation, h.locks.forgets, h.locks.broken)
	c.clock = h.clock
	maps.Copy(c.locks.rows, h.locks.rows)
	maps.Copy(c.epochs, h.epochs)
	c.unsafe = h.unsafe
	for name, ns := range h.arbiter {
		c.arbiter[name] = &namespace{mode: ns.mode, members: maps.Clone(ns.members), log: ns.log}
	}
	now, kept := time.Now(), h.journal.changes
	for n := len(kept); n > 0 && now.Sub(kept[n-1].at) < loss; n-- {
		kept[n-1].undo(c)
		kept = kept[:n-1]
	}
	c.journal.changes = slices.Clone(kept)
	return c
}
