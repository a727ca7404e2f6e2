package localstore

import (
	"math"
	"time"

	"github.com/tierlock/tierlock"
)

// entry is one held key. It has one member, or, under an explicit holder id,
// one for each lease that entered; it lives as long as the longest.
type entry struct {
	name     tierlock.Name
	explicit bool
	token    tierlock.Token // of the lease that began the hold
	members  []member       // never empty while the entry is in the Space
	until    time.Duration  // latest end of a member, in the Space's time
	pos      int            // in the heap
}

// member is one lease of an entry.
type member struct {
	token   tierlock.Token
	until   time.Duration
	entered bool // it joined a hold that was there
}

// prune drops members that ended on their own. At least one stays, since the
// entry has not expired: until does not change.
func (e *entry) prune(now time.Duration) {
	if len(e.members) == 1 {
		return
	}
	live := e.members[:0]
	for _, m := range e.members {
		if m.until > now {
			live = append(live, m)
		}
	}
	clear(e.members[len(live):]) // frees the tokens
	e.members = live
}

func (e *entry) find(lease string) int {
	for i := range e.members {
		if e.members[i].token.Lease == lease {
			return i
		}
	}
	return -1
}

func (e *entry) remove(i int) {
	last := len(e.members) - 1
	e.members[i] = e.members[last]
	e.members[last] = member{}
	e.members = e.members[:last]
}

func (e *entry) latest() time.Duration {
	var until time.Duration
	for i := range e.members {
		until = max(until, e.members[i].until)
	}
	return until
}

// stamp is the token as granted now.
func stamp(req tierlock.AcquireRequest) tierlock.Token {
	t := req.Token
	t.Fence, t.Epoch, t.Seq = 0, 1, 0
	t.ServerTime = time.Now().UTC().Truncate(time.Microsecond)
	t.ExpireAt = t.ServerTime.Add(req.TTL)
	return t
}

// further is how many holds may follow on a lease: none of them has a fence.
func further(req tierlock.AcquireRequest) int {
	if req.Explicit {
		return 0
	}
	return max(0, req.Fences)
}

// after is now + d. An absurd d ends at the end of time, not in the past.
func after(now, d time.Duration) time.Duration {
	if d > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + d
}

// expiryHeap is a container/heap of entries.
type expiryHeap []*entry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *expiryHeap) Push(x any) {
	e := x.(*entry)
	e.pos = len(*h)
	*h = append(*h, e)
}

func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil // else the slice keeps the entry alive
	*h = (*h)[:last]
	return e
}
