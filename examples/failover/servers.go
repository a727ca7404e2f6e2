package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"
)

// server is a program on a free port of the loopback interface, with a directory of
// its own.
type server struct {
	addr  string
	start func() error // again, on the same port
	cmd   *exec.Cmd
	ready func() error
}

// find looks for a program on PATH and where distributions put servers.
func find(names ...string) (string, error) {
	for _, name := range names {
		for _, at := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name, "/usr/libexec/" + name} {
			if path, err := exec.LookPath(at); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is missing", strings.Join(names, " or "))
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// newServer starts a program; args gets its port. It ends with ctx at the latest.
func newServer(ctx context.Context, path string, args func(port string) []string, ready func(addr string) error) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	s := &server{addr: addr, ready: func() error { return ready(addr) }}
	s.start = func() error {
		s.cmd = exec.CommandContext(ctx, path, args(port)...)
		if err := s.cmd.Start(); err != nil {
			return err
		}
		var err error
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if err = s.ready(); err == nil {
				return nil
			}
		}
		s.kill()
		return fmt.Errorf("%s does not answer: %w", path, err)
	}
	return s, s.start()
}

// kill ends it as a crash would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// startRedis keeps nothing on disk: after a crash it comes back empty.
func startRedis(ctx context.Context, path, dir string) (*server, error) {
	args := func(port string) []string {
		return []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}
	}
	return newServer(ctx, path, args, func(addr string) error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// startMySQL makes a data directory and starts mariadbd on it. dsn is that of root in
// a database of its own.
func startMySQL(ctx context.Context, install, path, dir string) (s *server, dsn string, err error) {
	me, err := user.Current()
	if err != nil {
		return nil, "", err
	}
	data := filepath.Join(dir, "data")
	if out, err := exec.CommandContext(ctx, install, "--no-defaults", "--user="+me.Username, "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db").CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("%s: %w\n%s", install, err, out)
	}
	args := func(port string) []string {
		return []string{"--no-defaults", "--user=" + me.Username, "--datadir=" + data, "--port=" + port, "--bind-address=127.0.0.1",
			"--socket=" + filepath.Join(dir, "sock"), "--pid-file=" + filepath.Join(dir, "pid"), "--log-error=" + filepath.Join(dir, "log"),
			"--innodb-buffer-pool-size=64M", "--skip-log-bin"}
	}
	s, err = newServer(ctx, path, args, func(addr string) error {
		db, err := sql.Open("mysql", "root@tcp("+addr+")/")
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS locks")
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return s, "root@tcp(" + s.addr + ")/locks?timeout=500ms&readTimeout=2s&writeTimeout=2s&innodb_lock_wait_timeout=1", nil
}

// servers starts both in a temporary directory. end ends them and removes it.
func servers(ctx context.Context) (redis *server, dsn string, end func(), err error) {
	redisPath, err1 := find("redis-server")
	mysqlPath, err2 := find("mariadbd", "mysqld")
	install, err3 := find("mariadb-install-db", "mysql_install_db")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, "", nil, fmt.Errorf("this example starts its own servers, and\n%w\n(on Debian or Ubuntu: apt-get install redis-server mariadb-server)", err)
	}
	dir, err := os.MkdirTemp("", "tierlock-failover-")
	if err != nil {
		return nil, "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running []*server
	end = func() {
		cancel()
		for _, s := range running {
			s.kill()
		}
		os.RemoveAll(dir)
	}
	mysql, dsn, err := startMySQL(ctx, install, mysqlPath, dir)
	if err != nil {
		end()
		return nil, "", nil, err
	}
	running = append(running, mysql)
	if redis, err = startRedis(ctx, redisPath, dir); err != nil {
		end()
		return nil, "", nil, err
	}
	running = append(running, redis)
	return redis, dsn, end, nil
}
