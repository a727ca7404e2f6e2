package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether every thread of the process is stopped.
func stopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended meanwhile
		}
		if err != nil {
			return false, err
		}
		state, _, ok := parseStat(data)
		if !ok {
			return false, fmt.Errorf("%s reads %q", name, data)
		}
		if state != 'T' {
			return false, nil
		}
	}
	return len(stats) > 0, nil
}

// parseStat takes the state and the parent from a line of /proc/PID/stat. The
// command stands before them in brackets and may hold brackets and blanks.
func parseStat(data []byte) (state byte, parent int, ok bool) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, false
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) < 2 {
		return 0, 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err == nil
}

// childProcesses lists the processes whose parent this one is, whoever started
// them, those that have ended but were never waited for included.
func childProcesses() []string {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var list []string
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // ended meanwhile
		}
		if _, parent, ok := parseStat(data); ok && parent == os.Getpid() {
			list = append(list, string(data[:bytes.LastIndexByte(data, ')')+1]))
		}
	}
	return list
}
