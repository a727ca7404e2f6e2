//go:build unix

package load

import (
	"fmt"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
)

// Processes is one key for the goroutines of several processes, each with a
// client of its own.
func Processes(processes, goroutines int) Workload {
	return Workload{
		Name: fmt.Sprintf("processes/%dx%d", processes, goroutines),
		About: fmt.Sprintf("Processes: %d, of %d goroutines each, with one key, which each wants again as soon as it has given it up.",
			processes, goroutines),
		run: func(env Env, c contest.Contestant) (Result, error) {
			o := order{
				Store: env.Server.Store(), Contestant: c.Name, Settings: env.Settings, Goroutines: goroutines,
				Duration: env.Duration, WarmUp: env.WarmUp, Guard: env.guardFile(),
			}
			var children []*child
			for range processes {
				ch, err := env.spawn(driveRole, o)
				if err != nil {
					return Result{}, err
				}
				children = append(children, ch)
			}
			return env.drive(children)
		},
	}
}

// drive leads children through warm-up and measured drive, together.
func (e Env) drive(children []*child) (Result, error) {
	var broken int64
	for _, ch := range children { // connected
		var ok bool
		if err := ch.answer(&ok, 0); err != nil {
			return Result{}, err
		}
	}
	for _, ch := range children {
		ch.goOn()
	}
	for _, ch := range children {
		var warm tally
		if err := ch.answer(&warm, e.WarmUp+2*stuckAfter); err != nil {
			return Result{}, err
		}
		broken += warm.Broken
	}
	served, err := e.Server.Served()
	if err != nil {
		return Result{}, err
	}
	for _, ch := range children {
		ch.goOn()
	}
	var parts []tally
	var used measure.Client
	for _, ch := range children {
		var d driven
		if err := ch.answer(&d, e.Duration+2*stuckAfter); err != nil {
			return Result{}, err
		}
		parts = append(parts, d.Tally)
		used = used.Add(d.Used)
	}
	t := merge(parts...)
	t.Broken += broken
	r, err := e.result(t, used, served)
	if err != nil {
		return Result{}, err
	}
	for _, ch := range children {
		if err := ch.end(); err != nil {
			return Result{}, err
		}
	}
	return r, nil
}

// driveChild is the other side.
func driveChild(o order, l contest.Locker, say func(any) error, next func() error) error {
	g, err := openGuard(o.Guard)
	if err != nil {
		return err
	}
	defer g.close()
	d := drive{locker: l, goroutines: o.Goroutines, keys: sameKey, guard: g}
	if err := say(true); err != nil {
		return err
	}
	if err := next(); err != nil {
		return err
	}
	warm, err := d.run(o.WarmUp)
	if err != nil {
		return err
	}
	if err := say(tally{Broken: warm.Broken}); err != nil {
		return err
	}
	if err := next(); err != nil {
		return err
	}
	used := measure.ReadClient()
	t, err := d.run(o.Duration)
	if err != nil {
		return err
	}
	return say(driven{t, measure.ReadClient().Sub(used)})
}
