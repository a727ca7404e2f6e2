//go:build !linux

package rig

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

func dieWithParent(*exec.Cmd) {}

// stopped reports whether the process is stopped.
func stopped(pid int) (bool, error) {
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false, err
	}
	return strings.HasPrefix(strings.TrimSpace(string(out)), "T"), nil
}

// childProcesses lists the children that this package started and that have
// not ended.
func childProcesses() []string {
	live.Lock()
	defer live.Unlock()
	var list []string
	for c := range live.set {
		list = append(list, fmt.Sprintf("%d (%s)", c.pid(), c.name))
	}
	return list
}
