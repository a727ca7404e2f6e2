package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	// hubIdle is how long the connection outlives its last watch.
	hubIdle = 3 * time.Second
	// hubPatience is how long a command of the connection may take. It is
	// longer than a call: nobody waits for it but watches, each with a limit
	// of its own, and giving up costs all open ones their subscription.
	hubPatience = 5 * time.Second
	// maxSubscribe is how many channels go into one command.
	maxSubscribe = 512
)

// run keeps the pub/sub connection for as long as there are watches.
func (h *hub) run() {
	for {
		conn, err := h.connect()
		if err == nil {
			h.connected()
			err = conn.serve()
			conn.close()
		}
		if err == nil { // idle or closed
			if h.finished() {
				return
			}
			continue // a watch came in between
		}
		pause := time.NewTimer(h.disconnected(err))
		if h.finished() {
			pause.Stop()
			return
		}
		select {
		case <-pause.C:
		case <-h.store.quit:
			pause.Stop()
		}
	}
}

// subscriber is the pub/sub connection. It has one command under way at a
// time, so that a confirmation cannot belong to an earlier subscription of the
// same channel.
type subscriber struct {
	hub       *hub
	client    rueidis.DedicatedClient
	giveBack  func()
	sharded   bool
	broken    <-chan error
	confirmed chan struct{} // gets a value per confirmed channel

	once sync.Once
}

// connect takes a connection of its own from the client and asks the server
// whether it has sharded channels, by the script that releases agree with.
func (h *hub) connect() (*subscriber, error) {
	s := h.store
	client, err := s.ready()
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	var c *subscriber
	for c == nil { // the pending one may come to nothing, see dedicate
		if h.pending == nil {
			h.pending = h.dedicate(client)
		}
		select {
		case c = <-h.pending:
			h.pending = nil
		case <-limit.C:
			return nil, errors.New("no connection for subscriptions in time")
		case <-s.quit:
			return nil, errClosed
		}
	}
	if err := c.prepare(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// dedicate takes a connection from the client, which may wait for one in the
// client's pool, and dial, without regard to any ctx. So there is never more
// than one of it: who gives up leaves it to the next. What nobody fetches is
// given back, and the channel closed.
func (h *hub) dedicate(client rueidis.Client) <-chan *subscriber {
	taken := make(chan *subscriber)
	go func() {
		c := &subscriber{hub: h, confirmed: make(chan struct{}, maxSubscribe)}
		c.client, c.giveBack = client.Dedicate()
		limit := time.NewTimer(hubIdle)
		defer limit.Stop()
		select {
		case taken <- c:
			return
		case <-limit.C:
		case <-h.store.quit:
		}
		c.close()
		close(taken)
	}()
	return taken
}

func (c *subscriber) prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), hubPatience)
	defer cancel()
	msg, err := c.client.Do(ctx, probeScript.byText(c.client.B(), probeKeys(c.hub.store.keyed.Load()), nil)).ToMessage()
	if err == nil {
		_, c.sharded, err = readProbe(msg)
	}
	if err != nil {
		return fmt.Errorf("preparing to subscribe: %w", err)
	}
	c.broken = c.client.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { c.hub.message(m.Channel) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind != "subscribe" && s.Kind != "ssubscribe" {
				return
			}
			c.hub.confirmed(s.Channel)
			select {
			case c.confirmed <- struct{}{}:
			default: // nobody waits: the subscriber gave up
			}
		},
	})
	return nil
}

// close ends the connection, which ends every subscription on the server.
func (c *subscriber) close() {
	c.once.Do(func() {
		c.client.Close() // and not only giveBack, which would keep it
		c.giveBack()
		c.hub.store.askClock() // its end began an era, see dialer
	})
}

// serve makes the server's subscriptions those that are wanted, until the
// connection breaks, nothing was wanted for a while, or the store is closed.
func (c *subscriber) serve() error {
	h := c.hub
	have := make(map[string]bool)
	idle := time.NewTimer(hubIdle)
	defer idle.Stop()
	for {
		add, drop := h.changes(have)
		if err := c.subscribe(add, have); err != nil {
			return err
		}
		if err := c.unsubscribe(drop); err != nil {
			return err
		}
		for _, ch := range drop {
			delete(have, ch)
		}
		if len(add)+len(drop) > 0 {
			idle.Reset(hubIdle)
			continue // more may have come meanwhile
		}
		select {
		case <-h.wake:
		case err := <-c.broken:
			return lostConn(err)
		case <-idle.C:
			if len(have) == 0 {
				return nil
			}
			idle.Reset(hubIdle)
		case <-h.store.quit:
			return nil
		}
	}
}

// changes takes from dirty what differs from have, one command's worth each.
func (h *hub) changes(have map[string]bool) (add, drop []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := make(map[string]bool)
	for n, ch := range h.dirty {
		if len(add) == maxSubscribe || len(drop) == maxSubscribe {
			h.dirty = append(h.dirty[:0], h.dirty[n:]...)
			return add, drop
		}
		t := h.topics[ch]
		wanted := t != nil
		if seen[ch] || wanted == have[ch] {
			if wanted && have[ch] && !t.live {
				// Closed and watched again before it was unsubscribed.
				h.confirmedLocked(ch)
			}
			continue
		}
		seen[ch] = true
		if wanted {
			add = append(add, ch)
		} else {
			drop = append(drop, ch)
		}
	}
	h.dirty = h.dirty[:0]
	return add, drop
}

// subscribe adds channels to have. The server refuses a command as a whole for
// one channel that is forbidden, so they are then tried one by one, and only
// the watches of those that are refused again end.
func (c *subscriber) subscribe(channels []string, have map[string]bool) error {
	if len(channels) == 0 {
		return nil
	}
	err := c.subscribeAll(channels)
	switch {
	case err == nil:
		for _, ch := range channels {
			have[ch] = true
		}
		return nil
	case !misconfigured(err):
		return err
	case len(channels) == 1:
		c.hub.refused(channels[0], err)
		return nil
	}
	for _, ch := range channels {
		if err := c.subscribe([]string{ch}, have); err != nil {
			return err
		}
	}
	return nil
}

func (c *subscriber) subscribeAll(channels []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), hubPatience)
	defer cancel()
	cmd := c.client.B().Subscribe().Channel(channels...).Build()
	if c.sharded {
		cmd = c.client.B().Ssubscribe().Channel(channels...).Build()
	}
	if err := c.client.Do(ctx, cmd).Error(); err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	// Do answers with the first channel; each has a confirmation of its own.
	for range channels {
		select {
		case <-c.confirmed:
		case <-ctx.Done():
			return fmt.Errorf("subscribing: %w", ctx.Err())
		case err := <-c.broken:
			return fmt.Errorf("subscribing: %w", lostConn(err))
		}
	}
	return nil
}

func (c *subscriber) unsubscribe(channels []string) error {
	if len(channels) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), hubPatience)
	defer cancel()
	cmd := c.client.B().Unsubscribe().Channel(channels...).Build()
	if c.sharded {
		cmd = c.client.B().Sunsubscribe().Channel(channels...).Build()
	}
	if err := c.client.Do(ctx, cmd).Error(); err != nil {
		return fmt.Errorf("unsubscribing: %w", err)
	}
	return nil
}

// lostConn is why the client stopped calling the hooks; it may not say.
func lostConn(err error) error {
	if err == nil {
		return errors.New("the connection ended")
	}
	return err
}
