package measure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Server is what a server has done since its start.
type Server struct {
	// Commands counts executions, those inside scripts included, by the
	// server's name of the command. Those of MySQL are all of one name.
	Commands map[string]int64
	// Scripts is the time spent in EVAL and EVALSHA.
	Scripts time.Duration
	// CPU is the time of all threads, in user and system mode, as the kernel
	// counts it. Scripts is taken from the clock, and also runs while something
	// else has the processor: on a busy machine it is the larger of the two.
	CPU time.Duration
	// Deadlocks are those between transactions; Redis knows none.
	Deadlocks int64
}

// own are the commands that only the benchmark sends.
var own = []string{"info", "flushall"}

// ParseServer reads the sections commandstats and cpu of INFO.
func ParseServer(info string) (Server, error) {
	s := Server{Commands: make(map[string]int64)}
	cpus := 0
	for line := range strings.Lines(info) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		var err error
		switch {
		case strings.HasPrefix(name, "cmdstat_"):
			err = s.addCommand(strings.ToLower(strings.TrimPrefix(name, "cmdstat_")), value)
		case name == "used_cpu_sys" || name == "used_cpu_user":
			var seconds float64
			seconds, err = strconv.ParseFloat(value, 64)
			s.CPU += time.Duration(seconds * float64(time.Second))
			cpus++
		}
		if err != nil {
			return Server{}, fmt.Errorf("measure: INFO has the line %q: %w", strings.TrimSpace(line), err)
		}
	}
	if cpus != 2 {
		return Server{}, fmt.Errorf("measure: INFO has %d lines of used_cpu_sys and used_cpu_user", cpus)
	}
	return s, nil
}

// addCommand reads "calls=3,usec=40,usec_per_call=13.33,…".
func (s *Server) addCommand(name, fields string) error {
	calls, usec := int64(-1), int64(-1)
	for field := range strings.SplitSeq(fields, ",") {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "calls":
			calls, err = strconv.ParseInt(value, 10, 64)
		case "usec":
			usec, err = strconv.ParseInt(value, 10, 64)
		}
		if err != nil {
			return err
		}
	}
	if calls < 0 || usec < 0 {
		return errors.New("calls or usec is missing")
	}
	s.Commands[name] = calls
	if name == "eval" || name == "evalsha" {
		s.Scripts += time.Duration(usec) * time.Microsecond
	}
	return nil
}

// Sub is what was done between two readings.
func (s Server) Sub(before Server) Server {
	d := Server{Commands: make(map[string]int64), Scripts: s.Scripts - before.Scripts, CPU: s.CPU - before.CPU, Deadlocks: s.Deadlocks - before.Deadlocks}
	for name, calls := range s.Commands {
		if n := calls - before.Commands[name]; n != 0 {
			d.Commands[name] = n
		}
	}
	return d
}

// Total is the number of commands, without the benchmark's own.
func (s Server) Total() int64 {
	var n int64
	for name, calls := range s.Commands {
		if !slices.Contains(own, name) {
			n += calls
		}
	}
	return n
}
