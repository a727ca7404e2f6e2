package redisstore_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// answering is a server that answers each command by say, on loopback.
func answering(t testing.TB, say func(cmd []string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					cmd, err := readCommand(r)
					if err != nil {
						return
					}
					if _, err := io.WriteString(c, say(cmd)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || len(line) < 3 {
			return 0, errors.Join(err, errors.New("short line"))
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	cmd := make([]string, n)
	for i := range cmd {
		size, err := number()
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		cmd[i] = string(b[:size])
	}
	return cmd, nil
}

// Scenario 66: every answer that is no answer about a lock has its class,
// bare, as 6.2 wraps it in scripts, and as 7.0 does.
func TestErrorClasses(t *testing.T) {
	unavailable, misconfigured := tierlock.ErrUnavailable, tierlock.ErrMisconfigured
	table := []struct {
		text  string
		class error
	}{
		{"READONLY You can't write against a read only replica.", unavailable},
		{"LOADING Redis is loading the dataset in memory", unavailable},
		{"CLUSTERDOWN The cluster is down", unavailable},
		{"CLUSTERDOWN Hash slot not served", unavailable},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", unavailable},
		{"TRYAGAIN Multiple keys request during rehashing of slot", unavailable},
		{"OOM command not allowed when used memory > 'maxmemory'.", unavailable},
		{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", unavailable},
		{"NOREPLICAS Not enough good replicas to write.", unavailable},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", unavailable},
		{"UNBLOCKED force unblock from blocking operation", unavailable},
		{"ERR max number of clients reached", unavailable},
		{"ERR something that nobody has met yet", unavailable},
		{"FUTURE code of a later version", unavailable},
		{"NOAUTH Authentication required.", misconfigured},
		{"WRONGPASS invalid username-password pair or user is disabled.", misconfigured},
		{"NOPERM this user has no permissions to run the 'evalsha' command", misconfigured},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", misconfigured},
		{"DENIED Redis is running in protected mode", misconfigured},
		{"ERR unknown command 'EVALSHA', with args beginning with: ", misconfigured},
		{"ERR Unknown Redis command called from script", misconfigured},
		{"ERR The user executing the script can't run this command or subcommand", misconfigured},
		{"ERR The user executing the script can't access at least one of the keys mentioned in the command arguments", misconfigured},
		{"ERR DB index is out of range", misconfigured},
		{"ERR syntax error", misconfigured},
		{"MOVED 7481 127.0.0.1:6379", misconfigured},
		{"ERR Client names cannot contain spaces, newlines or special characters.", misconfigured},
	}
	bare := table
	for _, text := range []string{
		"ERR Error running script (call to f_abc): @user_script:12: -%s",
		"ERR Error running script (call to f_abc): @user_script: 12: %s",
		"ERR Error running script (call to f_abc): @user_script:12: @user_script: 12: -%s",
		"%s script: abc, on @user_script:12.",
	} {
		for _, inner := range bare {
			table = append(table, struct {
				text  string
				class error
			}{fmt.Sprintf(text, inner.text), inner.class})
		}
	}
	var mu sync.Mutex
	var text string
	addr := answering(t, func(cmd []string) string {
		mu.Lock()
		defer mu.Unlock()
		switch strings.ToUpper(cmd[0]) {
		case "EVALSHA", "EVAL", "GET", "PTTL":
			return "-" + text + "\r\n"
		case "HELLO":
			return "*4\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n$5\r\nproto\r\n:2\r\n"
		}
		return "+OK\r\n"
	})
	opt := patient(addr)
	opt.AlwaysRESP2 = true
	s := openWith(t, opt, calm)
	for _, row := range table {
		mu.Lock()
		text = row.text
		mu.Unlock()
		_, err := s.Acquire(t.Context(), ask("k", newLease(), time.Second))
		wantClass(t, row.text, err, row.class)
		for _, part := range []string{"redisstore: acquire test:order:settle/k: ", strings.TrimPrefix(row.text, "ERR ")} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q does not say %q", row.text, err, part)
			}
		}
		_, err = s.Release(t.Context(), drop("k", newLease()))
		wantClass(t, row.text, err, row.class)
		wantClass(t, row.text, renewOne(t, s, "k", newLease(), time.Second).Err, row.class)
		_, err = s.Inspect(t.Context(), name("k"))
		wantClass(t, row.text, err, row.class)
	}
}

// The same from a real server, as far as it can be brought to say it.
func TestRealErrors(t *testing.T) {
	for _, c := range []struct {
		name    string
		cause   func(t *testing.T, srv *rig.RedisServer)
		mend    func(srv *rig.RedisServer)
		class   error
		says    string
		release bool // a release works all the same
	}{
		{"read-only replica",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("REPLICAOF", "127.0.0.1", "1") },
			func(srv *rig.RedisServer) { srv.Do("REPLICAOF", "NO", "ONE") },
			tierlock.ErrUnavailable, "READONLY", false},
		{"replica without its master",
			func(t *testing.T, srv *rig.RedisServer) {
				srv.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
				srv.Do("REPLICAOF", "127.0.0.1", "1")
			},
			func(srv *rig.RedisServer) { srv.Do("REPLICAOF", "NO", "ONE") },
			tierlock.ErrUnavailable, "MASTERDOWN", false},
		{"out of memory",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "maxmemory", "1") },
			func(srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "maxmemory", "0") },
			tierlock.ErrUnavailable, "OOM", true},
		{"no replicas",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "min-replicas-to-write", "1") },
			func(srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "min-replicas-to-write", "0") },
			tierlock.ErrUnavailable, "NOREPLICAS", false},
		{"failed save",
			func(t *testing.T, srv *rig.RedisServer) {
				// A file cannot be renamed to what is a directory.
				if err := os.MkdirAll(filepath.Join(srv.Dir, "dump.rdb", "x"), 0o700); err != nil {
					t.Fatal(err)
				}
				srv.Do("CONFIG", "SET", "save", "3600 1")
				srv.Do("BGSAVE")
				rig.Eventually(t, 10*time.Second, "the save fails", func() bool {
					return strings.Contains(srv.Text("INFO", "persistence"), "rdb_last_bgsave_status:err")
				})
			},
			func(srv *rig.RedisServer) { srv.Do("CONFIG", "SET", "save", "") },
			tierlock.ErrUnavailable, "MISCONF", false},
		{"busy with a script",
			func(t *testing.T, srv *rig.RedisServer) {
				srv.Do("CONFIG", "SET", "busy-reply-threshold", "20")
				go srv.Try("EVAL", "while true do end", "0")
				rig.Eventually(t, 10*time.Second, "the script runs", func() bool {
					_, err := srv.Try("PING")
					return err != nil && strings.Contains(err.Error(), "BUSY")
				})
			},
			func(srv *rig.RedisServer) { srv.Try("SCRIPT", "KILL") },
			tierlock.ErrUnavailable, "BUSY", false},
		{"another type",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("DEL", keyOf("k")); srv.Do("LPUSH", keyOf("k"), "x") },
			func(srv *rig.RedisServer) { srv.Do("DEL", keyOf("k")) },
			tierlock.ErrMisconfigured, "WRONGTYPE", false},
		{"no permission for EVALSHA",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "-evalsha") },
			func(srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "+@all") },
			tierlock.ErrMisconfigured, "evalsha", false},
		{"no permission for a command in the script",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "-set") },
			func(srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "+@all") },
			tierlock.ErrMisconfigured, "can't run this command or subcommand script: ", true},
		{"no permission for the key",
			func(t *testing.T, srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "resetkeys", "~other:*") },
			func(srv *rig.RedisServer) { srv.Do("ACL", "SETUSER", "app", "~*") },
			tierlock.ErrMisconfigured, "NOPERM", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := rig.Redis(t)
			srv.Do("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
			opt := patient(srv.Addr)
			opt.Username, opt.Password = "app", "pw"
			s := openWith(t, opt, calm)
			lease := newLease()
			mustAcquire(t, s, ask("k", lease, 30*time.Second))
			c.cause(t, srv)
			try := "k2"
			if c.name == "another type" {
				try = "k"
			}
			_, err := s.Acquire(t.Context(), ask(try, newLease(), time.Second))
			wantClass(t, "acquire", err, c.class)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q does not say %q", err, c.says)
			}
			if strings.HasPrefix(c.name, "no permission") && !strings.Contains(err.Error(), "needed: ~lock:test:* &lock:test:* +eval ") {
				t.Errorf("error %q does not say which permissions are needed", err)
			}
			if got, err := s.Release(t.Context(), drop("k", lease)); c.release {
				if err != nil || got != tierlock.LeaseOwned {
					t.Errorf("release: got %v, %v; wanted it done", got, err)
				}
			} else {
				wantClass(t, "release", err, c.class)
			}
			c.mend(srv)
			rig.Eventually(t, 5*time.Second, "the store works again", func() bool {
				lease := newLease()
				res, err := s.Acquire(t.Context(), ask("k3", lease, time.Second))
				if err == nil && res.Granted {
					mustRelease(t, s, drop("k3", lease), tierlock.LeaseOwned)
				}
				return err == nil && res.Granted
			})
		})
	}
}
