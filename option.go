package tierlock

import (
	"time"
	"unicode/utf8"
)

// Option changes one call of Lock, TryLock or Do. The set is closed; of two
// options of one kind the later counts. A call that enters a hold takes it as
// it is: its lease, its expectation and its token's request id stay.
type Option struct {
	kind optionKind
	d    time.Duration
	s    string
	n    uint8 // a Tier or a Guarantee
}

type optionKind uint8

const (
	optWait optionKind = iota + 1
	optNoWait
	optUntilDone
	optTTL
	optLease
	optExpect
	optHolder
	optRequestID
	optFloor
	optGuarantee
)

// Wait makes the call wait up to d, which is positive, instead of
// Resource.Wait. It bounds the wait alone. A context with a timeout would
// bound the hold as well.
func Wait(d time.Duration) Option { return Option{kind: optWait, d: d} }

// NoWait makes the call fail at once where the key is held.
func NoWait() Option { return Option{kind: optNoWait} }

// UntilDone makes the call wait until its context ends, through outages of
// the store as well.
func UntilDone() Option { return Option{kind: optUntilDone} }

// TTL shortens the lease to d, rounded down to milliseconds: at least 100 ms
// and at most Resource.TTL.
func TTL(d time.Duration) Option { return Option{kind: optTTL, d: d} }

// Lease bounds this hold to d, rounded down to milliseconds, at least 100 ms:
// its context ends a margin earlier with ErrLeaseExceeded. Resource.MaxHold
// bounds it still. A call that enters a hold bounds its own handle only.
func Lease(d time.Duration) Option { return Option{kind: optLease, d: d} }

// Expect says how long this hold is expected to last, instead of
// Resource.Expect; d is positive.
func Expect(d time.Duration) Option { return Option{kind: optExpect, d: d} }

// Holder names the holder: 1 to 64 bytes of UTF-8. On a Reentrant resource
// (any other refuses the option) a call with the same id enters the hold from
// another goroutine, process or machine; each enters with a lease of its own,
// and the key is free when the last has gone. Two processes that use one id
// do not exclude each other.
func Holder(id string) Option { return Option{kind: optHolder, s: id} }

// RequestID keeps the caller's correlation id, at most 128 bytes of UTF-8, in
// the token.
func RequestID(id string) Option { return Option{kind: optRequestID, s: id} }

// Floor raises Resource.Floor for this call: the lock is taken from t or a store
// before it, or not at all. It cannot lower it. A hold that was taken goes on to
// where the chain goes.
func Floor(t Tier) Option { return Option{kind: optFloor, n: uint8(t)} }

// RequireGuarantee refuses, with an error that matches ErrUnavailable, to take the
// lock where the hold would be worth less than g at that moment; no store is asked
// for it then. Asking for what the resource can never give is ErrInvalid.
func RequireGuarantee(g Guarantee) Option { return Option{kind: optGuarantee, n: uint8(g)} }

// call is what the options and the resource make of one call.
type call struct {
	untilDone, noWait bool
	wait              time.Duration
	ttl               time.Duration
	limit             time.Duration // bound of the hold, 0 for none
	expect            time.Duration
	holder            string // explicit id, else empty
	requestID         string
	floor             Tier      // the lowest that will do
	worth             Guarantee // the least that will do
}

func (r *ResourceHandle) call(opts []Option, try bool) (call, error) {
	c := call{wait: r.cfg.Wait, noWait: try, ttl: r.cfg.TTL, limit: r.cfg.MaxHold, expect: r.cfg.Expect, floor: r.floor}
	for _, o := range opts {
		switch o.kind {
		case optWait:
			if o.d <= 0 {
				return c, invalid("option Wait", o.d, "positive; NoWait does not wait")
			}
			c.wait, c.noWait, c.untilDone = o.d, false, false
		case optNoWait:
			c.noWait, c.untilDone = true, false
		case optUntilDone:
			c.noWait, c.untilDone = false, true
		case optTTL:
			if o.d < MinTTL || o.d > r.cfg.TTL {
				return c, invalid("option TTL", o.d, "%v to the resource's TTL, %v", MinTTL, r.cfg.TTL)
			}
			c.ttl = o.d.Truncate(time.Millisecond)
		case optLease:
			if o.d < MinTTL {
				return c, invalid("option Lease", o.d, "at least %v", MinTTL)
			}
			c.limit = o.d.Truncate(time.Millisecond)
			if r.cfg.MaxHold > 0 {
				c.limit = min(c.limit, r.cfg.MaxHold)
			}
		case optExpect:
			if o.d <= 0 {
				return c, invalid("option Expect", o.d, "positive")
			}
			c.expect = o.d
		case optHolder:
			if o.s == "" || len(o.s) > maxHolderBytes || !utf8.ValidString(o.s) {
				return c, invalid("option Holder", o.s, "1 to %d bytes of UTF-8", maxHolderBytes)
			}
			if !r.cfg.Reentrant {
				return c, invalid("option Holder", o.s, "used with a Reentrant resource only; %s is not", r.cfg.Name)
			}
			c.holder = o.s
		case optRequestID:
			if len(o.s) > maxRequestID || !utf8.ValidString(o.s) {
				return c, invalid("option RequestID", o.s, "at most %d bytes of UTF-8", maxRequestID)
			}
			c.requestID = o.s
		case optFloor:
			t := Tier(o.n)
			if t < r.locker.store.Tier() || t > r.floor {
				return c, invalid("option Floor", t.String(), "%v to the resource's floor, %v", r.locker.store.Tier(), r.floor)
			}
			c.floor = t
		case optGuarantee:
			g := Guarantee(o.n)
			if g < ProcessLocal || g > r.best {
				return c, invalid("option RequireGuarantee", g.String(), "%v at most, which is what resource %s can give", r.best, r.cfg.Name)
			}
			c.worth = g
		default:
			return c, invalid("option", o.kind, "made by one of the option functions")
		}
	}
	if try && !c.noWait {
		return c, invalid("option", "Wait or UntilDone", "left out with TryLock, which never waits")
	}
	if c.limit > 0 {
		c.ttl = min(c.ttl, c.limit) // so that the key, too, ends at the bound
	}
	if r.cfg.Exclusive && c.ttl < MinExclusiveTTL {
		return c, invalid("option TTL or Lease", c.ttl, "at least %v, since the resource is Exclusive", MinExclusiveTTL)
	}
	if c.ttl < r.cfg.MinHold {
		return c, invalid("option TTL or Lease", c.ttl, "at least the resource's MinHold, %v", r.cfg.MinHold)
	}
	return c, nil
}
