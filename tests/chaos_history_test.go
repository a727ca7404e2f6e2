package tests_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"
)

// heldLock is what a process notes of one handle on a lock. Times are
// nanoseconds of the machine's monotonic clock, which all its processes share
// and nothing steps; each was read so that the claim holds whatever happened
// between the reading and the deed: a process may be stopped there.
type heldLock struct {
	Proc          int
	Resource, Key string
	ID            string // of the hold, in its process: re-entered handles share it
	Holder        string // where it was chosen by the option Holder
	Lease         string
	Fence         uint64
	Granted       int64 // the server's time, microseconds
	Called        int64 // read before Lock was called
	Returned      int64 // read after it had returned
	// Believed was read before the last look at Lock.Err that found the lock
	// held, and Alive before the last one at its context that found it not
	// ended; 0 where no look did. In Do there is only the context.
	Believed, Alive int64
	Unlock          int64 // read before Unlock was called, 0 in Do
	Err             string
}

// stall is a time in which a process was not running, or hardly. Its timers,
// which end contexts, may be late by as much.
type stall struct {
	Proc     int
	From, To int64
}

// chaosEvent is a line of a process's history: one of the two, or neither but a
// complaint of its own.
type chaosEvent struct {
	Held      *heldLock `json:",omitempty"`
	Stall     *stall    `json:",omitempty"`
	Complaint string    `json:",omitempty"`
	At        int64     `json:",omitempty"` // of the complaint
}

type history struct {
	held   []heldLock
	stalls []stall
	seen   []sight // in order
	faults []violation
}

func (h *history) read(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e chaosEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		switch {
		case e.Held != nil:
			h.held = append(h.held, *e.Held)
		case e.Stall != nil:
			h.stalls = append(h.stalls, *e.Stall)
		default:
			h.faults = append(h.faults, violation{e.At, e.Complaint})
		}
	}
	return lines.Err()
}

// violation is a broken promise, and when it showed.
type violation struct {
	at   int64
	what string
}

// violations checks what no history may show, and returns the earliest first.
func (h *history) violations() []violation {
	all := slices.Clone(h.faults)
	byKey := map[string][]heldLock{}
	for _, l := range h.held {
		name := l.Resource + "/" + l.Key
		byKey[name] = append(byKey[name], l)
	}
	for name, locks := range byKey {
		all = append(all, fenceViolations(name, locks)...)
		// Lock.Err judges by the clock: what it says holds without exception.
		all = append(all, overlaps(name+": two believed by Err", locks, func(l heldLock) int64 { return l.Believed })...)
		// A context is ended by a timer, which needs a running process.
		all = append(all, overlaps(name+": two believed by their contexts", locks, h.alive)...)
		all = append(all, h.unfounded(name, locks)...)
	}
	slices.SortFunc(all, func(a, b violation) int { return cmp.Compare(a.at, b.at) })
	return all
}

// lateTimer is how long after a stall a context may still be seen alive.
const lateTimer = int64(100 * time.Millisecond)

// alive is until when a context was alive in a process that was running.
func (h *history) alive(l heldLock) int64 {
	end := l.Alive
	for _, s := range h.stalls {
		if s.Proc == l.Proc && s.From < end && end <= s.To+lateTimer {
			end = s.From
		}
	}
	return max(end, l.Believed)
}

// same says whether two handles may be held at once: they are of one hold, or of
// one explicit holder's.
func same(a, b heldLock) bool {
	return a.Proc == b.Proc && a.ID == b.ID || a.Holder != "" && a.Holder == b.Holder && a.Fence == b.Fence
}

// overlaps finds locks of one key that were believed in at one moment. Belief
// never comes back, so whoever believed when Lock had returned and at a later
// look believed all the time between.
func overlaps(what string, locks []heldLock, end func(heldLock) int64) (found []violation) {
	locks = slices.Clone(locks)
	slices.SortFunc(locks, func(a, b heldLock) int { return cmp.Compare(a.Returned, b.Returned) })
	var open []heldLock
	for _, b := range locks {
		if end(b) < b.Returned {
			continue
		}
		open = slices.DeleteFunc(open, func(a heldLock) bool { return end(a) < b.Returned })
		for _, a := range open {
			if !same(a, b) {
				found = append(found, violation{b.Returned, fmt.Sprintf("%s for %v\n\t%+v\n\t%+v", what,
					time.Duration(min(end(a), end(b))-b.Returned), a, b)})
			}
		}
		open = append(open, b)
	}
	return found
}

// unfounded finds locks that were believed in while the server had no such key,
// whether or not somebody else could have taken it just then.
func (h *history) unfounded(name string, locks []heldLock) (found []violation) {
	for _, l := range locks {
		first := sort.Search(len(h.seen), func(i int) bool { return h.seen[i].From >= l.Returned })
		for _, s := range h.seen[first:] {
			if s.To > l.Believed {
				break
			}
			if !s.Locks[name].is(l) {
				found = append(found, violation{s.From, fmt.Sprintf("%s: believed %v longer than the server held it (now fence %d)\n\t%+v", name,
					time.Duration(l.Believed-s.To), s.Locks[name].Fence, l)})
				break
			}
		}
	}
	return found
}

// is reports whether the server's token stands for a lock. A lease that was handed over
// keeps the token of an earlier hold until the later one's is written in the background.
func (s stored) is(l heldLock) bool {
	return s.Fence == l.Fence || l.Holder == "" && s.Lease == l.Lease && s.Fence != 0 && s.Fence < l.Fence
}

// fenceViolations finds fences of one key that do not rise.
func fenceViolations(name string, locks []heldLock) (found []violation) {
	bad := func(what string, a, b heldLock) {
		found = append(found, violation{b.Returned, fmt.Sprintf("%s: %s\n\t%+v\n\t%+v", name, what, a, b)})
	}
	// Each hold has its own.
	locks = slices.Clone(locks)
	slices.SortFunc(locks, func(a, b heldLock) int { return cmp.Compare(a.Fence, b.Fence) })
	for i := range locks[1:] {
		if a, b := locks[i], locks[i+1]; a.Fence == b.Fence && !same(a, b) {
			bad("one fence twice", a, b)
		}
	}
	// It rises in the order of the grants, by the server's clock (who enters an
	// explicit holder's hold is granted the fence again) …
	slices.SortFunc(locks, func(a, b heldLock) int { return cmp.Compare(a.Granted, b.Granted) })
	for i := range locks[1:] {
		if a, b := locks[i], locks[i+1]; a.Granted < b.Granted && a.Fence > b.Fence {
			bad("a fence that falls in the order of the grants", a, b)
		}
	}
	// … and by ours: whoever asked when another had been given the lock.
	byReturn := slices.Clone(locks)
	slices.SortFunc(byReturn, func(a, b heldLock) int { return cmp.Compare(a.Returned, b.Returned) })
	slices.SortFunc(locks, func(a, b heldLock) int { return cmp.Compare(a.Called, b.Called) })
	var highest heldLock
	n := 0
	for _, b := range locks {
		for n < len(byReturn) && byReturn[n].Returned < b.Called {
			if byReturn[n].Fence > highest.Fence {
				highest = byReturn[n]
			}
			n++
		}
		if b.Fence < highest.Fence {
			bad("a fence below one that was known", highest, b)
		}
	}
	return found
}
