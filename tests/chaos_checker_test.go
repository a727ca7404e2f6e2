package tests_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// What the checker of histories must find, and what it must let pass.
func TestChaosChecker(t *testing.T) {
	const ms = int64(time.Millisecond)
	// a and b follow each other rightly.
	a := heldLock{Proc: 0, Resource: "plain", Key: "1", ID: "a", Fence: 10, Granted: 1000,
		Called: 0, Returned: 2 * ms, Believed: 50 * ms, Alive: 50 * ms, Unlock: 51 * ms}
	b := heldLock{Proc: 1, Resource: "plain", Key: "1", ID: "b", Fence: 11, Granted: 60_000,
		Called: 40 * ms, Returned: 62 * ms, Believed: 90 * ms, Alive: 90 * ms, Unlock: 91 * ms}
	for name, c := range map[string]struct {
		change func(a, b *heldLock)
		stalls []stall
		want   []string
	}{
		"in turn": {func(a, b *heldLock) {}, nil, nil},
		"overlap": {func(a, b *heldLock) { a.Believed = 70 * ms },
			nil, []string{"believed by Err for 8ms", "by their contexts for 8ms"}},
		"overlap, one inside the other": {func(a, b *heldLock) { a.Believed = 120 * ms },
			nil, []string{"believed by Err for 28ms", "by their contexts for 28ms"}},
		"overlap of a single moment": {func(a, b *heldLock) { a.Believed = b.Returned },
			nil, []string{"believed by Err for 0s", "by their contexts for 0s"}},
		"the later one never believed": {func(a, b *heldLock) { a.Believed, a.Alive, b.Believed, b.Alive = 70*ms, 70*ms, 0, 0 },
			nil, nil},
		"overlap by the contexts only": {func(a, b *heldLock) { a.Alive = 70 * ms },
			nil, []string{"by their contexts for 8ms"}},
		"the context alive after a stall": {func(a, b *heldLock) { a.Alive = 70 * ms },
			[]stall{{0, 55 * ms, 69 * ms}}, nil},
		"the context alive in a stall, that Err denies": {func(a, b *heldLock) { a.Alive = 70 * ms },
			[]stall{{0, 55 * ms, 75 * ms}}, nil},
		"a stall of the other process": {func(a, b *heldLock) { a.Alive = 70 * ms },
			[]stall{{1, 55 * ms, 69 * ms}}, []string{"by their contexts for 8ms"}},
		"a stall long ago": {func(a, b *heldLock) { a.Alive, b.Alive = 270*ms, 270*ms },
			[]stall{{0, 55 * ms, 69 * ms}}, []string{"by their contexts for 208ms"}},
		"Err after a stall": {func(a, b *heldLock) { a.Believed, a.Alive = 70*ms, 70*ms },
			[]stall{{0, 55 * ms, 69 * ms}}, []string{"believed by Err for 8ms", "by their contexts for 8ms"}},
		"two keys": {func(a, b *heldLock) { a.Believed, b.Key, b.Fence = 70*ms, "2", 10 }, nil, nil},
		"one hold, two handles": {func(a, b *heldLock) {
			a.Believed, b.Proc, b.ID, b.Fence, b.Granted = 70*ms, 0, "a", 10, 1000
		}, nil, nil},
		"one id in two processes": {func(a, b *heldLock) { a.Believed, b.ID = 70*ms, "a" },
			nil, []string{"believed by Err for 8ms", "by their contexts for 8ms"}},
		"one holder": {func(a, b *heldLock) { a.Believed, a.Holder, b.Holder, b.Fence = 70*ms, "h", "h", 10 },
			nil, nil},
		"one holder, two fences at once": {func(a, b *heldLock) { a.Believed, a.Holder, b.Holder = 70*ms, "h", "h" },
			nil, []string{"believed by Err for 8ms", "by their contexts for 8ms"}},
		"two holders": {func(a, b *heldLock) { a.Believed, a.Holder, b.Holder = 70*ms, "g", "h" },
			nil, []string{"believed by Err for 8ms", "by their contexts for 8ms"}},
		"a fence twice": {func(a, b *heldLock) { b.Fence = 10 }, nil, []string{"one fence twice"}},
		"a fence falls": {func(a, b *heldLock) { b.Fence = 9 },
			nil, []string{"falls in the order of the grants", "below one that was known"}},
		"a fence falls by the server's time, calls at once": {func(a, b *heldLock) { b.Fence, b.Called = 9, ms },
			nil, []string{"falls in the order of the grants"}},
		"a fence falls by our time, the server's was stepped": {func(a, b *heldLock) { b.Fence, b.Granted = 9, 900 },
			nil, []string{"below one that was known"}},
	} {
		a, b := a, b
		c.change(&a, &b)
		for _, h := range []history{{held: []heldLock{a, b}, stalls: c.stalls}, {held: []heldLock{b, a}, stalls: c.stalls}} {
			var got []string
			for _, v := range h.violations() {
				got = append(got, v.what)
			}
			ok := len(got) == len(c.want)
			for i := range c.want {
				ok = ok && slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want[i]) })
			}
			if !ok {
				t.Errorf("%s: found %q, want %q", name, got, c.want)
			}
		}
	}

	// What is believed has to be in the server at every look that began and ended
	// within.
	of := func(from, to int64, lease string, fence uint64) sight {
		s := sight{From: from * ms, To: to * ms, Locks: map[string]stored{"plain/2": {"lease", 10}}}
		if fence != 0 {
			s.Locks["plain/1"] = stored{lease, fence}
		}
		return s
	}
	at := func(from, to int64, fence uint64) sight { return of(from, to, "", fence) }
	a.Lease = "lease"
	for name, c := range map[string]struct {
		seen []sight
		want string
	}{
		"there":                 {[]sight{at(0, 1, 0), at(3, 4, 10), at(40, 50, 10), at(63, 64, 11)}, ""},
		"gone":                  {[]sight{at(3, 4, 10), at(30, 31, 0), at(40, 41, 0)}, "believed 19ms longer than the server held it (now fence 0)"},
		"another's":             {[]sight{at(3, 4, 10), at(49, 50, 11)}, "believed 0s longer than the server held it (now fence 11)"},
		"gone before or after":  {[]sight{at(1, 3, 0), at(49, 51, 0), at(52, 53, 0)}, ""},
		"gone in a look beside": {[]sight{at(1, 60, 0)}, ""},
		"handed over":           {[]sight{of(3, 4, "lease", 9), of(40, 41, "lease", 10)}, ""},
		"handed on":             {[]sight{of(3, 4, "lease", 10), of(40, 41, "lease", 11)}, "believed 9ms longer than the server held it (now fence 11)"},
		"of another lease":      {[]sight{of(3, 4, "other", 9)}, "believed 46ms longer than the server held it (now fence 9)"},
	} {
		h := history{held: []heldLock{a, b}, seen: c.seen}
		switch found := h.violations(); {
		case c.want == "" && len(found) > 0:
			t.Errorf("%s: found %v", name, found)
		case c.want != "" && (len(found) != 1 || !strings.Contains(found[0].what, c.want)):
			t.Errorf("%s: found %v, want %q", name, found, c.want)
		}
	}
	found := (&history{held: []heldLock{a, b}, faults: []violation{{70 * ms, "late"}, {3, "early"}}}).violations()
	if len(found) != 2 || found[0].what != "early" {
		t.Errorf("complaints of a process: %v", found)
	}
}

// Two processes whose store breaks the rules are found out, without any fault.
func TestChaosFindsBrokenRules(t *testing.T) {
	t.Parallel()
	const lasting = 5 * time.Second
	h, counts := chaosRun(t, rig.Redis(t), nil, lasting, chaosConfig{Seed: 1, Broken: true})
	found := map[string]int{}
	for _, v := range h.violations() {
		for _, what := range []string{"two believed by Err", "two believed by their contexts", "one fence twice", "longer than the server held it"} {
			if strings.Contains(v.what, what) {
				found[what]++
			}
		}
	}
	t.Logf("found %v in %d and %d locks", found, counts[0].Held, counts[1].Held)
	if len(found) != 4 {
		t.Errorf("not all was found out: %v", found)
	}
}

func TestChaosSeedsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "seeds")
	if known, err := readSeeds(dir); err != nil || len(known) != 0 {
		t.Errorf("from no folder: %v, %v", known, err)
	}
	for _, s := range []knownSeed{{7, time.Minute}, {123456789, 8 * time.Second}} {
		if err := keepSeed(dir, s.seed, s.lasting); err != nil {
			t.Fatal(err)
		}
	}
	known, err := readSeeds(dir)
	if err != nil || !slices.Equal(known, []knownSeed{{7, time.Minute}, {123456789, 8 * time.Second}}) {
		t.Errorf("read %v, %v", known, err)
	}
	for name, text := range map[string]string{"seven": "1m\n", "8": "soon\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if known, err := readSeeds(dir); err == nil {
			t.Errorf("with a file %s of %q: %v", name, text, known)
		}
		os.Remove(file)
	}
}
