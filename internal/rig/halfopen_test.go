package rig_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

// finished makes up the end of a direction, and returns when it was read.
func finished(t *testing.T, x pair, d rig.Direction) {
	t.Helper()
	x.p.Finish(d)
	wantEnd(t, x, d)
}

func wantEnd(t *testing.T, x pair, d rig.Direction) {
	t.Helper()
	if err := x.to(d).ends(); err != io.EOF {
		t.Errorf("%s the end was %v, want EOF", d, err)
	}
}

// wantResetAfterEnd is wantReset for one who has read the end already: reading
// tells it nothing new.
func wantResetAfterEnd(t *testing.T, c *client) {
	t.Helper()
	rig.Eventually(t, soon, "the connection is reset", func() bool {
		_, err := c.Write([]byte("x"))
		return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	})
}

func wantNone(t *testing.T, x pair) {
	t.Helper()
	rig.Eventually(t, soon, "no connection left", func() bool { return x.p.Links() == 0 })
}

// A made-up end, then a reset of the one who read it: the other side is
// half-open as without the end, and the connection ends with it.
func TestProxyResetAfterFinish(t *testing.T) {
	for name, end := range map[string]func(x pair, d rig.Direction){
		"it closes": func(x pair, d rig.Direction) { x.from(d).Close() },
		"it sends":  func(x pair, d rig.Direction) { x.from(d).send("anybody there?") },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
				finished(t, x, d)
				x.p.Reset(d)
				wantResetAfterEnd(t, x.to(d))
				x.from(d).silent()
				end(x, d)
				if name == "it sends" {
					wantReset(t, x.from(d))
				}
				wantNone(t, x)
			})
		})
	}
}

// The side that a reset would leave behind has closed: nobody is left, whether
// its end was told to the other or made up before.
func TestProxyResetAfterTheOtherClosed(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, x pair, d rig.Direction){
		"told":            func(*testing.T, pair, rig.Direction) {},
		"made up, before": finished,
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
				before(t, x, d)
				x.from(d).Close()
				wantEnd(t, x, d)
				x.p.Reset(d)
				wantResetAfterEnd(t, x.to(d))
				wantNone(t, x)
			})
		})
	}
}

// A made-up end on its way to one that is reset meanwhile tells the other
// nothing.
func TestProxyFinishOfTheHalfOpen(t *testing.T) {
	for name, meet := range map[string]func(t *testing.T, x pair, d rig.Direction){
		"finish, reset": func(t *testing.T, x pair, d rig.Direction) {
			x.p.Set(d, rig.Fault{Flow: rig.Hold})
			x.p.Finish(d)
			x.p.Reset(d)
			x.p.Set(d, rig.Fault{})
		},
		"reset, finish": func(t *testing.T, x pair, d rig.Direction) {
			x.p.Reset(d)
			x.p.Finish(d)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, x pair, d rig.Direction) {
				meet(t, x, d)
				wantReset(t, x.to(d))
				x.from(d).silent()
				x.from(d).send("anybody there?")
				wantReset(t, x.from(d))
				wantNone(t, x)
			})
		})
	}
}

// Describe names each connection as its two ends do, and what became of it.
func TestProxyDescribe(t *testing.T) {
	x := newPair(t)
	if got := x.p.Describe(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "to server: open; to client: open") {
		t.Errorf("of one connection: %s", got)
	}
	x.p.Set(rig.ToClient, rig.Fault{Flow: rig.Hold})
	x.to(rig.ToServer).send("12345")
	x.waits(t, rig.ToClient, 5)
	finished(t, x, rig.ToServer)
	x.p.Reset(rig.ToServer)
	want := fmt.Sprintf("client %v, server's client %v; to server: the end was forwarded, its end was reset; to client: 5 bytes in 1 pieces wait",
		x.to(rig.ToClient).LocalAddr(), x.to(rig.ToServer).RemoteAddr())
	if got := x.p.Describe(); !strings.Contains(got, want) || !strings.Contains(got, "to client: hold, 1 connections") {
		t.Errorf("described as\n%s\nwant\n%s", got, want)
	}
}
