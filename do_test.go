package tierlock_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
)

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other, _, _, raw := twoLockers(t)
		errBody := errors.New("body failed")
		for _, want := range []error{nil, errBody} {
			calls := 0
			err := l.Do(bg, "r", "1", func(ctx context.Context) error {
				calls++
				tok := tierlock.TokenFrom(ctx)
				if rec, err := raw.Inspect(bg, name("r", "1")); err != nil || rec.Token.Lease != tok.Lease || tok.RequestID != "req-7" {
					t.Errorf("token in the body %v, holder %v, error %v", tok, rec.Token, err)
				}
				time.Sleep(10 * time.Second)
				if ctx.Err() != nil {
					t.Errorf("context in the body: %v", context.Cause(ctx))
				}
				if _, err := other.TryLock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) {
					t.Errorf("another process: %v", err)
				}
				return want
			}, tierlock.RequestID("req-7"))
			if err != want || calls != 1 {
				t.Errorf("Do: %v after %d calls, want %v itself after 1", err, calls, want)
			}
			wantFree(t, raw, name("r", "1"))
		}
		// Who does not get the lock does not run.
		k := mustLock(t, other, "r", "1")
		err := l.Do(bg, "r", "1", func(context.Context) error { t.Error("ran without the lock"); return nil }, tierlock.NoWait())
		wantIs(t, "Do", err, tierlock.ErrHeld)
		mustUnlock(t, k)
		if tok := tierlock.TokenFrom(bg); !tok.IsZero() {
			t.Errorf("token of a plain context: %v", tok)
		}
	})
}

// A body that does not return unlocks as well, and goes on its way.
func TestDoPanicAndGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		for what, fn := range map[string]func(context.Context) error{
			"panic":  func(context.Context) error { panic("boom") },
			"Goexit": func(context.Context) error { runtime.Goexit(); return nil },
		} {
			var recovered any
			returned := false
			var wg sync.WaitGroup
			wg.Add(1) // not wg.Go, which does not take panics
			go func() {
				defer wg.Done()
				defer func() { recovered = recover() }()
				_ = l.Do(bg, "r", "1", fn)
				returned = true
			}()
			wg.Wait()
			if returned || (recovered == "boom") != (what == "panic") {
				t.Errorf("%s: returned %v, recovered %v", what, returned, recovered)
			}
			wantFree(t, raw, name("r", "1"))
			before := s.Calls(storetest.OpRenew)
			time.Sleep(5 * time.Second)
			if n := s.Calls(storetest.OpRenew) - before; n != 0 {
				t.Errorf("%s: %d renewals afterwards", what, n)
			}
		}
	})
}

func TestDoJoinsALoss(t *testing.T) {
	errBody := errors.New("body failed")
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		lose := func(ctx context.Context) {
			if _, err := raw.Release(bg, tierlock.ReleaseRequest{Name: name("r", "1"), Lease: tierlock.TokenFrom(ctx).Lease}); err != nil {
				t.Error(err)
			}
		}
		err := l.Do(bg, "r", "1", func(ctx context.Context) error {
			lose(ctx)
			<-ctx.Done()
			wantLost(t, "cause in the body", context.Cause(ctx), "gone")
			return errBody
		})
		wantIs(t, "loss and error", err, errBody, tierlock.ErrLost)
		wantLost(t, "loss and error", err, "gone")

		err = l.Do(bg, "r", "1", func(ctx context.Context) error {
			lose(ctx)
			<-ctx.Done()
			return nil
		})
		wantLost(t, "loss alone", err, "gone")

		// The renewals never told: only the release finds out.
		err = l.Do(bg, "r", "1", func(ctx context.Context) error { lose(ctx); return nil })
		wantLost(t, "found at the release", err, "gone")

		// By the clock, though a body that never looks: nobody's timer is
		// needed.
		s.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Before})
		err = l.Do(bg, "r", "1", func(ctx context.Context) error {
			time.Sleep(2700 * time.Millisecond)
			return nil
		})
		wantLost(t, "by the clock", err, "unconfirmed")
		s.ClearAll()

		err = l.Do(bg, "r", "1", func(ctx context.Context) error {
			<-ctx.Done()
			wantIs(t, "cause in the body", context.Cause(ctx), tierlock.ErrLeaseExceeded)
			return errBody
		}, tierlock.Lease(time.Second))
		wantIs(t, "bound", err, errBody, tierlock.ErrLeaseExceeded)
		wantNotIs(t, "bound", err, tierlock.ErrLost)
		idle(t, l)
		wantFree(t, raw, name("r", "1"))
	})
}

// A done job is not repeated because its release failed: the caller does not
// learn of it, the observer and the log do.
func TestDoKeepsAFailedReleaseToItself(t *testing.T) {
	for _, kind := range []storetest.Kind{storetest.Before, storetest.After} {
		synctest.Test(t, func(t *testing.T) {
			var released events[tierlock.ReleasedEvent]
			log := &logBook{}
			l, _, s, _, raw := twoLockers(t, func(c *tierlock.Config) {
				c.Observer.Released = released.add
				c.Logger = slog.New(log)
			})
			errBody := errors.New("body failed")
			for _, want := range []error{nil, errBody} {
				s.Set(storetest.OpRelease, storetest.Fault{Kind: kind})
				if err := l.Do(bg, "r", "1", func(context.Context) error { return want }); err != want {
					t.Errorf("Do: %v, want %v itself", err, want)
				}
				e := released.all()
				if len(e) == 0 || !errors.Is(e[len(e)-1].Err, tierlock.ErrUnavailable) {
					t.Errorf("events %+v, want one with the failure", e)
				}
				if lines := log.lines("tierlock: unlocked"); len(lines) == 0 || !strings.Contains(lines[len(lines)-1], "release not confirmed") {
					t.Errorf("log %q, want a line with the failure", lines)
				}
				s.ClearAll()
				idle(t, l)
				wantFree(t, raw, name("r", "1"))
			}
		})
	}
}

func TestDoNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, s, _, raw := twoLockers(t)
		var tokens []tierlock.Token
		err := l.Do(bg, "re", "1", func(ctx context.Context) error {
			tokens = append(tokens, tierlock.TokenFrom(ctx))
			return l.Do(ctx, "re", "1", func(ctx context.Context) error {
				tokens = append(tokens, tierlock.TokenFrom(ctx))
				return l.Do(ctx, "r", "2", func(ctx context.Context) error {
					tokens = append(tokens, tierlock.TokenFrom(ctx))
					err := l.Do(ctx, "re", "1", func(ctx context.Context) error {
						tokens = append(tokens, tierlock.TokenFrom(ctx))
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					// The inner ones are over, not the outer's lock.
					wantHeld := left(t, raw, name("re", "1"))
					if tierlock.TokenFrom(ctx) != tokens[2] || wantHeld == 0 {
						t.Errorf("token %v, want %v; %v left of the outer", tierlock.TokenFrom(ctx), tokens[2], wantHeld)
					}
					return l.Do(ctx, "r", "2", func(context.Context) error { t.Error("entered"); return nil })
				})
			})
		})
		wantIs(t, "innermost error through all", err, tierlock.ErrReentrant)
		if len(tokens) != 4 || tokens[0] != tokens[1] || tokens[3] != tokens[0] || tokens[2].Resource != "r" {
			t.Errorf("tokens %v", tokens)
		}
		if a, r := s.Calls(storetest.OpAcquire), s.Calls(storetest.OpRelease); a != 2 || r != 2 {
			t.Errorf("%d acquires and %d releases of two keys", a, r)
		}
		wantFree(t, raw, name("re", "1"))
		wantFree(t, raw, name("r", "2"))
	})
}

// The context that ends inside ends the body's, and is no loss.
func TestDoContextEndsInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other, _, _, raw := twoLockers(t)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(bg)
		err := l.Do(ctx, "r", "1", func(ctx context.Context) error {
			cancel(cause)
			<-ctx.Done()
			wantIs(t, "cause in the body", context.Cause(ctx), cause)
			// It may still clean up: the key is not given away.
			time.Sleep(time.Second)
			if _, err := other.TryLock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) {
				t.Errorf("another process: %v", err)
			}
			return ctx.Err()
		})
		if err != context.Canceled {
			t.Errorf("Do: %v, want what the body returned", err)
		}
		wantFree(t, raw, name("r", "1"))

		// Too late for the lease it is one.
		ctx, cancel = context.WithCancelCause(bg)
		err = l.Do(ctx, "r", "1", func(ctx context.Context) error {
			cancel(cause)
			time.Sleep(4 * time.Second)
			return nil
		})
		wantLost(t, "after the lease", err, "expired")
	})
}
