package rig

import "testing"

// For the rig's own tests.
var (
	MainCode          = mainCode
	NoLeakWithin      = noLeak
	ReadReply         = readReply
	Encode            = encode
	ParseCommandStats = parseCommandStats
)

// SetSuperuserDirs replaces, for the time of a test, the directories in which
// mariadbd is looked for besides PATH.
func SetSuperuserDirs(t *testing.T, dirs ...string) {
	before := superuserDirs
	t.Cleanup(func() { superuserDirs = before })
	superuserDirs = dirs
}

// Links is how many connections the proxy keeps, half-open ones included.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// PortsGiven is how many ports are not given any more in this process.
func PortsGiven() int {
	handedOut.Lock()
	defer handedOut.Unlock()
	return len(handedOut.ports)
}

// NewWallClock is a clock for a program of the test's own, with what puts it on it.
func NewWallClock(t testing.TB) (c *WallClock, env []string) {
	c = newWallClock(t)
	return c, c.env
}
