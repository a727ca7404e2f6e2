package storetest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

// Harness is the backend that the suite runs against.
//
// The backend may be new or shared with other tests, also with other runs of
// the suite at the same time: every check uses names and lease ids that nobody
// else uses. It must be healthy, and it must answer a call within some seconds
// even on a busy machine.
type Harness struct {
	// Open gives an independent store value over the one backend of this
	// harness: with its own client and connections, as another process would
	// have them. The harness closes it with t.Cleanup. It is called twice.
	Open func(t *testing.T) tierlock.Store

	// Advance returns after d has passed for the backend. Nil means
	// time.Sleep, which is right for every real server and, in a bubble, for
	// every store in this process. A backend with a clock of its own that the
	// test moves (miniredis, for one) moves it here and need not sleep.
	Advance func(d time.Duration)

	// NoPush says that Watch has to answer [tierlock.ErrUnavailable] always,
	// since this backend has no push. Otherwise a store that is a
	// [tierlock.Watcher] has to have it.
	NoPush bool

	// Lose has the backend lose all keys and go on, as FLUSHALL does. Nil means that
	// it cannot, or that exclusive calls are not judged by it.
	Lose func()
}

// Run runs the suite. Each check is a subtest with a harness of its own, made
// by newHarness, and takes at most some seconds on a real server.
//
// Where [tierlock.Store.Guarantee] is [tierlock.ProcessLocal] fences have to
// be zero, else they have to rise with each hold of a key. Watches are checked
// where the store is a [tierlock.Watcher].
func Run(t *testing.T, newHarness func(t *testing.T) Harness) { runAll(t, checks, newHarness) }

func runAll(t *testing.T, checks []check, newHarness func(t *testing.T) Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			newBench(t, t, newHarness(t)).run(c)
		})
	}
}

// RunInBubble is [Run] with each check, and the call of newHarness before it,
// in a bubble of testing/synctest: for stores whose backend lives in this
// process and was made by newHarness. No time is spent waiting.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	runAllInBubble(t, checks, newHarness)
}

func runAllInBubble(t *testing.T, checks []check, newHarness func(t *testing.T) Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newBench(t, t, newHarness(t)).run(c)
			})
		})
	}
}

// check is one property. It works on keys of its own.
type check struct {
	name string
	run  func(*bench)
}

var checks = []check{
	{"AcquireFree", acquireFree},
	{"AcquireHeld", acquireHeld},
	{"AcquireIdempotent", acquireIdempotent},
	{"AcquireIdempotentAtOnce", acquireIdempotentAtOnce},
	{"AcquireOneWinner", acquireOneWinner},
	{"RenewOwned", renewOwned},
	{"RenewNeverShortens", renewNeverShortens},
	{"RenewTaken", renewTaken},
	{"RenewGone", renewGone},
	{"RenewBatch", renewBatch},
	{"RenewBatchLarge", renewBatchLarge},
	{"ReleaseOwned", releaseOwned},
	{"ReleaseGone", releaseGone},
	{"ReleaseStale", releaseStale},
	{"ReleaseKeep", releaseKeep},
	{"ReleaseKeepNeverLengthens", releaseKeepNeverLengthens},
	{"Expiry", expiry},
	{"InspectStates", inspectStates},
	{"TokenRoundTrip", tokenRoundTrip},
	{"NamesApart", namesApart},
	{"HolderEnters", holderEnters},
	{"HolderCountsOnce", holderCountsOnce},
	{"HolderLastFrees", holderLastFrees},
	{"HolderMemberExpires", holderMemberExpires},
	{"HolderKindsApart", holderKindsApart},
	{"HolderRenews", holderRenews},
	{"FencesRise", fencesRise},
	{"FencesRiseQuickly", fencesRiseQuickly},
	{"FencesReserved", fencesReserved},
	{"FencesReservedOnce", fencesReservedOnce},
	{"UpdateForward", updateForward},
	{"UpdateOthers", updateOthers},
	{"LateRefused", lateRefused},
	{"ContextEnded", contextEnded},
	{"ContextCut", contextCut},
	{"WatchSignals", watchSignals},
	{"WatchLive", watchLive},
	{"WatchOtherKeys", watchOtherKeys},
	{"WatchPassesOn", watchPassesOn},
	{"WatchClose", watchClose},
	{"WatchMany", watchMany},
	{"Exclusion", exclusion},
}
