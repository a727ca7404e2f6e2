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
// and for a minute after each grant also where the clock was stepped back.
//
// Every call ends with its ctx and at the latest after Options.CallTimeout,
// whatever the client is doing. A request that reaches the server after its
// caller gave up grants nothing. No key is ever without a TTL. Scripts are
// loaded on demand, so SCRIPT FLUSH and restarts do no harm.
//
// # Keys
//
// The lock itself is the token's JSON under
//
//	lock:<namespace>:{<resource>/<key>}
//
// and beside it, in the same slot, stand the same name with :fence (the last
// fence, for about a minute) and :holds (the leases under one explicit
// holder). Releases are published on the same name with :wake, by SPUBLISH
// where the server is 7.0 or later.
//
// # Permissions
//
// A restricted user needs ~lock:* and &lock:* and
//
//	+eval +evalsha +time +get +set +getrange +del +pttl +pexpire
//	+zadd +zrem +zscore +zcard +zcount +zrange +zremrangebyscore
//	+publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe
//	+ping +hello +client
//
// of which the z-commands serve explicit holders, and those that publish and
// subscribe serve [Store.Watch].
//
// # Limits
//
// Redis has to be a 64-bit build. The eviction policy should be noeviction.
// With a Cluster client Watch reports that it is unavailable, and waiters
// poll.
package redisstore
