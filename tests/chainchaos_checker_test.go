package tests_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What the checker of a chain's histories must find, and what it must let pass.
func TestChainChaosChecker(t *testing.T) {
	const ms = int64(time.Millisecond)
	a := chainHandle{heldLock: heldLock{Proc: 0, Resource: exclusiveResource, Key: "1", ID: "a", Fence: 10, Called: 0, Returned: 2 * ms,
		Believed: 50 * ms, Alive: 50 * ms, Unlock: 51 * ms}, Ended: 55 * ms}
	b := chainHandle{heldLock: heldLock{Proc: 1, Resource: exclusiveResource, Key: "1", ID: "b", Fence: 11, Called: 40 * ms, Returned: 62 * ms,
		Believed: 90 * ms, Alive: 90 * ms, Unlock: 91 * ms}, Ended: 95 * ms}
	const overlap, order = "two believed by Err", "no order of its calls"
	for name, c := range map[string]struct {
		change func(a, b *chainHandle)
		want   []string
	}{
		"in turn":                        {func(a, b *chainHandle) {}, nil},
		"overlap":                        {func(a, b *chainHandle) { a.Believed = 70 * ms }, []string{overlap, order}},
		"overlap of one that was killed": {func(a, b *chainHandle) { a.Believed, a.Ended = 70*ms, 0 }, []string{overlap, order}},
		"killed while it had the lock":   {func(a, b *chainHandle) { a.Ended = 0 }, nil},
		"lost, and found out late":       {func(a, b *chainHandle) { a.Unlock, a.Ended = 200*ms, 201*ms }, nil},
		"never believed in":              {func(a, b *chainHandle) { a.Believed, a.Alive, a.Returned = 0, 0, 70*ms }, nil},
		"best effort":                    {func(a, b *chainHandle) { a.Believed, a.Resource, b.Resource = 70*ms, "be", "be" }, nil},
		"fences fall":                    {func(a, b *chainHandle) { b.Fence = 9 }, []string{order}},
		"fences fall, known":             {func(a, b *chainHandle) { b.Fence, b.Called = 9, 60*ms }, []string{order, "below one that was known"}},
		"one fence twice":                {func(a, b *chainHandle) { b.Fence = 10 }, []string{order, "one fence twice"}},
		"entered": {func(a, b *chainHandle) { // and left after the outer handle
			b.Proc, b.ID, b.Fence, b.Called, b.Returned = 0, "a", 10, 10*ms, 12*ms
		}, nil},
		"entered by its holder from elsewhere": {func(a, b *chainHandle) {
			a.Holder, b.Holder, b.Fence, b.Called, b.Returned = "h", "h", 10, 10*ms, 12*ms
		}, nil},
		"entered by its holder when it was lost": {func(a, b *chainHandle) { a.Holder, b.Holder, b.Fence, b.Called = "h", "h", 10, 60*ms }, nil},
		"entered by another holder": {func(a, b *chainHandle) {
			a.Holder, b.Holder, b.Fence, b.Called, b.Returned = "h", "i", 10, 10*ms, 12*ms
		}, []string{overlap, order, "one fence twice"}},
		"entered by its holder under another fence": {func(a, b *chainHandle) {
			a.Holder, b.Holder, b.Called, b.Returned = "h", "h", 10*ms, 12*ms
		}, []string{overlap, order}},
		"entered when it was over": {func(a, b *chainHandle) { b.Proc, b.ID, b.Fence, b.Called = 0, "a", 10, 60*ms }, []string{order}},
	} {
		a, b := a, b
		c.change(&a, &b)
		for _, handles := range [][]chainHandle{{a, b}, {b, a}} {
			wantFound(t, name, (&chainHistory{handles: handles}).violations(), c.want)
		}
	}

	w := registerWrite{Proc: 0, Resource: exclusiveResource, Key: "1", How: "plain", ID: "a", Fence: 10, Value: 5, Looked: 0, Confirmed: ms}
	v := registerWrite{Proc: 1, Resource: exclusiveResource, Key: "1", How: "plain", ID: "b", Fence: 11, Value: 6, Looked: 9 * ms, Confirmed: 10 * ms}
	for name, c := range map[string]struct {
		change func(w, v *registerWrite)
		want   []string
	}{
		"in turn":                      {func(w, v *registerWrite) {}, nil},
		"lost":                         {func(w, v *registerWrite) { v.Value = 5 }, []string{"an update is lost"}},
		"lost, of two keys":            {func(w, v *registerWrite) { v.Value, v.Key = 5, "2" }, nil},
		"lost by best effort":          {func(w, v *registerWrite) { v.Value, w.Resource, v.Resource = 5, "be", "be" }, nil},
		"lost by one that was stopped": {func(w, v *registerWrite) { v.Value, v.Confirmed = 5, 400*ms }, nil},
		"lost though fenced":           {func(w, v *registerWrite) { v.Value, v.Confirmed, w.How, v.How = 5, 400*ms, "fenced", "fenced" }, []string{"an update is lost"}},
		"an older one came later":      {func(w, v *registerWrite) { v.Fence, w.How, v.How = 9, "guarded", "guarded" }, []string{"of an older hold came after"}},
		"the same, and no fence asked": {func(w, v *registerWrite) { v.Fence = 9 }, nil},
	} {
		w, v := w, v
		c.change(&w, &v)
		wantFound(t, "register, "+name, (&chainHistory{writes: []registerWrite{v, w}}).violations(), c.want)
	}
	if n := (&chainHistory{writes: []registerWrite{w, v, w}}).lost(); n != 1 {
		t.Errorf("%d updates lost, want 1", n)
	}
}

func wantFound(t *testing.T, name string, found []violation, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(found, func(v violation) bool { return strings.Contains(v.what, w) }) {
			t.Errorf("%s: %q was not found in %v", name, w, found)
		}
	}
	if len(want) == 0 && len(found) > 0 {
		t.Errorf("%s: found %v", name, found)
	}
}

// The file of a worker that was killed ends anywhere.
func TestChainHistoryOfAKilledWorker(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history")
	text := `{"Handle":{"N":1,"Key":"a","Believed":5}}
{"Write":{"Key":"a","Value":3}}
{"Fault":"one","At":7}
{"Handle":{"N":1,"Key":"a","Believed":9}}
{"Handle":{"N":2,"Key":"b","Bel`
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	var h chainHistory
	if err := h.read(file); err != nil || len(h.handles) != 1 || h.handles[0].Believed != 9 || len(h.writes) != 1 || len(h.faults) != 1 {
		t.Errorf("read %+v, %v", h, err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := h.read(file); err == nil {
		t.Error("a bad line in the middle was passed over")
	}
}

// Stores that break a rule of the chain are found out: one that takes any data of
// Redis for the one that the mode is about, and one that adopts nothing.
func TestChainChaosFindsBrokenRules(t *testing.T) {
	t.Parallel()
	for rule, steps := range map[string][]step{
		"other data": { // Redis comes back empty at once, before any probe has failed
			{At: 3 * time.Second, What: crashServer}, {At: 3 * time.Second, What: startServer},
			{At: 6 * time.Second, What: crashServer}, {At: 6 * time.Second, What: startServer},
			{At: 9 * time.Second, What: crashServer}, {At: 9 * time.Second, What: startServer},
		},
		"adoption": {{At: 3 * time.Second, What: crashServer}},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			h, _ := chainChaosRun(t, steps, 11*time.Second, chainChaosConfig{Seed: 1, Breaks: rule})
			found := map[string]int{}
			for _, v := range h.violations() {
				for _, what := range []string{"two believed by Err", "two believed by their contexts", "no order of its calls", "an update is lost"} {
					if strings.Contains(v.what, what) {
						found[what]++
					}
				}
			}
			t.Logf("found %v", found)
			if found["two believed by Err"] == 0 || found["no order of its calls"] == 0 {
				t.Errorf("not all was found out: %v", found)
			}
		})
	}
}
