package degrade_test

import (
	"testing"

	"github.com/tierlock/tierlock/degrade"
)

// mutations are the protective rules. Each, taken away alone, lets the search find
// two holders of a key or a fence out of order. The scope is the smallest in which
// that was seen; with the rule it is searched to the end by TestExclusion.
var mutations = []struct {
	name  string
	size  size
	scope scope
	off   func(*degrade.Rules, *broken)
}{
	// What the machine keeps.
	{"belief ends with the permit", small, tiny, func(r *degrade.Rules, _ *broken) { r.NoPermitCap = true }},
	{"an adopted hold's belief ends with the permit", full, twoSwitches, func(r *degrade.Rules, _ *broken) { r.NoPermitCapAdopted = true }},
	{"the old lease counts until the epoch is known to be open", small, twoGrants, func(r *degrade.Rules, _ *broken) { r.NoOldLeaseCap = true }},
	{"the adopted lease caps from the first sending of the ack", full, longPermit, func(r *degrade.Rules, _ *broken) { r.CapWhenConfirmed = true }},
	{"the ack waits for confirmed adoptions", small, lateCalls, func(r *degrade.Rules, _ *broken) { r.AdoptedWhenSent = true }},
	{"the ack waits for all of a batch", small, batch, func(r *degrade.Rules, _ *broken) { r.AckAfterFirst = true }},
	{"an unconfirmed retry moves no cap", full, longPermit, func(r *degrade.Rules, _ *broken) { r.RetryMovesCap = true }},
	{"an adoption renews the old lease in the same data only", small, twoGrants, func(r *degrade.Rules, _ *broken) { r.AdoptRenewsAll = true }},
	{"a drain is not opened at once", small, tiny, func(r *degrade.Rules, _ *broken) { r.OpenAtOnce = true }},
	{"the wait allows for drifting clocks", small, drifting, func(r *degrade.Rules, _ *broken) { r.WaitTerm = true }},
	{"who starts in a drain waits too", small, starter, func(r *degrade.Rules, _ *broken) { r.StarterOpensAtOnce = true }},
	{"a permit counts from its sending", small, slowPermits, func(r *degrade.Rules, _ *broken) { r.CountFromReply = true }},
	{"a grant that was under way when the drain was learned is not believed", small, slowGrants, func(r *degrade.Rules, _ *broken) { r.GrantInDrain = true }},
	{"a grant needs a permit", small, tiny, func(r *degrade.Rules, _ *broken) { r.GrantAnyPermit = true }},
	{"what has ended is not revived", small, tiny, func(r *degrade.Rules, _ *broken) { r.LateRevives = true }},
	{"reading the mode gives no permit", small, stalePolls, func(r *degrade.Rules, _ *broken) { r.PermitFromRead = true }},
	{"acks do not open after the arbiter's loss", small, rewind, func(r *degrade.Rules, _ *broken) { r.HardOpensByAcks = true }},
	{"the drain after the arbiter's loss waits", small, rewind, func(r *degrade.Rules, _ *broken) { r.HardWaitsNothing = true }},
	{"the epoch jumps after the arbiter's loss", full, rewind, func(r *degrade.Rules, _ *broken) { r.JumpByOne = true }},
	{"a silent member is removed after W only", small, removal, func(r *degrade.Rules, _ *broken) { r.RemoveAtOnce = true }},
	{"a process leaves without holds only", small, leaving, func(r *degrade.Rules, _ *broken) { r.LeaveWithHolds = true }},

	// What scripts and statements keep.
	{"all members ack, not most of them", small, three, func(_ *degrade.Rules, b *broken) { b.majorityIsEnough = true }},
	{"who acked is a member", small, twoSwitches, func(_ *degrade.Rules, b *broken) { b.ackedNotMember = true }},
	{"an adoption does not overwrite a younger hold", full, lateCalls, func(_ *degrade.Rules, b *broken) { b.adoptOverwrites = true }},
	{"an adoption does not lower the fence record", full, lateCalls, func(_ *degrade.Rules, b *broken) { b.adoptLowersRecord = true }},
	{"a later epoch refuses", full, twoSwitches, func(_ *degrade.Rules, b *broken) { b.laterEpochTaken = true }},
	{"fences carry the epoch", small, tiny, func(_ *degrade.Rules, b *broken) { b.fenceWithoutEpoch = true }},
	{"requests are for one incarnation", small, failover, func(_ *degrade.Rules, b *broken) { b.anyIncarnation = true }},
	{"a refresh writes in an open mode only", small, tiny, func(_ *degrade.Rules, b *broken) { b.refreshInDrain = true }},
	{"an ack is guarded by its drain", full, staleTwice, func(_ *degrade.Rules, b *broken) { b.ackUnguarded = true }},
	{"an open is guarded by its drain", full, lateOpens, func(_ *degrade.Rules, b *broken) { b.openUnguarded = true }},
	{"a start is guarded by its mode", full, lateStarts, func(_ *degrade.Rules, b *broken) { b.startUnguarded = true }},
	{"an ack changes the beat", full, removalTwice, func(_ *degrade.Rules, b *broken) { b.ackKeepsBeat = true }},
	{"a removal is guarded by the beat", full, removal, func(_ *degrade.Rules, b *broken) { b.removeIgnoresBeat = true }},
	{"statements are for the server that the row names", full, rewind, func(_ *degrade.Rules, b *broken) { b.serverUnchecked = true }},
	{"locks are for the server that the row names", small, rewind, func(_ *degrade.Rules, b *broken) { b.lockOnAnyServer = true }},
}

func TestEachRuleIsNeeded(t *testing.T) {
	for _, c := range mutations {
		if !c.size.wanted() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := c.scope
			c.off(&s.rules, &s.broken)
			start := cpu()
			q := search{scope: s, limit: 1_500_000}
			q.run()
			took := (cpu() - start).Seconds()
			if q.found == "" {
				t.Fatalf("nothing was found in %d states, %.1f s", q.states, took)
			}
			t.Logf("%d steps, %d states, %.1f s: %s\n%s", len(q.trace), q.states, took, q.found, lines(q.trace))
		})
	}
}

// implied are rules that are not needed as long as all others are in force: the
// search finds nothing without them. They are kept, because each says at once what
// would otherwise follow only from the whole protocol: that whoever has a valid
// permit of an epoch has either acked the next one or it is not open.
var implied = []struct {
	name  string
	size  size
	scope scope
	off   func(*degrade.Rules, *broken)
}{
	{"the permit is for the present epoch", full, tiny, func(r *degrade.Rules, _ *broken) { r.GrantForeignPermit = true }},
	{"a hold that missed a drain ends", full, tiny, func(r *degrade.Rules, _ *broken) { r.KeepSkipped = true }},
	{"a hold that did not get in ends", full, tiny, func(r *degrade.Rules, _ *broken) { r.KeepUnadopted = true }},
	{"a hold that is refused ends", full, twoGrants, func(r *degrade.Rules, _ *broken) { r.KeepRefused = true }},
}

func TestImpliedRules(t *testing.T) {
	for _, c := range implied {
		if !c.size.wanted() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := c.scope
			c.off(&s.rules, &s.broken)
			q := search{scope: s}
			q.run()
			if q.found != "" {
				t.Fatalf("%q after %d states: it is needed by itself; list it with the mutations\n%s", q.found, q.states, lines(q.trace))
			}
		})
	}
}
