// Package mysqlstore keeps locks in a table of MySQL or MariaDB: a
// [tierlock.Store] that holds its own as the only store.
//
//	db, err := sqlx.Open("mysql", "order@tcp(10.0.0.2:3306)/locks?innodb_lock_wait_timeout=1")
//	…
//	store := mysqlstore.New(db, mysqlstore.Options{})
//	defer store.Close()
//	if err := store.Migrate(ctx); err != nil { … } // or run Schema by your own means
//	locker, err := tierlock.New(tierlock.Config{ …, Stores: []tierlock.Store{store}})
//
// # How a lock is kept
//
// A lock is a row of lock_record, found by its name alone; names are bytes, so
// case, accents and trailing spaces make different locks. A lease is its lease_id
// until expire_at, by the clock of the server. It is taken by one INSERT … ON
// DUPLICATE KEY UPDATE, or where it was released here a while ago by UPDATE, renewed
// and released by UPDATE, and the row stays for ten minutes after, since its fence is the least of the next. Each statement commits
// by itself and needs nothing of its session: no connection is pinned, no
// transaction is open and no row is locked while a lock is held or waited for, so
// the pool may be that of the service's own queries, and there may be a proxy in
// front of the server.
//
// All time is computed by the server. What leaves it and comes back to it is
// integers, so that loc, time_zone and parseTime change nothing. Whether a lease
// was taken is read from what the statement itself answers or from the row, and
// not from the number of affected rows, so clientFoundRows changes nothing.
//
// # Late statements
//
// To give up a call ends its connection and not its statement, which may be
// waiting for a row and take effect later. So a statement that takes a lock
// carries the latest time of the server at which the lock is still wanted,
// compared with a clock that goes on while the statement waits. (Over MariaDB it does
// not wait for a row, and is sent again while one is locked.) The one case past
// that is a row that is made anew after a wait; nobody believes in it, and the
// Locker undoes it, for as long after the call as a statement may wait: see
// [Store.Linger]. A caller that leaves does not cut its statement, and not more
// than Options.MaxCalls are under way.
//
// # Calls at the same time
//
// Over MariaDB, acquires that come at the same time go in one statement, and so do
// releases, up to 32. Nobody waits for others to come: a call that finds no
// statement of its kind under way goes at once, by itself. A statement for
// several does not wait for a row. Where somebody has locked one it does nothing, and
// is sent again in halves, so that only the call for that row waits, by itself.
// Explicit holders, releases that keep the lock for a while, and calls for one lock
// that come at once go by themselves, and so does everything over MySQL, which has no
// lock wait of none.
//
// # Clocks
//
// A process that has known the server's clock for a while does not follow a step
// forward for a minute or two: no lease ends by it, neither its own nor that of
// another. One that has just started does. A step back lets the locks of dead
// holders live longer by the step. Fences rise over both.
//
// # Waiting
//
// There is no push: a waiter reads the row every 50 to 250 ms, and one waiter a
// key and process does. Within a process the next caller in line is woken by the
// release itself.
//
// # Processes and clean-up
//
// Each Locker over the store has a row in lock_member and changes it every 10 s.
// One of all processes, chosen by a lock of its own, reports the locks of a
// process that fell silent, marks them as released once they have expired, and
// deletes the rows of locks that nobody took for ten minutes.
//
// # The arbiter of a chain
//
// Where locks are kept by a chain of stores, the tables lock_mode and lock_permit
// say which one is in force, and for whom: [Store.Arbitrate] makes the steps that
// degrade.Machine wants made, each by one statement on the primary.
//
// # Chains
//
// In a chain of stores each call is judged by its [tierlock.Place], in the statement
// that would change the row: by the row's epoch and by the server that executes it.
// Without a place nothing is different from a store that is used by itself.
//
// # The guard
//
// [Guard] keeps the write of a holder that has lost its lock, on whatever store
// that was, out of a business database.
package mysqlstore
