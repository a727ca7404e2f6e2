//go:build unix

package rig

import (
	"errors"
	"os"
	"syscall"
)

// terminate asks a process to end, a paused one too: it would see SIGTERM only
// once it runs again.
func terminate(p *os.Process) error {
	return errors.Join(p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT))
}

func sendStop(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func sendContinue(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
