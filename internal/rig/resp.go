package rig

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// callWithin is the deadline of one command of Do and its kin.
const callWithin = 10 * time.Second

// replyError is an error that the server answered, as it stands on the wire,
// e.g. "WRONGTYPE Operation against …".
type replyError string

func (e replyError) Error() string { return string(e) }

// Do sends one command to the server, on a connection of its own that never
// passes a proxy, and returns the answer: string, int64, nil, or []any of
// these, in which a nested error is an error. The test fails when there is no
// answer within 10 s and when the answer is an error.
//
// Each call has a new connection, so neither SELECT nor MULTI outlive it, and
// commands that answer more than once (SUBSCRIBE, MONITOR) are of no use.
func (s *RedisServer) Do(args ...string) any {
	s.t.Helper()
	v, err := s.Try(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// Text is Do for an answer that is a text; a number is given in decimal, nil as
// the empty text. Anything else fails the test.
func (s *RedisServer) Text(args ...string) string {
	s.t.Helper()
	switch v := s.Do(args...).(type) {
	case nil:
		return ""
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	default:
		s.t.Fatalf("rig: %q answered %v, which is no text", args, v)
		return ""
	}
}

// Int is Do for an answer that is a whole number, or a text that is one.
// Anything else, nil too, fails the test.
func (s *RedisServer) Int(args ...string) int64 {
	s.t.Helper()
	switch v := s.Do(args...).(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			s.t.Fatalf("rig: %q answered %q, which is no whole number", args, v)
		}
		return n
	default:
		s.t.Fatalf("rig: %q answered %v, which is no number", args, v)
		return 0
	}
}

// Try is Do, but returns the error: the server's answer, as in "rig: GET:
// WRONGTYPE …", or that there was none. It may be called from any goroutine.
func (s *RedisServer) Try(args ...string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("rig: no command")
	}
	return s.own.count(args, func() (any, error) { return s.roundTrip(callWithin, args...) })
}

// SetPassword changes the password of the default user (requirepass) while the
// server runs, and the rig uses the new one from then on. It is not for servers that
// are started again. No other command of the rig's may be under way.
func (s *RedisServer) SetPassword(password string) {
	s.t.Helper()
	s.Do("CONFIG", "SET", "requirepass", password)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.password = password
}

// roundTrip sends one command on a new connection.
func (s *RedisServer) roundTrip(within time.Duration, args ...string) (any, error) {
	v, err := s.exchange(within, args)
	if err != nil {
		return nil, fmt.Errorf("rig: %s: %w", args[0], err)
	}
	return v, nil
}

func (s *RedisServer) exchange(within time.Duration, args []string) (any, error) {
	end := time.Now().Add(within)
	conn, err := net.DialTimeout("unix", s.socket(), within)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	s.mu.Lock()
	password := s.password
	s.mu.Unlock()
	if password != "" {
		if _, err := conn.Write(encode([]string{"AUTH", password})); err != nil {
			return nil, err
		}
		if _, err := readReply(r); err != nil {
			return nil, err
		}
		s.own.add("auth")
	}
	if _, err := conn.Write(encode(args)); err != nil {
		return nil, err
	}
	return readReply(r)
}

func encode(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// readReply reads one RESP2 reply; one that is an error comes back as an error.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("malformed reply %q", line)
	}
	kind, text := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return text, nil
	case '-':
		return nil, replyError(text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("malformed reply %q", line)
	}
	switch {
	case kind == ':':
		return n, nil
	case (kind == '$' || kind == '*') && n == -1:
		return nil, nil
	case kind == '$' && n >= 0:
		data := make([]byte, n+2)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		return string(data[:n]), nil
	case kind == '*' && n >= 0:
		list := make([]any, n)
		for i := range list {
			v, err := readReply(r)
			var nested replyError
			if errors.As(err, &nested) {
				v = nested
			} else if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	}
	return nil, fmt.Errorf("malformed reply %q", line)
}
