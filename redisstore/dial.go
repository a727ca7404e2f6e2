package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// dialer is how the client makes connections, as opt says, with the store
// told of each that is made and each that ends: a call need not have seen it.
// It does not tell the connection for calls from others, so some clocks are
// asked for once more than they had to be.
func (s *Store) dialer(opt rueidis.ClientOption) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	dial := opt.DialCtxFn
	switch {
	case dial != nil:
	case opt.DialFn != nil:
		dial = func(_ context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			return opt.DialFn(addr, d, c)
		}
	default:
		dial = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			if c != nil {
				return (&tls.Dialer{NetDialer: d, Config: c}).DialContext(ctx, "tcp", addr)
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	return func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		s.clocks.era.Add(1) // before the question, see lone
		if !s.lone.mayDial(ctx) {
			return nil, errNoDial
		}
		conn, err := dial(ctx, addr, d, c)
		if err != nil {
			return nil, err
		}
		if conn == nil {
			return nil, errors.New("the dial function returned no connection")
		}
		if opt.DisableTCPNoDelay {
			noNoDelay(conn) // the client does not find it inside a seenConn
		}
		if c, ok := conn.(*tls.Conn); ok {
			conn = &heardConn{Conn: c}
		}
		s.clocks.era.Add(1)
		s.askClock()
		seen := &seenConn{Conn: conn}
		seen.closed = func() {
			s.clocks.era.Add(1)
			s.conns.Delete(seen)
		}
		s.conns.Store(seen, nil)
		select {
		case <-s.quit: // after the entry in conns, see closeConns
			_ = seen.Close()
			return nil, errClosed
		default:
			return seen, nil
		}
	}
}

// redialPause is the least time between two redials.
const redialPause = time.Second

// redial closes all connections of the client that Open made, so that it makes
// them anew: the calls' ones, since their address may lead to another server by
// now, and those to sentinels, which the client then asks for the primary.
//
// It is for a server that has become a replica: that does not end connections by
// itself, and the client does not take "read-only" for a reason to. Calls that
// are under way fail, as they would have, and for the same reason.
func (s *Store) redial(reason error) {
	now := time.Since(s.made)
	last := s.redialed.Load()
	if s.own == nil || last != 0 && now-time.Duration(last) < redialPause || !s.redialed.CompareAndSwap(last, int64(now)) {
		return
	}
	text := reason.Error()
	s.spawn(func() { // over TLS this may wait for the other side
		s.conns.Range(func(conn, _ any) bool {
			c := conn.(*seenConn)
			c.reason.Store(&text) // before what makes it known
			_ = c.Close()
			return true
		})
	})
}

// closeConns closes all connections of the client that Open made. At the end of
// the store that is not left to the client, which forgets one that it is making
// while it is closed. One that is made later still sees quit.
func (s *Store) closeConns() {
	s.conns.Range(func(conn, _ any) bool {
		_ = conn.(*seenConn).Close()
		return true
	})
}

// seenConn tells of its end. The client closes a connection before it makes
// the next, so no call goes out over that with what was known of this.
type seenConn struct {
	net.Conn
	once   sync.Once
	closed func()
	reason atomic.Pointer[string] // why it was closed, if by redial
}

func (c *seenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.explained(err)
}

func (c *seenConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.explained(err)
}

// explained gives the calls that are under way the reason of the redial: that
// the connection is closed would tell their callers nothing.
func (c *seenConn) explained(err error) error {
	if err != nil {
		if reason := c.reason.Load(); reason != nil {
			return fmt.Errorf("%s (%w)", *reason, err)
		}
	}
	return err
}

func (c *seenConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

func noNoDelay(conn net.Conn) {
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetNoDelay(false) // as the client: without it all works the same
	}
}
