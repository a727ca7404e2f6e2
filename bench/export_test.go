//go:build unix

package main

import (
	"io"
	"testing"
)

// Plan is what a command line asks for.
type Plan struct{ plan }

func Parse(args ...string) (Plan, error) {
	p, err := parse(args)
	return Plan{p}, err
}

func (p Plan) Run(t testing.TB, w io.Writer) (bool, error) { return p.run(t, w) }

func (p Plan) Workloads() (names []string) {
	for _, w := range p.workloads {
		names = append(names, w.Name)
	}
	return names
}

func (p Plan) Contestants(store string) (names []string) {
	for _, c := range p.contestants[store] {
		names = append(names, c.Name)
	}
	return names
}

func (p Plan) Rounds() int { return p.rounds }
func (p Plan) Held() int   { return p.held }
