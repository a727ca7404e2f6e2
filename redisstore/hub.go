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
	// maxSubscribe is how many channels are subscribed to at a time.
	maxSubscribe = 512
	// lookAround is how often a Sentinel client's primary is compared with the
	// one that the connection leads to.
	lookAround = 2 * time.Second
)

// run keeps the link's connection for as long as it has watches.
func (l *link) run() {
	for {
		conn, err := l.connect()
		if err == nil {
			l.connected()
			err = conn.serve()
			conn.close()
		}
		if err == nil { // idle or closed
			if l.finished() {
				return
			}
			continue // a watch came in between
		}
		pause := time.NewTimer(l.disconnected(err))
		if l.finished() {
			pause.Stop()
			return
		}
		select {
		case <-pause.C:
		case <-l.hub.store.quit:
			pause.Stop()
		}
	}
}

// subscriber is one pub/sub connection. It has one batch of commands under way
// at a time, so that a confirmation cannot belong to an earlier subscription of
// the same channel.
type subscriber struct {
	link     *link
	node     rueidis.Client
	addr     string // where node led when the connection was taken
	client   rueidis.DedicatedClient
	giveBack func()
	sharded  bool
	broken   <-chan error

	once sync.Once
}

// connect takes a connection of its own from the client and asks the server
// whether it has sharded channels, by the script that releases agree with.
func (l *link) connect() (*subscriber, error) {
	s := l.hub.store
	node, err := s.ready()
	if err != nil {
		return nil, err
	}
	if l.node != "" {
		if node = node.Nodes()[l.node]; node == nil {
			return nil, fmt.Errorf("the client does not know the node %s", l.node)
		}
	}
	limit := time.NewTimer(s.timeout)
	defer limit.Stop()
	var c *subscriber
	for c == nil { // the pending one may come to nothing, see dedicate
		if l.pending == nil {
			l.pending = l.dedicate(node)
		}
		select {
		case c = <-l.pending:
			l.pending = nil
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
func (l *link) dedicate(node rueidis.Client) <-chan *subscriber {
	taken := make(chan *subscriber)
	go func() {
		c := &subscriber{link: l, node: node, addr: addrOf(node)}
		c.client, c.giveBack = node.Dedicate()
		limit := time.NewTimer(hubIdle)
		defer limit.Stop()
		select {
		case taken <- c:
			return
		case <-limit.C:
		case <-l.hub.store.quit:
		}
		c.close()
		close(taken)
	}()
	return taken
}

// addrOf is the address of a client's one node, for Sentinel the primary's.
func addrOf(node rueidis.Client) string {
	for addr := range node.Nodes() {
		return addr
	}
	return ""
}

func (c *subscriber) prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), hubPatience)
	defer cancel()
	keys := probeKeys(c.link.hub.store.keyed.Load())
	if c.link.node != "" {
		keys = nil // this node, and not the one that serves the key
	}
	msg, err := c.client.Do(ctx, probeScript.byText(c.client.B(), keys, nil)).ToMessage()
	if err == nil {
		_, c.sharded, err = readProbe(msg)
	}
	if err != nil {
		return fmt.Errorf("preparing to subscribe: %w", err)
	}
	c.broken = c.client.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { c.link.hub.message(m.Channel) },
		OnSubscription: func(s rueidis.PubSubSubscription) {
			switch s.Kind {
			case "subscribe", "ssubscribe":
				c.link.confirmed(s.Channel)
			case "unsubscribe", "sunsubscribe":
				c.link.over(s.Channel)
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
		c.link.hub.store.askClock() // its end began an era, see dialer
	})
}

// serve makes the server's subscriptions those that are wanted, until the
// connection breaks, nothing was wanted for a while, or the store is closed.
func (c *subscriber) serve() error {
	l := c.link
	have := make(map[string]bool)
	idle, around := time.NewTimer(hubIdle), time.NewTicker(lookAround)
	defer idle.Stop()
	defer around.Stop()
	for {
		add, drop := l.changes(have)
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
		case <-l.wake:
		case err := <-c.broken:
			return lostConn(err)
		case <-around.C:
			// A demoted primary stays connected, and what it is told by the
			// next one ends with their link.
			if addr := addrOf(c.node); addr != c.addr {
				return fmt.Errorf("the primary is %s now, no longer %s", addr, c.addr)
			}
		case <-idle.C:
			if len(have) == 0 {
				return nil
			}
			idle.Reset(hubIdle)
		case <-l.hub.store.quit:
			return nil
		}
	}
}

// changes takes from dirty what differs from have, one batch each.
func (l *link) changes(have map[string]bool) (add, drop []string) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	// First of all, since what the server has ended may be wanted again. Our
	// own unsubscribing has taken its channels out of have before.
	for _, ch := range l.ended {
		delete(have, ch)
	}
	l.ended = l.ended[:0]
	seen := make(map[string]bool)
	for n, ch := range l.dirty {
		if len(add) == maxSubscribe || len(drop) == maxSubscribe {
			l.dirty = append(l.dirty[:0], l.dirty[n:]...)
			return add, drop
		}
		t := h.topics[ch]
		wanted := t != nil && t.link == l
		if seen[ch] || wanted == have[ch] {
			if wanted && have[ch] && !t.live {
				// Closed and watched again before it was unsubscribed.
				l.confirmedLocked(ch)
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
	l.dirty = l.dirty[:0]
	return add, drop
}

// subscribe adds channels to have. Each has a command of its own, since a
// server refuses a command as a whole for one channel that is forbidden or in
// another slot. Only the watches of channels that are refused end.
func (c *subscriber) subscribe(channels []string, have map[string]bool) error {
	return c.each(channels, "subscribing", func(b rueidis.Builder, ch string) rueidis.Completed {
		if c.sharded {
			return b.Ssubscribe().Channel(ch).Build()
		}
		return b.Subscribe().Channel(ch).Build()
	}, func(ch string, err error) bool {
		switch {
		case err == nil:
			have[ch] = true
		case c.link.node != "" && moved(err):
			c.link.misplaced(ch, c.link.node) // which knows where it went
		case c.link.node != "" && unserved(err):
			c.link.misplaced(ch, "")
		case misconfigured(err):
			c.link.hub.refused(ch, err)
		default:
			return false
		}
		return true
	})
}

func (c *subscriber) unsubscribe(channels []string) error {
	return c.each(channels, "unsubscribing", func(b rueidis.Builder, ch string) rueidis.Completed {
		if c.sharded {
			return b.Sunsubscribe().Channel(ch).Build()
		}
		return b.Unsubscribe().Channel(ch).Build()
	}, func(_ string, err error) bool {
		// With its slot the subscription has gone too.
		return err == nil || c.link.node != "" && moved(err)
	})
}

// each sends one command for each channel. The connection is of no use any more
// where take returns false for an answer.
//
// The client pipelines what comes at the same time. Its own call for several
// commands would not find, over RESP2, the connection that it keeps for
// subscriptions.
func (c *subscriber) each(channels []string, doing string, build func(rueidis.Builder, string) rueidis.Completed, take func(ch string, err error) bool) error {
	if len(channels) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), hubPatience)
	defer cancel()
	errs := make([]error, len(channels))
	var all sync.WaitGroup
	for i, ch := range channels {
		all.Go(func() { errs[i] = c.client.Do(ctx, build(c.client.B(), ch)).Error() })
	}
	all.Wait()
	for i, ch := range channels {
		if !take(ch, errs[i]) {
			return fmt.Errorf("%s: %w", doing, errs[i])
		}
	}
	return nil
}

// moved tells the answer of a node that does not serve the slot.
func moved(err error) bool {
	re, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	_, yes := re.IsMoved()
	return yes
}

// unserved tells the answer of a node that serves nobody's slots, or not this.
func unserved(err error) bool {
	re, ok := rueidis.IsRedisErr(err)
	return ok && re.IsClusterDown()
}

// lostConn is why the client stopped calling the hooks; it may not say.
func lostConn(err error) error {
	if err == nil {
		return errors.New("the connection ended")
	}
	return err
}
