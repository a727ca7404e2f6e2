package rig_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// behind is an echo server with a proxy in front, and a connection through it
// that has been used once.
func behind(t *testing.T) (*echoServer, *rig.Proxy, *client) {
	t.Helper()
	rig.NoLeak(t)
	s := newEchoServer(t)
	p := rig.NewProxy(t, s.addr)
	c := dial(t, p.Addr)
	c.send("hello ")
	c.want("hello ")
	return s, p, c
}

func wantReset(t *testing.T, c *client) {
	t.Helper()
	if err := c.ends(); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection ended with %v, want a reset", err)
	}
}

func waiting(p *rig.Proxy, toServer, toClient int64) func() bool {
	return func() bool {
		s, c := p.Waiting()
		return s == toServer && c == toClient
	}
}

func TestProxyPass(t *testing.T) {
	s, p, c := behind(t)
	if got := p.Conns(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	rig.Eventually(t, soon, "6 bytes counted each way", func() bool {
		toServer, toClient := p.Forwarded()
		return toServer == 6 && toClient == 6
	})
	// A half-closed connection still carries the answer; then both ends close.
	c.send("bye")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.want("bye")
	if err := c.ends(); err != io.EOF {
		t.Errorf("ended with %v, want EOF", err)
	}
	rig.Eventually(t, soon, "no connection left", func() bool { return p.Conns() == 0 && s.present() == 0 })
}

func TestProxyAim(t *testing.T) {
	_, p, c := behind(t)
	other := newEchoServer(t)
	p.Aim(other.addr)
	c.send("first")
	c.want("first")
	if n := other.accepted(); n != 0 {
		t.Errorf("the present connection came to the other server %d times", n)
	}
	d := dial(t, p.Addr)
	d.send("second")
	d.want("second")
	if n := other.accepted(); n != 1 {
		t.Errorf("%d connections came to the other server, want 1", n)
	}
}

func TestProxyLargeStream(t *testing.T) {
	_, p, c := behind(t)
	// More than the proxy and the sockets' buffers keep, in both directions at
	// once, with black holes opened and closed meanwhile: every byte arrives.
	text := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.WriteString(c, text); err != nil {
			t.Error(err)
		}
	})
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				p.BlackHole()
				p.Pass()
			}
		}
	})
	c.SetReadDeadline(time.Now().Add(6 * soon))
	got := make([]byte, len(text))
	n, err := io.ReadFull(c.r, got)
	close(stop)
	if err != nil || string(got) != text {
		t.Errorf("read %d bytes, %v, equal: %t", n, err, string(got) == text)
		c.Close()
	}
	wg.Wait()
}

func TestProxyBlackHole(t *testing.T) {
	s, p, c := behind(t)
	p.BlackHole()
	c.send("late")
	rig.Eventually(t, soon, "the request held", waiting(p, 4, 0))
	c2 := dial(t, p.Addr)
	c2.send("newer")
	c.silent()
	c2.silent()
	if got := s.got(); got != "hello " {
		t.Errorf("the server got %q", got)
	}
	if got := s.accepted(); got != 1 {
		t.Errorf("the server saw %d connections, want 1", got)
	}
	p.Pass()
	c.want("late")
	c2.want("newer")
}

func TestProxyBlackHoleHoldsReply(t *testing.T) {
	_, p, c := behind(t)
	release := p.HoldReply()
	c.send("x")
	rig.Eventually(t, soon, "the reply held", waiting(p, 0, 1))
	p.BlackHole()
	release()
	c.silent()
	p.Pass()
	c.want("x")
}

// A client that gave up and closed cannot take its request back.
func TestProxyBlackHoleForwardsWhatItsSenderGaveUp(t *testing.T) {
	s, p, c := behind(t)
	p.BlackHole()
	c.send("undead")
	rig.Eventually(t, soon, "the request held", waiting(p, 6, 0))
	c.Close()
	if p.Conns() != 1 || s.present() != 1 {
		t.Errorf("the close was passed on through a black hole")
	}
	p.Pass()
	rig.Eventually(t, soon, "the request arrived and the connection closed", func() bool {
		return s.got() == "hello undead" && s.present() == 0 && p.Conns() == 0
	})
}

// A write that is blocked by a peer that does not read must not block the
// method that closes its direction.
func TestProxyBlackHoleBreaksOffBlockedWrite(t *testing.T) {
	rig.NoLeak(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := rig.NewProxy(t, ln.Addr().String())
	c := dial(t, p.Addr)
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	const size = 32 << 20 // more than all buffers on the way
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Error(err)
		}
	})
	var before int64
	rig.Eventually(t, soon, "the writer blocked", func() bool {
		last := before
		before, _ = p.Forwarded()
		held, _ := p.Waiting()
		time.Sleep(50 * time.Millisecond)
		return before > 0 && before == last && held >= 4<<20
	})
	p.BlackHole()
	before, _ = p.Forwarded()
	buf := make([]byte, 1<<20)
	var read int64
	for read < before { // what had been forwarded is all that comes
		n, err := server.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += int64(n)
	}
	server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := server.Read(buf); err == nil {
		t.Errorf("%d bytes came through the black hole", n)
	}
	p.Pass()
	server.SetReadDeadline(time.Now().Add(soon))
	for read < size {
		n, err := server.Read(buf)
		if err != nil {
			t.Fatalf("after %d bytes: %v", read, err)
		}
		read += int64(n)
	}
	wg.Wait()
}

// Whatever the traffic: once a method that closes a direction has returned,
// the counter of that direction stands still.
func TestProxyClosesADirectionBeforeReturning(t *testing.T) {
	s, p, _ := behind(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				c, err := net.Dial("tcp", p.Addr)
				if err != nil {
					t.Error(err)
					return
				}
				go func() { io.Copy(io.Discard, c) }()
				for {
					if _, err := c.Write(make([]byte, 512)); err != nil {
						break // reset
					}
					select {
					case <-stop:
						c.Close()
						return
					case <-time.After(100 * time.Microsecond):
					}
				}
				c.Close()
			}
		})
	}
	frozen := func(name string, toServer, toClient bool) {
		s1, c1 := p.Forwarded()
		time.Sleep(5 * time.Millisecond)
		s2, c2 := p.Forwarded()
		if toServer && s1 != s2 || toClient && c1 != c2 {
			t.Errorf("after %s: %d bytes to the server, %d to the client", name, s2-s1, c2-c1)
		}
	}
	for range 30 {
		p.BlackHole()
		frozen("BlackHole", true, true)
		p.Pass()
		time.Sleep(2 * time.Millisecond)
		p.DropReplies()
		frozen("DropReplies", false, true)
		p.Pass()
		time.Sleep(2 * time.Millisecond)
		p.DropRequests()
		frozen("DropRequests", true, false)
		p.Pass()
		time.Sleep(2 * time.Millisecond)
		release := p.HoldReply()
		frozen("HoldReply", false, true)
		release()
	}
	close(stop)
	p.Cut()
	wg.Wait()
	if s.got() == "hello " {
		t.Error("there was no traffic")
	}
}

func TestProxyDropReplies(t *testing.T) {
	s, p, c := behind(t)
	unharmed := dial(t, p.Addr)
	unharmed.send("+")
	unharmed.want("+")
	p.DropReplies()
	c.send("asked")
	rig.Eventually(t, soon, "the request arrived", func() bool { return strings.HasSuffix(s.got(), "asked") })
	c.silent()
	if _, n := p.Waiting(); n != 0 {
		t.Errorf("%d bytes of replies are kept, want them dropped", n)
	}
	// Lost bytes reset the connection, at both ends; others go on.
	p.Pass()
	wantReset(t, c)
	unharmed.send("+")
	unharmed.want("+")
	rig.Eventually(t, soon, "the other end reset", func() bool { return s.present() == 1 && p.Conns() == 1 })
}

func TestProxyDropRepliesDropsThoseOnTheirWay(t *testing.T) {
	_, p, c := behind(t)
	release := p.HoldReply()
	c.send("x")
	rig.Eventually(t, soon, "the reply held", waiting(p, 0, 1))
	p.DropReplies()
	if _, n := p.Waiting(); n != 0 {
		t.Errorf("%d bytes of replies are kept, want them dropped", n)
	}
	release()
	c.silent()
	// Through another fault the loss is not forgotten, and not healed.
	p.BlackHole()
	c.silent()
	p.Pass()
	wantReset(t, c)
}

func TestProxyDropRequests(t *testing.T) {
	s, p, c := behind(t)
	release := p.HoldReply()
	c.send("1")
	rig.Eventually(t, soon, "the reply held", waiting(p, 0, 1))
	p.DropRequests()
	c2 := dial(t, p.Addr)
	c2.send("2")
	c.send("3")
	release()
	c.want("1") // replies still pass
	c.silent()
	c2.silent()
	if got := s.got(); got != "hello 1" {
		t.Errorf("the server got %q", got)
	}
	if got := s.accepted(); got != 1 {
		t.Errorf("the server saw %d connections, want 1", got)
	}
	p.Pass()
	wantReset(t, c)
	wantReset(t, c2)
	rig.Eventually(t, soon, "the connection to the server reset", func() bool { return s.present() == 0 })
	if got := s.got(); got != "hello 1" {
		t.Errorf("the server got %q", got)
	}
}

// The end of a connection is lost like a byte.
func TestProxyDropRepliesHidesTheServersDeath(t *testing.T) {
	s, p, c := behind(t)
	p.DropReplies()
	s.mu.Lock()
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	rig.Eventually(t, soon, "the server closed", func() bool { return s.present() == 0 })
	c.silent()
	p.Pass()
	wantReset(t, c)
}

func TestProxyHoldReply(t *testing.T) {
	s, p, c := behind(t)
	first, second := p.HoldReply(), p.HoldReply()
	c.send("held")
	rig.Eventually(t, soon, "the reply held", waiting(p, 0, 4))
	if got := s.got(); got != "hello held" {
		t.Errorf("the server got %q", got)
	}
	first()
	first() // the second hold still counts
	c.silent()
	second()
	c.want("held")
}

func TestProxyDelay(t *testing.T) {
	_, p, c := behind(t)
	const each = 100 * time.Millisecond
	p.Delay(each, each/2)
	start := time.Now()
	const n = 200 // pipelined, they cost one latency, not 200
	for range n {
		c.send("0123456789")
		time.Sleep(time.Millisecond)
	}
	c.want("0123456789")
	if got := time.Since(start); got < each+each/2 {
		t.Errorf("the first reply came after %v, want at least %v", got, each+each/2)
	}
	for range n - 1 {
		c.want("0123456789")
	}
	if got := time.Since(start); got > n*each/2 {
		t.Errorf("%d pipelined requests took %v, want less than %v", n, got, n*each/2)
	}
	p.Delay(0, 0)
	start = time.Now()
	for range n {
		c.send("x")
		c.want("x")
	}
	if got := time.Since(start); got > n*each/2 {
		t.Errorf("%d round trips without delay took %v", n, got)
	}
}

// A shorter delay does not let later bytes overtake earlier ones.
func TestProxyDelayKeepsOrder(t *testing.T) {
	_, p, c := behind(t)
	p.Set(rig.ToServer, rig.Fault{Flow: rig.Hold, Delay: time.Second})
	c.send("first ")
	rig.Eventually(t, soon, "the request delayed", waiting(p, 6, 0))
	p.Set(rig.ToServer, rig.Fault{})
	c.send("second")
	c.want("first second")
}

func TestProxyDrip(t *testing.T) {
	_, p, c := behind(t)
	p.Drip(1000)
	start := time.Now()
	text := strings.Repeat("x", 300)
	c.send(text)
	c.want(text)
	if got := time.Since(start); got < 250*time.Millisecond || got > soon {
		t.Errorf("300 bytes at 1000 a second took %v", got)
	}
	// A piece that waits for its turn goes at once when the limit rises or ends. Many
	// times: a second of waiting for it is no more than what a busy machine may take.
	const times = 15
	for _, limit := range []int{1000, 0} {
		var took time.Duration
		for range times {
			p.Drip(1)
			c.send(text)
			rig.Eventually(t, soon, "a piece waiting", func() bool { n, _ := p.Waiting(); return 0 < n && n < int64(len(text)) })
			start = time.Now()
			p.Drip(limit)
			rig.Eventually(t, soon, "the next piece", func() bool { n, _ := p.Waiting(); return n < int64(len(text))-1 })
			took += time.Since(start)
			p.Drip(0)
			c.want(text)
		}
		if took > times*time.Second/2 {
			t.Errorf("with the limit changed to %d, %d times, the next piece took %v", limit, times, took)
		}
	}
}

func TestProxyCut(t *testing.T) {
	s, p, c := behind(t)
	for range 20 {
		// These may not have been accepted yet when Cut is called.
		c2 := dial(t, p.Addr)
		p.Cut()
		wantReset(t, c2)
	}
	wantReset(t, c)
	rig.Eventually(t, soon, "both ends reset", func() bool { return s.present() == 0 && p.Conns() == 0 })
	c3 := dial(t, p.Addr)
	c3.send("again")
	c3.want("again")
}

func TestProxyCutInABlackHole(t *testing.T) {
	s, p, c := behind(t)
	p.BlackHole()
	c.send("lost")
	rig.Eventually(t, soon, "the request held", waiting(p, 4, 0))
	fresh := dial(t, p.Addr)
	p.Cut()
	wantReset(t, c)
	wantReset(t, fresh)
	p.Pass()
	rig.Eventually(t, soon, "the connection to the server reset", func() bool { return s.present() == 0 })
	if got := s.got(); got != "hello " {
		t.Errorf("the server got %q, want nothing of what was cut", got)
	}
}

func TestProxyRefuse(t *testing.T) {
	_, p, c := behind(t)
	for range 30 {
		// Some of these may not have been accepted yet when Refuse is called.
		var fresh []*client
		for range 8 {
			fresh = append(fresh, dial(t, p.Addr))
		}
		p.Refuse()
		p.Refuse()
		if conn, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dialled %v, %v; want it refused", conn, err)
		}
		for _, c := range fresh {
			c.send("dialled before")
			c.want("dialled before")
			c.Close()
		}
		p.Accept()
		p.Accept()
	}
	c.send("still")
	c.want("still")
	c2 := dial(t, p.Addr)
	c2.send("back")
	c2.want("back")
}

func TestProxyServerReset(t *testing.T) {
	s, _, c := behind(t)
	s.mu.Lock()
	for conn := range s.open {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	s.mu.Unlock()
	wantReset(t, c)
}

func TestProxyWithoutServer(t *testing.T) {
	rig.NoLeak(t)
	// A proxy that refuses is a port where certainly nobody listens.
	nobody := rig.NewProxy(t, "127.0.0.1:1")
	nobody.Refuse()
	p := rig.NewProxy(t, nobody.Addr)
	c, err := net.Dial("tcp", p.Addr)
	if errors.Is(err, syscall.ECONNRESET) {
		return // quicker than the dial
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(soon))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection ended with %v, want a reset", err)
	}
}
