package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// CheckNames are the names of all checks.
func CheckNames() []string { return namesOf(checks) }

// ChainCheckNames and ArbiterCheckNames are those of the other suites.
func ChainCheckNames() []string   { return namesOf(chainChecks) }
func ArbiterCheckNames() []string { return namesOf(arbiterChecks) }

func namesOf(checks []check) []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// ApartNames are the names that the suite holds at the same time.
func ApartNames(t *testing.T, h Harness) []string {
	var names []string
	for _, n := range newBench(t, t, h).apartNames() {
		names = append(names, fmt.Sprintf("%q %q %q", n.Namespace, n.Resource, n.Key))
	}
	return names
}

// Elapsed is the backend's time that the suite sees pass while the harness
// advances by d.
func Elapsed(t *testing.T, h Harness, d time.Duration) time.Duration {
	b := newBench(t, t, h)
	before := b.now()
	b.advance(d)
	return b.now() - before
}

// Failures runs one check and gives what it complains about, which does not
// fail t. A panic is a complaint.
func Failures(t *testing.T, h Harness, check string) []string {
	for _, c := range slices.Concat(checks, chainChecks, arbiterChecks) {
		if c.name != check {
			continue
		}
		r := &recorder{}
		b := newBench(t, r, h)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if p := recover(); p != nil {
					r.Errorf("panic: %v", p)
				}
			}()
			b.run(c)
		}()
		<-done
		return r.complaints
	}
	t.Fatalf("there is no check %q", check)
	return nil
}

type recorder struct {
	mu         sync.Mutex
	complaints []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complaints = append(r.complaints, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
