package localstore

import (
	"container/list"
	"context"

	"github.com/tierlock/tierlock"
)

// watch is one place in a key's queue.
type watch struct {
	space *Space
	name  tierlock.Name
	c     chan struct{} // of size 1: an unread signal stands for all later ones

	place *list.Element // guarded by space.mu; nil once closed
}

func (s *Space) watch(ctx context.Context, name tierlock.Name) (*watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.beginLocked(ctx); err != nil {
		return nil, err
	}
	queue := s.watches[name]
	if queue == nil {
		queue = list.New()
		s.watches[name] = queue
	}
	w := &watch{space: s, name: name, c: make(chan struct{}, 1)}
	w.place = queue.PushBack(w)
	s.armLocked() // the first watch of all starts the timer
	return w, nil
}

// C is described by [tierlock.Watch].
func (w *watch) C() <-chan struct{} { return w.c }

// Close is described by [tierlock.Watch].
func (w *watch) Close() {
	s := w.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.place == nil {
		return
	}
	queue := s.watches[w.name]
	queue.Remove(w.place)
	w.place = nil
	if queue.Len() == 0 {
		delete(s.watches, w.name)
		s.restLocked()
		return
	}
	// Only one watcher was told of the release. If it leaves without having
	// read that, or with the key still free because it read it and then gave
	// up, nobody else would ever be told. (Of a key that has just expired the
	// timer tells, which runs as long as there is a watch.)
	_, held := s.entries[w.name]
	if len(w.c) > 0 || !held {
		s.wakeLocked(w.name)
	}
}

// wakeLocked signals the first watcher in line that has no unread signal. The
// ones with an unread signal are passed over, not counted as told: a waiter
// that is slow to look must not stand between the key and the next.
func (s *Space) wakeLocked(name tierlock.Name) {
	queue := s.watches[name]
	if queue == nil {
		return
	}
	for place := queue.Front(); place != nil; place = place.Next() {
		select {
		case place.Value.(*watch).c <- struct{}{}:
			return
		default:
		}
	}
}

// restLocked stops the timer when the last watch is gone. One that has fired
// meanwhile waits for the mutex, finds no watch and does not run again.
func (s *Space) restLocked() {
	if len(s.watches) > 0 || s.armed == 0 {
		return
	}
	s.timer.Stop()
	s.armed = 0
}
