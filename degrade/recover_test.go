package degrade_test

import (
	"fmt"
	"testing"

	"github.com/tierlock/tierlock/degrade"
)

// From every state, also of those in which a process has stopped for ever, the
// others get back to an open mode in which they may grant, as soon as calls are
// answered again: no state is a dead end. Here it is the machine's own policy that
// decides what is done.
func TestEveryStateRecovers(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  size
		scope scope
		every int // of so many states one is tried
	}{
		{"two grants", full, twoGrants, 16},
		{"slow replies", full, slowReplies, 256},
		{"failover", full, failover, 128},
		{"starter", full, starter, 16},
		{"arbiter loss", full, arbiterLoss, 128},
		{"removal", full, removal, 128},
		{"leaving", small, leaving, 256},
		{"three processes", full, three, 256},
	} {
		if !c.size.wanted() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			start, n, tried := cpu(), 0, 0
			limit, least := 100_000, 200
			if raceOn || testing.Short() {
				limit, least = 20_000, 30
			}
			q := search{scope: c.scope, limit: limit}
			q.each = func(w *world) string {
				if n++; n%c.every != 0 {
					return ""
				}
				tried++
				for dead := -1; dead < c.scope.procs; dead++ {
					if what := c.scope.recovers(w, dead); what != "" {
						return what
					}
				}
				return ""
			}
			q.run()
			if q.found != "" {
				t.Fatalf("%s, after:\n%s", q.found, lines(q.trace))
			}
			if tried < least {
				t.Fatalf("only %d states were tried", tried)
			}
			t.Logf("%d of %d states, %.1f s", tried, q.states, (cpu() - start).Seconds())
		})
	}
}

// recovers runs a copy of w in which all is answered at once and dead does nothing
// any more. It says what is missing in the end.
func (s *scope) recovers(from *world, dead int) string {
	w := *from
	alive := func(i int) bool { return i != dead }
	for i := range s.procs {
		p := &w.p[i]
		p.m = p.m.Clone()
		if p.op != nil && alive(i) {
			p.m.Done(p.clock, p.op.a, p.op.r)
		}
		p.op, p.grant = nil, nil
	}
	wait := max(3*s.term, s.term+s.grace) + 6
	for range wait {
		for range 3 {
			for i := range s.procs {
				p := &w.p[i]
				if !alive(i) {
					continue
				}
				for _, a := range p.m.Due(p.clock) {
					if a.Kind == degrade.Probe {
						continue
					}
					if a, ok := p.m.Begin(p.clock, a); ok {
						p.m.Done(p.clock, a, s.exec(&w, i, a))
					}
				}
			}
		}
		for i := range s.procs {
			w.p[i].clock++
		}
		for k := range s.keys {
			w.db.rows[k].tick()
			w.redis[0][k].tick()
			w.redis[1][k].tick()
		}
	}
	for i := range s.procs {
		if alive(i) && !w.p[i].closing {
			// One refresh: the last tick may have ended the permit.
			p := &w.p[i]
			if a, ok := p.m.Begin(p.clock, degrade.Action{Kind: degrade.Refresh, From: p.m.Mode()}); ok {
				p.m.Done(p.clock, a, s.exec(&w, i, a))
			}
			if _, ok := p.m.MayGrant(p.clock); !ok || w.db.mode.Drain {
				return fmt.Sprintf("with P%d dead (-1: nobody), P%d cannot grant after %d quiet ticks; it is in %v, the arbiter in %v on %s",
					dead, i, wait, short(p.m.Mode()), short(w.db.mode), w.server)
			}
		}
	}
	return ""
}
