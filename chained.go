package tierlock

import (
	"context"
	"errors"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// Place is where in a chain's history a call belongs. Its zero value stands for
// a store that is used by itself: every lock is then of epoch 1, and no call is
// judged by it.
type Place struct {
	// Epoch is the number of the mode that the call is meant for, 1 to 16,383. A
	// hold keeps the one that it was granted or moved to.
	Epoch uint16
	// Incarnation is the data that the call is meant for, as Probe or the arbiter
	// names it. Where a call that is Exclusive reaches other data it is refused
	// with ErrEpoch. "" means any.
	Incarnation string
	// Exclusive says that what an earlier epoch has left counts as not there: it
	// neither blocks nor can be renewed or freed, but for its fence. A later epoch
	// refuses the call with ErrEpoch.
	//
	// Without it a key that has not expired blocks whatever its epoch, its lease
	// id alone decides who may renew and release it, and a grant is of the
	// largest epoch of Place's, the key's and the record's.
	Exclusive bool
}

// ErrEpoch is what a store's error wraps where it refused a call because of its
// [Place]: another mode of the chain is in force, or other data. Nothing was
// changed.
var ErrEpoch = errors.New("tierlock: another mode of the chain is in force")

// Chained is what a Store has to be, besides, to be part of a chain of several.
// Its methods keep the contract of Store: one attempt, bounded, errors classed.
type Chained interface {
	Store

	// Adopt writes holds that another mode has granted into the store as leases
	// of reqs[i].Place.Epoch, each over what is free, of an earlier epoch, of its
	// own lease id, or of a fence not larger than its own. The record that fences
	// are counted from is not lowered. It is idempotent. The results stand in the
	// order of reqs, one each: LeaseOwned (it is in, for its TTL at least), or
	// LeaseTaken (somebody else has the key). As few round trips as can be.
	Adopt(ctx context.Context, reqs []AdoptRequest) []RenewResult

	// Probe asks whether the store serves the locks of a namespace, writing
	// included, on which data, and whether that is safe there.
	Probe(ctx context.Context, req ProbeRequest) (ProbeResult, error)
}

// ProbeRequest asks about the locks of one namespace.
type ProbeRequest struct {
	Namespace string
	// Epoch is the latest mode that the caller knows of, 0 for none.
	Epoch uint16
}

// ProbeResult is what a store that works has found.
type ProbeResult struct {
	// Incarnation names the data. It changes with a failover and, where the store
	// can have exclusive calls judged by that, with a loss of keys in a server that
	// goes on.
	Incarnation string
	// Epoch is the largest of the requests about this namespace and data, for those
	// who cannot reach the arbiter. It is 0 from a store that keeps none: the
	// arbiter has it in the row of the mode.
	Epoch uint16
	// Unsafe says what may take keys of live locks away, or has, while the
	// incarnation stays; "" for nothing. Meanwhile no hold that is there is worth
	// more than FencedOnly.
	Unsafe string
	// Lost means that keys have gone, and not by their own end, since the
	// store's last probe. It is told once, and is for the log.
	Lost bool
}

// AdoptRequest asks to take over one hold.
type AdoptRequest struct {
	Name Name
	// Token is the hold's. Its lease, fence, seq, holder and all else stay; the
	// store keeps it with Epoch as Place says.
	Token    Token
	Explicit bool
	// TTL is the time left wanted, in whole milliseconds, at least 1 ms.
	TTL   time.Duration
	Place Place
}

// Arbiter is a Store that also decides which mode is in force: MySQL.
type Arbiter interface {
	Chained
	degrade.Arbiter
}
