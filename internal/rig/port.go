package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

// The kernel gives outgoing connections ports of its own range. A server that
// is down for a moment must not lose its port to one of them, and a dial to a
// closed port of that range may even connect to itself. So the rig's ports lie
// below it.
const lowestPort = 10000

var portRange = sync.OnceValue(func() int {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 32768
	}
	var low, high int
	if _, err := fmt.Sscan(string(data), &low, &high); err != nil {
		return 32768
	}
	return low
})

// handedOut keeps two servers of one test process from being given one port
// while neither listens on it.
var handedOut struct {
	sync.Mutex
	ports map[int]bool
}

// listenFree listens on a loopback port that nothing in this process was given
// before, or that was given back.
func listenFree() (net.Listener, error) {
	low := portRange()
	if low < lowestPort+1000 {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	handedOut.Lock()
	defer handedOut.Unlock()
	var errs []error
	for range 100 {
		port := lowestPort + rand.IntN(low-lowestPort)
		if handedOut.ports[port] {
			errs = append(errs, fmt.Errorf("port %d was given before", port))
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if handedOut.ports == nil {
			handedOut.ports = make(map[int]bool)
		}
		handedOut.ports[port] = true
		return ln, nil
	}
	return nil, fmt.Errorf("rig: no free port: %w", errors.Join(errs...))
}

// giveBack lets a port be given again. Nothing may go on to use it.
func giveBack(port int) {
	handedOut.Lock()
	defer handedOut.Unlock()
	delete(handedOut.ports, port)
}

// freePort is a port for a server that opens it itself. Another process may be
// quicker; who starts the server tries again then.
func freePort() (int, error) {
	ln, err := listenFree()
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
