package redisstore

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
	"github.com/tierlock/tierlock/watchdog"
)

func Keys(n tierlock.Name) (lock string, beside [3]string) {
	k := lockKey(n, "")
	return k, [3]string{FenceKey(n), k + holdsSuffix, k + wakeSuffix}
}

// SlotOf is the slot computed here.
func SlotOf(key string) uint16 { return slotOf(key) }

// Format is a token's JSON as it is sent: with verbs for what the script fills
// in.
func Format(t tierlock.Token) string { return string(appendFormat(nil, &t, false)) }

// FenceKey is the key of the fence record for a lock.
func FenceKey(n tierlock.Name) string {
	return string(appendFenceKey(nil, n.Namespace, slotOf(lockKey(n, ""))))
}

// LeftOf is the time of a PTTL.
func LeftOf(ms int64) time.Duration { return leftOf(ms) }

// ForgetClock is what a lost connection does.
func (s *Store) ForgetClock() { s.clocks.era.Add(1) }

// Mislead makes the store believe that the server's clock is off by d from
// what it is.
func (s *Store) Mislead(d time.Duration) {
	era, now := s.clocks.era.Load(), s.local(time.Now())
	offset, _ := s.clocks.one.Offset(now, era)
	s.clocks.one.Learn(now, now, now+offset+d.Microseconds(), era)
}

// PermissionHint is what an error says beside a server's refusal.
func PermissionHint(namespace, refusal string) string { return permissionHint(namespace, refusal) }

// RenewDigest is how the server names a script of one line more than its calls.
func RenewDigest() string { return renewScript.digest }

// Look is what a failed call of a Cluster client does: it has the table of slots
// read again.
func (s *Store) Look() { s.hub.lookOnce() }

// BesideALoneCall runs f as if it ran while a lone call is inside the client.
func (s *Store) BesideALoneCall(f func()) {
	s.lone.inside.Store(true)
	defer s.lone.inside.Store(false)
	f()
}

// AsWorker uses the client as a worker does, also where the store is closed.
func (s *Store) AsWorker() error {
	var res rueidis.RedisResult
	s.asWorker(func(ctx context.Context) rueidis.RedisResult {
		res = s.client.Do(ctx, s.client.B().Ping().Build())
		return res
	})
	return res.Error()
}

// Yield is what a worker does before it sends what has gathered.
func (s *Store) Yield() { s.yield() }

// Later makes d pass for the tripwires, and nothing else.
func (s *Store) Later(d time.Duration) {
	s.wires.began = watchdog.At(time.Now().Add(-d - watchdog.Now().Sub(s.wires.began)))
}

// KnowsClock reports whether the clock of the one server is known.
func (s *Store) KnowsClock() bool {
	_, known := s.clocks.one.Offset(s.local(time.Now()), s.clocks.era.Load())
	return known
}

// Guards reports whether the clock of the server that serves a lock is known.
func (s *Store) Guards(p tierlock.Place, n tierlock.Name) bool {
	g := s.guard(time.Now(), p, slotOf(lockKey(n, "")))
	_, known := g.wire.Explained(g.sent)
	return known
}

// Guarded is the number of servers whose clocks are known.
func (s *Store) Guarded() int { return len(s.wires.of) }

// TripMost is how long after a step forward the clock is not believed at the most.
const TripMost = contract.TripMost
