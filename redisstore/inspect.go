package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Inspect implements [tierlock.Store]. It is two reads in one round trip, not
// one step: where the lock changes hands between them, the token is the former
// holder's and Left the present one's. An explicit hold is read in one step.
func (s *Store) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	until := time.Now().Add(s.timeout)
	if err := contract.CheckName(name); err != nil {
		return tierlock.Record{}, invalid("inspect", name, err)
	}
	key := lockKey(name, "")
	rec, err := s.look(ctx, until, key)
	if err == nil && rec.Holds > 1 {
		rec, err = s.lookEntered(ctx, until, key)
	}
	if err != nil {
		return tierlock.Record{}, failed("inspect", name, err)
	}
	return rec, nil
}

// look is the plain read that waiters poll with: two commands in one round
// trip, and no script, which would count as a third. Holds 2 stands for an
// explicit hold, whose leases are still to be counted.
func (s *Store) look(ctx context.Context, until time.Time, key string) (tierlock.Record, error) {
	client, err := s.ready()
	if err != nil {
		return tierlock.Record{}, err
	}
	res, err := s.doMulti(ctx, until, []rueidis.Completed{
		// Not as the client's own GET and PTTL, which it knows as reads: those
		// it may retry, here without end, and send to replicas.
		client.B().Arbitrary("GET").Keys(key).Build(), client.B().Arbitrary("PTTL").Keys(key).Build()})
	if err != nil {
		return tierlock.Record{}, err
	}
	value, err := res[0].ToString()
	if rueidis.IsRedisNil(err) {
		return tierlock.Record{}, nil
	}
	if err != nil {
		return tierlock.Record{}, err
	}
	ms, err := res[1].AsInt64()
	if err != nil {
		return tierlock.Record{}, err
	}
	if ms == -2 { // it ended between the two
		return tierlock.Record{}, nil
	}
	rec := tierlock.Record{Held: true, Token: contract.ReadToken(value), Left: leftOf(ms), Holds: 1}
	if strings.HasSuffix(value, " ") {
		rec.Holds = 2
	}
	return rec, nil
}

// lookEntered reads an explicit hold with the number of its leases, atomically.
func (s *Store) lookEntered(ctx context.Context, until time.Time, key string) (tierlock.Record, error) {
	msg, err := s.run(ctx, until, &inspectScript, []string{key, key + holdsSuffix}, nil)
	if err != nil || msg.IsInt64() {
		return tierlock.Record{}, err
	}
	text, err := msg.ToString()
	if err != nil {
		return tierlock.Record{}, err
	}
	left, rest, _ := strings.Cut(text, " ")
	count, value, _ := strings.Cut(rest, " ")
	holds, err := strconv.Atoi(count)
	if err != nil {
		return tierlock.Record{}, fmt.Errorf("unexpected answer: %w", err)
	}
	return tierlock.Record{Held: true, Token: contract.ReadToken(value), Left: readLeft(left), Holds: holds}, nil
}

func readLeft(text string) time.Duration {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return leftOf(ms)
}

// leftOf is the time of a PTTL, which is negative where the key has no expiry.
func leftOf(ms int64) time.Duration {
	if ms < 0 {
		return 0
	}
	return time.Duration(max(ms, 1)) * time.Millisecond // 0 would mean unknown
}
