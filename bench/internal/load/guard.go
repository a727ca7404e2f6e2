package load

import "sync/atomic"

// Guard counts those who are inside what one lock protects.
type Guard struct {
	inside  *int32 // may be memory shared with other processes
	broken  atomic.Int64
	entries atomic.Int64
}

// NewGuard guards with a counter of this process.
func NewGuard() *Guard { return &Guard{inside: new(int32)} }

func (g *Guard) enter() {
	if atomic.AddInt32(g.inside, 1) != 1 {
		g.broken.Add(1)
	}
	g.entries.Add(1)
}

func (g *Guard) leave() {
	if atomic.AddInt32(g.inside, -1) != 0 {
		g.broken.Add(1)
	}
}

// Broken is how often somebody was inside together with others.
func (g *Guard) Broken() int64 { return g.broken.Load() }
