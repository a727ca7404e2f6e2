package degrade_test

import (
	"hash/maphash"
	"math"
	"runtime/debug"

	"github.com/tierlock/tierlock/degrade"
)

// search visits all states of a scope, nearest first, so that the counterexample
// that it finds is a shortest one. States are told apart by 64 bits of a hash of
// all that can matter: with ten million of them two would be mistaken for one
// once in some three hundred thousand runs.
type search struct {
	scope  scope
	limit  int
	states int
	depth  int
	opens  int    // states in which some later epoch is open
	found  string // what was violated, "" if nothing
	trace  []string
	// each, if set, is asked about every state's world; what it says ends the search.
	each func(w *world) string

	seed   maphash.Seed
	perms  [][]int
	buf    []byte
	parent []int32
	step   []uint16
}

func (q *search) run() {
	// Nearly all that is allocated is garbage at once: collecting it less often
	// saves a third of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(600))
	q.seed = maphash.MakeSeed()
	q.perms = permutations(q.scope.procs, q.scope.starter)
	s := &steps{scope: &q.scope}
	seen := map[uint64]struct{}{}
	type node struct {
		w world
		n int32
	}
	w := q.scope.world()
	seen[q.hash(&w)] = struct{}{}
	q.parent, q.step = []int32{-1}, []uint16{0}
	level, next := []node{{w, 0}}, []node(nil)
	for len(level) > 0 {
		for at := range level {
			s.all(&level[at].w)
			q.found = s.violation
			if q.found == "" && q.each != nil {
				q.found = q.each(&level[at].w)
			}
			if q.found != "" {
				q.explain(level[at].n, s)
				q.states = len(seen)
				return
			}
			for j := range s.next {
				h := q.hash(&s.next[j])
				if _, ok := seen[h]; ok {
					continue
				}
				seen[h] = struct{}{}
				if m := s.next[j].db.mode; m.Epoch > 1 && !m.Drain {
					q.opens++
				}
				q.parent = append(q.parent, level[at].n)
				q.step = append(q.step, uint16(j))
				next = append(next, node{s.next[j], int32(len(q.parent) - 1)})
			}
			level[at].w = world{} // for the garbage collector
			if q.limit > 0 && len(seen) >= q.limit {
				q.states = len(seen)
				return
			}
		}
		q.depth++
		level, next = next, level[:0]
	}
	q.states = len(seen)
}

// explain goes the way to state n once more, with words, and one step further to
// what is wrong.
func (q *search) explain(n int32, last *steps) {
	var way []uint16
	for ; q.parent[n] >= 0; n = q.parent[n] {
		way = append(way, q.step[n])
	}
	w := q.scope.world()
	s := &steps{scope: &q.scope, tracing: true}
	for i := len(way) - 1; i >= 0; i-- {
		s.all(&w)
		q.trace = append(q.trace, s.names[way[i]])
		w = s.next[way[i]]
	}
	if last.violation != "" {
		s.all(&w)
		q.trace = append(q.trace, s.names[s.wrong])
	}
}

// permutations are the orders of processes that make no difference. A starter
// differs from the others.
func permutations(n int, starter bool) [][]int {
	all := map[int][][]int{
		1: {{0}},
		2: {{0, 1}, {1, 0}},
		3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
	}[n]
	if starter {
		return all[:1]
	}
	return all
}

// hash is the same for worlds that differ in the order of processes only.
func (q *search) hash(w *world) uint64 {
	best := uint64(math.MaxUint64)
	for _, order := range q.perms {
		q.buf = q.scope.canon(q.buf[:0], w, order)
		best = min(best, maphash.Bytes(q.seed, q.buf))
	}
	return best
}

// canon writes down a world with its processes in the given order.
func (s *scope) canon(b []byte, w *world, order []int) []byte {
	var place [maxProcs + 1]byte // of an owner
	for pos, i := range order {
		place[i+1] = byte(pos + 1)
	}
	cells := func(cs *[2]cell) {
		for k := range s.keys {
			c := cs[k]
			b = append(b, c.record, c.epoch, c.ttl)
			if c.owner != 0 {
				b = append(b, place[c.owner], c.fence)
			}
		}
	}
	rows := func(a *arbiter) {
		b = degrade.CanonMode(b, a.mode)
		cells(&a.rows)
		for _, i := range order {
			m := a.members[i]
			if !m.here {
				b = append(b, 0)
				continue
			}
			b = append(b, 1, m.epoch, m.acked)
		}
	}
	current := func(id string, beat uint64) bool {
		m := w.db.members[id[0]-'a']
		return m.here && (uint64(m.beat) == beat || s.broken.removeIgnoresBeat)
	}
	var peers func(id string, beat uint64) (int, bool)
	if s.remove {
		peers = func(id string, beat uint64) (int, bool) {
			return int(place[id[0]-'a'+1]) - 1, current(id, beat)
		}
	}
	age := func(now, sent degrade.Instant) byte { return byte(min(now.Sub(sent), dur(max(s.term, s.lease)))) }
	action := func(a degrade.Action, now degrade.Instant) {
		b = append(b, byte(a.Kind), age(now, a.Sent), byte(len(a.Holds)))
		for _, id := range a.Holds {
			b = append(b, id[1])
		}
		b = degrade.CanonMode(b, a.From)
		b = degrade.CanonMode(b, a.To)
		if a.Member != "" && current(a.Member, a.Beat) {
			b = append(b, place[a.Member[0]-'a'+1])
		}
	}
	rows(&w.db)
	b = append(b, w.server...)
	if w.before != nil {
		b = degrade.CanonMode(b, *w.before)
	}
	if w.backup != nil {
		rows(w.backup)
	}
	cells(&w.redis[0])
	if w.failed {
		b = append(b, 1)
		cells(&w.redis[1])
	}
	b = append(b, w.highest[:s.keys]...)
	if l := w.late; l != nil {
		b = append(b, 'l', place[l.of+1])
		action(l.a, l.a.Sent) // nobody counts from its sending any more
		if l.a.Kind == degrade.Adopt {
			b = append(b, l.fence[:s.keys]...)
		}
	}
	for _, i := range order {
		p := &w.p[i]
		b = append(b, '|')
		b = p.m.Canon(b, p.clock, peers)
		b = append(b, p.slow, p.dups)
		for k := range s.keys {
			// The fence of a hold that has ended names it no longer.
			if p.m.Belief(keyIDs[k]) > p.clock {
				b = append(b, p.fence[k])
			}
		}
		if g := p.grant; g != nil {
			b = append(b, 'g', byte(g.key), g.fence, age(p.clock, g.sent), byte(g.t.Epoch), byte(g.t.Tier))
			b = append(b, g.t.Incarnation...)
		}
		if p.op != nil {
			r := &p.op.r
			action(p.op.a, p.clock)
			if r.OK {
				b = append(b, 'y')
			}
			b = degrade.CanonMode(b, r.Mode)
			for _, a := range r.Adopted {
				b = append(b, byte(a))
			}
			for _, m := range r.Members {
				if r.Mode.Drain && max(m.Epoch, m.Acked) == r.Mode.Epoch-1 {
					b = append(b, 'u') // un-acked: all that a machine looks at
					break
				}
			}
		}
	}
	return b
}
