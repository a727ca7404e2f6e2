package rig

import (
	"testing"
	"time"
)

// Eventually calls cond in the caller's goroutine until it is true, at first
// every millisecond, later every 20, and fails the test when it is not true
// within the given time. cond is called at least twice, the last time after the
// time is up, so that a test process that did not run for a while does not fail
// for that. what completes the sentence "not within 5s: …".
//
// It sleeps with the time package and so works in a synctest bubble too.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if !poll(within, cond) {
		t.Fatalf("rig: not within %v: %s", within, what)
	}
}

func poll(within time.Duration, cond func() bool) bool {
	end := time.Now().Add(within)
	for pause := time.Millisecond; time.Now().Before(end); pause = min(2*pause, 20*time.Millisecond) {
		if cond() {
			return true
		}
		time.Sleep(pause)
	}
	return cond()
}
