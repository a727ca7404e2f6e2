//go:build unix

package load_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/internal/rig"
)

// fake is a lock library that does what a test wants.
type fake struct {
	lock   func(ctx context.Context) error
	unlock func() error
}

func (f *fake) Lock(ctx context.Context, _ string) (contest.Held, error) {
	if f.lock != nil {
		if err := f.lock(ctx); err != nil {
			return nil, err
		}
	}
	return fakeHeld{f}, nil
}

func (f *fake) TryLock(ctx context.Context, key string) (contest.Held, error) {
	return f.Lock(ctx, key)
}
func (f *fake) Close() {}

type fakeHeld struct{ f *fake }

func (h fakeHeld) Unlock() error {
	if h.f.unlock == nil {
		return nil
	}
	return h.f.unlock()
}

func (h fakeHeld) Renew(context.Context) error { return nil }

func sleeps(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		time.Sleep(d)
		return nil
	}
}

func TestDriveCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Ten calls of 30 ms in 290 ms: the last ends too late to count in the
		// rate, but in the latencies.
		inTime, pairs, failures, _, err := load.Drive(&fake{lock: sleeps(30 * time.Millisecond)}, 3, 290*time.Millisecond)
		if err != nil || inTime != 27 || pairs != 30 || failures != 0 {
			t.Errorf("%d pairs in time, %d in all, %d errors, %v; want 27, 30, 0", inTime, pairs, failures, err)
		}
	})
}

func TestDriveCountsErrors(t *testing.T) {
	for _, where := range []string{"Lock", "Unlock"} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			fail := func() error {
				time.Sleep(10 * time.Millisecond)
				if calls++; calls%2 == 0 {
					return errors.New("even")
				}
				return nil
			}
			f := &fake{unlock: fail}
			if where == "Lock" {
				f = &fake{lock: func(context.Context) error { return fail() }}
			}
			// An error costs another millisecond.
			_, pairs, failures, first, err := load.Drive(f, 1, 100*time.Millisecond)
			if err != nil || pairs != 5 || failures != 5 || first != "even" {
				t.Errorf("%s: %d pairs, %d errors, the first %q, %v; want 5, 5, even", where, pairs, failures, first, err)
			}
		})
	}
}

// A wake-up that is lost shows as an error, and does not hold up the rest.
func TestDriveEndsStuckCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, pairs, failures, _, err := load.Drive(&fake{lock: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}, 2, time.Second)
		if took := time.Since(began); took < time.Second+load.StuckAfter || took > time.Second+load.StuckAfter+100*time.Millisecond {
			t.Errorf("took %v, want a second and %v", took, load.StuckAfter)
		}
		if err != nil || pairs != 0 || failures != 3 {
			t.Errorf("%d pairs, %d errors, %v; want none, two and the drive's own", pairs, failures, err)
		}
	})
}

func TestDriveReportsHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, _, _, _, err := load.Drive(&fake{lock: func(context.Context) error {
			<-release
			return errors.New("late")
		}}, 2, time.Second)
		close(release)
		synctest.Wait()
		if err == nil || !strings.Contains(err.Error(), "did not return") {
			t.Errorf("error %v, want that calls did not return", err)
		}
	})
}

// The counter is one for all processes.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	g, err := load.OpenGuard(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for range 2 {
		if !g.Pass() {
			t.Error("not alone, where nobody else is")
		}
	}
	p := rig.Spawn(t, "intruder", path)
	p.Expect("inside", time.Minute)
	if g.Pass() {
		t.Error("alone, where another process is inside")
	}
	p.Send("out")
	p.Expect("outside", time.Minute)
	if !g.Pass() {
		t.Error("not alone after the other process has left")
	}
}

func TestGuardOnOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	g, err := load.OpenGuard(filepath.Join(t.TempDir(), "guard"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var met atomic.Int64
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for range 1000 {
				if !g.Pass() {
					met.Add(1)
				}
			}
		})
	}
	both.Wait()
	if met.Load() < 100 {
		t.Errorf("two who do not exclude each other met %d times in 2000", met.Load())
	}
}
