// Package degrade holds the decisions of a degradation chain as plain state
// machines: they take the present time and what was seen, and answer what to do.
// They do no I/O, start no goroutine, read no clock, and know no store, token or
// key.
//
// There are two. [Breaker] keeps a dead store from costing each request its
// deadline. [Machine] is one process's part in a chain of Redis and MySQL.
//
// # What a machine is for
//
// Two stores of which "either suffices" cannot keep exclusion: one process may see
// only the one, another only the other. So one of them, MySQL, is also the arbiter.
// Its one mode row says where locks are kept; the number of the present mode is the
// epoch. A process may use the mode only while it has a permit, which the arbiter
// gives for a time (Term) and which counts from the sending of the request.
//
// A switch from epoch e to e+1 is a drain. It has two ways to end, and each alone
// is enough: every member of e has acknowledged that it has heard of the drain and
// has all of its holds in the new store; or so much time has passed that every
// permit of e has ended by any clock, W = Term·(1+ρ)/(1−ρ). The first takes two
// polls and two statements, and loses no hold; the second is for a member that has
// died or is cut off.
//
//	     poll, refresh                 poll, adopt, ack
//	┌──────────────────────┐  Start  ┌──────────────────────┐
//	│ e, open              ├────────►│ e+1, drain           │
//	│ permit: grant, renew │         │ nobody grants; holds │
//	└──────────────────────┘         │ renew in the old     │
//	           ▲                     │ store, are adopted   │
//	           │        Open         │ by the new           │
//	           └─────────────────────┴──────────────────────┘
//	             all acked, or W by the opener's own clock
//
// # What may be believed
//
// Belief in an Exclusive hold ends at the earliest of
//
//   - the end of its lease in the store that granted it;
//   - the end of the permit, whatever epoch that is for;
//   - in a drain, once the ack has been sent, the end of the adopted lease.
//
// The third begins with the sending, not with the reply: the arbiter may have the
// ack and open the epoch while the reply is lost, and from then on only the
// adopted lease keeps others away. Until the machine knows that the epoch is open
// the old lease counts too, since in the old store somebody who has not heard of
// the drain may still grant. See belief in hold.go; [Machine.Belief] is it.
//
// Whatever has ended stays ended. Everything that would extend a belief looks first
// whether it is still there.
//
// # How a machine is used
//
// A runner keeps one machine for one process, under a mutex that it never holds
// across I/O, and does in a loop:
//
//	for _, a := range m.Due(now) {
//		if a, ok := m.Begin(now, a); ok {
//			// elsewhere: carry a out, then m.Done(now, a, reply)
//		}
//	}
//	// handle m.Events(), sleep until m.Next(now) or the next reply
//
// Due is policy: when something is worth doing. Begin is safety: whether it may be
// done at all. An action that Begin lets through may be executed at any time later,
// once or not at all; its reply may come late, several times, or never
// ([Reply].Lost). Conditions on the arbiter's side are part of the statement, one
// autocommit each; [Kind] says which. The locks' own calls go by
// [Machine.MayGrant], [Machine.Granted], [Machine.Renewed] and [Machine.Release].
//
// The clock that is read must go on while the machine is suspended, and be read
// before Begin or MayGrant: what these give counts from there.
//
// # When the arbiter itself fails over
//
// Each statement requires that the server that executes it is the one that the row
// names, and so do lock statements on MySQL ([Ticket].Incarnation). A new primary
// therefore does nothing until somebody has taken it over: the row is put into a
// drain that is sixteen epochs ahead, which acks do not open (some may be lost, and
// members with them) but only the wait for Term and a minute. Holds are adopted as
// in any drain and survive it, as long as the old store renews their leases: in
// Redis, but not in the database itself, whose new server is not the one that they
// are meant for.
//
// # How it was checked
//
// The tests drive real machines through every interleaving of small worlds: two or
// three processes, one or two switches, requests and replies that are late, lost
// or repeated, processes that stop or whose clocks lose time, failovers of Redis
// and of the arbiter with and without their data. In each step no key may have two
// believers, and fences must rise in the order of belief. Each rule in rules.go,
// and each condition of a statement or script, is then taken away in turn, and the
// same search has to find where that fails. From every state, too, the policy has
// to bring the chain back to an open mode as soon as calls are answered again.
// Random walks go through a world with all faults at once, which is too large to be
// searched; they find much less.
//
// Not modelled: clocks of the stores that are stepped, and the ranges of fences
// that hand-over reserves.
package degrade
