//go:build unix

package load

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock/bench/internal/contest"
	"github.com/tierlock/tierlock/bench/internal/measure"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Server is a server of this program's own that runs take place on.
type Server interface {
	// Store is what the contestants keep their locks in.
	Store() string
	// Addr is for [contest.Settings].
	Addr() string
	// Dir is a directory that is removed with the server.
	Dir() string
	// About says what it is.
	About() string
	// Empty takes away what a run has left.
	Empty() error
	// Served reads its counters.
	Served() (measure.Server, error)
}

// Redis starts a redis-server.
func Redis(t testing.TB) Server { return OnRedis(rig.Redis(t)) }

// OnRedis is one that runs already.
func OnRedis(srv *rig.RedisServer) Server { return redisServer{srv} }

type redisServer struct{ *rig.RedisServer }

func (s redisServer) Store() string { return contest.Redis }
func (s redisServer) Addr() string  { return s.RedisServer.Addr }
func (s redisServer) Dir() string   { return s.RedisServer.Dir }

func (s redisServer) About() string {
	version := "of unknown version"
	for line := range strings.Lines(s.Text("INFO", "server")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			version = rest
		}
	}
	return "redis-server " + version
}

func (s redisServer) Empty() error {
	s.Do("FLUSHALL")
	return nil
}

func (s redisServer) Served() (measure.Server, error) {
	return measure.ParseServer(s.Text("INFO", "commandstats") + s.Text("INFO", "cpu"))
}

// MySQL starts a mariadbd with the tables of all contestants. flush is its
// innodb_flush_log_at_trx_commit; the default of servers is 1, where a commit
// waits for the disk.
func MySQL(t testing.TB, flush int) Server {
	t.Helper()
	s := &mysqlServer{srv: rig.MariaDB(t, "--max-connections=1000", fmt.Sprintf("--innodb-flush-log-at-trx-commit=%d", flush))}
	// One connection, kept: what connecting costs the server is nobody's.
	db, err := sqlx.Open("mysql", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	s.db = db
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	store := mysqlstore.New(db, mysqlstore.Options{})
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	for _, table := range contest.Tables {
		if _, err := db.ExecContext(ctx, table); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

type mysqlServer struct {
	srv *rig.MariaDBServer
	db  *sqlx.DB
}

func (s *mysqlServer) Store() string { return contest.MySQL }
func (s *mysqlServer) Dir() string   { return s.srv.Dir }

// Addr has the parameter that the store recommends, for all contestants.
func (s *mysqlServer) Addr() string { return s.srv.DSN("innodb_lock_wait_timeout=1") }

func (s *mysqlServer) About() string {
	var version string
	var flush int
	if err := s.db.QueryRow("SELECT @@version, @@innodb_flush_log_at_trx_commit").Scan(&version, &flush); err != nil {
		version = "of unknown version"
	}
	return fmt.Sprintf("mariadbd %s, innodb_flush_log_at_trx_commit=%d, data in %s", version, flush, s.srv.Dir)
}

// purgedWithin bounds the wait of Empty.
const purgedWithin = 20 * time.Second

// Empty also waits until the server has removed, in the background, the rows
// that were deleted: this work belongs to the run before.
func (s *mysqlServer) Empty() error {
	ctx, cancel := context.WithTimeout(context.Background(), purgedWithin)
	defer cancel()
	for _, table := range contest.TableNames {
		if _, err := s.db.ExecContext(ctx, "TRUNCATE TABLE "+table); err != nil {
			return err
		}
	}
	for {
		status, err := s.status()
		if err != nil {
			return err
		}
		if status["Innodb_history_list_length"] < 100 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the server has not removed what was deleted after %v", purgedWithin)
		}
	}
}

func (s *mysqlServer) Served() (measure.Server, error) {
	status, err := s.status()
	if err != nil {
		return measure.Server{}, err
	}
	cpu, err := measure.ProcessCPU(s.srv.PID())
	if err != nil {
		return measure.Server{}, err
	}
	return measure.MySQLServer(status, cpu)
}

// status is what the server counts. To ask is one statement.
func (s *mysqlServer) status() (map[string]int64, error) {
	var rows []struct {
		Name  string `db:"Variable_name"`
		Value int64  `db:"Value"`
	}
	if err := s.db.Select(&rows, "SHOW GLOBAL STATUS WHERE Variable_name IN "+
		"('Questions','Com_show_status','Innodb_deadlocks','Innodb_history_list_length')"); err != nil {
		return nil, err
	}
	status := make(map[string]int64)
	for _, r := range rows {
		status[r.Name] = r.Value
	}
	return status, nil
}
