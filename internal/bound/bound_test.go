package bound_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/internal/bound"
)

// Waited for or not, it ends when its parent does, at its deadline, or by End.
func TestEnds(t *testing.T) {
	cause := errors.New("cause")
	for _, waited := range []bool{false, true} {
		for _, tc := range []struct {
			name string
			end  func(cancel context.CancelCauseFunc, c *bound.Context)
			want error
			why  error
		}{
			{"not", func(context.CancelCauseFunc, *bound.Context) {}, nil, nil},
			{"parent", func(cancel context.CancelCauseFunc, _ *bound.Context) { cancel(cause) }, context.Canceled, cause},
			{"deadline", func(context.CancelCauseFunc, *bound.Context) { time.Sleep(time.Second) }, context.DeadlineExceeded, context.DeadlineExceeded},
			{"End", func(_ context.CancelCauseFunc, c *bound.Context) { c.End() }, context.Canceled, context.Canceled},
		} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				c := bound.By(parent, time.Now().Add(time.Second))
				defer c.End()
				if waited {
					c.Done()
				}
				tc.end(cancel, c)
				synctest.Wait()
				if err := c.Err(); err != tc.want {
					t.Errorf("%s, waited for %v: %v; wanted %v", tc.name, waited, err, tc.want)
				}
				if waited && context.Cause(c) != tc.why {
					t.Errorf("%s: cause %v; wanted %v", tc.name, context.Cause(c), tc.why)
				}
				select {
				case <-c.Done(): // also where it is asked for only now
					if tc.want == nil {
						t.Errorf("%s, waited for %v: done", tc.name, waited)
					}
				default:
					if tc.want != nil {
						t.Errorf("%s, waited for %v: not done", tc.name, waited)
					}
				}
			})
		}
	}
}

// A call must not seem to have ended by its own limit where its caller's context
// had the same, or an earlier one.
func TestTheParentsDeadlineComesFirst(t *testing.T) {
	for _, more := range []time.Duration{1, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			limit, _ := parent.Deadline()
			c := bound.By(parent, limit.Add(more))
			defer c.End()
			<-c.Done()
			if parent.Err() == nil {
				t.Error("it ended before its parent")
			}
		})
	}
}

type key struct{}

func TestOfTheParent(t *testing.T) {
	parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, 1), time.Minute)
	defer cancel()
	c := bound.By(parent, time.Now().Add(time.Hour))
	defer c.End()
	want, _ := parent.Deadline()
	if d, ok := c.Deadline(); !ok || d != want {
		t.Errorf("deadline %v; wanted the parent's, %v", d, want)
	}
	inner := bound.By(c, time.Now().Add(time.Second))
	defer inner.End()
	within, deadline := bound.Split(inner)
	if d, _ := inner.Deadline(); d != deadline || within != parent {
		t.Errorf("Split gave %v, %v; wanted the parent, %v", within, deadline, d)
	}
	if within, deadline := bound.Split(parent); !deadline.IsZero() || within != parent {
		t.Errorf("Split of another context gave %v, %v", within, deadline)
	}
	for range 2 {
		if c.Value(key{}) != 1 {
			t.Error("the parent's value is not found")
		}
		c.Done()
	}
	child, stop := context.WithCancel(inner)
	defer stop()
	inner.End()
	<-child.Done()
}

func TestCostsNoTimer(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	parent.Done()
	by := time.Now().Add(time.Minute)
	var c *bound.Context
	n := testing.AllocsPerRun(100, func() {
		c = bound.By(parent, by)
		_, _ = bound.Split(c)
		_ = c.Err()
		c.End()
	})
	if n > 1 {
		t.Errorf("%v allocations; wanted the context alone", n)
	}
}

// Who sees that it has ended may ask why, and must not be told "not yet"; and what
// it said once it says for ever.
func TestTheEndStaysAndHasACause(t *testing.T) {
	for _, first := range []string{"deadline", "End", "parent"} {
		synctest.Test(t, func(t *testing.T) {
			why := errors.New("why")
			parent, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			c := bound.By(parent, time.Now().Add(time.Second))
			want, cause := context.Canceled, context.Canceled
			switch first {
			case "deadline":
				time.Sleep(time.Second)
				want, cause = context.DeadlineExceeded, context.DeadlineExceeded
			case "End":
				c.End()
			case "parent":
				cancel(why)
				cause = why
			}
			synctest.Wait()
			if err := c.Err(); err != want {
				t.Fatalf("%s: %v; wanted %v", first, err, want)
			}
			if got := context.Cause(c); got != cause {
				t.Errorf("%s: cause %v; wanted %v", first, got, cause)
			}
			time.Sleep(time.Second)
			cancel(errors.New("later"))
			c.End()
			synctest.Wait()
			for _, then := range []string{"later", "and when it was waited for"} {
				if err, got := c.Err(), context.Cause(c); err != want || got != cause {
					t.Errorf("%s, %s: %v, cause %v; wanted %v, %v as before", first, then, err, got, want, cause)
				}
				<-c.Done()
			}
		})
	}
}
