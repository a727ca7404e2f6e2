package main

import (
	"strings"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 78: the example checks by itself that the paused holder's write is
// refused and nothing of the other's is lost. It can be run again.
func TestGuard(t *testing.T) {
	server := rig.MariaDB(t)
	for range 2 {
		var out strings.Builder
		if err := run(server.DSN(""), &out); err != nil {
			t.Fatalf("%v, after:\n%s", err, out.String())
		}
		t.Log("\n" + out.String())
	}
}
