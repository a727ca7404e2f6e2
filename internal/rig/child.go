package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// killWithin bounds how long the kernel may take to end a killed process, and
// stopWithin how long a process may take to end when asked to.
const (
	killWithin  = 20 * time.Second
	stopWithin  = 20 * time.Second
	pauseWithin = 20 * time.Second
)

// child is a process that ends at the latest with this one (on Linux). Its
// methods are safe for concurrent use and, once it has ended, without effect.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended and been reaped
	err  error         // how it ended; read after done
}

// live holds the children that have not been reaped, for the check at the end
// of Main.
var live struct {
	sync.Mutex
	set map[*child]bool
}

func startChild(name string, cmd *exec.Cmd) (*child, error) {
	dieWithParent(cmd)
	c := &child{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the *thread* that
		// forked ends. This goroutine keeps its thread until the child is
		// gone, so only the end of the whole process can trigger it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		live.Lock()
		if live.set == nil {
			live.set = make(map[*child]bool)
		}
		live.set[c] = true
		live.Unlock()
		started <- nil

		c.err = cmd.Wait()
		live.Lock()
		delete(live.set, c)
		live.Unlock()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("rig: starting %s: %w", name, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait reports whether the child ended within the time.
func (c *child) wait(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return c.ended()
	}
}

// kill ends the child at once, paused or not.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("rig: killing %s (process %d): %w", c.name, c.pid(), err)
	}
	if !c.wait(killWithin) {
		return fmt.Errorf("rig: %s (process %d) has not ended %v after being killed", c.name, c.pid(), killWithin)
	}
	return nil
}

// stop asks the child to end, and kills it if it does not.
func (c *child) stop() error {
	if err := terminate(c.cmd.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("rig: stopping %s (process %d): %w", c.name, c.pid(), err)
	}
	if c.wait(stopWithin) {
		return nil
	}
	return errors.Join(fmt.Errorf("rig: %s (process %d) has not ended %v after being asked to", c.name, c.pid(), stopWithin), c.kill())
}

// pause returns when no thread of the child runs any more: the signal alone
// only announces it.
func (c *child) pause() error {
	if err := sendStop(c.cmd.Process); err != nil {
		return fmt.Errorf("rig: pausing %s (process %d): %w", c.name, c.pid(), err)
	}
	var last error
	if !poll(pauseWithin, func() bool {
		if c.ended() {
			return true
		}
		var ok bool
		ok, last = stopped(c.pid())
		return ok
	}) {
		return fmt.Errorf("rig: %s (process %d) still runs %v after SIGSTOP: %w", c.name, c.pid(), pauseWithin, last)
	}
	if c.ended() {
		return fmt.Errorf("rig: pausing %s (process %d): %w", c.name, c.pid(), os.ErrProcessDone)
	}
	return nil
}

func (c *child) resume() error {
	if err := sendContinue(c.cmd.Process); err != nil {
		return fmt.Errorf("rig: resuming %s (process %d): %w", c.name, c.pid(), err)
	}
	return nil
}
