package rig_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// pair is one connection through a proxy, by both its ends. peers[d] is the one
// that direction d leads to.
type pair struct {
	p     *rig.Proxy
	peers [2]*client
}

func newPair(t *testing.T) pair {
	t.Helper()
	rig.NoLeak(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := rig.NewProxy(t, ln.Addr().String())
	c := dial(t, p.Addr)
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &client{t: t, Conn: conn, r: bufio.NewReader(conn)}
	x := pair{p, [2]*client{rig.ToServer: s, rig.ToClient: c}}
	// The server may accept before the proxy knows of it, and what is done to a
	// connection that is still being made is not what is tested here.
	s.send("up")
	c.want("up")
	return x
}

func other(d rig.Direction) rig.Direction { return 1 - d }

// from is the peer that direction d comes from, to the one it leads to.
func (x pair) from(d rig.Direction) *client { return x.peers[other(d)] }
func (x pair) to(d rig.Direction) *client   { return x.peers[d] }

// waits waits until that many bytes are held back in a direction, and none in
// the other.
func (x pair) waits(t *testing.T, d rig.Direction, n int64) {
	t.Helper()
	rig.Eventually(t, soon, "bytes held back "+d.String(), func() bool {
		var got [2]int64
		got[0], got[1] = x.p.Waiting()
		return got[d] == n && got[other(d)] == 0
	})
}

// passes checks that a direction forwards.
func (x pair) passes(d rig.Direction) {
	x.to(d).t.Helper()
	x.from(d).send("through")
	x.to(d).want("through")
}

func bothWays(t *testing.T, f func(t *testing.T, x pair, d rig.Direction)) {
	for _, d := range []rig.Direction{rig.ToServer, rig.ToClient} {
		t.Run(d.String(), func(t *testing.T) { f(t, newPair(t), d) })
	}
}

func TestProxyHoldsOneDirection(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Flow: rig.Hold})
		x.from(d).send("late")
		x.waits(t, d, 4)
		x.passes(other(d))
		x.to(d).silent()
		x.p.Set(d, rig.Fault{})
		x.to(d).want("late")
		x.passes(d)
		x.passes(other(d))
	})
}

func TestProxyDropsOneDirection(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Flow: rig.Drop})
		x.passes(other(d))
		x.p.Set(d, rig.Fault{})
		x.passes(d) // nothing was lost

		x.p.Set(d, rig.Fault{Flow: rig.Hold})
		x.from(d).send("held")
		x.waits(t, d, 4)
		x.p.Set(d, rig.Fault{Flow: rig.Drop})
		x.from(d).send("sent")
		x.waits(t, d, 0)
		x.passes(other(d))
		x.p.Set(other(d), rig.Fault{Delay: time.Millisecond}) // does not open d
		x.to(d).silent()
		x.p.Set(d, rig.Fault{Flow: rig.Hold}) // nor does this
		x.to(d).silent()
		x.p.Set(d, rig.Fault{})
		wantReset(t, x.to(d))
		wantReset(t, x.from(d))
	})
}

func TestProxyDelaysOneDirection(t *testing.T) {
	const late = 150 * time.Millisecond
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Delay: late})
		start := time.Now()
		x.from(d).send("late")
		x.to(d).want("late")
		if got := time.Since(start); got < late {
			t.Errorf("%s it took %v, want at least %v", d, got, late)
		}
		x.p.Set(d, rig.Fault{Delay: time.Hour})
		x.from(d).send("late")
		x.waits(t, d, 4)
		x.from(other(d)).send("quick")
		x.to(other(d)).want("quick") // it is not delayed as well
		x.waits(t, d, 4)
	})
}

// All settings of a direction apply together, and each may be changed alone
// while bytes are on their way.
func TestProxyDripsOneDirection(t *testing.T) {
	const late = 100 * time.Millisecond
	text := strings.Repeat("x", 300)
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Delay: late, Rate: 1000})
		if got, want := x.p.Fault(d), (rig.Fault{Delay: late, Rate: 1000}); got != want || x.p.Fault(other(d)) != (rig.Fault{}) {
			t.Errorf("set: %v and %v", got, x.p.Fault(other(d)))
		}
		start := time.Now()
		x.from(d).send(text)
		x.to(d).want(text)
		if got, want := time.Since(start), late+250*time.Millisecond; got < want || got > soon {
			t.Errorf("%s it took %v, want at least %v", d, got, want)
		}

		x.p.Set(d, rig.Fault{Flow: rig.Hold, Rate: 1})
		x.from(d).send(text)
		x.waits(t, d, 300)
		x.p.Set(d, rig.Fault{Rate: 1})
		x.from(other(d)).send(text)
		x.to(other(d)).want(text) // it is not slow as well
		var left [2]int64
		if left[0], left[1] = x.p.Waiting(); left[d] == 0 {
			t.Errorf("nothing is left %s of 300 bytes at one a second", d)
		}
		x.p.Set(d, rig.Fault{})
		x.to(d).want(text)

		x.p.Set(d, rig.Fault{Flow: rig.Hold, Rate: 1000})
		x.from(d).send(text)
		x.waits(t, d, 300)
		x.p.Set(d, rig.Fault{Rate: 1000})
		start = time.Now()
		x.to(d).want(text)
		if got := time.Since(start); got < 250*time.Millisecond {
			t.Errorf("what was held took %v, want it slow", got)
		}
		x.p.Set(d, rig.Fault{Rate: -1, Delay: -1})
		if got := x.p.Fault(d); got != (rig.Fault{}) {
			t.Errorf("set to nothing by negative values: %v", got)
		}
		x.passes(d)
	})
}

func TestProxyFinish(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Finish(d)
		x.p.Finish(d) // once is enough
		if err := x.to(d).ends(); err != io.EOF {
			t.Errorf("the end was %v, want EOF", err)
		}
		// The other side does not know, and is still heard from the first.
		x.passes(other(d))
		x.from(d).send("to nobody")
		x.passes(other(d))
		x.from(d).silent()
		x.waits(t, d, 0)
		// The connection lives until the peer closes, too.
		if x.p.Conns() != 1 {
			t.Errorf("%d connections", x.p.Conns())
		}
		x.to(d).Close()
		if err := x.from(d).ends(); err != io.EOF {
			t.Errorf("the other side's end was %v, want EOF", err)
		}
		rig.Eventually(t, soon, "no connection left", func() bool { return x.p.Conns() == 0 })
	})
}

// The end that Finish makes up comes after what was on its way, and is held and
// delayed like it.
func TestProxyFinishTravels(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Flow: rig.Hold})
		x.from(d).send("last words")
		x.waits(t, d, 10)
		x.p.Finish(d)
		x.from(d).send("too late")
		x.to(d).silent()
		x.p.Set(d, rig.Fault{})
		x.to(d).want("last words")
		if err := x.to(d).ends(); err != io.EOF {
			t.Errorf("the end was %v, want EOF", err)
		}
		x.passes(other(d))
		// The sender may still die of something else.
		x.from(d).Conn.(*net.TCPConn).SetLinger(0)
		x.from(d).Close()
		rig.Eventually(t, soon, "no connection left", func() bool { return x.p.Conns() == 0 })
	})
}

func TestProxyFinishIsLostWhereBytesAre(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		x.p.Set(d, rig.Fault{Flow: rig.Drop})
		x.p.Finish(d)
		x.to(d).silent()
		x.passes(other(d))
		x.p.Pass()
		wantReset(t, x.to(d))
		wantReset(t, x.from(d))
	})
}

func TestProxyReset(t *testing.T) {
	bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
		back := other(d)
		x.p.Set(back, rig.Fault{Flow: rig.Hold})
		x.to(d).send("before")
		x.waits(t, back, 6)
		x.p.Reset(d)
		x.p.Reset(d) // gone is gone
		wantReset(t, x.to(d))
		x.from(d).silent()
		x.p.Set(back, rig.Fault{})
		x.from(d).want("before")
		x.from(d).silent()

		// Half-open until it says something that gets through.
		if want := int(d) ^ 1; x.p.Conns() != want {
			t.Errorf("%d connections with clients, want %d", x.p.Conns(), want)
		}
		x.p.Set(d, rig.Fault{Flow: rig.Hold})
		x.from(d).send("anybody there?")
		x.waits(t, d, 14)
		x.from(d).silent()
		x.p.Set(d, rig.Fault{})
		wantReset(t, x.from(d))
		rig.Eventually(t, soon, "no connection left", func() bool { return x.p.Conns() == 0 })
	})
}

// A half-open connection ends with its one side: closed, reset or cut.
func TestProxyHalfOpenEnds(t *testing.T) {
	for name, end := range map[string]func(x pair, d rig.Direction){
		"closed":     func(x pair, d rig.Direction) { x.from(d).Close() },
		"reset, too": func(x pair, d rig.Direction) { x.p.Reset(other(d)) },
		"cut":        func(x pair, _ rig.Direction) { x.p.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
				x.p.Reset(d)
				wantReset(t, x.to(d))
				end(x, d)
				if name != "closed" {
					wantReset(t, x.from(d))
				}
				rig.Eventually(t, soon, "no connection left", func() bool { return x.p.Conns() == 0 })
			})
		})
	}
}

// Connections that are not with the server yet have one side only.
func TestProxyResetOfWhatTheServerHasNotSeen(t *testing.T) {
	s, p, c := behind(t)
	p.BlackHole()
	fresh := dial(t, p.Addr)
	fresh.send("new")
	p.Reset(rig.ToServer)
	fresh.silent()
	c.silent()
	if c.send("x"); s.present() != 0 {
		rig.Eventually(t, soon, "the server's side reset", func() bool { return s.present() == 0 })
	}
	p.Pass()
	fresh.want("new")
	wantReset(t, c)

	p.BlackHole()
	fresh = dial(t, p.Addr)
	p.Reset(rig.ToClient)
	wantReset(t, fresh)
	p.Pass()
	if got := s.accepted(); got != 2 {
		t.Errorf("the server saw %d connections, want 2", got)
	}
}

// Every fault may come at any time, on top of any other: nothing hangs, and when
// all is over new connections work.
func TestProxyFaultsAtRandom(t *testing.T) {
	s, p, _ := behind(t)
	stop := make(chan struct{})
	done := make(chan bool, 4)
	var rounds atomic.Int64
	for range cap(done) {
		go func() {
			for {
				conn, err := net.Dial("tcp", p.Addr)
				if err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
				for err == nil {
					select {
					case <-stop:
						conn.Close()
						done <- true
						return
					default:
					}
					conn.SetDeadline(time.Now().Add(20 * time.Millisecond))
					if _, err = conn.Write([]byte("ping")); err == nil {
						_, err = io.ReadFull(conn, make([]byte, 4))
					}
					if err == nil {
						rounds.Add(1)
					}
				}
				if conn != nil {
					conn.Close()
				}
				select {
				case <-stop:
					done <- true
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
	}
	flows := []rig.Flow{rig.Forward, rig.Hold, rig.Drop}
	end := time.Now().Add(6 * soon)
	for i := 0; i < 300 || rounds.Load() < 20 && time.Now().Before(end); i++ {
		d := rig.Direction(i % 2)
		switch i % 7 {
		case 0:
			p.Finish(d)
		case 1:
			p.Reset(d)
		case 2:
			p.Cut()
		case 3:
			p.Pass()
		case 4:
			p.Refuse()
			p.Accept()
		default:
			p.Set(d, rig.Fault{Flow: flows[i/7%3], Rate: 1000 * (i % 3), Delay: time.Duration(i%5) * time.Millisecond})
		}
		time.Sleep(time.Millisecond)
	}
	close(stop)
	for range cap(done) {
		select {
		case <-done:
		case <-time.After(soon):
			t.Fatal("a client hangs")
		}
	}
	if n := rounds.Load(); n < 20 {
		t.Errorf("%d round trips only", n)
	}
	p.Set(rig.ToServer, rig.Fault{})
	p.Set(rig.ToClient, rig.Fault{})
	p.Cut()
	rig.Eventually(t, soon, "no connection left", func() bool { return p.Conns() == 0 && s.present() == 0 })
	c := dial(t, p.Addr)
	c.send("well again")
	c.want("well again")
}
