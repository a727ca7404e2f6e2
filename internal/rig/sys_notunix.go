//go:build !unix

package rig

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("this system cannot pause a process")

func terminate(p *os.Process) error { return p.Kill() }

func sendStop(*os.Process) error { return errNoSignals }

func sendContinue(*os.Process) error { return errNoSignals }
