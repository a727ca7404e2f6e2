// Package localstore is the lock store that lives in the memory of this
// process.
//
// It is for programs of one process, for tests, and for the last tier of a
// chain, where every store outside is unreachable and a lock between the
// goroutines of this process is still better than none.
//
// What it guarantees: at most one lease per key among all the stores that
// share one [Space]; leases that end after their TTL on the monotonic clock,
// whatever happens to the wall clock; waiters woken one at a time, in the
// order in which they began to watch; and memory only for keys that are held
// or watched now, not for keys that were ever used.
//
// What it does not guarantee: anything between two processes, or after a
// restart. Its guarantee is [tierlock.ProcessLocal] and its fence is always
// zero, so a protected resource cannot tell an older holder from a younger
// one.
//
// Most callers take [New] with zero Options. Give [Options] a Space where
// several stores in one process are to exclude each other. There is nothing
// to close: a Store has no goroutine, and a Space has at most one timer, which
// runs only while somebody watches a key.
package localstore
