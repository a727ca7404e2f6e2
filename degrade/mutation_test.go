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
	scope scope
	off   func(*degrade.Rules, *broken)
}{
	// What the machine keeps.
	{"belief ends with the permit", tiny, func(r *degrade.Rules, _ *broken) { r.NoPermitCap = true }},
	{"an adopted hold's belief ends with the permit", twoSwitches, func(r *degrade.Rules, _ *broken) { r.NoPermitCapAdopted = true }},
	{"the old lease counts until the epoch is known to be open", twoGrants, func(r *degrade.Rules, _ *broken) { r.NoOldLeaseCap = true }},
	{"the adopted lease caps from the first sending of the ack", longPermit, func(r *degrade.Rules, _ *broken) { r.CapWhenConfirmed = true }},
	{"the ack waits for confirmed adoptions", lateCalls, func(r *degrade.Rules, _ *broken) { r.AdoptedWhenSent = true }},
	{"the ack waits for all of a batch", batch, func(r *degrade.Rules, _ *broken) { r.AckAfterFirst = true }},
	{"an unconfirmed retry moves no cap", longPermit, func(r *degrade.Rules, _ *broken) { r.RetryMovesCap = true }},
	{"a drain is not opened at once", tiny, func(r *degrade.Rules, _ *broken) { r.OpenAtOnce = true }},
	{"the wait allows for drifting clocks", drifting, func(r *degrade.Rules, _ *broken) { r.WaitTerm = true }},
	{"who starts in a drain waits too", starter, func(r *degrade.Rules, _ *broken) { r.StarterOpensAtOnce = true }},
	{"a permit counts from its sending", slowPermits, func(r *degrade.Rules, _ *broken) { r.CountFromReply = true }},
	{"a grant that was under way when the drain was learned is not believed", slowGrants, func(r *degrade.Rules, _ *broken) { r.GrantInDrain = true }},
	{"a grant needs a permit", tiny, func(r *degrade.Rules, _ *broken) { r.GrantAnyPermit = true }},
	{"what has ended is not revived", tiny, func(r *degrade.Rules, _ *broken) { r.LateRevives = true }},
	{"reading the mode gives no permit", stalePolls, func(r *degrade.Rules, _ *broken) { r.PermitFromRead = true }},
	{"acks do not open after the arbiter's loss", rewind, func(r *degrade.Rules, _ *broken) { r.HardOpensByAcks = true }},
	{"the drain after the arbiter's loss waits", rewind, func(r *degrade.Rules, _ *broken) { r.HardWaitsNothing = true }},
	{"the epoch jumps after the arbiter's loss", rewind, func(r *degrade.Rules, _ *broken) { r.JumpByOne = true }},
	{"a silent member is removed after W only", removal, func(r *degrade.Rules, _ *broken) { r.RemoveAtOnce = true }},
	{"a process leaves without holds only", leaving, func(r *degrade.Rules, _ *broken) { r.LeaveWithHolds = true }},

	// What scripts and statements keep.
	{"all members ack, not most of them", three, func(_ *degrade.Rules, b *broken) { b.majorityIsEnough = true }},
	{"who acked is a member", twoSwitches, func(_ *degrade.Rules, b *broken) { b.ackedNotMember = true }},
	{"an adoption does not overwrite a younger hold", lateCalls, func(_ *degrade.Rules, b *broken) { b.adoptOverwrites = true }},
	{"an adoption does not lower the fence record", lateCalls, func(_ *degrade.Rules, b *broken) { b.adoptLowersRecord = true }},
	{"a later epoch refuses", twoSwitches, func(_ *degrade.Rules, b *broken) { b.laterEpochTaken = true }},
	{"fences carry the epoch", tiny, func(_ *degrade.Rules, b *broken) { b.fenceWithoutEpoch = true }},
	{"requests are for one incarnation", failover, func(_ *degrade.Rules, b *broken) { b.anyIncarnation = true }},
	{"a refresh writes in an open mode only", tiny, func(_ *degrade.Rules, b *broken) { b.refreshInDrain = true }},
	{"an ack is guarded by its drain", staleTwice, func(_ *degrade.Rules, b *broken) { b.ackUnguarded = true }},
	{"an open is guarded by its drain", lateOpens, func(_ *degrade.Rules, b *broken) { b.openUnguarded = true }},
	{"a start is guarded by its mode", lateSwitches, func(_ *degrade.Rules, b *broken) { b.startUnguarded = true }},
	{"an ack changes the beat", removalTwice, func(_ *degrade.Rules, b *broken) { b.ackKeepsBeat = true }},
	{"a removal is guarded by the beat", removal, func(_ *degrade.Rules, b *broken) { b.removeIgnoresBeat = true }},
	{"statements are for the server that the row names", rewind, func(_ *degrade.Rules, b *broken) { b.serverUnchecked = true }},
	{"locks are for the server that the row names", rewind, func(_ *degrade.Rules, b *broken) { b.lockOnAnyServer = true }},
}

func TestEachRuleIsNeeded(t *testing.T) {
	for _, c := range mutations {
		t.Run(c.name, func(t *testing.T) {
			s := c.scope
			c.off(&s.rules, &s.broken)
			start := cpu()
			q := search{scope: s, limit: 1_500_000}
			q.run()
			took := (cpu() - start).Seconds()
			if q.found == "" {
				t.Fatalf("nothing was found in %d states (all: %v), %.1f s", q.states, q.complete, took)
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
	scope scope
	off   func(*degrade.Rules, *broken)
}{
	{"the permit is for the present epoch", tiny, func(r *degrade.Rules, _ *broken) { r.GrantForeignPermit = true }},
	{"a hold that missed a drain ends", tiny, func(r *degrade.Rules, _ *broken) { r.KeepSkipped = true }},
	{"a hold that did not get in ends", tiny, func(r *degrade.Rules, _ *broken) { r.KeepUnadopted = true }},
	{"a hold that is refused ends", twoGrants, func(r *degrade.Rules, _ *broken) { r.KeepRefused = true }},
}

func TestImpliedRules(t *testing.T) {
	for _, c := range implied {
		t.Run(c.name, func(t *testing.T) {
			s := c.scope
			c.off(&s.rules, &s.broken)
			q := search{scope: s, limit: limit}
			q.run()
			if q.found != "" || !q.complete {
				t.Fatalf("%q after %d states (all: %v): it is needed by itself; list it with the mutations\n%s", q.found, q.states, q.complete, lines(q.trace))
			}
		})
	}
}
