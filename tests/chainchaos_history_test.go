package tests_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// chainLine is a line of a worker's history: one of the things that it may say. A
// worker writes each as it happens, since it may be killed at any moment. Times are
// as in heldLock.
type chainLine struct {
	// Handle is what is known of a handle now; a later line of the same number
	// takes the place of the former.
	Handle *chainHandle   `json:",omitempty"`
	Stall  *stall         `json:",omitempty"`
	Write  *registerWrite `json:",omitempty"`
	Fault  string         `json:",omitempty"`
	At     int64          `json:",omitempty"` // of the fault
}

// chainHandle is one handle on a lock.
type chainHandle struct {
	heldLock
	N     int // its number in its process
	Epoch int // that it was granted in
	Tier  string
	Inner bool  // it entered a hold
	Ended int64 // read after Unlock, or Do, had returned; 0 if it never did
}

// A registerWrite is one update that a worker knows to have been made, of a number
// that it had read under its lock, to the next one.
type registerWrite struct {
	Proc      int
	Resource  string
	Key       string
	How       string // see registers
	ID        string // of the hold
	Fence     uint64
	Value     int64 // written
	Looked    int64 // read before the last look at the lock, which found it held
	Confirmed int64 // read when the write had been made
}

// chainHistory is what all workers, those that were killed too, have written.
type chainHistory struct {
	handles []chainHandle
	stalls  []stall
	writes  []registerWrite
	faults  []violation
}

// read adds a worker's file. A line that a killed worker could not complete is left
// out.
func (h *chainHistory) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	last := map[int]chainHandle{}
	for line := range bytes.Lines(text) {
		if line[len(line)-1] != '\n' {
			break
		}
		var e chainLine
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %q: %w", file, line, err)
		}
		switch {
		case e.Handle != nil:
			last[e.Handle.N] = *e.Handle
		case e.Stall != nil:
			h.stalls = append(h.stalls, *e.Stall)
		case e.Write != nil:
			h.writes = append(h.writes, *e.Write)
		default:
			h.faults = append(h.faults, violation{e.At, e.Fault})
		}
	}
	for _, handle := range last {
		h.handles = append(h.handles, handle)
	}
	slices.SortFunc(h.handles, func(a, b chainHandle) int { return cmp.Compare(a.Returned, b.Returned) })
	return nil
}

// violations checks what no history may show. Locks of the exclusive resource are
// held by one at a time, their fences rise, and no update of the registers that locks
// protect is lost. (Of best effort all of that may happen, see loose.)
func (h *chainHistory) violations() []violation {
	all := history{stalls: h.stalls, faults: h.faults}
	byKey := map[string][]chainHandle{}
	for _, l := range h.handles {
		if l.Resource == exclusiveResource {
			all.held = append(all.held, l.heldLock)
			byKey[l.Key] = append(byKey[l.Key], l)
		}
	}
	found := all.violations()
	for key, handles := range byKey {
		if at := linearizable(handles); at != "" {
			found = append(found, violation{handles[0].Called, exclusiveResource + "/" + key + ": no order of its calls is that of a lock: " + at})
		}
	}
	found = append(found, h.registerViolations()...)
	slices.SortFunc(found, func(a, b violation) int { return cmp.Compare(a.at, b.at) })
	return found
}

// lockInput is a call, as the model of one lock sees it.
type lockInput struct {
	end    bool   // else a lock was given
	hold   string // which all handles that entered it share
	shared bool   // it is an explicit holder's
	fence  uint64
	before uint64 // the fence before it, of those that were given at all
}

type lockState struct {
	hold    string // the last one
	handles int    // 0 while it is free
	fence   uint64
}

// fencedMutex is a lock that one hold has at a time, by any number of handles, and
// whose fences rise. A hold ends with its last handle, which is some time after the
// last moment at which that was believed in and, where it was given back, before the
// call returned. Since all that were given must have a place in the order, each
// comes right after the one with the next smaller fence: so the search is short.
//
// The hold of an explicit holder may be entered for as long as a store has it, which
// may be for a while after all belief in it has ended.
var fencedMutex = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockInput)
		switch {
		case in.end:
			s.handles--
			return s.hold == in.hold && s.handles >= 0, s
		case s.hold == in.hold && (s.handles > 0 || in.shared):
			s.handles++
			return s.fence == in.fence, s
		}
		return s.handles == 0 && s.fence == in.before && in.fence > s.fence, lockState{in.hold, 1, in.fence}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// linearizable checks one key's history against the model and returns what is wrong,
// "" if nothing is. Handles that nobody believed in at any look leave no trace in it.
func linearizable(handles []chainHandle) string {
	var ops []porcupine.Operation
	var fences []uint64
	for _, l := range handles {
		if l.Believed >= l.Returned {
			fences = append(fences, l.Fence)
		}
	}
	slices.Sort(fences)
	fences = slices.Compact(fences)
	for i, l := range handles {
		if l.Believed < l.Returned {
			continue
		}
		in := lockInput{hold: fmt.Sprint(l.Proc, "/", l.ID), fence: l.Fence}
		if l.Holder != "" { // of all processes
			in.hold, in.shared = fmt.Sprint(l.Holder, "/", l.Fence), true
		}
		if at, _ := slices.BinarySearch(fences, l.Fence); at > 0 {
			in.before = fences[at-1]
		}
		ended := l.Ended
		if ended == 0 {
			ended = math.MaxInt64
		}
		end := in
		end.end = true
		ops = append(ops, porcupine.Operation{ClientId: i, Input: in, Call: l.Called, Return: l.Returned},
			porcupine.Operation{ClientId: i, Input: end, Call: l.Believed, Return: ended})
	}
	switch porcupine.CheckOperationsTimeout(fencedMutex, ops, time.Minute) {
	case porcupine.Illegal:
		return fmt.Sprintf("%d calls", len(ops))
	case porcupine.Unknown:
		return fmt.Sprintf("not found out within a minute, of %d calls", len(ops))
	}
	return ""
}

// registerViolations checks the registers: no two updates wrote one number, which is
// an update lost, and where a fence was compared the numbers were written in the
// order of the fences.
func (h *chainHistory) registerViolations() (found []violation) {
	for name, writes := range h.registers() {
		slices.SortFunc(writes, func(a, b registerWrite) int {
			return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Confirmed, b.Confirmed))
		})
		for i := 1; i < len(writes); i++ {
			a, b := writes[i-1], writes[i]
			how := registers[a.How]
			switch {
			case a.Value == b.Value && how.mayLose(a.Resource, max(a.late(), b.late())):
			case a.Value == b.Value:
				found = append(found, violation{b.Confirmed, fmt.Sprintf("%s: an update is lost\n\t%+v\n\t%+v", name, a, b)})
			case how.fenced && a.Fence > b.Fence:
				found = append(found, violation{b.Confirmed, fmt.Sprintf("%s: a write of an older hold came after\n\t%+v\n\t%+v", name, a, b)})
			}
		}
	}
	return found
}

// loose counts what best effort does not rule out: beliefs in one key that overlap, and
// fences that do not rise.
func (h *chainHistory) loose() (overlapping, fences int) {
	byKey := map[string][]heldLock{}
	for _, l := range h.handles {
		if l.Resource != exclusiveResource {
			byKey[l.Key] = append(byKey[l.Key], l.heldLock)
		}
	}
	for key, locks := range byKey {
		overlapping += len(overlaps(key, locks, func(l heldLock) int64 { return l.Believed }))
		fences += len(fenceViolations(key, locks))
	}
	return overlapping, fences
}

// shared counts the handles that entered the hold of an explicit holder in another way
// than through its context.
func (h *chainHistory) shared() (n int) {
	holds := map[string]string{} // by key, holder and fence
	for _, l := range h.handles {
		if l.Holder == "" || l.Inner {
			continue
		}
		hold := fmt.Sprint(l.Key, "/", l.Holder, "/", l.Fence)
		if id, known := holds[hold]; known && id != l.ID {
			n++
		}
		holds[hold] = l.ID
	}
	return n
}

// late is how long after the look at the lock the write came at most.
func (w registerWrite) late() time.Duration { return time.Duration(w.Confirmed - w.Looked) }

func (h *chainHistory) registers() map[string][]registerWrite {
	all := map[string][]registerWrite{}
	for _, w := range h.writes {
		name := fmt.Sprintf("register of %s/%s, %s", w.Resource, w.Key, w.How)
		all[name] = append(all[name], w)
	}
	return all
}

// lost counts the updates that were lost where nothing keeps them.
func (h *chainHistory) lost() (n int) {
	for _, writes := range h.registers() {
		values := map[int64]bool{}
		for _, w := range writes {
			if values[w.Value] {
				n++
			}
			values[w.Value] = true
		}
	}
	return n
}
