package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// MySQL is a database with one primary. It is safe for concurrent use.
type MySQL struct {
	opts Options

	mu      sync.Mutex
	primary *host
	servers int
}

// NewMySQL starts an empty database. Inside a bubble, it belongs to that bubble.
func NewMySQL(o Options) *MySQL {
	return &MySQL{opts: o, primary: newHost(serverID(1), false, o.Broken), servers: 1}
}

func serverID(n int) string { return fmt.Sprintf("mysql-%d", n) }

// MySQLStore is one client of a [MySQL]: a [tierlock.Arbiter].
type MySQLStore struct{ locks }

var _ tierlock.Arbiter = (*MySQLStore)(nil)

// Client gives an independent client.
func (m *MySQL) Client(o ClientOptions) *MySQLStore {
	return &MySQLStore{locks{link: newLink(m.opts.Seed, o), name: "simmysql", tier: tierlock.MySQL, opts: m.opts, at: m.present}}
}

func (m *MySQL) present() *host {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.primary
}

// Failover ends the primary, and with it what it has not yet executed, and makes
// another server the primary, with all that was committed but for what is younger
// than loss. Only one with no loss is as the chain assumes of a durable database.
func (m *MySQL) Failover(loss time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.primary
	m.servers++
	// Dead before it is copied: nothing is acknowledged that the copy lacks.
	old.mu.Lock()
	old.dead, old.queue = true, nil
	m.primary = old.copyLocked(serverID(m.servers), loss)
	old.mu.Unlock()
}

// Server is the identity of the present primary.
func (m *MySQL) Server() string { return m.present().incarnation }

// Pause stops the primary; what arrives is executed after Resume.
func (m *MySQL) Pause() { m.present().pause() }

// Resume has the primary go on.
func (m *MySQL) Resume() { m.present().resume() }

// SetReadOnly has the primary refuse whatever writes, and readings of the mode, as
// a replica would.
func (m *MySQL) SetReadOnly(v bool) {
	h := m.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readOnly = v
}

// SetClock steps the primary's clock, which then runs ppm millionths fast.
func (m *MySQL) SetClock(step time.Duration, ppm int64) { m.present().setClock(step, ppm) }

// Held are the keys that somebody holds.
func (m *MySQL) Held() []tierlock.Name { return m.present().held() }
