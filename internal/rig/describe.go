package rig

import (
	"fmt"
	"slices"
	"strings"
)

// Describe tells of each connection that the proxy still keeps, a line each, in
// no meaningful order: for the message of a test that found one too
// many. The addresses are those by which the client and the server
// know these connections, as in /proc/net/tcp or CLIENT LIST.
func (p *Proxy) Describe() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := []string{fmt.Sprintf("proxy at %s: to server: %v, to client: %v, %d connections",
		p.Addr, p.faults[ToServer], p.faults[ToClient], len(p.links))}
	for l := range p.links {
		lines = append(lines, l.describeLocked())
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

func (l *link) describeLocked() string {
	server := "not dialled"
	if l.server != nil {
		server = l.server.LocalAddr().String()
	}
	s := fmt.Sprintf("client %s, server's client %s", l.client.RemoteAddr(), server)
	for d := range l.pipes {
		s += fmt.Sprintf("; %v: %s", Direction(d), l.pipes[d].describeLocked())
		if l.gone[d] {
			s += ", its end was reset"
		}
	}
	return s
}

func (pp *pipe) describeLocked() string {
	var is []string
	for _, f := range []struct {
		so   bool
		name string
	}{
		{pp.lost, "bytes were lost"},
		{pp.writing, "writing"},
		{pp.ending && !pp.done, "an end is on its way"},
		{pp.done, "the end was forwarded"},
		{pp.over, "the sender has closed"},
	} {
		if f.so {
			is = append(is, f.name)
		}
	}
	if len(pp.queue) > 0 {
		is = append(is, fmt.Sprintf("%d bytes in %d pieces wait", pp.queued, len(pp.queue)))
	}
	if len(is) == 0 {
		return "open"
	}
	return strings.Join(is, ", ")
}
