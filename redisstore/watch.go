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
	"github.com/tierlock/tierlock/internal/contract"
)

// Watch implements [tierlock.Watcher]. All watches share one connection, apart
// from the one for calls (with a Cluster client, one for each node that serves a
// watched lock), and all watches of a lock one subscription. A connection is
// made with its first watch and ends some seconds after its last.
//
// Watch returns when the server has confirmed the subscription, and otherwise,
// at the latest after CallTimeout, an error that wraps
// [tierlock.ErrUnavailable]. Open watches stay when the connection is lost, the
// primary changes or the lock's slot moves: they are subscribed again, and then
// each is signalled, since messages may have been missed.
func (s *Store) Watch(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
	if err := contract.CheckName(name); err != nil {
		return nil, invalid("watch", name, err)
	}
	w, err := s.hub.watch(ctx, lockKey(name, wakeSuffix))
	if err != nil {
		// Whatever the reason and its class, polling still works.
		return nil, fmt.Errorf("redisstore: watch %s: %w: %w", name, tierlock.ErrUnavailable, contract.Unclass(err))
	}
	return w, nil
}

// hub distributes the messages of pub/sub connections to watches. What is
// wanted stands in topics; each link's run makes its share so.
type hub struct {
	store *Store
	guide guide // knows where topics belong, with a Cluster client

	mu     sync.Mutex
	topics map[string]*topic // by channel, those with watches
	links  map[string]*link  // by node; one, "", unless the client is a Cluster's
	closed bool
}

type topic struct {
	watches map[*watch]struct{}
	link    *link // nil while it is not known where the topic belongs
	live    bool  // the server has confirmed the subscription to link
}

// link is what leads to one node: its connection, and what it has to do. What
// stands below wake is guarded by hub.mu, but for pending.
type link struct {
	hub  *hub
	node string        // address of a Cluster's node, "" for the client's only one
	wake chan struct{} // holds a value when something has changed

	dirty   []string // channels to subscribe or unsubscribe, perhaps
	ended   []string // channels that the server says are not subscribed any more
	running bool
	// down is why the last connection failed: until retryAt nothing is tried,
	// and no new watch is kept waiting.
	down    error
	retryAt time.Time
	pause   *backoff.ExponentialBackOff

	pending <-chan *subscriber // a connection that is being taken; run's alone
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
	h.topics = make(map[string]*topic)
	h.links = make(map[string]*link)
}

// linkLocked is the link to a node.
func (h *hub) linkLocked(node string) *link {
	l := h.links[node]
	if l == nil {
		l = &link{hub: h, node: node, wake: make(chan struct{}, 1), pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(20*time.Millisecond),
			backoff.WithMaxInterval(time.Second),
			backoff.WithMaxElapsedTime(0))}
		h.links[node] = l
	}
	return l
}

var errNoPush = errors.New("push is switched off (Options.NoPush)")

func (h *hub) watch(ctx context.Context, channel string) (*watch, error) {
	if h.store.noPush {
		return nil, errNoPush
	}
	client, err := h.store.ready()
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contract.Ended(ctx)
	}
	w := &watch{hub: h, channel: channel, c: make(chan struct{}, 1), ready: make(chan error, 1)}
	if err := h.add(w, client.Mode() == rueidis.ClientModeCluster); err != nil {
		return nil, err
	}
	limit := time.NewTimer(h.store.timeout)
	defer limit.Stop()
	select {
	case err = <-w.ready:
	case <-ctx.Done():
		err = contract.Ended(ctx)
	case <-limit.C:
		err = fmt.Errorf("no subscription within %v", h.store.timeout)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (h *hub) add(w *watch, cluster bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	t := h.topics[w.channel]
	known := t != nil
	if !known {
		t = &topic{watches: make(map[*watch]struct{})}
	}
	l := t.link
	switch {
	case known:
	case cluster:
		l = h.guide.linkLocked(h, w.channel)
	default:
		l = h.linkLocked("")
	}
	if err := h.downLocked(l); err != nil {
		return err
	}
	h.topics[w.channel] = t
	t.watches[w] = struct{}{}
	if t.live {
		w.live = true
		w.ready <- nil
		return nil
	}
	if l != t.link {
		h.attachLocked(w.channel, t, l)
	}
	return nil
}

// downLocked is why a watch that belongs to l need not wait.
func (h *hub) downLocked(l *link) error {
	err, until := h.guide.down, h.guide.retryAt
	if l != nil {
		err, until = l.down, l.retryAt
	}
	if time.Now().Before(until) {
		return err
	}
	return nil
}

// attachLocked has l subscribe to a topic.
func (h *hub) attachLocked(channel string, t *topic, l *link) {
	t.link, t.live = l, false
	l.dirty = append(l.dirty, channel)
	if !l.running {
		l.running = h.store.spawn(l.run) // not if the store is being closed
	}
	l.nudge()
}

// detachLocked has a topic's link unsubscribe from it.
func (h *hub) detachLocked(channel string, t *topic) {
	if l := t.link; l != nil {
		l.dirty = append(l.dirty, channel)
		l.nudge()
	}
	t.link, t.live = nil, false
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
		h.detachLocked(w.channel, t)
	}
}

// nudge never blocks: one value in wake is enough.
func (l *link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (w *watch) signal() {
	select {
	case w.c <- struct{}{}:
	default: // signals coalesce
	}
}

// message, confirmed and over are called by the client's reader: they must not
// block.

func (h *hub) message(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		for w := range t.watches {
			w.signal()
		}
	}
}

func (l *link) confirmed(channel string) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.pause.Reset()
	l.confirmedLocked(channel)
}

// confirmedLocked makes a topic live. A watch that was live before has lived
// through a gap.
func (l *link) confirmedLocked(channel string) {
	t := l.hub.topics[channel]
	if t == nil || t.link != l {
		return // its last watch is closed, or it went elsewhere; it is in dirty again
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

// over notes the end of a subscription. Where nobody asked for it, the slot has
// moved. Where we did, the topic is gone or, watched again since, not live.
func (l *link) over(channel string) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.ended = append(l.ended, channel)
	l.nudge()
	if t := h.topics[channel]; t != nil && t.live {
		l.misplacedLocked(channel, l.node)
	}
}

// misplaced says that a topic does not belong to l, or no longer, and which node
// to ask where it belongs.
func (l *link) misplaced(channel, hint string) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.misplacedLocked(channel, hint)
}

func (l *link) misplacedLocked(channel, hint string) {
	if t := l.hub.topics[channel]; t != nil && t.link == l {
		t.link, t.live = nil, false
		l.hub.guide.lookLocked(l.hub, hint)
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

// failLocked ends the waits of a topic for its first subscription, and reports
// whether it still has watches.
func (h *hub) failLocked(channel string, t *topic, err error) bool {
	for w := range t.watches {
		if !w.live {
			w.ready <- err
			delete(t.watches, w)
		}
	}
	if len(t.watches) == 0 {
		delete(h.topics, channel)
		return false
	}
	return true
}

// disconnected makes every topic of the link wanted anew, ends the waits for a
// first subscription, and, after a failure, holds off the next connection.
func (l *link) disconnected(err error) (pause time.Duration) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.dirty, l.ended = l.dirty[:0], l.ended[:0]
	for channel, t := range h.topics {
		if t.link != l {
			continue
		}
		t.live = false
		if h.failLocked(channel, t, err) {
			l.dirty = append(l.dirty, channel)
		}
	}
	if l.node != "" && len(l.dirty) > 0 {
		h.guide.lookLocked(h, "") // a replica may have taken over
	}
	pause = l.pause.NextBackOff()
	l.down, l.retryAt = err, time.Now().Add(pause)
	return pause
}

// connected takes back what disconnected said. The pause starts over only with
// a confirmed subscription: a server that accepts connections may refuse it.
func (l *link) connected() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.down = nil
}

// finished ends run if nothing is wanted, or the store is closed. It is one
// step with the look at topics: a watch that comes later starts run again.
func (l *link) finished() bool {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		for _, t := range h.topics {
			if t.link == l {
				return false
			}
		}
	}
	l.running = false
	l.dirty, l.ended = l.dirty[:0], l.ended[:0]
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
	for _, l := range h.links {
		l.nudge()
	}
}
