package degrade_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

func TestBreaker(t *testing.T) {
	var b degrade.Breaker
	now := time.Unix(1000, 0)
	fail := func(want bool) {
		t.Helper()
		if got := b.Failure(now); got != want {
			t.Fatalf("Failure opened = %v, want %v", got, want)
		}
	}
	allow := func(want bool) {
		t.Helper()
		if got := b.Allow(now); got != want {
			t.Fatalf("Allow at %v = %v, want %v", now.Unix(), got, want)
		}
	}

	// Two failures, a success, two failures: never three in a row.
	fail(false)
	fail(false)
	if b.Success() {
		t.Fatal("Success closed a breaker that was not open")
	}
	fail(false)
	fail(false)
	allow(true)
	fail(true)
	allow(false)
	if got := b.Wait(now); got != degrade.RetryAfter {
		t.Fatalf("Wait = %v, want %v", got, degrade.RetryAfter)
	}

	// One try a period, also when its outcome is never told.
	for range 3 {
		now = now.Add(degrade.RetryAfter)
		allow(true)
		allow(false)
	}
	fail(false) // already open
	now = now.Add(degrade.RetryAfter)
	allow(true)
	if !b.Success() {
		t.Fatal("Success did not close the breaker")
	}
	if b.Open() || b.Wait(now) != 0 {
		t.Fatal("the breaker is still open after a success")
	}
	allow(true)
	allow(true)
	fail(false) // counted from zero again
	allow(true)
}

// Of many callers exactly one gets the try of a period.
func TestBreakerOneTryAPeriod(t *testing.T) {
	var b degrade.Breaker
	now := time.Unix(1000, 0)
	for range degrade.Threshold {
		b.Failure(now)
	}
	for period := 1; period <= 5; period++ {
		now = now.Add(degrade.RetryAfter)
		var allowed atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if b.Allow(now) {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		if got := allowed.Load(); got != 1 {
			t.Fatalf("period %d: %d tries allowed, want 1", period, got)
		}
	}
}
