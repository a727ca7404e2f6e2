package tierlock_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
	"github.com/tierlock/tierlock/storetest"
)

// spy is an in-process store that counts its calls. A test steps in with the
// funcs, which replace a call and are set before there is a Locker; the
// embedded Store is the way on.
type spy struct {
	*localstore.Store
	acquires, renews, releases, inspects atomic.Int64

	acquire func(context.Context, tierlock.AcquireRequest) (tierlock.AcquireResult, error)
	renew   func(context.Context, []tierlock.RenewRequest) []tierlock.RenewResult
	release func(context.Context, tierlock.ReleaseRequest) (tierlock.Ownership, error)
	inspect func(context.Context, tierlock.Name) (tierlock.Record, error)
}

func newSpy(space *localstore.Space) *spy {
	return &spy{Store: localstore.New(localstore.Options{Space: space})}
}

func (s *spy) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	s.acquires.Add(1)
	if s.acquire != nil {
		return s.acquire(ctx, req)
	}
	return s.Store.Acquire(ctx, req)
}

func (s *spy) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	s.renews.Add(1)
	if s.renew != nil {
		return s.renew(ctx, reqs)
	}
	return s.Store.Renew(ctx, reqs)
}

func (s *spy) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	s.releases.Add(1)
	if s.release != nil {
		return s.release(ctx, req)
	}
	return s.Store.Release(ctx, req)
}

func (s *spy) Inspect(ctx context.Context, name tierlock.Name) (tierlock.Record, error) {
	s.inspects.Add(1)
	if s.inspect != nil {
		return s.inspect(ctx, name)
	}
	return s.Store.Inspect(ctx, name)
}

// pollOnly hides that a store can push.
type pollOnly struct{ tierlock.Store }

// twoLockers are two processes over one backend, with the stores they use and
// a third store for the test to look through.
func twoLockers(t *testing.T, change ...func(*tierlock.Config)) (a, b *tierlock.Locker, sa, sb *storetest.Faulty, raw *localstore.Store) {
	t.Helper()
	space := localstore.NewSpace()
	raw = localstore.New(localstore.Options{Space: space})
	sa = storetest.WithFaults(localstore.New(localstore.Options{Space: space}))
	sb = storetest.WithFaults(localstore.New(localstore.Options{Space: space}))
	t.Cleanup(func() { sa.Wait(); sb.Wait() }) // a bubble ends with all that was begun in it
	return newLocker(t, sa, change...), newLocker(t, sb, change...), sa, sb, raw
}

func name(resource, key string) tierlock.Name {
	return tierlock.Name{Namespace: "ns", Resource: resource, Key: key}
}

// mustLock locks within the call, whatever the wait.
func mustLock(t *testing.T, l *tierlock.Locker, resource, key string, opts ...tierlock.Option) *tierlock.Lock {
	t.Helper()
	return mustLockCtx(t, bg, l, resource, key, opts...)
}

func mustLockCtx(t *testing.T, ctx context.Context, l *tierlock.Locker, resource, key string, opts ...tierlock.Option) *tierlock.Lock {
	t.Helper()
	k, err := l.Lock(ctx, resource, key, opts...)
	if err != nil {
		t.Fatalf("Lock %s/%s: %v", resource, key, err)
	}
	return k
}

func mustUnlock(t *testing.T, k *tierlock.Lock) {
	t.Helper()
	if err := k.Unlock(); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// left is how long a key stays if nothing is done, 0 if it is free.
func left(t *testing.T, s tierlock.Store, n tierlock.Name) time.Duration {
	t.Helper()
	rec, err := s.Inspect(bg, n)
	if err != nil {
		t.Fatalf("Inspect %s: %v", n, err)
	}
	if rec.Held && rec.Left <= 0 {
		t.Fatalf("Inspect %s: held for %v", n, rec.Left)
	}
	return rec.Left
}

func wantFree(t *testing.T, s tierlock.Store, n tierlock.Name) {
	t.Helper()
	rec, err := s.Inspect(bg, n)
	if err != nil || rec.Held {
		t.Errorf("%s: held for %v by %v, error %v; want it free", n, rec.Left, rec.Token, err)
	}
}

// wantHeldBy checks that the key carries the lease of k.
func wantHeldBy(t *testing.T, s tierlock.Store, n tierlock.Name, k *tierlock.Lock) {
	t.Helper()
	rec, err := s.Inspect(bg, n)
	if err != nil || !rec.Held || rec.Token.Lease != k.Token().Lease {
		t.Errorf("%s: held %v by %v, error %v; want held by %v", n, rec.Held, rec.Token, err, k.Token())
	}
}

// wantIs checks that an error matches all of the sentinels, and has a text.
func wantIs(t *testing.T, what string, err error, sentinels ...error) {
	t.Helper()
	for _, s := range sentinels {
		if !errors.Is(err, s) {
			t.Errorf("%s: got %v, want it to match %q", what, err, s)
		}
	}
}

func wantNotIs(t *testing.T, what string, err error, sentinels ...error) {
	t.Helper()
	for _, s := range sentinels {
		if errors.Is(err, s) {
			t.Errorf("%s: got %v, which must not match %q", what, err, s)
		}
	}
}

// wantLost checks that an error is a loss for that reason: expired, taken,
// unconfirmed or gone.
func wantLost(t *testing.T, what string, err error, reason string) *tierlock.LostError {
	t.Helper()
	var lost *tierlock.LostError
	if !errors.As(err, &lost) || !errors.Is(err, tierlock.ErrLost) {
		t.Errorf("%s: got %v, want a *LostError", what, err)
		return &tierlock.LostError{}
	}
	if lost.Reason.String() != reason {
		t.Errorf("%s: lost because %v (%v), want %s", what, lost.Reason, err, reason)
	}
	return lost
}

// idle waits until nothing goes on in the background of the Locker.
func idle(t *testing.T, l *tierlock.Locker) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		st := l.Status()
		if st.Holds == 0 && st.Waiters == 0 && st.Undos == 0 {
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("still %d holds, %d waiters, %d undos after a minute", st.Holds, st.Waiters, st.Undos)
		}
	}
}

// near reports whether d is want, or at most tolerance more.
func near(d, want, tolerance time.Duration) bool { return d >= want && d <= want+tolerance }

// events keeps what an Observer is told.
type events[E any] struct {
	mu   sync.Mutex
	list []E
}

func (e *events[E]) add(x E) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, x)
}

// all gives the events so far, in a bubble after all that is due has been told.
func (e *events[E]) all() []E {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// logBook is a slog.Handler that keeps its lines as text, all levels.
type logBook struct {
	mu  sync.Mutex
	all []slog.Record
}

func (b *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logBook) WithGroup(string) slog.Handler            { return b }

func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, r)
	return nil
}

// lines gives the lines with that message as "LEVEL key=value …".
func (b *logBook) lines(message string) (lines []string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.all {
		if r.Message != message {
			continue
		}
		line := r.Level.String()
		r.Attrs(func(a slog.Attr) bool {
			line += " " + a.Key + "=" + a.Value.Resolve().String()
			return true
		})
		lines = append(lines, line)
	}
	return lines
}

// clear forgets all lines, and drop those with that message.
func (b *logBook) clear() { b.drop("") }

func (b *logBook) drop(message string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.DeleteFunc(b.all, func(r slog.Record) bool { return message == "" || r.Message == message })
}

// goroutines is the number of those that have a stack. runtime.NumGoroutine counts
// one that has just ended, such as a timer's, a moment longer.
func goroutines() int {
	buf := make([]byte, 1<<20)
	return strings.Count("\n\n"+string(buf[:runtime.Stack(buf, true)]), "\n\ngoroutine ")
}
