// Package bound has a context with a deadline that costs nothing until somebody
// waits for it.
//
// Each lock makes two short calls to a store, nearly all of which end long
// before their deadline. A timer and a channel for each are a good part of what
// such a call costs in this process. A store that keeps a timer of its own can
// do without them; for any other a Context is a context as any.
package bound

import (
	"context"
	"sync"
	"time"
)

// Context ends when its parent does or at its deadline. It is safe for
// concurrent use.
type Context struct {
	parent   context.Context
	deadline time.Time // its own; the parent sees to its

	mu     sync.Mutex
	full   context.Context // made by the first Done
	cancel context.CancelFunc
	over   bool // End was called
}

var _ context.Context = (*Context)(nil)

// By returns a context that ends at the deadline, or when its parent does. Whoever
// made it calls End.
func By(parent context.Context, deadline time.Time) *Context {
	return &Context{parent: parent, deadline: deadline}
}

// End ends c and frees what it holds, as a context's cancel function does.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}

// Deadline implements [context.Context].
func (c *Context) Deadline() (time.Time, bool) {
	if d, ok := c.parent.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

// Done implements [context.Context]. The first call makes a timer.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fillLocked()
	return c.full.Done()
}

func (c *Context) fillLocked() {
	if c.full == nil {
		c.full, c.cancel = context.WithDeadline(c.parent, c.deadline)
		if c.over {
			c.cancel()
		}
	}
}

// Err implements [context.Context]. Until Done is called it goes by the clock.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full == nil {
		if !c.over && c.parent.Err() == nil && time.Now().Before(c.deadline) {
			return nil
		}
		c.fillLocked() // what ends it now does for ever, and is its cause
	}
	return c.full.Err()
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	c.mu.Lock()
	full := c.full
	c.mu.Unlock()
	if full != nil {
		return full.Value(key) // as context.Cause wants it
	}
	return c.parent.Value(key)
}

// Split is for who keeps a timer of its own: it gives the context within, that is
// no Context, and the earliest deadline of those around it, zero for none. That
// context's own deadline is left to it: who compares the two must not find that a
// call ended by a deadline that its caller's context has not noticed.
func Split(ctx context.Context) (within context.Context, deadline time.Time) {
	for {
		c, ok := ctx.(*Context)
		if !ok {
			return ctx, deadline
		}
		if deadline.IsZero() || c.deadline.Before(deadline) {
			deadline = c.deadline
		}
		ctx = c.parent
	}
}
