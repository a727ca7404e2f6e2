package main

import (
	"io"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

// The example checks each of its steps by itself.
func TestExample(t *testing.T) {
	if err := run(rig.MariaDB(t).DSN(""), io.Discard); err != nil {
		t.Fatal(err)
	}
}
