package sim

import (
	"fmt"
	"sync"
	"time"
)

// History is the omniscient observer of who believes to hold what. It is safe for
// concurrent use; it is called when beliefs begin and before they are given up.
type History struct {
	mu         sync.Mutex
	start      time.Time
	keys       map[string]*lane
	violations []string
	begun      int
	latest     []string // the last lines, see Logf
}

// lane is what happened to one key.
type lane struct {
	open    map[*Belief]struct{}
	highest uint64
	by      string
}

// Belief is one hold, as its holder believes it.
type Belief struct {
	of    *History
	lane  *lane
	what  string
	alive func() bool
	dead  bool // it was seen to have ended
}

// NewHistory begins to observe.
func NewHistory() *History {
	return &History{start: time.Now(), keys: make(map[string]*lane)}
}

// Began tells that a holder believes from now on that it has key with fence. alive
// says whether it still does, at any time until Ended.
//
// Exclusion is checked here: nobody else may believe the same now. That is enough,
// since a belief that was over and comes back is a violation by itself.
func (h *History) Began(key, holder string, fence uint64, alive func() bool) *Belief {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	l := h.keys[key]
	if l == nil {
		l = &lane{open: make(map[*Belief]struct{})}
		h.keys[key] = l
	}
	b := &Belief{of: h, lane: l, what: fmt.Sprintf("%s's %s with fence %d|%d", holder, key, fence>>49, fence&(1<<49-1)), alive: alive}
	if !alive() {
		b.dead = true // it ended on the way here
	} else {
		for o := range l.open {
			if o.lookLocked() {
				h.violateLocked("%s begins while %s is believed", b.what, o.what)
			}
		}
		if fence <= l.highest {
			h.violateLocked("%s begins after %s", b.what, l.by)
		}
		l.highest, l.by = max(l.highest, fence), b.what
		h.logLocked("%s begins", b.what)
	}
	l.open[b] = struct{}{}
	return b
}

// Ended tells that the holder gives the belief up. It is called before anybody else
// can be let in, so before the release is sent. It reports whether the belief had
// lasted until now.
func (b *Belief) Ended() bool {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	lasted := b.lookLocked()
	delete(b.lane.open, b)
	b.of.logLocked("%s ends, believed until then: %v", b.what, lasted)
	return lasted
}

func (b *Belief) lookLocked() bool {
	if !b.alive() {
		b.dead = true
	} else if b.dead {
		b.of.violateLocked("%s is believed again after it had ended", b.what)
		b.dead = false // once is enough
	}
	return !b.dead
}

// Look looks at all beliefs, so that one that comes back is seen.
func (h *History) Look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.keys {
		for b := range l.open {
			b.lookLocked()
		}
	}
}

// Wrong notes something else that is wrong.
func (h *History) Wrong(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violateLocked(format, args...)
}

func (h *History) violateLocked(format string, args ...any) {
	h.logLocked("VIOLATION: "+format, args...)
	h.violations = append(h.violations, fmt.Sprintf("%v: ", time.Since(h.start))+fmt.Sprintf(format, args...))
}

// Logf notes what happened, for the last lines before a violation.
func (h *History) Logf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logLocked(format, args...)
}

// logLines is how many lines are kept; nothing is once something was wrong.
const logLines = 200

func (h *History) logLocked(format string, args ...any) {
	if len(h.violations) > 0 {
		return
	}
	if len(h.latest) >= 2*logLines {
		h.latest = append(h.latest[:0], h.latest[logLines:]...)
	}
	h.latest = append(h.latest, fmt.Sprintf("%12v ", time.Since(h.start).Round(time.Microsecond))+fmt.Sprintf(format, args...))
}

// Violations are what was wrong, in order, and the lines before the first.
func (h *History) Violations() (wrong, before []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.violations, h.latest
}

// Begun is how many beliefs there were.
func (h *History) Begun() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}
