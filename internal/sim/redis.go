package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
)

// Redis is a deployment with one primary at a time that is right, and perhaps
// older ones that still answer. It is safe for concurrent use.
type Redis struct {
	opts Options

	mu      sync.Mutex
	primary *host
	hosts   []*host // all, the primary last
	clients []*RedisStore
}

// NewRedis starts an empty Redis. Inside a bubble, it belongs to that bubble.
func NewRedis(o Options) *Redis {
	r := &Redis{opts: o}
	r.primary = newHost(replID(1), true, o.Broken)
	r.hosts = []*host{r.primary}
	return r
}

// replID is a replication id: 40 hexadecimal digits.
func replID(n int) string { return fmt.Sprintf("%040x", n) }

// RedisStore is one client of a [Redis]: a [tierlock.Chained] and a
// [tierlock.Watcher].
type RedisStore struct {
	locks
	redis *Redis

	mu      sync.Mutex
	host    *host
	watches map[*watch]struct{}
}

var (
	_ tierlock.Chained = (*RedisStore)(nil)
	_ tierlock.Watcher = (*RedisStore)(nil)
)

// Client gives an independent client.
func (r *Redis) Client(o ClientOptions) *RedisStore {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &RedisStore{redis: r, host: r.primary, watches: make(map[*watch]struct{})}
	s.locks = locks{link: newLink(r.opts.Seed, o), name: "simredis", tier: tierlock.Redis, opts: r.opts, at: s.at, wires: newWires()}
	r.clients = append(r.clients, s)
	r.clients = append(r.clients, s)
	return s
}

func (s *RedisStore) at() *host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.host
}

// Follow connects the client to the present primary. Who watched at another host
// is told that something may have been missed.
func (s *RedisStore) Follow() {
	to := s.redis.present()
	s.mu.Lock()
	from := s.host
	s.host = to
	s.mu.Unlock()
	if from != to {
		s.rewatch(to)
	}
}

// Failover makes another server the primary, with other data for its id: all that
// the old one has, but for what is younger than loss. Clients stay with the old
// one, which goes on answering, until they Follow or KillOld.
func (r *Redis) Failover(loss time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.primary.mu.Lock()
	h := r.primary.copyLocked(replID(len(r.hosts)+1), loss)
	r.primary.mu.Unlock()
	r.primary = h
	r.hosts = append(r.hosts, h)
}

// Incarnation is that of the present primary.
func (r *Redis) Incarnation() string {
	h := r.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.incarnation
}

func (r *Redis) present() *host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.primary
}

// KillOld ends all servers but the primary. Their clients follow.
func (r *Redis) KillOld() {
	r.mu.Lock()
	old, clients := r.hosts[:len(r.hosts)-1], r.clients
	r.mu.Unlock()
	for _, h := range old {
		h.kill()
	}
	for _, s := range clients {
		s.Follow()
	}
}

// Flush is FLUSHALL on the primary. The marker that makes the incarnation, with the
// replication id, has gone, too.
func (r *Redis) Flush() {
	h := r.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.locks.rows)
	clear(h.epochs)
	h.journal = journal{}
	if !r.opts.Broken.FlushUnseen {
		h.incarnation += "-"
	}
}

// SetUnsafe has the primary's probes say that keys may be taken away, and why; ""
// for nothing.
func (r *Redis) SetUnsafe(why string) {
	h := r.present()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unsafe = why
}

// Pause stops the primary; what arrives is executed after Resume.
func (r *Redis) Pause() { r.present().pause() }

// Resume has every server go on.
func (r *Redis) Resume() {
	r.mu.Lock()
	hosts := append([]*host(nil), r.hosts...)
	r.mu.Unlock()
	for _, h := range hosts {
		h.resume()
	}
}

// SetClock steps the primary's clock, which then runs ppm millionths fast.
func (r *Redis) SetClock(step time.Duration, ppm int64) { r.present().setClock(step, ppm) }

// Step steps the primary's clock.
func (r *Redis) Step(d time.Duration) { r.present().step(d) }

// Held are the keys that somebody holds on the primary.
func (r *Redis) Held() []tierlock.Name { return r.present().held() }
