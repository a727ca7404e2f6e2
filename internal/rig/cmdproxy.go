package rig

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// CommandProxy is a proxy that understands commands and refuses some, as those
// do that spread clients over servers (twemproxy, Envoy): the client gets an
// error and the server never hears of it. It speaks RESP2 only, and answers
// one command of a connection after the other.
type CommandProxy struct {
	// Addr is host:port to dial, on the loopback interface.
	Addr string

	t      testing.TB
	target string
	ln     net.Listener
	wg     sync.WaitGroup
	refuse map[string]bool

	mu      sync.Mutex
	refused map[string]int
	conns   map[net.Conn]bool // nil once the proxy ends
}

// NewCommandProxy starts a proxy in front of target, ended with the test, that
// answers the named commands, and HELLO in any case, with "ERR unknown
// command". It closes a connection over which comes a script without a key:
// such proxies find the server by it.
func NewCommandProxy(t testing.TB, target string, refuse ...string) *CommandProxy {
	t.Helper()
	ln, err := listenFree()
	if err != nil {
		t.Fatal(err)
	}
	p := &CommandProxy{
		Addr: ln.Addr().String(), t: t, target: target, ln: ln,
		refuse: map[string]bool{"HELLO": true}, refused: make(map[string]int), conns: make(map[net.Conn]bool),
	}
	for _, name := range refuse {
		p.refuse[strings.ToUpper(name)] = true
	}
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

// Refused is how often a command was refused.
func (p *CommandProxy) Refused(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[strings.ToUpper(name)]
}

func (p *CommandProxy) close() {
	p.ln.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *CommandProxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			server, err := net.DialTimeout("tcp", p.target, 10*time.Second)
			if err != nil {
				client.Close()
				return
			}
			if p.keep(client, server) {
				p.serve(client, server)
			}
			client.Close()
			server.Close()
			p.forget(client, server)
		}()
	}
}

// keep notes connections for close; it reports false where that has run.
func (p *CommandProxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns != nil {
			p.conns[c] = true
		}
	}
	return p.conns != nil
}

func (p *CommandProxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

func (p *CommandProxy) serve(client, server net.Conn) {
	commands, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		cmd, err := readReply(commands) // a command is an array of texts
		args, ok := cmd.([]any)
		if err != nil || !ok || len(args) == 0 {
			return
		}
		words := make([]string, len(args))
		for i, a := range args {
			if words[i], ok = a.(string); !ok {
				return
			}
		}
		name := strings.ToUpper(words[0])
		if (name == "EVAL" || name == "EVALSHA") && len(words) > 2 && words[2] == "0" {
			return
		}
		if p.refuse[name] {
			p.mu.Lock()
			p.refused[name]++
			p.mu.Unlock()
			if _, err := fmt.Fprintf(client, "-ERR unknown command '%s'\r\n", words[0]); err != nil {
				return
			}
			continue
		}
		if _, err := server.Write(encode(words)); err != nil {
			return
		}
		if err := copyReply(client, replies); err != nil {
			return
		}
	}
}

// copyReply passes on one RESP2 reply as it stands.
func copyReply(to io.Writer, from *bufio.Reader) error {
	line, err := from.ReadString('\n')
	if err != nil {
		return err
	}
	if _, err := io.WriteString(to, line); err != nil {
		return err
	}
	if line[0] != '$' && line[0] != '*' {
		return nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line[1:]), 10, 64)
	if err != nil {
		return fmt.Errorf("malformed reply %q", line)
	}
	if line[0] == '$' && n >= 0 {
		_, err = io.CopyN(to, from, n+2)
		return err
	}
	for ; line[0] == '*' && n > 0; n-- {
		if err := copyReply(to, from); err != nil {
			return err
		}
	}
	return nil
}
