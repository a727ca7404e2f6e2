package rig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// A command gets what fails, and its cleanups run, whatever ended it.
func TestProgram(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t testing.TB)
		want []string // in the error; none: no error
	}{
		{"nothing fails", func(t testing.TB) { t.Log("said") }, nil},
		{"Errorf goes on", func(t testing.TB) { t.Errorf("first %d", 1); t.Error("second") }, []string{"first 1", "second"}},
		{"Fatalf ends it", func(t testing.TB) { t.Fatalf("fatal %d", 2); t.Error("after the end") }, []string{"fatal 2"}},
		{"a cleanup fails", func(t testing.TB) { t.Cleanup(func() { t.Fatal("cleanup") }) }, []string{"cleanup"}},
		{"a server's failure", func(t testing.TB) { rig.Redis(t).Do("GET") }, []string{"wrong number of arguments"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rig.NoLeak(t)
			var order []string
			err := rig.Program(t.Context(), nil, func(t testing.TB) {
				t.Cleanup(func() { order = append(order, "last") })
				t.Cleanup(func() { order = append(order, "first") })
				c.run(t)
			})
			if !slices.Equal(order, []string{"first", "last"}) {
				t.Errorf("cleanups ran as %q, want the last given first", order)
			}
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(got) != len(c.want) {
				t.Fatalf("error %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("error %q, want %q in it", got[i], want)
				}
			}
		})
	}
}

// An interrupted command leaves neither a server nor its directory.
func TestProgramStopped(t *testing.T) {
	interrupt := errors.New("interrupted")
	stop, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	release, released := make(chan struct{}), make(chan struct{})
	var dir string
	err := rig.Program(stop, nil, func(t testing.TB) {
		defer close(released)
		dir = rig.Redis(t).Dir
		if t.Context() != stop {
			t.Error("Context is not the command's")
		}
		cancel(interrupt)
		<-release
	})
	close(release)
	<-released
	if err == nil || err.Error() != interrupt.Error() {
		t.Errorf("error %v, want %v alone", err, interrupt)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory: %v, want it gone", err)
	}
}

// innerRole is known to TestMain as well: the process that programRole starts is
// this test binary again, and comes there first.
func innerRole(args []string) { fmt.Println("inner", strings.Join(args, " ")) }

// programRole is a command that starts itself again.
func programRole([]string) {
	err := rig.Program(context.Background(), map[string]func([]string){"inner": innerRole}, func(t testing.TB) {
		fmt.Println("got", rig.Spawn(t, "inner", "a", "b").Line(soon))
		rig.Spawn(t, "unknown")
	})
	fmt.Println("error", err)
}

func TestProgramSpawns(t *testing.T) {
	p := rig.Spawn(t, "program")
	if got := p.Line(3 * soon); got != "got inner a b" {
		t.Errorf("line %q, want the inner process's", got)
	}
	if got := p.Line(3 * soon); !strings.Contains(got, `no role "unknown"`) {
		t.Errorf("line %q, want that there is no such role", got)
	}
	if err := p.Wait(10 * time.Second); err != nil {
		t.Error(err)
	}
}
