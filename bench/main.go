//go:build unix

// Command bench compares tierlock with other lock libraries, and with the least
// that a lock can cost, over Redis and over MySQL, on servers of its own. It prints
// tables in Markdown; README.md says how to read them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/internal/rig"
)

func main() {
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	broken := false
	err := rig.Program(stop, load.Roles(), func(t testing.TB) {
		p, err := parse(os.Args[1:])
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.run(t, os.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		broken = out
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if broken {
		os.Exit(3)
	}
}
