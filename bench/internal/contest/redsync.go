package contest

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

const aboutRedsync = "one pool, the library's own pause of 50 to 250 ms between tries, as many tries as it takes; "

var redsyncRueidisContestant = Contestant{
	Name:  "redsync-rueidis",
	About: aboutRedsync + "over the same client options",
	Open: func(s Settings) (Locker, error) {
		client, err := rueidis.NewClient(recommended(s))
		if err != nil {
			return nil, err
		}
		pool := redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client))
		return newRedsync(s, redsync.New(pool), client.Close), nil
	},
}

var redsyncGoRedisContestant = Contestant{
	Name:  "redsync-goredis",
	About: aboutRedsync + "over go-redis with its own defaults",
	Open: func(s Settings) (Locker, error) {
		client := redis.NewClient(&redis.Options{Addr: s.Addr})
		return newRedsync(s, redsync.New(redsyncgoredis.NewPool(client)), func() { client.Close() }), nil
	},
}

type redsyncLocker struct {
	rs      *redsync.Redsync
	options []redsync.Option
	close   func()
}

func newRedsync(s Settings, rs *redsync.Redsync, end func()) *redsyncLocker {
	l := &redsyncLocker{rs: rs, close: end, options: []redsync.Option{
		redsync.WithExpiry(s.TTL), redsync.WithTries(math.MaxInt),
	}}
	if s.Poll > 0 {
		l.options = append(l.options, redsync.WithRetryDelay(s.Poll))
	}
	return l
}

func (l *redsyncLocker) Lock(ctx context.Context, key string) (Held, error) {
	m := l.rs.NewMutex(key, l.options...)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{m}, nil
}

func (l *redsyncLocker) TryLock(ctx context.Context, key string) (Held, error) {
	m := l.rs.NewMutex(key, l.options...)
	if err := m.TryLockContext(ctx); err != nil {
		var taken *redsync.ErrTaken
		if errors.As(err, &taken) {
			return nil, ErrHeld
		}
		return nil, err
	}
	return redsyncHeld{m}, nil
}

func (l *redsyncLocker) Close() { l.close() }

type redsyncHeld struct{ m *redsync.Mutex }

func (h redsyncHeld) Unlock() error {
	ok, err := h.m.UnlockContext(context.Background())
	return lostUnless(ok, err)
}

func (h redsyncHeld) Renew(ctx context.Context) error {
	// The time until which the lock counts is the mutex's own to tell: a
	// renewal that comes later finds the key gone.
	ok, err := h.m.ExtendContext(ctx)
	if err == nil && time.Now().After(h.m.Until()) {
		err = errLost
	}
	return lostUnless(ok, err)
}

func lostUnless(ok bool, err error) error {
	if err == nil && !ok {
		return errLost
	}
	return err
}
