package sim

import (
	"slices"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// row is what a server has of a key: a holder with one lease, or with several
// under an explicit holder id, and the record that fences are counted from. A row
// in a table is never changed, only replaced; its slice is its own.
type row struct {
	explicit bool
	token    tierlock.Token // of the lease that began the hold
	members  []member       // none: nobody holds the key
	epoch    uint16         // of the hold, or of the last one
	fence    uint64         // the record
}

// member is one lease of a row.
type member struct {
	token   tierlock.Token
	until   int64 // by the server's clock
	entered bool
}

func (r *row) held() bool { return len(r.members) > 0 }

func (r *row) until() int64 {
	var until int64
	for _, m := range r.members {
		until = max(until, m.until)
	}
	return until
}

func (r *row) find(lease string) int {
	return slices.IndexFunc(r.members, func(m member) bool { return m.token.Lease == lease })
}

// latest is the largest epoch that the row shows.
func (r *row) latest() uint16 { return max(r.epoch, uint16(r.fence>>contract.SeqBits)) }

// table are the locks of one server.
type table struct {
	rows    map[tierlock.Name]row
	journal *journal
	// forgets is Redis' way: a key that ended leaves a record of its fence, which
	// ends a minute after the clock has passed it. A database keeps its row.
	forgets bool
	broken  Broken
}

// recordTail is how long a record lives on once the clock has passed it, in µs.
const recordTail = 60_000_000

// view is the row as it is at now, as a copy.
func (t *table) view(name tierlock.Name, now int64) row {
	r := t.rows[name]
	r.members = slices.DeleteFunc(slices.Clone(r.members), func(m member) bool { return m.until <= now })
	if r.held() || !t.forgets {
		return r
	}
	seq := int64(r.fence & (1<<contract.SeqBits - 1))
	if contract.SeqOrigin+2*seq+recordTail < now {
		return row{}
	}
	return row{epoch: uint16(r.fence >> contract.SeqBits), fence: r.fence}
}

func (t *table) put(name tierlock.Name, r row) {
	old, was := t.rows[name]
	t.rows[name] = r
	t.journal.note(func(h *host) {
		if was {
			h.locks.rows[name] = old
		} else {
			delete(h.locks.rows, name)
		}
	})
}

// held are the keys that somebody holds.
func (t *table) held(now int64) []tierlock.Name {
	var names []tierlock.Name
	for name := range t.rows {
		if r := t.view(name, now); r.held() {
			names = append(names, name)
		}
	}
	return names
}
