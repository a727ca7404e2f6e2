package storetest_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/sim"
	"github.com/tierlock/tierlock/storetest"
)

// brokenChain is a simulated server with one thing wrong.
type brokenChain struct {
	check string
	wrong sim.Broken
	want  string // stands in a complaint
}

func brokenChains() []brokenChain {
	return []brokenChain{
		{"PlaceAcquire", sim.Broken{LaterEpochTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceAcquire", sim.Broken{LaterRecordTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceAcquire", sim.Broken{EarlierBlocks: true}, "got a grant of epoch 2, want 3"},
		{"PlaceAcquire", sim.Broken{EpochsApart: true}, "want the fence of the hold"},
		{"PlaceAcquire", sim.Broken{EpochOfCall: true}, "got a grant of epoch"},
		{"PlaceAcquire", sim.Broken{FenceWithoutEpoch: true}, "want epoch<<49 | seq"},
		{"PlaceAcquire", sim.Broken{HeldForGood: true}, "want a free key"},
		{"PlaceAcquire", sim.Broken{EpochIsError: true}, "want one that wraps ErrEpoch"},
		{"PlaceAcquireOver", sim.Broken{EarlierBlocks: true}, "want granted"},
		{"PlaceAcquireOver", sim.Broken{LaterEpochTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceAcquireLate", sim.Broken{LateClears: true}, "want held by"},
		{"PlaceOneWinner", sim.Broken{LaterEpochTaken: true, EpochsApart: true}, "winner"},
		{"PlaceOneWinner", sim.Broken{EarlierBlocks: true}, "winner"},
		{"PlaceRenew", sim.Broken{EarlierRenewed: true}, "what an earlier epoch left is not there"},
		{"PlaceRenew", sim.Broken{LaterEpochTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceRenew", sim.Broken{EpochsApart: true}, "want owned"},
		{"PlaceRenewBatch", sim.Broken{LaterEpochTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceRenewBatch", sim.Broken{EpochsApart: true}, "want owned"},
		{"PlaceRelease", sim.Broken{EarlierRenewed: true}, "what an earlier epoch left is not there"},
		{"PlaceRelease", sim.Broken{LaterEpochTaken: true}, "want one that wraps ErrEpoch"},
		{"PlaceReleaseKeep", sim.Broken{EarlierRenewed: true}, "what an earlier epoch left is not there"},
		{"PlaceIncarnation", sim.Broken{AnyIncarnation: true}, "want one that wraps ErrEpoch"},
		{"PlaceFences", sim.Broken{FenceWithoutEpoch: true}, "want epoch<<49 | seq"},
		{"PlaceFences", sim.Broken{SmallFences: true}, "want epoch<<49 | seq"},
		{"PlaceFencesQuickly", sim.Broken{SmallFences: true}, "want epoch<<49 | seq"},
		{"PlaceFencesQuickly", sim.Broken{FencesFromClock: true}, "the younger hold got fence"},
		{"PlaceZero", sim.Broken{EpochOfCall: true}, "the younger hold got fence"},
		{"PlaceZero", sim.Broken{EpochsApart: true}, "got granted, want held"},
		{"PlaceZero", sim.Broken{ZeroRefused: true}, "want an answer"},
		{"PlaceWatch", sim.Broken{ReleaseSilent: true}, "no signal after a release"},
		{"AdoptFree", sim.Broken{AdoptOldEpoch: true}, "Epoch is"},
		{"AdoptFree", sim.Broken{AdoptRestamps: true}, "Fence is"},
		{"AdoptOver", sim.Broken{AdoptOverwrites: true}, "want taken"},
		{"AdoptOver", sim.Broken{AdoptRefuses: true}, "want owned"},
		{"AdoptOver", sim.Broken{LaterEpochTaken: true, AdoptOverwrites: true}, "want taken"},
		{"AdoptIdempotent", sim.Broken{AdoptShortens: true}, "left, want more than 0"},
		{"AdoptRecord", sim.Broken{AdoptLowersRecord: true}, "the younger hold got fence"},
		{"AdoptRecord", sim.Broken{AdoptKeepsRecord: true}, "the younger hold got fence"},
		{"AdoptExplicit", sim.Broken{AdoptAlone: true}, "want 2 times by holder"},
		{"AdoptExplicit", sim.Broken{AdoptOverwrites: true}, "want taken"},
		{"AdoptBatch", sim.Broken{AdoptUnordered: true}, "want owned"},
		{"AdoptBatch", sim.Broken{AdoptOverwrites: true}, "want taken"},
		{"ProbeTells", sim.Broken{ProbeAnything: true}, "want the same as before"},
		{"ProbeEpoch", sim.Broken{ProbeLowers: true}, "want 3"},
		{"ProbeEpoch", sim.Broken{ProbeForgets: true}, "want 3"},
		{"ProbeLoss", sim.Broken{FlushUnseen: true}, "want one that wraps ErrEpoch"},
		{"ProbeLoss", sim.Broken{FlushUntold: true}, "want it lost"},
		{"ChainContextEnded", sim.Broken{EndedSent: true}, "want one that wraps one of"},

		{"ArbiterPoll", sim.Broken{PollStale: true}, "the mode after a start is"},
		{"ArbiterCreate", sim.Broken{CreateAgain: true}, "got OK, want refused"},
		{"ArbiterRefresh", sim.Broken{RefreshInDrain: true}, "got OK, want refused"},
		{"ArbiterRefresh", sim.Broken{RefreshUnguarded: true}, "got OK, want refused"},
		{"ArbiterRefresh", sim.Broken{RefreshForgets: true}, "want epoch 8, acked 8"},
		{"ArbiterRefresh", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterRefresh", sim.Broken{VoteForgotten: true}, "the row after a first refresh is"},
		{"ArbiterStart", sim.Broken{StartUnguarded: true}, "got OK, want refused"},
		{"ArbiterStart", sim.Broken{StartKeepsTier: true}, "the mode after a start to MySQL is"},
		{"ArbiterStart", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterAck", sim.Broken{AckUnguarded: true}, "got OK, want refused"},
		{"ArbiterAck", sim.Broken{AckIsRefresh: true}, "the row after an ack is"},
		{"ArbiterAck", sim.Broken{BeatKept: true}, "the row after an ack is"},
		{"ArbiterAck", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterOpen", sim.Broken{OpenUnguarded: true}, "got OK, want refused"},
		{"ArbiterOpen", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterTakeover", sim.Broken{TakeoverUnguarded: true}, "got OK, want refused"},
		{"ArbiterTakeover", sim.Broken{TakeoverRefused: true}, "got refused, want done"},
		{"ArbiterTakeover", sim.Broken{TakeoverNames: true}, "the mode after a takeover is"},
		{"ArbiterRemove", sim.Broken{RemoveIgnoresBeat: true}, "got OK, want refused"},
		{"ArbiterRemove", sim.Broken{RemoveIgnoresRow: true}, "got OK, want refused"},
		{"ArbiterRemove", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterLeave", sim.Broken{LeaveAll: true}, "members after one of three has left"},
		{"ArbiterLeave", sim.Broken{ServerUnchecked: true}, "got OK, want refused"},
		{"ArbiterBeats", sim.Broken{BeatFromOne: true}, "want one that never was"},
		{"ArbiterNamespaces", sim.Broken{NamespacesMixed: true}, "another namespace has the mode"},
		{"ArbiterTexts", sim.Broken{VoteForgotten: true}, "want vote"},
		{"ArbiterContextEnded", sim.Broken{EndedSent: true}, "want one that wraps one of"},
		{"ArbiterOneCreates", sim.Broken{CreateAgain: true}, "want exactly one"},
		{"ArbiterOneStarts", sim.Broken{StartUnguarded: true}, "want exactly one"},
		{"ArbiterSwitches", sim.Broken{RefreshInDrain: true}, "want"},
		{"ArbiterSwitches", sim.Broken{AckUnguarded: true}, "want"},
	}
}

// named are the rules that are taken away.
func named(b sim.Broken) string {
	var names []string
	for i, v := 0, reflect.ValueOf(b); i < v.NumField(); i++ {
		if v.Field(i).Bool() {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return strings.Join(names, " ")
}

// newSimHarness is the simulated server that a check is for.
func newSimHarness(check string, wrong sim.Broken) storetest.Harness {
	f := sim.Faults{Delay: 100 * time.Microsecond, Jitter: time.Millisecond}
	if wrong.EndedSent || wrong.FencesFromClock {
		f = sim.Faults{}
	}
	var client func(o sim.ClientOptions) tierlock.Store
	var lose func()
	if strings.HasPrefix(check, "Arbiter") {
		m := sim.NewMySQL(sim.Options{Broken: wrong})
		client = func(o sim.ClientOptions) tierlock.Store { return m.Client(o) }
	} else {
		r := sim.NewRedis(sim.Options{Broken: wrong})
		client, lose = func(o sim.ClientOptions) tierlock.Store { return r.Client(o) }, r.Flush
	}
	n := uint64(0)
	return storetest.Harness{Lose: lose, Open: func(*testing.T) tierlock.Store {
		n++
		return client(sim.ClientOptions{Seed: n, Faults: f})
	}}
}

// As TestBrokenStoresFail, for the suites of a chain.
func TestBrokenChainsFail(t *testing.T) {
	covered := make(map[string]bool)
	for _, c := range brokenChains() {
		covered[c.check] = true
		t.Run(c.check+"/"+named(c.wrong), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := storetest.Failures(t, newSimHarness(c.check, c.wrong), c.check)
				if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, c.want) }) {
					t.Errorf("got complaints %.2000q, want one with %q", got, c.want)
				}
			})
		})
	}
	for _, check := range slices.Concat(storetest.ChainCheckNames(), storetest.ArbiterCheckNames()) {
		if !covered[check] {
			t.Errorf("no broken store fails %s: the check may be unable to fail", check)
		}
		t.Run(check+"/right", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := storetest.Failures(t, newSimHarness(check, sim.Broken{}), check); len(got) != 0 {
					t.Errorf("the server with nothing wrong: got complaints %q", got)
				}
			})
		})
	}
}

// A harness whose stores are no part of a chain is told so.
func TestChainSuiteWantsChained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for check, want := range map[string]string{"ProbeTells": "is no tierlock.Chained", "ArbiterPoll": "is no tierlock.Arbiter"} {
			if got := storetest.Failures(t, over(local)(t), check); len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("%s over a localstore: got complaints %q, want one with %q", check, got, want)
			}
		}
	})
}
