package sim

import (
	"sync"
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// wires are what one client has seen of the clocks of Redis: one for each data.
type wires struct {
	made time.Time
	mu   sync.Mutex
	of   map[string]*contract.Tripwire
}

func newWires() *wires {
	return &wires{made: time.Now(), of: make(map[string]*contract.Tripwire)}
}

func (w *wires) at(incarnation string) *contract.Tripwire {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[incarnation] == nil {
		w.of[incarnation] = new(contract.Tripwire)
	}
	return w.of[incarnation]
}

func (w *wires) learn(incarnation string, sent time.Time, server int64) {
	w.at(incarnation).Learn(sent.Sub(w.made).Microseconds(), server)
}

// latest is the latest time of the server for an exclusive grant, where it would be
// that without a tripwire.
func (w *wires) latest(incarnation string, sent time.Time, server int64, budget time.Duration, broken Broken) int64 {
	wire, at := w.at(incarnation), sent.Sub(w.made).Microseconds()
	most, known := wire.Latest(at, budget)
	if broken.SlackOfCall {
		most, known = wire.Explained(at)
		most += budget.Microseconds()
	}
	if known {
		server = min(server, most)
	}
	return server
}
