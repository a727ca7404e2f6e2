package tierlock

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// safety is what the probes have told of Redis' keys: whether they stay until they
// end by themselves. While it is not known that they do, a hold there is worth
// FencedOnly.
type safety struct {
	mu    sync.Mutex
	asked time.Time // when the probe began that this is from, zero before the first
	why   string    // why keys are not safe, "" if they are
	epoch uint16    // the latest that Redis has told
}

// doubt says why an exclusive hold on Redis is not exclusive now, "" if it is.
func (s *safety) doubt() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() {
		return "Redis has not been probed yet"
	}
	return s.why
}

// latest is the latest epoch that Redis has told, 0 for none.
func (s *safety) latest() uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

func (s *safety) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.asked.IsZero()
}

// note takes in a probe that began at asked, unless a younger one was, and reports
// whether it says something else than the one before.
func (s *safety) note(asked time.Time, res ProbeResult) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = max(s.epoch, res.Epoch)
	if asked.Before(s.asked) {
		return false
	}
	changed = s.why != res.Unsafe
	s.asked, s.why = asked, res.Unsafe
	return changed
}

// examine judges what a probe has found. The order matters: what is entered from now
// on sees it, and what was before is lowered here.
func (c *chain) examine(asked time.Time, res ProbeResult) {
	say := c.locker.notify.say
	if res.Lost {
		say(slog.LevelError, "tierlock: Redis has lost its keys and goes on, as after FLUSHALL", Token{})
	}
	switch {
	case !c.safety.note(asked, res):
	case res.Unsafe == "":
		say(slog.LevelInfo, "tierlock: Redis keeps the keys of live locks again", Token{})
	default:
		say(slog.LevelError, "tierlock: Redis may lose the keys of live locks: exclusive holds there are fenced-only", Token{}, slog.String("why", res.Unsafe))
		for _, h := range c.all() {
			h.review()
		}
	}
}

// doubt says why a hold of a resource that is taken on a tier now is worth less than
// the arbiter could make it, "" for nothing.
func (c *chain) doubt(resource string, t degrade.Tier) string {
	if why := c.disputed()[resource]; why != "" || t != degrade.Redis {
		return why
	}
	return c.safety.doubt()
}

// review lowers the hold to what it is worth where it is now.
func (h *chainHold) review() {
	h.lower(h.chain.worth(h.resource, h.exclusive, h.route().ticket.Tier))
}
