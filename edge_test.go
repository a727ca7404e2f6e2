package tierlock_test

import (
	"context"
	"errors"
	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/storetest"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

type enabledHandler struct {
	slog.Handler
	enabled func(slog.Level) bool
}

func (h enabledHandler) Enabled(_ context.Context, l slog.Level) bool { return h.enabled(l) }

// hookCtx calls hook when a call looks for a hold in it for the second time.
type hookCtx struct {
	context.Context
	hook func()
	n    int
}

func (h *hookCtx) Value(key any) any {
	if reflect.TypeOf(key).Name() == "lockKey" {
		if h.n++; h.n == 2 {
			h.hook()
		}
	}
	return h.Context.Value(key)
}

// All is unlocked, and only a func of the Observer hangs.
func TestCloseWithAHungObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		hang := make(chan struct{})
		l := plainLocker(t, r.f, func(c *tierlock.Config) {
			c.Observer.Released = func(tierlock.ReleasedEvent) { <-hang }
		}, tierlock.Resource{})
		k, _ := l.Lock(bg, "r", "k")
		k.Unlock()
		done := make(chan struct{})
		go func() { l.Close(bg); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Hour):
			t.Errorf("Close has not returned after an hour; no hold, no undo, no call is left: %+v", l.Status())
		}
		close(hang)
		<-done
	})
}

// A func of the Observer that closes the Locker does not wait for itself.
func TestCloseFromAnObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(bg)
		var l *tierlock.Locker
		l = plainLocker(t, r.f, func(c *tierlock.Config) {
			c.Observer.Released = func(tierlock.ReleasedEvent) { l.Close(ctx); close(done) }
		}, tierlock.Resource{})
		k, _ := l.Lock(bg, "r", "k")
		k.Unlock()
		select {
		case <-done:
		case <-time.After(time.Hour):
			t.Errorf("Close, called by an Observer func with nothing held, has not returned after an hour")
		}
		cancel()
		<-done
	})
}

// A slow Handler.Enabled costs nobody a lock.
func TestSlowLoggerEnabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, func(c *tierlock.Config) {
			c.Logger = slog.New(enabledHandler{slog.DiscardHandler, func(l slog.Level) bool {
				if l == slog.LevelWarn {
					time.Sleep(5 * time.Second)
				}
				return false
			}})
		}, tierlock.Resource{TTL: 3 * time.Second})
		good, _ := l.Lock(bg, "r", "good")
		ctx, cancel := context.WithCancel(bg)
		bad, _ := l.Lock(ctx, "r", "bad")
		cancel() // not renewed, and not unlocked: lost after its TTL
		time.Sleep(9 * time.Second)
		if err := good.Err(); err != nil {
			t.Errorf("another lock was lost, the store is in order: %v", err)
		}
		good.Unlock()
		bad.Unlock()
		l.Close(bg)
	})
}

// A panicking Handler.Enabled does not end the process.
func TestPanickingLoggerEnabled(t *testing.T) {
	if os.Getenv("CHILD") != "" {
		synctest.Test(t, func(t *testing.T) {
			r := newBackend(t)
			l := plainLocker(t, r.f, func(c *tierlock.Config) {
				c.Logger = slog.New(enabledHandler{slog.DiscardHandler, func(l slog.Level) bool {
					if l == slog.LevelWarn {
						panic("handler")
					}
					return false
				}})
			}, tierlock.Resource{TTL: 100 * time.Millisecond})
			ctx, cancel := context.WithCancel(bg)
			l.Lock(ctx, "r", "k")
			cancel()
			time.Sleep(time.Second)
			l.Close(bg)
		})
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "TestPanickingLoggerEnabled")
	c.Env = append(os.Environ(), "CHILD=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("the process died of a panicking Handler.Enabled: %v\n%.200s", err, out)
	}
}

// A nested handle with a bound of its own is the last one left: at its bound
// renewal ends.
func TestNestedBoundStopsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		outer, _ := l.Lock(bg, "r", "k")
		inner, err := l.Lock(context.WithoutCancel(outer.Context()), "r", "k", tierlock.Lease(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		outer.Unlock()
		time.Sleep(time.Hour) // the inner body hangs
		if !errors.Is(inner.Err(), tierlock.ErrLeaseExceeded) {
			t.Fatalf("inner: %v", inner.Err())
		}
		if r.rec("k").Held {
			t.Errorf("an hour after the only handle's bound of 1s: the key is still held, renewed %d times", r.f.Calls(storetest.OpRenew))
		}
		inner.Unlock()
		l.Close(bg)
	})
}

// A renewal that was given up is executed after a release that keeps the key:
// the release is repeated, so that the key is not prolonged for long.
func TestLateRenewalAfterKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 30 * time.Second, MinHold: 15 * time.Second})
		k, _ := l.Lock(bg, "r", "k")
		r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Late, Delay: time.Second, Times: 1})
		time.Sleep(10*time.Second + 500*time.Millisecond) // the renewal at 10s is given up
		if err := k.Unlock(); err != nil {
			t.Fatal(err)
		}
		left := r.rec("k").Left
		time.Sleep(2 * time.Second)
		if now := r.rec("k").Left; now > left-2*time.Second {
			t.Errorf("after Unlock the key had %v left, 2s later %v: renewed after the release", left, now)
		}
		l.Close(bg)
		r.f.Wait()
	})
}

// A loss is told in the same words whenever one asks.
func TestLossIsToldTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second})
		k, err := l.Lock(bg, "r", "k")
		if err != nil {
			t.Fatal(err)
		}
		r.plain.Release(bg, tierlock.ReleaseRequest{Name: tierlock.Name{Namespace: "ns", Resource: "r", Key: "k"}, Lease: k.Token().Lease})
		<-k.Context().Done()
		var cause, atUnlock *tierlock.LostError
		errors.As(context.Cause(k.Context()), &cause)
		time.Sleep(time.Hour)
		errors.As(k.Unlock(), &atUnlock)
		if cause.Held != atUnlock.Held {
			t.Errorf("lost after %v by the context's cause, after %v by Unlock", cause.Held, atUnlock.Held)
		}
		l.Close(bg)
	})
}

// Ensure says so when its own renewal finds the lock lost.
func TestEnsureToldOfALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second})
		k, err := l.Lock(bg, "r", "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		r.plain.Release(bg, tierlock.ReleaseRequest{Name: tierlock.Name{Namespace: "ns", Resource: "r", Key: "k"}, Lease: k.Token().Lease})
		err = k.Ensure(2600 * time.Millisecond)
		if !errors.Is(err, tierlock.ErrLost) {
			t.Errorf("Ensure, told by the store that the key is gone: does not match ErrLost: %v", err)
		}
		k.Unlock()
		l.Close(bg)
	})
}

// The cause of the caller's context may be an error of this package's.
func TestCauseOfThisPackage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second})
		k, _ := l.Lock(bg, "r", "k")
		defer k.Unlock()
		l2 := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second})
		ctx, cancel := context.WithCancelCause(bg)
		time.AfterFunc(200*time.Millisecond, func() { cancel(tierlock.ErrClosed) }) // as of another Locker's hold
		_, err := l2.Lock(ctx, "r", "k")
		if !errors.Is(err, tierlock.ErrHeld) {
			t.Errorf("ctx ended while the key was known to be held: want ErrHeld as well, got %v", err)
		}
		if errors.Is(err, tierlock.ErrClosed) {
			t.Logf("and AcquireEnd.Result would say closed of an open Locker")
		}
	})
}

// Work that ran under a lost lock must not look like work that never ran.
func TestLossIsNotUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second})
		err := l.Do(bg, "r", "k", func(ctx context.Context) error {
			r.f.Set(storetest.OpRenew, storetest.Fault{Kind: storetest.Before})
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, tierlock.ErrLost) {
			t.Fatalf("want a loss, got %v", err)
		}
		if errors.Is(err, tierlock.ErrUnavailable) {
			t.Errorf("Do whose body ran and lost the lock matches ErrUnavailable: %v", err)
		}
		l.Close(bg)
	})
}

// The last context of a hold ends between the look at it and the entry.
func TestEntryAtTheEndOfTheLastContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBackend(t)
		l := plainLocker(t, r.f, nil, tierlock.Resource{TTL: 3 * time.Second, Reentrant: true})
		parent, cancel := context.WithCancel(bg)
		outer, _ := l.Lock(parent, "r", "k")
		h := &hookCtx{Context: context.WithoutCancel(outer.Context())}
		h.hook = func() { cancel(); time.Sleep(time.Millisecond) }
		inner, err := l.Lock(h, "r", "k")
		if err == nil {
			time.Sleep(10 * time.Second)
			if err := inner.Err(); err != nil {
				t.Errorf("Lock gave a handle, its context lives, the store is in order, and 10s later: %v (renewals: %d)", err, r.f.Calls(storetest.OpRenew))
			}
		} else if !errors.Is(err, tierlock.ErrReentrant) {
			t.Errorf("got %v", err)
		}
		outer.Unlock()
		inner.Unlock()
		l.Close(bg)
	})
}
