package contest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/redisstore"
)

var tierlockContestant = Contestant{
	Name:   Subject,
	About:  "redisstore.Open(RecommendedOptions), no observer, log level above Debug",
	Renews: true,
	Open:   openTierlock,
}

type tierlockLocker struct {
	locker *tierlock.Locker
	res    *tierlock.ResourceHandle
	end    func()
}

func openTierlock(s Settings) (Locker, error) {
	store, err := redisstore.Open(recommended(s))
	if err != nil {
		return nil, err
	}
	return newTierlock(s, 0, store, store.Close)
}

// newTierlock is a client over a store; a limit of 0 is the default, and end is
// called when it is closed.
func newTierlock(s Settings, limit time.Duration, store tierlock.Store, end func()) (Locker, error) {
	locker, err := tierlock.New(tierlock.Config{
		App: "bench", Namespace: "bench", CallTimeout: limit, Stores: []tierlock.Store{store},
		Resources: []tierlock.Resource{{Name: "bench:lock", TTL: s.TTL, Wait: time.Minute}},
		Logger:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		end()
		return nil, err
	}
	res, err := locker.Resource("bench:lock")
	if err != nil {
		return nil, err
	}
	return &tierlockLocker{locker, res, end}, nil
}

func (l *tierlockLocker) Lock(ctx context.Context, key string) (Held, error) {
	return tierlockHeldOf(l.res.Lock(ctx, key))
}

func (l *tierlockLocker) TryLock(ctx context.Context, key string) (Held, error) {
	return tierlockHeldOf(l.res.TryLock(ctx, key))
}

func (l *tierlockLocker) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.locker.Close(ctx); err != nil {
		slog.Warn("tierlock: Close", "error", err)
	}
	l.end()
}

// tierlockHeld is one pointer, which an interface holds without an allocation.
type tierlockHeld struct{ *tierlock.Lock }

func tierlockHeldOf(k *tierlock.Lock, err error) (Held, error) {
	if err != nil {
		if errors.Is(err, tierlock.ErrHeld) {
			err = ErrHeld
		}
		return nil, err
	}
	return tierlockHeld{k}, nil
}

func (h tierlockHeld) Renew(context.Context) error { return h.Err() }
