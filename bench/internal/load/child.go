//go:build unix

package load

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
	"github.com/tierlock/tierlock/internal/rig"
)

// A child is this program again. It gets an order as its argument, writes a line
// when it has done one step, and reads a line before it does the next; a line
// that begins with "failed" is its last.

const (
	driveRole = "drive"
	holdRole  = "hold"
)

// Roles are what this program is when it is a child; [rig.Program] and
// [rig.Main] take them.
func Roles() map[string]func(args []string) {
	return map[string]func(args []string){
		driveRole: func(args []string) { obey(args, driveChild) },
		holdRole:  func(args []string) { obey(args, holdChild) },
	}
}

// order is what a child is to do.
type order struct {
	Store            string
	Contestant       string
	Settings         contest.Settings
	Goroutines       int
	Duration, WarmUp time.Duration
	Guard            string
	Held             int
}

// answerWithin bounds one step of a child, beyond the time that it is told to
// take.
const answerWithin = time.Minute

// spawn starts a child. It is killed at the end of the program, if it runs then.
func (e Env) spawn(role string, o order) (*child, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return &child{rig.Spawn(e.T, role, string(text))}, nil
}

type child struct{ p *rig.Process }

// answer reads one line into v.
func (c *child) answer(v any, within time.Duration) error {
	line := c.p.Line(within + answerWithin)
	if err := json.Unmarshal([]byte(line), v); err != nil {
		return fmt.Errorf("process %d answered %.200q", c.p.PID(), line)
	}
	return nil
}

func (c *child) goOn() { c.p.Send("") }

// end waits until the child has ended by itself.
func (c *child) end() error { return c.p.Wait(answerWithin) }

// obey is a child's own side: do gets the order, the contestant, and a function
// that gives an answer; it then waits for the parent's next word.
func obey(args []string, do func(o order, l contest.Locker, say func(any) error, next func() error) error) {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	err := func() error {
		var o order
		if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
			return err
		}
		c, err := contest.Named(o.Store, o.Contestant)
		if err != nil {
			return err
		}
		l, err := c[0].Open(o.Settings)
		if err != nil {
			return err
		}
		defer l.Close()
		return do(o, l, out.Encode, func() error {
			_, err := in.ReadString('\n')
			return err
		})
	}()
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// driven is what a child that drove answers.
type driven struct {
	Tally tally
	Used  measure.Client
}
