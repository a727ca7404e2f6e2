package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tierlock/tierlock"
)

// watch is one live watch.
type watch struct {
	store *RedisStore
	name  tierlock.Name
	c     chan struct{}

	mu     sync.Mutex // outside of a host's and of the store's
	host   *host      // where it is registered; nil: not yet
	closed bool
}

// Watch is described by [tierlock.Watcher].
func (s *RedisStore) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	w := &watch{store: s, name: name, c: make(chan struct{}, 1)}
	h := s.at()
	_, err := call(ctx, s.link, h.deliver, func() struct{} {
		w.register(h)
		return struct{}{}
	})
	if err != nil {
		w.Close() // it may be registered, or will be
		return nil, fmt.Errorf("simredis: watch %s: %w", name, err)
	}
	return w, nil
}

// register begins to watch at a host, or goes over to it.
func (w *watch) register(h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.unregisterLocked()
	w.host = h
	h.mu.Lock()
	of := h.watches[w.name]
	if of == nil {
		of = make(map[*watch]struct{})
		h.watches[w.name] = of
	}
	of[w] = struct{}{}
	h.mu.Unlock()
	w.store.mu.Lock()
	w.store.watches[w] = struct{}{}
	w.store.mu.Unlock()
}

func (w *watch) unregisterLocked() {
	if w.host == nil {
		return
	}
	w.host.mu.Lock()
	if of := w.host.watches[w.name]; of != nil {
		delete(of, w)
		if len(of) == 0 {
			delete(w.host.watches, w.name)
		}
	}
	w.host.mu.Unlock()
	w.store.mu.Lock()
	delete(w.store.watches, w)
	w.store.mu.Unlock()
}

// C is described by [tierlock.Watch].
func (w *watch) C() <-chan struct{} { return w.c }

// Close is described by [tierlock.Watch].
func (w *watch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.unregisterLocked()
}

// wakeLocked signals whoever watches a key. A message takes its time; one that a
// cut way swallows is made up for when the way is whole again.
func (h *host) wakeLocked(name tierlock.Name) {
	for w := range h.watches[name] {
		l := w.store.link
		l.mu.Lock()
		f := l.faults
		l.mu.Unlock()
		if !f.CutReplies {
			l.after(f.Delay, w.signal)
		}
	}
}

func (w *watch) signal() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// rewatch is what a client does with its watches after it was disconnected: it
// watches again, and signals, since it may have missed something.
func (s *RedisStore) rewatch(at *host) {
	s.mu.Lock()
	watches := slices.Collect(maps.Keys(s.watches))
	s.mu.Unlock()
	for _, w := range watches {
		w.register(at)
		w.signal()
	}
}

// SetFaults changes what happens to later calls, and to the replies of earlier ones
// where a way is cut.
func (s *RedisStore) SetFaults(f Faults) {
	was := s.repliesCut()
	s.link.SetFaults(f)
	if was && !f.CutReplies {
		s.rewatch(s.at())
	}
}
