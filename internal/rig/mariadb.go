package rig

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-sql-driver/mysql"
)

// installWithin bounds the making of the first data directory, which takes two
// seconds on a quiet machine.
const installWithin = 60 * time.Second

// mariaDBDatabase is there, and empty, on each server.
const mariaDBDatabase = "tierlock"

// MariaDBServer is a mariadbd process of this test's own: on a free loopback
// port, with a data directory of its own that outlives Kill, Stop and Start. It
// is as durable as a server with the default settings, so what was committed
// survives Kill. root may log in over TCP without a password.
//
// Kill, Stop, Start, Restart, Pause and Resume may be called from any
// goroutine; two of them at once are carried out one after the other.
type MariaDBServer struct {
	server

	args []string
}

// MariaDB starts a mariadbd and returns once one can log in; it is ended when the
// test ends. args are appended to the rig's own and so win over them, e.g.
// "--max-connections=5". They must not set port, bind-address, datadir, socket
// or log-error.
//
// The first of a test process takes some two seconds, as its data directory is
// made then; the others start from a copy. The test fails, with the command that
// installs it, where mariadbd is missing.
func MariaDB(t testing.TB, args ...string) *MariaDBServer {
	t.Helper()
	return startMariaDB(t, nil, args)
}

// MariaDBWithClock is [MariaDB] with a wall clock of its own, see
// [RedisWithClock]. UTC_TIMESTAMP, NOW and SYSDATE follow it; waits of a given
// length, such as that for a row's lock, do not change with it.
func MariaDBWithClock(t testing.TB, args ...string) (*MariaDBServer, *WallClock) {
	t.Helper()
	c := newWallClock(t)
	return startMariaDB(t, c.env, args), c
}

func startMariaDB(t testing.TB, env, args []string) *MariaDBServer {
	t.Helper()
	bin := mariaDBProgram(t, "mariadbd")
	// The name is looked up for each server, the template is made by the first.
	install := mariaDBProgram(t, "mariadb-install-db")
	template, err := mariaDBTemplate(install)
	if err != nil {
		t.Fatal(err)
	}
	s := &MariaDBServer{server: server{name: "mariadbd", bin: bin, env: env}, args: args}
	s.argv, s.answers = s.arguments, s.ready
	s.create(t)
	if err := os.CopyFS(s.data(), template); err != nil {
		t.Fatalf("rig: %v", err)
	}
	s.begin(nil)
	// Its character set is the server's own, which the arguments may set.
	if err := s.ask(time.Now().Add(readyWithin), func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+mariaDBDatabase)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// superuserDirs are where systems keep mariadbd, which may be missing in the
// PATH of who is not root.
var superuserDirs = []string{"/usr/sbin", "/usr/local/sbin", "/usr/libexec"}

func mariaDBProgram(t testing.TB, name string) string {
	t.Helper()
	bin, err := exec.LookPath(name)
	if err == nil {
		return bin
	}
	for _, dir := range superuserDirs {
		if bin, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return bin
		}
	}
	t.Fatalf("rig: %s is not installed; install it with `apt-get install mariadb-server` or `make deps` (%v)", name, err)
	return ""
}

// installed keeps the data directory of a new installation in memory, some 25
// MB: no file is left behind whenever and however the test process ends.
var installed struct {
	sync.Once
	files fstest.MapFS
	err   error
}

func mariaDBTemplate(install string) (fs.FS, error) {
	installed.Do(func() { installed.files, installed.err = installMariaDB(install) })
	return installed.files, installed.err
}

func installMariaDB(install string) (files fstest.MapFS, err error) {
	dir, err := os.MkdirTemp("", "rig-mariadb-install-")
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	defer func() {
		if e := os.RemoveAll(dir); e != nil {
			err = errors.Join(err, fmt.Errorf("rig: %w", e))
		}
	}()
	// A file, not a pipe: the end of a pipe would come only with that of every
	// process that the installation starts.
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	defer log.Close()
	data := filepath.Join(dir, "data")
	cmd := exec.Command(install, append(mariaDBBasics(dir, data),
		"--auth-root-authentication-method=normal", "--skip-test-db")...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	c, err := startChild("mariadb-install-db", cmd)
	if err != nil {
		return nil, err
	}
	if !c.wait(installWithin) {
		return nil, errors.Join(fmt.Errorf("rig: %s has not ended after %v", install, installWithin), c.kill())
	}
	if c.err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("rig: %s: %w\n%s", install, c.err, text)
	}
	files = make(fstest.MapFS)
	tree := os.DirFS(data)
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		f := &fstest.MapFile{Mode: entry.Type() | 0o700}
		if entry.Type().IsRegular() {
			f.Mode = 0o600
			if f.Data, err = fs.ReadFile(tree, name); err != nil {
				return err
			}
		}
		files[name] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	return files, nil
}

// mariaDBBasics are the options that the installation and each start must agree
// on. dir is the directory of the server that holds data.
func mariaDBBasics(dir, data string) []string {
	// A mariadbd that starts deletes the temporary tables of all servers that
	// share its tmpdir, so it must not be the system's.
	args := []string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + dir}
	if os.Getuid() == 0 {
		args = append(args, "--user=root") // it refuses to run as root unasked
	}
	// Small files are copied quickly. Nothing here may make commits cheaper
	// than they are for users: innodb-flush-log-at-trx-commit stays 1.
	return append(args, "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M")
}

func (s *MariaDBServer) data() string { return filepath.Join(s.Dir, "data") }

func (s *MariaDBServer) arguments() []string {
	return append(append(mariaDBBasics(s.Dir, s.data()),
		"--port="+strconv.Itoa(s.Port), "--bind-address=127.0.0.1", "--skip-networking=0",
		"--socket="+s.socket(), "--pid-file="+filepath.Join(s.Dir, "rig.pid"),
		"--skip-name-resolve", "--skip-log-bin", "--max-connections=300",
	), s.args...)
}

// DSN is the data source name of an empty database for root, in the form of
// github.com/go-sql-driver/mysql; params are its parameters, such as
// "timeout=1s&parseTime=true", or "".
func (s *MariaDBServer) DSN(params string) string { return s.DSNVia(s.Addr, params) }

// DSNVia is DSN for a client that dials addr, such as that of a [Proxy] in front
// of the server.
func (s *MariaDBServer) DSNVia(addr, params string) string {
	dsn := "root@tcp(" + addr + ")/" + mariaDBDatabase
	if params != "" {
		dsn += "?" + params
	}
	return dsn
}

// Threads is how many connections the server has over TCP, idle ones and those
// that have not logged in yet included; the rig's own are not among them. A
// connection whose client has gone counts until the server has noticed, which it
// does not while it executes a statement.
func (s *MariaDBServer) Threads() int {
	s.t.Helper()
	var n int
	if err := s.ask(time.Now().Add(callWithin), func(ctx context.Context, db *sql.DB) error {
		// Neither the rig, which comes by the Unix socket, nor the server's
		// own threads have such a host.
		return db.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE HOST LIKE '127.0.0.1:%'`).Scan(&n)
	}); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// ready reports whether one can log in.
//
// It asks at the Unix socket in our own directory, not at the port: an answer
// from there can only be this server's, which opens its port first and then
// serves both in one loop.
func (s *MariaDBServer) ready(end time.Time) bool {
	// While the server recovers its data, it neither listens nor answers; so
	// one question may take all the time that there is.
	return s.ask(end, func(ctx context.Context, db *sql.DB) error { return db.PingContext(ctx) }) == nil
}

// ask has the rig's own question answered on a connection of its own.
func (s *MariaDBServer) ask(end time.Time, question func(context.Context, *sql.DB) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	conf := mysql.NewConfig()
	conf.User, conf.Net, conf.Addr = "root", "unix", s.socket()
	conf.Logger = &mysql.NopLogger{} // that it does not answer yet is no news
	connector, err := mysql.NewConnector(conf)
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	db := sql.OpenDB(connector)
	err = errors.Join(question(ctx, db), db.Close())
	if err != nil {
		return fmt.Errorf("rig: asking %s at %s: %w", s.name, s.Addr, err)
	}
	return nil
}
