package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// Program is Main for a command that is no test, such as a benchmark: it runs
// the role instead if [Spawn] started the process, and never returns then. Else
// it calls run, on a goroutine of its own, with what stands for a test: what
// fails it ends up in the error, what it logs goes to the standard error. When
// run has returned, or failed, or stop has ended, the cleanups run; so a command
// that ends stop on an interrupt leaves no directory behind.
//
// run should return soon after stop has ended; Program does not wait for it.
func Program(stop context.Context, given map[string]func(args []string), run func(t testing.TB)) error {
	runRole(given)
	learnRoles(given)
	t := &program{ctx: stop}
	done := make(chan struct{})
	go func() {
		defer close(done) // also after Goexit
		run(t)
	}()
	var stopped error
	select {
	case <-done:
	case <-stop.Done():
		stopped = context.Cause(stop)
	}
	t.cleanUp()
	return errors.Join(t.err(), stopped)
}

// program is a testing.TB of which there is as much as the rig uses.
type program struct {
	testing.TB // nil: what is not overridden panics
	ctx        context.Context

	mu       sync.Mutex
	failures []error
	cleanups []func()
}

func (p *program) Name() string             { return os.Args[0] }
func (p *program) Context() context.Context { return p.ctx }
func (p *program) Helper()                  {}
func (p *program) Log(args ...any)          { fmt.Fprintln(os.Stderr, args...) }
func (p *program) Error(args ...any)        { p.note(fmt.Sprint(args...)) }
func (p *program) Fatal(args ...any)        { p.Error(args...); runtime.Goexit() }
func (p *program) Failed() bool             { return p.err() != nil }

func (p *program) Logf(format string, args ...any) { p.Log(fmt.Sprintf(format, args...)) }

func (p *program) Errorf(format string, args ...any) { p.note(fmt.Sprintf(format, args...)) }

func (p *program) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, errors.New(text))
}

func (p *program) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.failures...)
}

// cleanUp runs the cleanups, last in, first out. Each has a goroutine, since it
// may end it by failing.
func (p *program) cleanUp() {
	p.mu.Lock()
	all := p.cleanups
	p.cleanups = nil
	p.mu.Unlock()
	for _, f := range slices.Backward(all) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		<-done
	}
}
