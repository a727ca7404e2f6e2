package redisstore

import (
	"fmt"
	"strconv"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/contract"
)

// Calls that belong to a chain have scripts of their own, made of the plain ones
// and what comes before them (lua/chain.lua and those that name it). The rules:
//
// A fence record is the largest (epoch, seq) of its slot. A grant that is not
// exclusive takes the record's epoch if that is larger; its renewals and releases
// are the plain scripts, since the lease id alone decides.
//
// An exclusive call goes to the primary and the data that it names, looks for
// epochs first, and writes nothing where it meets a later one. A renewal and a
// release look at the key alone and not at the record: with one key they go on
// while a Cluster moves the slot, and what an earlier epoch renews or frees,
// whenever that is executed, is its own key, which excludes nobody later.

// checkPlace returns why a call cannot be of a place. Epoch 0 is none.
func checkPlace(p tierlock.Place) error {
	if p.Epoch > degrade.MaxEpoch {
		return fmt.Errorf("epoch %d: wanted at most %d", p.Epoch, degrade.MaxEpoch)
	}
	return nil
}

// judged tells whether the epochs in the data count for a renewal or release.
func judged(p tierlock.Place) bool { return p.Epoch != 0 && p.Exclusive }

// appendPlace appends the arguments that stand last in the scripts of a chain.
func appendPlace(args []string, p tierlock.Place) []string {
	if !p.Exclusive {
		p.Incarnation = "" // not looked at
	}
	return append(args, strconv.Itoa(int(p.Epoch)), p.Incarnation)
}

func grantScript(explicit bool, p tierlock.Place) *script {
	switch {
	case explicit && p.Exclusive:
		return &enterExclusiveScript
	case explicit:
		return &enterChainScript
	case p.Exclusive:
		return &acquireExclusiveScript
	}
	return &acquireChainScript
}

// By whether the holder is explicit.
var (
	renewExclusive   = map[bool]*script{false: &renewExclusiveScript, true: &renewEnteredExclusiveScript}
	releaseExclusive = map[bool]*script{false: &releaseExclusiveScript, true: &releaseEnteredExclusiveScript}
)

// granted is the token of a plain grant at the given server time, equal to what
// the server stored.
func granted(req *tierlock.AcquireRequest, server int64) tierlock.Token {
	t := contract.Granted(req.Token, req.TTL, server)
	if e := req.Place.Epoch; e != 0 {
		t = contract.WithFence(t, uint64(e)<<contract.SeqBits|t.Seq)
	}
	return t
}
