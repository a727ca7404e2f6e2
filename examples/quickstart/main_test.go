package main

import "testing"

// The tour checks each of its steps by itself.
func TestTour(t *testing.T) {
	if err := tour(); err != nil {
		t.Fatal(err)
	}
}
