package contest

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockPoll is the pause in the library's own example of a retry.
const redislockPoll = 100 * time.Millisecond

var redislockContestant = Contestant{
	Name:  "redislock",
	About: "bsm/redislock over go-redis with its own defaults; waiters try again every 100 ms, as in its example",
	Open: func(s Settings) (Locker, error) {
		client := redis.NewClient(&redis.Options{Addr: s.Addr})
		poll := s.Poll
		if poll == 0 {
			poll = redislockPoll
		}
		return &redislockLocker{
			client: client, locker: redislock.New(client), ttl: s.TTL,
			wait: &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)},
		}, nil
	},
}

type redislockLocker struct {
	client *redis.Client
	locker *redislock.Client
	ttl    time.Duration
	wait   *redislock.Options
}

func (l *redislockLocker) Lock(ctx context.Context, key string) (Held, error) {
	return l.obtain(ctx, key, l.wait)
}

func (l *redislockLocker) TryLock(ctx context.Context, key string) (Held, error) {
	return l.obtain(ctx, key, nil)
}

func (l *redislockLocker) obtain(ctx context.Context, key string, opt *redislock.Options) (Held, error) {
	k, err := l.locker.Obtain(ctx, key, l.ttl, opt)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, ErrHeld
	}
	if err != nil {
		return nil, err
	}
	return redislockHeld{k, l}, nil
}

func (l *redislockLocker) Close() { l.client.Close() }

type redislockHeld struct {
	lock *redislock.Lock
	l    *redislockLocker
}

func (h redislockHeld) Unlock() error { return h.lock.Release(context.Background()) }

func (h redislockHeld) Renew(ctx context.Context) error {
	return h.lock.Refresh(ctx, h.l.ttl, nil)
}
