package rig

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// ownCalls counts what the rig itself had the server execute, so that it can be
// taken off the server's counters.
type ownCalls struct {
	// counting is read-locked by each command of the rig's and locked while
	// the counters are read: no own command is then half counted.
	counting sync.RWMutex

	mu    sync.Mutex
	calls map[string]int64 // by the server's name of the command
}

// Commands is how many commands the server has executed since its start, those
// that scripts called included (a script that runs one command counts two),
// without those that the rig sent. Commands that the server refused before
// executing them do not count.
//
// A command that the rig sent and that was answered by an error, or not in
// time, is counted where the server executed it.
func (s *RedisServer) Commands() int64 {
	s.t.Helper()
	return s.commands(func(string) bool { return true })
}

// CommandsOf is Commands for one command, subcommands included: "evalsha", or
// "client" for all of CLIENT, or "client|tracking" for one subcommand. Case does
// not matter.
func (s *RedisServer) CommandsOf(name string) int64 {
	s.t.Helper()
	name = strings.ToLower(name)
	return s.commands(func(stat string) bool {
		return stat == name || strings.HasPrefix(stat, name+"|")
	})
}

func (s *RedisServer) commands(wanted func(stat string) bool) int64 {
	s.t.Helper()
	s.own.counting.Lock()
	defer s.own.counting.Unlock()
	all, err := s.commandStats()
	if err != nil {
		s.t.Fatal(err)
	}
	var n int64
	for name, calls := range all {
		if wanted(name) {
			n += calls
		}
	}
	for name, calls := range s.own.all() {
		if wanted(name) {
			n -= calls
		}
	}
	s.own.add("info") // counted by the server only after it has answered
	return n
}

func (s *RedisServer) commandStats() (map[string]int64, error) {
	v, err := s.roundTrip(callWithin, "INFO", "commandstats")
	if err != nil {
		return nil, err
	}
	text, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("rig: INFO commandstats answered %v", v)
	}
	return parseCommandStats(text)
}

// parseCommandStats reads lines such as
// "cmdstat_client|list:calls=3,usec=40,…".
func parseCommandStats(text string) (map[string]int64, error) {
	all := make(map[string]int64)
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_")
		if !ok {
			continue
		}
		name, fields, _ := strings.Cut(rest, ":calls=")
		digits, _, _ := strings.Cut(fields, ",")
		calls, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("rig: INFO commandstats has the line %q", line)
		}
		all[strings.ToLower(name)] = calls
	}
	return all, nil
}

// reset forgets all: the server has ended, and its counters with it.
func (o *ownCalls) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = nil
}

// count runs one command of the rig's and counts it as own if the server
// executed it.
func (o *ownCalls) count(args []string, call func() (any, error)) (any, error) {
	o.counting.RLock()
	defer o.counting.RUnlock()
	v, err := call()
	if err != nil {
		return nil, err
	}
	name := statName(args)
	if name == "config|resetstat" {
		// The server clears its counters first and counts the command then.
		o.reset()
	}
	o.add(name)
	return v, nil
}

func (o *ownCalls) add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == nil {
		o.calls = make(map[string]int64)
	}
	o.calls[name]++
}

func (o *ownCalls) all() map[string]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]int64, len(o.calls))
	for name, calls := range o.calls {
		all[name] = calls
	}
	return all
}

// statName is the name under which the server counts a command.
func statName(args []string) string {
	name := strings.ToLower(args[0])
	switch name {
	case "acl", "client", "cluster", "command", "config", "function", "latency", "memory",
		"module", "object", "pubsub", "script", "slowlog", "xgroup", "xinfo":
		if len(args) > 1 {
			return name + "|" + strings.ToLower(args[1])
		}
	}
	return name
}
