// Package watchdog keeps belief: for each lease that a process holds in some
// store, it answers "may the holder still think that the lease is his?", and
// renews the lease so that the answer stays yes. It knows no store, no key and
// no token; [Config.Renew] is its only way out.
//
// Most callers take this door:
//
//	w := watchdog.New(watchdog.Config{Renew: renew})
//	defer w.Close()
//	sent := watchdog.Now() // before the request leaves, not after the reply
//	... acquire the lease for ttl ...
//	lease := w.Watch(watchdog.Spec{Sent: sent, TTL: ttl, OnEnd: stopWork})
//	... work ...
//	end, lost := lease.Stop(ctx)
//	... release the lease ...
//
// # Guarantees
//
//   - Belief ends a [Margin] before sent + TTL, where sent was read before the
//     last confirmed grant or renewal was sent. As the store cannot have
//     counted from earlier than that, belief is over before the store lets
//     anybody else in, as long as the rates of both clocks differ by less than
//     the margin.
//   - A definite "not yours" ends belief at once. A number of failures never
//     does: only the clock does.
//   - The end is final. A confirmation that arrives later does not revive it,
//     and nothing is renewed after it.
//   - OnEnd is called exactly once, or Stop came first; never both. (After
//     [Watchdog.Close] neither is called.)
//   - Time in which the machine was suspended counts on Linux. Go's timers
//     stand still meanwhile, so OnEnd comes within 250 ms after the resume;
//     [Lease.Left] and [Lease.End] know at once.
//   - A call of Renew that hangs until its deadline delays no end of belief.
//   - Goroutines and timers do not grow with the number of leases: one timer,
//     at most 8 calls in flight besides those that Ensure asks for, and, 250 ms
//     after the last lease, nothing at all.
//
// # Non-guarantees
//
//   - Belief is not possession. A process that was stopped between reading
//     Left and acting on it acts late; only a fence at the resource helps.
//   - The store's clock is trusted to run at the usual rate, and the store to
//     keep its data.
//   - A virtual machine that was frozen without its kernel noticing counts no
//     time, and elsewhere than on Linux neither does a suspend.
//   - A renewal without an answer may still be executed. So a store's key may
//     outlive belief by up to one TTL.
package watchdog
