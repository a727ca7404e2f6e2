package storetest_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// over gives a harness whose stores come from open and share one space.
func over(open func(t *testing.T, space *localstore.Space) tierlock.Store) func(t *testing.T) storetest.Harness {
	return func(*testing.T) storetest.Harness {
		space := localstore.NewSpace()
		return storetest.Harness{Open: func(t *testing.T) tierlock.Store { return open(t, space) }}
	}
}

func local(_ *testing.T, space *localstore.Space) tierlock.Store {
	return localstore.New(localstore.Options{Space: space})
}

func TestSuitePassesForLocalstore(t *testing.T) {
	storetest.RunInBubble(t, over(local))
}

func TestSuitePassesForLocalstoreInRealTime(t *testing.T) {
	storetest.Run(t, over(local))
}

// The suite asks for other things of a store with fences.
func TestSuitePassesForFencedStore(t *testing.T) {
	storetest.RunInBubble(t, newFencedHarness)
}

func TestSuitePassesForFaultyStoreWithoutFaults(t *testing.T) {
	storetest.RunInBubble(t, over(func(t *testing.T, space *localstore.Space) tierlock.Store {
		return storetest.WithFaults(local(t, space))
	}))
}

// A store that is no Watcher, and one that can never push, pass the checks of
// watches.
func TestSuitePassesWithoutPush(t *testing.T) {
	for _, check := range storetest.CheckNames() {
		if !strings.HasPrefix(check, "Watch") {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			h := over(func(t *testing.T, space *localstore.Space) tierlock.Store {
				return struct{ tierlock.Store }{local(t, space)}
			})(t)
			if got := storetest.Failures(t, h, check); len(got) != 0 {
				t.Errorf("%s, no Watcher: got complaints %q", check, got)
			}
			h = over(func(t *testing.T, space *localstore.Space) tierlock.Store {
				return storetest.WithFaults(struct{ tierlock.Store }{local(t, space)})
			})(t)
			h.NoPush = true
			if got := storetest.Failures(t, h, check); len(got) != 0 {
				t.Errorf("%s, NoPush: got complaints %q", check, got)
			}
		})
	}
}

// A harness that says there is no push and has it, or the other way round, is
// told so.
func TestSuiteChecksNoPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := over(local)(t)
		h.NoPush = true
		if got := storetest.Failures(t, h, "WatchLive"); len(got) == 0 {
			t.Errorf("push in spite of NoPush: no complaint")
		}
		h = over(func(t *testing.T, space *localstore.Space) tierlock.Store {
			return storetest.WithFaults(struct{ tierlock.Store }{local(t, space)})
		})(t)
		if got := storetest.Failures(t, h, "WatchLive"); len(got) == 0 {
			t.Errorf("no push without NoPush: no complaint")
		}
	})
}

func TestSuiteWantsTwoStores(t *testing.T) {
	one := localstore.New(localstore.Options{})
	h := storetest.Harness{Open: func(*testing.T) tierlock.Store { return one }}
	if got := storetest.Failures(t, h, "AcquireFree"); len(got) != 1 {
		t.Errorf("one store value for two: got complaints %q, want one", got)
	}
}

// Two stores that do not share a backend exclude nobody.
func TestSuiteWantsOneBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := storetest.Harness{Open: func(*testing.T) tierlock.Store { return localstore.New(localstore.Options{}) }}
		for _, check := range []string{"AcquireFree", "AcquireHeld", "AcquireOneWinner", "ReleaseStale", "HolderEnters", "NamesApart", "WatchLive", "Exclusion"} {
			if got := storetest.Failures(t, h, check); len(got) == 0 {
				t.Errorf("%s: no complaint about two backends", check)
			}
		}
	})
}

// The suite counts time as the backend does, whether Advance sleeps or moves a
// clock.
func TestAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := over(local)(t)
		for _, c := range []struct {
			name    string
			advance func(time.Duration)
		}{
			{"default", nil},
			{"sleeps", time.Sleep},
			{"moves a clock", func(time.Duration) {}},
			{"does half of each", func(d time.Duration) { time.Sleep(d / 2) }},
		} {
			h.Advance = c.advance
			if got := storetest.Elapsed(t, h, time.Minute); got != time.Minute {
				t.Errorf("Advance that %s: got %v, want 1m0s", c.name, got)
			}
		}
	})
}

func TestNamesAreDifferent(t *testing.T) {
	names := storetest.ApartNames(t, over(local)(t))
	n := len(names)
	slices.Sort(names)
	if names = slices.Compact(names); len(names) != n {
		t.Errorf("%d of %d names are there twice", n-len(names), n)
	}
}
