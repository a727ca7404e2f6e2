package main

import (
	"testing"
	"time"
)

// The tour checks each of its steps by itself. Its locks outlast a machine that stands
// still for some seconds.
func TestTour(t *testing.T) {
	lease = 6 * time.Second
	if err := tour(); err != nil {
		t.Fatal(err)
	}
}
