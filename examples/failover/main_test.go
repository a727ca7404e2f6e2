package main

import (
	"context"
	"io"
	"strings"
	"testing"
)

// The example checks each of its steps by itself.
func TestFailover(t *testing.T) {
	if err := run(context.Background(), io.Discard); err != nil {
		t.Fatal(err)
	}
}

// Where the servers are not installed it says what is missing.
func TestMissingServers(t *testing.T) {
	if _, err := find("no-such-server", "nor-this"); err == nil || !strings.Contains(err.Error(), "no-such-server or nor-this is missing") {
		t.Errorf("got %v", err)
	}
}
