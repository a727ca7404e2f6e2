package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// MySQLServer makes what SHOW GLOBAL STATUS said, and the server's CPU time, a
// Server. Statements are those that clients sent; to prepare one does not count,
// and neither do those that ask for the status.
func MySQLServer(status map[string]int64, cpu time.Duration) (Server, error) {
	for _, name := range [...]string{"Questions", "Com_show_status", "Innodb_deadlocks"} {
		if _, ok := status[name]; !ok {
			return Server{}, fmt.Errorf("measure: the status has no %s", name)
		}
	}
	return Server{
		Commands:  map[string]int64{"statement": status["Questions"] - status["Com_show_status"]},
		CPU:       cpu,
		Deadlocks: status["Innodb_deadlocks"],
	}, nil
}

// ProcessCPU is the time that a process has used, threads that have ended
// included. It is read from /proc, to the hundredth of a second; where there is
// none, it is 0.
func ProcessCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		if _, none := os.Stat("/proc/self/stat"); none != nil {
			return 0, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	// The name of the program, in parentheses, may have spaces.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const utime, stime = 11, 12 // counted from the state, the field after the name
	if len(fields) <= stime {
		return 0, fmt.Errorf("measure: /proc/%d/stat is %q", pid, text)
	}
	var ticks int64
	for _, i := range [...]int{utime, stime} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("measure: /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // a tick of user space is always that
}
