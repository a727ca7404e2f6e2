package tierlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Tier is the kind of a store, in the order of a chain.
type Tier uint8

const (
	// Redis is a Redis deployment, see package redisstore.
	Redis Tier = iota + 1
	// MySQL is a MySQL or MariaDB database.
	MySQL
	// Local is the memory of this process, see package localstore.
	Local
)

// String is the name used in tokens, logs and labels.
func (t Tier) String() string {
	switch t {
	case Redis:
		return "redis"
	case MySQL:
		return "mysql"
	case Local:
		return "local"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

func parseTier(s string) (Tier, error) {
	for _, t := range []Tier{Redis, MySQL, Local} {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%q is none of redis, mysql, local", s)
}

// Name names one lock on every store. Two Names that differ in any field are
// two locks, on every store; a store must not let them collide, whatever
// characters they hold. Namespace matches [A-Za-z0-9_.:-]{1,32}, Resource
// [A-Za-z0-9_.:-]{1,64}, and Key is valid UTF-8 of 1 to 128 characters,
// which may be any, control characters and braces included.
type Name struct{ Namespace, Resource, Key string }

// String is the form for logs and errors.
func (n Name) String() string { return n.Namespace + ":" + n.Resource + "/" + printable(n.Key) }

// Store is one lock backend. The library's own are redisstore and localstore;
// package storetest checks any other.
//
// The contract, for every method:
//
//   - One attempt. A method never waits for a lock, never retries after a
//     failure and never logs; the Locker does. (Asking the server's clock
//     and repeating an attempt that was refused for lateness is part of
//     one attempt.)
//   - Bounded. It returns when ctx ends, and also under
//     context.Background within a bound of the store's own, which the
//     store documents. What was sent may still be executed afterwards:
//     AcquireRequest.Budget is the cure.
//   - Time. Leases are durations, counted by the store's own clock from
//     when it executes the request. No absolute client time is sent.
//   - Errors are classed once, by wrapping: [ErrUnavailable] when the store
//     gave no usable answer, so that the outcome of a write is unknown;
//     [ErrLate] when the store refused an acquire for lateness and has
//     changed nothing; [ErrMisconfigured] when no retry can help before
//     somebody changes a setting. "Held by somebody else" and "not yours"
//     are answers, not errors.
//   - Safe for concurrent use.
//
// A key never stays without a TTL. Whoever opened a store closes it, after
// the Lockers that use it.
type Store interface {
	// Tier is the kind of the store. It never changes.
	Tier() Tier

	// Guarantee is the most that a hold of this store is worth. It never
	// changes.
	Guarantee() Guarantee

	// Acquire takes the lease if the key is free. It is idempotent for one
	// req.Token.Lease: repeated after a lost reply it gives the same grant
	// (same fence), its time left at least req.TTL again, and never says
	// "held" over the caller's own lease.
	Acquire(ctx context.Context, req AcquireRequest) (AcquireResult, error)

	// Renew makes the time left of each lease at least its TTL. It never
	// shortens the time left and never re-creates a key. The results stand
	// in the order of reqs, exactly one each; one that fails does not stop
	// the others. A store sends the batch in as few round trips as it can.
	Renew(ctx context.Context, reqs []RenewRequest) []RenewResult

	// Release gives up the lease, if the key still carries it, and wakes
	// watchers. LeaseOwned says that it did; LeaseTaken or LeaseGone that there was nothing
	// of ours to release. It is idempotent.
	Release(ctx context.Context, req ReleaseRequest) (Ownership, error)

	// Inspect reads a key's present holder without changing anything.
	Inspect(ctx context.Context, name Name) (Record, error)
}

// AcquireRequest asks for one lease.
type AcquireRequest struct {
	Name Name
	// TTL is the lease wanted, in whole milliseconds, at least 1 ms.
	TTL time.Duration
	// Budget bounds lateness: the store refuses with ErrLate, judged by its
	// own clock, to grant later than Budget after the call of Acquire began.
	// So a request that is executed after the caller gave up grants nothing.
	// It is positive.
	Budget time.Duration
	// Token is the identity to keep with the lease. The store fills in Fence,
	// Epoch, Seq, ServerTime and ExpireAt, and keeps the rest as it is.
	Token Token
	// Explicit says that Token.Holder was chosen by the caller (option
	// Holder): if the key is held under the same explicit holder id, the
	// request enters that hold under its own lease id, with the hold's
	// fence, and the key is free when the last such lease is released or
	// has expired. Explicit ids enter explicit ids only.
	Explicit bool
	// Fences is how many further fences to reserve at most, for holds that may
	// follow on the same lease without asking the store. 0 means none, and there
	// are none for an Explicit request.
	Fences int
	// Place is the mode of a chain that the call is meant for.
	Place Place
}

// AcquireResult is the answer to an AcquireRequest.
type AcquireResult struct {
	// Granted says whether the lease is the caller's.
	Granted bool
	// Token is the granted token, or, where the key is held by others, the
	// holder's; it is zero where the store could not read it.
	Token Token
	// Left is how long the present holder's lease lasts unless it is renewed,
	// where Granted is false. Zero means unknown.
	Left time.Duration
	// Reentered says that the grant joined an explicit holder's hold.
	Reentered bool
	// Fences is how many further fences were reserved, 0 to
	// AcquireRequest.Fences: those from Token.Fence+1 on. Every later grant of
	// the key has a larger one, in all circumstances in which it would have one
	// larger than Token.Fence. A store may always give fewer, and none. One that
	// is [ProcessLocal] has no fences to reserve: there it is only the number of
	// holds that may follow.
	Fences int
}

// RenewRequest asks to prolong one lease.
type RenewRequest struct {
	Name     Name
	Lease    string
	Explicit bool // as it was at Acquire
	// TTL is the time left wanted, in whole milliseconds, at least 1 ms.
	TTL time.Duration
	// Place is the mode that the lease is of.
	Place Place
}

// RenewResult is the answer to a RenewRequest. State counts only where Err is
// nil.
type RenewResult struct {
	State Ownership
	Err   error
}

// ReleaseRequest gives up one lease.
type ReleaseRequest struct {
	Name     Name
	Lease    string
	Explicit bool // as it was at Acquire
	// Keep, where positive, keeps the key for that long (never longer than
	// the time it has left) instead of freeing it at once.
	Keep time.Duration
	// Place is the mode that the lease is of.
	Place Place
}

// Record is what Inspect reads.
type Record struct {
	// Held says whether the key is held by anybody.
	Held bool
	// Token is the holder's, as granted.
	Token Token
	// Left is how long the lease lasts unless it is renewed.
	Left time.Duration
	// Holds is the number of leases under one explicit holder id; 1 for any
	// other hold, 0 if the key is free.
	Holds int
}

// Ownership is a store's answer about a lease.
type Ownership uint8

const (
	// LeaseOwned: the key carries the lease.
	LeaseOwned Ownership = iota + 1
	// LeaseTaken: the key carries another lease.
	LeaseTaken
	// LeaseGone: the key does not exist.
	LeaseGone
)

// String is the name used in logs and errors.
func (o Ownership) String() string {
	switch o {
	case LeaseOwned:
		return "owned"
	case LeaseTaken:
		return "taken"
	case LeaseGone:
		return "gone"
	}
	return fmt.Sprintf("ownership(%d)", uint8(o))
}

// Partitioned is an optional interface of a Store of which parts fail by
// themselves, such as the masters of a Redis Cluster. Without it a store that
// fails three times in a row is not tried for a moment, whatever was asked for.
type Partitioned interface {
	// Part names the part that serves a lock, as far as is known now, "" where
	// it is not. It does no I/O and does not block. There are few parts.
	Part(name Name) string
}

// Lingering is an optional interface of a Store whose server may still execute a
// call some time after it was given up, such as a statement that waits for a row.
// Without it a call is taken for settled after twice its time limit.
type Lingering interface {
	// Linger is the longest such time, from the moment of giving up. It does no
	// I/O and does not block; it may change.
	Linger() time.Duration
}

// Updater is an optional interface of a Store that grants Fences. Without it
// Inspect goes on to show the first of the holds that follow each other on a lease.
type Updater interface {
	// Update replaces the token that is kept with the lease req.Token.Lease by
	// req.Token, only ever forward: a kept token whose fence is not smaller stays,
	// and so does one of another lease. The time left stays as it is, and a key is
	// never created. LeaseOwned says that the key carries the lease, whether the
	// token was replaced or not. An Explicit lease is no lease here.
	Update(ctx context.Context, req UpdateRequest) (Ownership, error)
}

// UpdateRequest gives a lease the token of the hold that it serves now.
type UpdateRequest struct {
	Name Name
	// Token is complete: of all its fields the store fills in none.
	Token Token
}

// Registrar is an optional interface of a Store that keeps a list of the
// processes that use it, so that the locks of one that died are told from
// those of one that is only slow.
type Registrar interface {
	// Register says that a process begins to use the store. It does no I/O
	// itself and does not block: the store works on it in the background until
	// leave is called, after the last hold, or the store is closed. leave returns
	// when the process is off the list, or its ctx has ended.
	Register(m Member) (leave func(ctx context.Context))
}

// Member is a process that uses a store, or rather one Locker in it.
type Member struct {
	// ID is what each lease id of the process begins with: 32 hexadecimal digits.
	ID string
	// Namespace is that of all its locks.
	Namespace string
	// App, Host and PID are as in its tokens.
	App, Host string
	PID       int
	// Holds counts the present holds. It may be called at any time.
	Holds func() int
}

// Watcher is an optional interface of a Store that can tell when a key may
// have become free. Without it waiters poll.
type Watcher interface {
	// Watch begins to watch a key. When it returns without an error, the watch
	// is live: every release executed after that is signalled. It returns
	// ErrUnavailable where push cannot be had now, and the waiter polls. The
	// caller must call Close.
	Watch(ctx context.Context, name Name) (Watch, error)
}

// Watch is one live watch.
type Watch interface {
	// C receives a value after the key may have become free or its time left
	// may have become shorter, and also when messages may have been missed
	// (a re-subscription). Signals coalesce; C is never closed while the watch
	// is open.
	C() <-chan struct{}
	// Close ends the watch and frees what it holds. It is idempotent.
	Close()
}

// Guarantee is what a hold is worth.
type Guarantee uint8

const (
	// ProcessLocal holds exclude only within this process; their fence is 0.
	ProcessLocal Guarantee = iota + 1
	// FencedOnly holds exclude as long as the store keeps its data: two
	// holders are possible after a failover or restart that lost the key.
	// Their fence tells the younger.
	FencedOnly
	// Exclusive holds exclude over failovers and switches of stores, too: of
	// Exclusive resources, with a MySQL of which acknowledged commits survive a
	// failover (mysqlstore.Options.Durable) and clocks whose rates differ by less
	// than 1 %. While a Redis is seen to evict, holds there are FencedOnly. Not
	// noticed in time is what else takes keys away from one that goes on: DEL and, on a
	// Cluster, FLUSHALL (elsewhere holds outlive that); and a clock of the server's that
	// was stepped forward past a lease is believed by a process that has not known it
	// before. No lease excludes the effects of a process that is stopped: the
	// fence does.
	Exclusive
)

// String is the name used in logs and labels.
func (g Guarantee) String() string {
	switch g {
	case ProcessLocal:
		return "process-local"
	case FencedOnly:
		return "fenced-only"
	case Exclusive:
		return "exclusive"
	}
	return fmt.Sprintf("guarantee(%d)", uint8(g))
}

// What a Store's error wraps, exactly one of the three.
var (
	// ErrUnavailable: the store gave no usable answer (refused, timed out,
	// read-only, loading, out of memory, overloaded). Callers of Lock meet it
	// too.
	ErrUnavailable = errors.New("tierlock: store unavailable")
	// ErrLate: the store refused to grant, because the request reached it
	// too late by the store's clock, on the way or since that was stepped
	// forward. Nothing was changed.
	ErrLate = errors.New("tierlock: request reached the store too late")
	// ErrMisconfigured: the store refused for a reason that only a change of
	// configuration mends (wrong password, missing permission, a key of
	// another type). Callers of Lock meet it too; it never counts as outage.
	ErrMisconfigured = errors.New("tierlock: store misconfigured")
)
