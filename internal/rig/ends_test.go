package rig_test

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// endings are what may happen to one connection on its way to its end, for
// either direction. The peers are those of pair.
var endings = []struct {
	name string
	do   func(p *rig.Proxy, peers [2]net.Conn, d rig.Direction)
}{
	{"finish", func(p *rig.Proxy, _ [2]net.Conn, d rig.Direction) { p.Finish(d) }},
	{"reset", func(p *rig.Proxy, _ [2]net.Conn, d rig.Direction) { p.Reset(d) }},
	{"hold", func(p *rig.Proxy, _ [2]net.Conn, d rig.Direction) { p.Set(d, rig.Fault{Flow: rig.Hold}) }},
	{"drop", func(p *rig.Proxy, _ [2]net.Conn, d rig.Direction) { p.Set(d, rig.Fault{Flow: rig.Drop}) }},
	{"send", func(_ *rig.Proxy, peers [2]net.Conn, d rig.Direction) { _, _ = peers[other(d)].Write([]byte("x")) }},
	{"close", func(_ *rig.Proxy, peers [2]net.Conn, d rig.Direction) { _ = peers[other(d)].Close() }},
}

// Whatever three things have happened to a connection, one after the other or
// close together: when the proxy forwards and both peers have closed, the proxy
// keeps nothing of it.
func TestProxyKeepsNoConnectionOfWhoHasClosed(t *testing.T) {
	rig.NoLeak(t)
	n := 2 * len(endings)
	work := make(chan int)
	var all sync.WaitGroup
	for range 8 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		p := rig.NewProxy(t, ln.Addr().String())
		all.Go(func() {
			for i := range work {
				steps := []int{i % n, i / n % n, i / n / n % n}
				pause := time.Duration(i/n/n/n) * 2 * time.Millisecond
				endConnection(t, p, ln, steps, pause)
			}
		})
	}
	for i := range 2 * n * n * n {
		work <- i
		if t.Failed() {
			break
		}
	}
	close(work)
	all.Wait()
}

// endConnection makes a connection, takes it through the steps, and checks that
// nothing of it is left.
func endConnection(t *testing.T, p *rig.Proxy, ln net.Listener, steps []int, pause time.Duration) {
	client, err := net.DialTimeout("tcp", p.Addr, soon)
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	server, err := ln.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	defer server.Close()
	peers := [2]net.Conn{rig.ToServer: server, rig.ToClient: client}
	var names []string
	for _, s := range steps {
		e, d := endings[s/2], rig.Direction(s%2)
		names = append(names, e.name+" "+d.String())
		e.do(p, peers, d)
		time.Sleep(pause)
	}
	p.Pass()
	_ = client.Close()
	_ = server.Close()
	for end := time.Now().Add(soon); p.Links() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s, %v apart, and both close:\n%s", strings.Join(names, ", "), pause, p.Describe())
			return
		}
	}
}

// A proxy uses no port up with what is done to it: some tests do thousands of
// things.
func TestProxyEventsUseNoPortUp(t *testing.T) {
	x := newPair(t)
	before := rig.PortsGiven()
	for range 20 {
		x.p.Finish(rig.ToServer)
		x.p.Cut()
	}
	if used := rig.PortsGiven() - before; used != 0 {
		t.Errorf("%d ports were used up", used)
	}
}
