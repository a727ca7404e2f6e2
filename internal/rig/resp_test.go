package rig_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestEncode(t *testing.T) {
	if got, want := string(rig.Encode([]string{"SET", "", "ä\r\n"})), "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\nä\r\n\r\n"; got != want {
		t.Errorf("encoded %q, want %q", got, want)
	}
}

func TestReadReply(t *testing.T) {
	for _, c := range []struct{ wire, want string }{
		{"+OK\r\n", `"OK"`},
		{":-7\r\n", "-7"},
		{"$-1\r\n", "<nil>"},
		{"*-1\r\n", "<nil>"},
		{"$0\r\n\r\n", `""`},
		{"$5\r\na\r\nbc\r\n", `"a\r\nbc"`},
		{"*0\r\n", "[]interface {}{}"},
		{"*3\r\n:1\r\n$-1\r\n*1\r\n+x\r\n", `[]interface {}{1, interface {}(nil), []interface {}{"x"}}`},
	} {
		got, err := rig.ReadReply(bufio.NewReader(strings.NewReader(c.wire)))
		if text := fmt.Sprintf("%#v", got); err != nil || text != c.want {
			t.Errorf("%q read as %s, %v; want %s", c.wire, text, err, c.want)
		}
	}
	for _, c := range []struct{ wire, want string }{
		{"-ERR no\r\n", "ERR no"},
		{"", "EOF"},
		{"+OK", "EOF"},
		{"+OK\n", "malformed"},
		{"\r\n", "malformed"},
		{":x\r\n", "malformed"},
		{"$-2\r\n", "malformed"},
		{"*-2\r\n", "malformed"},
		{"?1\r\n", "malformed"},
		{"$3\r\na", "unexpected EOF"},
		{"*2\r\n:1\r\n", "EOF"},
	} {
		got, err := rig.ReadReply(bufio.NewReader(strings.NewReader(c.wire)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q read as %v, %v; want the error %q", c.wire, got, err, c.want)
		}
	}
}

func TestParseCommandStats(t *testing.T) {
	got, err := rig.ParseCommandStats("# Commandstats\r\ncmdstat_get:calls=3,usec=4\r\ncmdstat_client|id:calls=2,usec=1\r\n")
	if err != nil || fmt.Sprint(got) != "map[client|id:2 get:3]" {
		t.Errorf("parsed %v, %v", got, err)
	}
	if got, err := rig.ParseCommandStats("cmdstat_get:calls=x,usec=4\r\n"); err == nil {
		t.Errorf("parsed %v from nonsense", got)
	}
}
