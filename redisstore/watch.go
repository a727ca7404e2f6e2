package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
)

// Watch implements [tierlock.Watcher]. All watches share one connection, apart
// from the one for calls, and all watches of a lock one subscription. The
// connection is made with the first watch and ends some seconds after the last.
//
// Watch returns when the server has confirmed the subscription, and otherwise,
// at the latest after CallTimeout, an error that wraps
// [tierlock.ErrUnavailable]. When the connection is lost, open watches stay: it
// is made again, and then each is signalled, since messages may have been
// missed.
func (s *Store) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	if err := checkName(name); err != nil {
		return nil, invalid("watch", name, err)
	}
	w, err := s.hub.watch(ctx, lockKey(name, wakeSuffix))
	if err != nil {
		// Whatever the reason and its class, polling still works.
		return nil, fmt.Errorf("redisstore: watch %s: %w: %w", name, tierlock.ErrUnavailable, &unclassed{err})
	}
	return w, nil
}

// hub distributes the messages of one pub/sub connection to watches. What is
// wanted stands in topics; the goroutine of run makes it so.
type hub struct {
	store *Store
	wake  chan struct{} // holds a value when something in here has changed
	pause *backoff.ExponentialBackOff

	mu      sync.Mutex
	topics  map[string]*topic // by channel, those with watches
	dirty   []string          // channels to subscribe or unsubscribe, perhaps
	running bool
	closed  bool
	pending <-chan *subscriber // a connection that is being taken; run's alone
	// down is why the last connection failed: until retryAt nothing is tried,
	// and no new watch is kept waiting.
	down    error
	retryAt time.Time
}

type topic struct {
	watches map[*watch]struct{}
	live    bool // the server has confirmed the subscription
}

// watch is one watch. All but the channels is guarded by hub.mu.
type watch struct {
	hub     *hub
	channel string
	c       chan struct{}
	ready   chan error // gets the one outcome of the subscription
	live    bool       // ready got nil
}

func (h *hub) init(s *Store) {
	h.store = s
	h.wake = make(chan struct{}, 1)
	h.topics = make(map[string]*topic)
	h.pause = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second),
		backoff.WithMaxElapsedTime(0))
}

var (
	errNoPush  = errors.New("push is switched off (Options.NoPush)")
	errCluster = errors.New("push is not available with a Cluster client")
)

func (h *hub) watch(ctx context.Context, channel string) (*watch, error) {
	if h.store.noPush {
		return nil, errNoPush
	}
	client, err := h.store.ready()
	if err != nil {
		return nil, err
	}
	if client.Mode() == rueidis.ClientModeCluster {
		return nil, errCluster
	}
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	w := &watch{hub: h, channel: channel, c: make(chan struct{}, 1), ready: make(chan error, 1)}
	if err := h.add(w); err != nil {
		return nil, err
	}
	limit := time.NewTimer(h.store.timeout)
	defer limit.Stop()
	select {
	case err = <-w.ready:
	case <-ctx.Done():
		err = ended(ctx)
	case <-limit.C:
		err = fmt.Errorf("no subscription within %v", h.store.timeout)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (h *hub) add(w *watch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	if h.down != nil && time.Now().Before(h.retryAt) {
		return h.down
	}
	t := h.topics[w.channel]
	if t == nil {
		t = &topic{watches: make(map[*watch]struct{})}
		h.topics[w.channel] = t
		h.dirty = append(h.dirty, w.channel)
	}
	t.watches[w] = struct{}{}
	if t.live {
		w.live = true
		w.ready <- nil
		return nil
	}
	if !h.running {
		if !h.store.spawn(h.run) {
			delete(h.topics, w.channel)
			return errClosed
		}
		h.running = true
	}
	h.nudge()
	return nil
}

// C implements [tierlock.Watch].
func (w *watch) C() <-chan struct{} { return w.c }

// Close implements [tierlock.Watch]. It does not wait for the server.
func (w *watch) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[w.channel]
	if t == nil {
		return
	}
	if _, open := t.watches[w]; !open {
		return
	}
	delete(t.watches, w)
	if len(t.watches) == 0 {
		delete(h.topics, w.channel)
		h.dirty = append(h.dirty, w.channel)
		h.nudge()
	}
}

// nudge never blocks: one value in wake is enough.
func (h *hub) nudge() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (w *watch) signal() {
	select {
	case w.c <- struct{}{}:
	default: // signals coalesce
	}
}

// message and confirmed are called by the client's reader: they must not block.

func (h *hub) message(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		for w := range t.watches {
			w.signal()
		}
	}
}

func (h *hub) confirmed(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pause.Reset()
	h.confirmedLocked(channel)
}

// confirmedLocked makes a topic live. A watch that was live before has lived
// through a gap.
func (h *hub) confirmedLocked(channel string) {
	t := h.topics[channel]
	if t == nil {
		return // its last watch is closed; it is in dirty again
	}
	t.live = true
	for w := range t.watches {
		if w.live {
			w.signal()
			continue
		}
		w.live = true
		w.ready <- nil
	}
}

// refused ends the watches of a channel that the server does not allow. Those
// that were live, before the permission was taken away, get a last signal: they
// stay silent, and their waiters poll.
func (h *hub) refused(channel string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		return
	}
	delete(h.topics, channel)
	for w := range t.watches {
		if w.live {
			w.signal()
		} else {
			w.ready <- err
		}
	}
}

// disconnected makes every topic wanted anew, ends the waits for a first
// subscription, and, after a failure, holds off the next connection.
func (h *hub) disconnected(err error) (pause time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dirty = h.dirty[:0]
	for channel, t := range h.topics {
		t.live = false
		for w := range t.watches {
			if !w.live {
				w.ready <- err
				delete(t.watches, w)
			}
		}
		if len(t.watches) == 0 {
			delete(h.topics, channel)
			continue
		}
		h.dirty = append(h.dirty, channel)
	}
	pause = h.pause.NextBackOff()
	h.down, h.retryAt = err, time.Now().Add(pause)
	return pause
}

// connected takes back what disconnected said. The pause starts over only with
// a confirmed subscription: a server that accepts connections may refuse it.
func (h *hub) connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = nil
}

// finished ends run if nothing is wanted, or the store is closed. It is one
// step with the look at topics: a watch that comes later starts run again.
func (h *hub) finished() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) > 0 && !h.closed {
		return false
	}
	h.running = false
	h.dirty = h.dirty[:0]
	return true
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for channel, t := range h.topics {
		for w := range t.watches {
			if !w.live {
				w.ready <- errClosed
			}
		}
		delete(h.topics, channel)
	}
	h.nudge()
}
