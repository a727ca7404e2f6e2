// Package redisstore keeps locks in Redis: one server, a Sentinel deployment or
// a Cluster, Redis 6.2 and later.
//
// Most callers want [Open] with [RecommendedOptions]: the store then owns its
// client, starts while the server is down and connects by itself when it is
// up. [New] works over a client that the caller keeps and closes.
//
// # What it guarantees
//
// A hold is worth [tierlock.FencedOnly]: it excludes others as long as Redis
// keeps the key. A failover, a restart without persistence, FLUSHALL, DEL and
// eviction can lose it. The fence tells the younger of two holders: it
// strictly rises while the server's clock goes forward, over lost keys too,
// and for a minute after each grant in the key's slot also where the clock was
// stepped back.
//
// Every call ends with its ctx and at the latest after Options.CallTimeout,
// whatever the client is doing. No key is ever without a TTL. Scripts are
// loaded on demand, so SCRIPT FLUSH and restarts do no harm.
//
// # Late requests
//
// An acquire that the server executes after its budget, its ctx's deadline or
// CallTimeout grants nothing. The server judges that by its own clock, of
// which the store knows how far it is ahead at the least, since the reply was
// on its way for a time that is not known. So a budget has to be longer than
// one round trip, or every acquire is refused; with a [tierlock.Locker], whose
// budget is a twentieth of the TTL, that means a TTL of more than 20 round
// trips, up to 10 s. CallTimeout should be two round trips or more: the first
// acquire over a new connection, and after a minute without any, may ask for
// the clock before.
//
// It is no protection against all: a ctx that is cancelled before its budget is
// over does not recall the request, which may still be granted (the Locker
// undoes it); and a server's clock that is stepped back makes the store accept
// what is late by as much, until the next answer. With [New] the store does not
// see the client's connections: where one is lost while no call is under way,
// and the next leads to another server, the former's clock counts until the
// first answer.
//
// # A server whose clock is stepped
//
// A step forward past a lease ends it early: another may get the lock, with a
// larger fence, and the former holder is told at its next renewal. A step back
// makes keys live longer by as much, unless they are released. Neither makes
// acquires fail, but for one repetition inside the call.
//
// An acquire of a chain's exclusive resource is refused with ErrLate after a step
// forward past the margin of a lease, for some 80 s, by stores that have known the
// server's clock from before: until then there may be holders who believe in what the
// step has ended. A store that is made after the step follows it.
//
// Fences rise over any
// step within a minute of the last grant in the lock's slot; after that a clock
// that is set back may give smaller ones than before.
//
// # Explicit holders
//
// Leases under one explicit holder share the key. The last release decides how
// long it stays: the Keep of an earlier one does not count.
//
// # Keys
//
// The lock itself is the token's JSON under
//
//	lock:<namespace>:{<resource>/<key>}
//
// and beside it, in the same slot, stand the same name with :holds (the leases
// under one explicit holder) and the fence record of the slot,
//
//	lock:<namespace>:{<tag>}:fence
//
// where the tag is a short text that hashes to the slot. It holds the largest
// fence given in that slot and lives for about a minute after the last grant, so
// there are at most 16,384 of them in a namespace, whatever the number of locks.
// From epoch 2 of a chain on it holds the epoch, too, in front. The marker that
// [Store.Probe] writes has such a name with :marker; it holds a nonce and an epoch and
// lives for a week.
// Releases are published on the lock's name with :wake, by SPUBLISH where the
// server is 7.0 or later.
//
// # In a chain
//
// A call with a [tierlock.Place] belongs to a mode of a chain. An exclusive one is
// executed by the primary of the data that it names only, after the epochs of the
// key and of the slot's fence record have been looked at; it is refused with
// [tierlock.ErrEpoch], and changes nothing, where one of them is later. Renewals
// and releases look at the key alone: they have one key, and go on while a Cluster
// moves its slot. What an earlier epoch has left is overwritten, an explicit hold
// with all of its leases.
//
// A call that is not exclusive costs what it costs without a place. A grant takes
// the epoch of the fence record where that is the larger.
//
// [Store.Adopt] writes holds of another mode as they are, with their fences; the
// token in the key has the new epoch. An explicit hold is adopted lease by lease.
// [Store.Probe] writes the marker, on each master of a Cluster, and gives the
// replication id with the marker's nonce, or the ids of all masters, sorted and joined
// by commas. Exclusive calls are refused where the marker has gone, as after FLUSHALL (not on
// a Cluster), until the chain has moved to the new data.
//
// # Permissions
//
// A restricted user of the namespace "prod" needs
//
//	~lock:prod:* &lock:prod:*
//	+eval +evalsha +time +get +set +getrange +del +pttl +pexpire
//	+zadd +zrem +zscore +zcard +zcount +zrange +zremrangebyscore
//	+publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe +ping
//
// of which the z-commands serve explicit holders; the channels and what
// publishes and subscribes serve [Store.Watch], without which waiters poll. A
// Sentinel client needs +role as well, a Cluster client +cluster and +asking, and
// a chain +info, for exclusive calls and [Store.Probe]. From
// 7.0 on +publish, +subscribe and +unsubscribe can be left out, before that
// +spublish, +ssubscribe and +sunsubscribe are not known. A user that lacks
// +client works too; servers from 7.2 on note a refusal in their ACL LOG with
// each connection.
//
// A refusal wraps [tierlock.ErrMisconfigured] and says which permission is
// missing. Two are not told: +publish or +spublish, since who may not publish has
// released all the same; and +asking, without which the client goes to and fro
// between two nodes while a slot moves, and locks in it are unavailable.
//
// # Credentials and TLS
//
// Set Username and Password, or AuthCredentialsFn, and TLSConfig in the client's
// options. The function is asked with each new connection, so a password can be
// changed under a running process: tell the function first, then the server. A
// server lets connections live that were made with an old password; where the
// client knows no other, locks end with the connections.
//
// A wrong password, and a TLS connection that one side refuses for what it is (a
// certificate, a name, a version), are [tierlock.ErrMisconfigured] and no outage.
//
// # Sentinel and Cluster
//
// A Sentinel deployment is given by its sentinels, a Cluster by some of its
// nodes:
//
//	opt := redisstore.RecommendedOptions("10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379")
//	opt.Sentinel.MasterSet = "mymaster"
//	store, err := redisstore.Open(opt)
//
//	store, err := redisstore.Open(redisstore.RecommendedOptions("10.0.0.1:6379", "10.0.0.2:6379"))
//
// With one address alone ForceSingleClient has to be set to false.
//
// One deployment is one vote, whatever it consists of: replicas make it more
// available, not more certain. A failover may lose the last keys that were
// written, whose holders then learn it from their next renewal; until then, or
// until their belief ends, there may be two holders. A former primary that was
// cut off or stopped goes on granting until somebody tells it of its demotion.
// Compare fences where that matters. WAIT is not offered: it would not change
// which replica is promoted.
//
// While a failover lasts, calls return [tierlock.ErrUnavailable]; afterwards
// they work again without anybody's doing. Where a server says that it is
// read-only, a store made by [Open] makes its connections anew, since an address
// or a sentinel may know a better one by now. With [New] that is the client's
// own business: set Sentinel.TopologyRefreshInterval.
//
// While a Cluster moves a slot from one node to another, holds in it are renewed
// and released, but a free lock in it cannot be taken (TRYAGAIN, which counts as
// unavailable), and a release may be told to waiters only when the move is over;
// they poll. A watch has a subscription at the node that serves its lock, and
// follows the slot.
//
// # Load
//
// With one server, or Sentinel, calls that are made at the same time go out as
// one pipeline; a call that is alone waits for nothing. A store that [Open] made
// over one server uses the client from the caller's own goroutine then. Renewals
// are pipelines of their own, one for each node of a Cluster.
//
// docs/redis.md in the repository has the settings of client and server that
// matter, what each state of a server does to locks, the commands of each
// operation and the memory of a lock.
//
// # Limits
//
// Redis has to be a 64-bit build. The eviction policy should be noeviction.
//
// [Store.Close] cannot end what waits inside the caller's own client, given to
// [New]: one goroutine for the connection of watches, if all of the client's
// pool are in use, and calls without an answer. They end with the client.
package redisstore
