package storetest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierlock/tierlock"
)

// wrongWatch is a good watch with one thing wrong.
type wrongWatch struct {
	tierlock.Watch
	c     <-chan struct{}
	close func()
}

func (w *wrongWatch) C() <-chan struct{} { return w.c }
func (w *wrongWatch) Close()             { w.close() }

// onWatch changes good watches.
func onWatch(change func(s *broken, w *wrongWatch)) func(*broken) {
	return func(s *broken) {
		s.watch = func(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
			good, err := s.fenced.Watch(ctx, name)
			if err != nil {
				return nil, err
			}
			w := &wrongWatch{Watch: good, c: good.C(), close: good.Close}
			change(s, w)
			return w, nil
		}
	}
}

func brokenWatches() []brokenStore {
	return []brokenStore{
		{"WatchSignals", "never signals", onWatch(func(_ *broken, w *wrongWatch) { w.c = make(chan struct{}) }), "no signal after a release"},
		{"WatchSignals", "closes C", onWatch(func(_ *broken, w *wrongWatch) {
			c := make(chan struct{})
			close(c)
			w.c = c
		}), "C was closed"},
		{"WatchSignals", "does not signal a release with Keep", func(s *broken) {
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				if req.Keep > 0 {
					// The key of another lock in its place, which nobody
					// watches.
					rec := s.look(req.Name)
					s.rename = func(n tierlock.Name) tierlock.Name { n.Key += "'"; return n }
					s.fenced.Acquire(ctx, tierlock.AcquireRequest{Name: s.rename(req.Name), TTL: req.Keep, Budget: time.Second, Token: rec.Token})
					return tierlock.LeaseOwned, nil
				}
				return s.fenced.Release(ctx, req)
			}
		}, "no signal after a release with Keep"},
		{"WatchLive", "is live only later", func(s *broken) {
			s.watch = func(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
				c, done := make(chan struct{}), make(chan struct{})
				var closed atomic.Bool
				go func() {
					time.Sleep(10 * time.Millisecond)
					good, _ := s.fenced.Watch(context.Background(), name)
					defer good.Close()
					for {
						select {
						case <-done:
							return
						case <-good.C():
						}
						select {
						case <-done:
							return
						case c <- struct{}{}:
						}
					}
				}()
				return &wrongWatch{c: c, close: func() {
					if !closed.Swap(true) {
						close(done)
					}
				}}, nil
			}
		}, "no signal after a release right after Watch returned"},
		{"WatchLive", "has no push", func(s *broken) {
			s.watch = func(context.Context, tierlock.Name) (tierlock.Watch, error) {
				return nil, fmt.Errorf("broken: %w", tierlock.ErrUnavailable)
			}
		}, "want a live watch"},
		{"WatchOtherKeys", "watches by a pattern", func(s *broken) {
			good := s.fenced.Watch
			s.watch = func(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
				return good(ctx, tierlock.Name{Namespace: name.Namespace})
			}
			s.release = func(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
				// A release of anything signals all that share the namespace.
				all := tierlock.Name{Namespace: strings.TrimSuffix(req.Name.Namespace, ".x")}
				s.fenced.Acquire(ctx, tierlock.AcquireRequest{Name: all, TTL: time.Second, Budget: time.Second, Token: tierlock.Token{Lease: "all"}})
				s.fenced.Release(ctx, tierlock.ReleaseRequest{Name: all, Lease: "all"})
				return s.fenced.Release(ctx, req)
			}
		}, "after releases of other keys only"},
		{"WatchPassesOn", "a watcher that left stays in line", onWatch(func(_ *broken, w *wrongWatch) { w.close = func() {} }), "watchers before it"},
		{"WatchClose", "panics the second time", onWatch(func(_ *broken, w *wrongWatch) {
			var n atomic.Int64
			w.close = func() {
				// The ninth: a panic in the goroutines of the check would end
				// the test itself.
				if n.Add(1) == 9 {
					panic("close of closed channel")
				}
				w.Watch.Close()
			}
		}), "panic: close of closed channel"},
		{"WatchClose", "ends the watches of others", func(s *broken) {
			var all sync.Map
			onWatch(func(_ *broken, w *wrongWatch) {
				all.Store(w.Watch, true)
				w.close = func() {
					all.Range(func(w, _ any) bool { w.(tierlock.Watch).Close(); return true })
				}
			})(s)
		}, "no signal after a release"},
		{"WatchMany", "has room for a hundred", func(s *broken) {
			var open atomic.Int64
			good := s.fenced.Watch
			s.watch = func(ctx context.Context, name tierlock.Name) (tierlock.Watch, error) {
				if open.Add(1) > 90 {
					open.Add(-1)
					return nil, fmt.Errorf("broken: %w", tierlock.ErrUnavailable)
				}
				w, err := good(ctx, name)
				if err != nil {
					return nil, err
				}
				return &wrongWatch{Watch: w, c: w.C(), close: func() { w.Close(); open.Add(-1) }}, nil
			}
		}, "200 at once"},
		{"WatchMany", "signals the first watcher only", onWatch(func(_ *broken, w *wrongWatch) { w.close = func() {} }), "one of 200: no signal"},
	}
}
