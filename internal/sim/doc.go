// Package sim has a Redis and a MySQL in memory, for tests of what runs over them
// when everything around it goes wrong: clocks that differ, requests and replies
// that are lost, late or doubled, links that are cut, servers that stop, are
// read-only, or fail over with and without what they had written last.
//
// Its stores keep the contracts of [tierlock.Store], [tierlock.Chained] and
// [tierlock.Arbiter] exactly, as the suites of package storetest say, and no
// better than real ones: a Redis forgets in which epoch a lock was that it has no
// more, a database does not push, a failover of Redis leaves an old primary that
// goes on answering those who are still connected to it.
//
// It is meant for bubbles of testing/synctest, where nothing takes time but what
// is told to. No goroutine lives on between calls: everything that comes later is
// a timer. All randomness comes from seeds; what happens at the very same instant
// happens in the order of the scheduler.
//
// With [Broken] single rules are taken away, so that a test can show that it would
// see them missing.
package sim
