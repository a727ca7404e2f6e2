// Package tierlock takes distributed locks for Go services. It is a library:
// each process embeds it, and there is no server of its own. The main path
// must be fast, the degraded path must not be rotten, every lock must be
// traceable.
//
// # The door most callers take
//
// Open a store, register the kinds of lock, and run work under a lock with
// [ResourceHandle.Do]:
//
//	rdb, err := redisstore.Open(redisstore.RecommendedOptions("10.0.0.1:6379"))
//	…
//	locker, err := tierlock.New(tierlock.Config{
//		App: "order", Namespace: "prod",
//		Stores:    []tierlock.Store{rdb},
//		Resources: []tierlock.Resource{{Name: "order:settle", Wait: 3 * time.Second}},
//	})
//	…
//	settle, err := locker.Resource("order:settle")
//	…
//	err = settle.Do(ctx, orderID, func(ctx context.Context) error {
//		return pay(ctx, orderID, tierlock.TokenFrom(ctx).Fence)
//	})
//
// The lease is renewed while the function runs, its context ends when the lock
// is lost, and it is unlocked when the function returns, panics or calls
// runtime.Goexit. [ResourceHandle.Lock] and [Lock.Unlock] are the same in two
// halves.
//
// # What is guaranteed
//
//   - Belief ends first. The holder's context ends by the holder's own clock,
//     counted from before the request was sent, a margin (a tenth of the lease)
//     before the store lets anybody else in. No answer of a store, late or
//     lost, prolongs it.
//   - After an error nothing stays. Where an answer was lost or a call given
//     up, the grant is undone in the background, and a request that reaches the
//     store later than its caller cared is refused there (as long as the
//     store's clock is not stepped back).
//   - Nothing renews for a hold after Unlock, after a loss, or after the
//     caller's context has ended.
//   - Waiting is first come, first served inside a process, and one caller per
//     key and process asks the store. A lease goes from one to the next without
//     asking it, 64 times or for 50 ms at most; then others have their turn. Contention is never taken for an outage,
//     nor an outage for contention.
//   - Fences grow. Each new hold of a key has a larger [Token].Fence, over
//     releases, expiries and FLUSHALL, and over any step of the store's clock
//     (on Redis within a minute of the last grant). A clock that is set back
//     together with a loss of the data, or on Redis later, may give smaller ones.
//     Where the store loses a lease that is being handed over, who takes the key
//     has a larger fence than all holds of that lease, also those that begin later.
//
// # Several stores
//
// With Redis and MySQL as Stores, locks of resources with a Floor move from the one to
// the other while Redis is away, and back. MySQL is the arbiter: its rows say where
// locks are kept, and every process follows. Held locks go along, with their lease
// and fence; new ones pause for some seconds. There are two kinds:
//
//   - Exclusive resources rather stop than let two in. They need a word from MySQL
//     once a minute (Degrade.Permit): without it holds end and none is given, Redis or
//     not. A hold is worth [Exclusive] if acknowledged commits of MySQL survive its
//     failover (mysqlstore.Options.Durable).
//   - All others are best effort: rather a lock that excludes badly now and then than
//     none. Without MySQL they go on in Redis; with the floor Local and no store at
//     all, in the memory of this process, which an alarm tells until it ends.
//
// [Lock.Guarantee] says what a hold is worth. Processes of a namespace that register the
// same resource agree on its Floor, Exclusive and Reentrant, and all have the same kinds of
// stores; while some do not, no hold of that resource is [Exclusive]. A process need not
// register what only others use. A resource without a Floor stays on the first store.
//
// # What is not
//
//   - No lease excludes effects. A process may stop between looking at its
//     context and writing, for longer than its lease. Let the protected
//     resource compare the fence: UPDATE … SET fence = ? … WHERE fence <= ?
//     (not <: two writes in one hold must both pass).
//   - One Redis is not a quorum, with replicas, Sentinel or Cluster neither: a
//     failover may lose a key whose holder is alive, and let another in. Such
//     holds are [FencedOnly]; exclusion over a failover needs MySQL beside it.
//   - A lock is neither idempotency nor a transaction. What must not happen
//     twice needs a unique key in the business table.
//   - Suspend is noticed on Linux only; elsewhere the monotonic clock stops
//     while the machine sleeps, and a woken holder believes too long.
//
// # What to do on an error
//
//   - [ErrHeld]: another holds the key. Answer "busy", or try later.
//   - [ErrUnavailable]: the store did not answer, or locks are moving to another;
//     nothing is held. Fail the request, or queue it.
//   - [ErrLost]: the hold ended early. The outcome of what ran under it is
//     unknown: look it up (reconcile) before it is repeated or reported.
//   - [ErrLeaseExceeded]: the work took longer than its bound. As ErrLost.
//   - [ErrReentrant]: a programming error, the line that deadlocks itself.
//   - [ErrMisconfigured], [ErrInvalid]: for the operator (a password, a
//     permission, a certificate; the error names it), or the author.
//
// # Reading the code
//
// [ResourceHandle.Do] in locker.go; the acquire loop in acquire.go and
// contend.go, with the queue in line.go and, for several stores, route.go and chain.go; the [Store] contract in store.go;
// package watchdog, which keeps belief; hold.go, where a hold ends; then one
// store, such as package mysqlstore or redisstore. docs/design.md in the
// repository has the protocols, docs/redis.md and docs/mysql.md are for those who
// run it.
package tierlock
