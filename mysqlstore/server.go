package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
)

// server is what has to be known of a server before the first lock.
type server struct {
	version string
	// prefix goes before each writing statement, and bounds its wait for a row
	// that another transaction holds, where the server knows a way to do so.
	prefix string
	// lockWait is that bound.
	lockWait time.Duration
	// nowait is prefix for a statement that must not wait at all, "" where the
	// server knows no way: see renew.
	nowait string
	// sound is the condition that the session is as the statements need it: what
	// they write is committed with them, and names come as they were sent. Other
	// users of the pool may have given the connection back in the middle of a
	// transaction, or with autocommit off, and what is granted then is gone when
	// it is rolled back. (MySQL does not tell that there is a transaction.)
	sound string
	// tells is whether it is part of sound that there is no transaction.
	tells bool
	// isolation is the variable that says what the session sees of others.
	isolation string
	// The statements that take a lock, and those for a place in a chain.
	takes, shared, placed takes
	// Those for calls that go together, where there is nowait.
	takeTogether, takeTogetherAt, releaseTogether [len(sizes)]string
	// asked is when all that was found out, and era of which connections.
	asked time.Time
	era   uint64
}

// doubted tells that there may be another server by now: connections were lost
// since it was asked. It is not asked more often than processes beat.
func (s *Store) doubted(srv *server) bool {
	return srv.era != s.era.Load() && time.Since(srv.asked) > s.pace.beat
}

// askAnew asks a server that was not doubted. A pool of which all connections
// were idle reaches another after a failover, and nobody notices.
func (s *Store) askAnew(ctx context.Context) error {
	_, err := s.inquire(ctx)
	if errors.Is(err, tierlock.ErrMisconfigured) {
		s.era.Add(1) // who wants a lock has to ask, and is told
	}
	return err
}

// ask finds out what the server is, where that is not known.
func (s *Store) ask(ctx context.Context) (*server, error) {
	if srv := s.server.Load(); srv != nil && !s.doubted(srv) {
		return srv, nil
	}
	return s.inquire(ctx)
}

// inquire finds out what the server is, and refuses one that the statements would
// not be right on. The table of members is needed by the first time only.
func (s *Store) inquire(ctx context.Context) (*server, error) {
	last := s.server.Load()
	floor := "0"
	if last == nil {
		floor = "COALESCE((SELECT MAX(floor) FROM lock_member), 0)"
	}
	var row struct {
		Version    string  `db:"version"`
		Autocommit int     `db:"autocommit"`
		Client     string  `db:"client"`
		Connection string  `db:"connection"`
		LockWait   int64   `db:"lock_wait"`
		Now        int64   `db:"now"`
		Slept      float64 `db:"slept"`
		Passed     int64   `db:"passed"`
		Floor      int64   `db:"floor"`
	}
	era, began := s.era.Load(), time.Now()
	err := s.db.GetContext(ctx, &row, "SELECT @@version AS version, @@session.autocommit AS autocommit, "+
		"@@session.innodb_lock_wait_timeout AS lock_wait, @@session.character_set_client AS client, @@session.character_set_connection AS connection, "+now+" AS now, SLEEP(0.01) AS slept, "+passed+" AS passed, "+
		floor+" AS floor")
	if err != nil {
		return nil, err
	}
	srv := &server{version: row.Version, lockWait: time.Duration(row.LockWait) * time.Second, asked: began, era: era, sound: "@@autocommit=1 AND @@character_set_client=@@character_set_connection"}
	maria := strings.Contains(strings.ToLower(row.Version), "mariadb")
	oldest := [3]int{8, 0, 19}
	if maria {
		oldest = [3]int{10, 6, 0}
	}
	if older(row.Version, oldest) {
		return nil, misfit("the server is version %s, wanted MySQL 8.0.19 or MariaDB 10.6, or later", row.Version)
	}
	if row.Autocommit != 1 {
		return nil, misfit("autocommit is off in the sessions of the pool, so no statement would take effect: remove it from the DSN or from init_connect")
	}
	if row.Client != row.Connection {
		// Two keys would become one, or one two.
		return nil, misfit("the server would convert names from character set %s to %s: remove character_set_connection and collation_connection from the DSN or from init_connect", row.Client, row.Connection)
	}
	isolation, err := s.askVariables(ctx)
	if err != nil {
		return nil, err
	}
	srv.isolation = isolation
	if row.Passed < 0 || row.Passed > time.Minute.Microseconds() {
		return nil, misfit("the time of a session of the pool differs from the server's: somebody has set the variable timestamp")
	}
	if row.Passed < 5000 {
		return nil, misfit("SYSDATE stands still within a statement, so a late statement could not be told: remove sysdate-is-now from the server's options")
	}
	if srv.lockWait > time.Second {
		if maria {
			srv.prefix, srv.lockWait = "SET STATEMENT innodb_lock_wait_timeout=1 FOR ", time.Second
		} else if last == nil || last.lockWait != srv.lockWait {
			s.log.Warn("tierlock: mysql: a statement may wait long for a row, and take effect after its caller has gone; add innodb_lock_wait_timeout=1 to the parameters of the DSN",
				"innodb_lock_wait_timeout", fmt.Sprint(srv.lockWait))
		}
	}
	if maria {
		srv.nowait = "SET STATEMENT innodb_lock_wait_timeout=0 FOR "
		srv.sound = "@@autocommit>@@in_transaction AND @@character_set_client=@@character_set_connection" // 1 and 0
		srv.tells = true
	}
	srv.takes, srv.shared, srv.placed = newTakes(srv.sound, unplaced, ""), newTakes(srv.sound, shared, " AND epoch<=?"), newTakes(srv.sound, placed, " AND epoch<=? AND "+on)
	if srv.nowait != "" {
		for i, rows := range sizes {
			srv.takeTogether[i] = srv.nowait + takeTogether(rows, srv.sound, unplaced, takeColumns, takeParameters)
			srv.takeTogetherAt[i] = srv.nowait + takeTogether(rows, srv.sound, placed, placedTakeColumns, placedTakeParameters)
			srv.releaseTogether[i] = srv.nowait + releaseTogether(rows, srv.sound)
		}
	}
	s.learn(began, row.Now, era)
	s.raise(row.Floor)
	s.server.Store(srv)
	return srv, nil
}

// askVariables refuses a binary log of statements: a replica would execute them at
// its own time, later, and so leave out what the server has granted. With row
// format it gets the rows. The variables are not read by name, since a version
// may have none; the one for the isolation has had two.
func (s *Store) askVariables(ctx context.Context) (isolation string, err error) {
	var all []struct {
		Name  string `db:"Variable_name"`
		Value string `db:"Value"`
	}
	if err := s.db.SelectContext(ctx, &all, "SHOW VARIABLES WHERE Variable_name IN ('log_bin','sql_log_bin','binlog_format','transaction_isolation')"); err != nil {
		return "", err
	}
	is := make(map[string]string)
	for _, v := range all {
		is[strings.ToLower(v.Name)] = v.Value
	}
	if is["log_bin"] == "ON" && is["sql_log_bin"] == "ON" && is["binlog_format"] == "STATEMENT" {
		return "", misfit("binlog_format is STATEMENT, and a replica would not get the locks as they are: set it to ROW or MIXED")
	}
	if _, ok := is["transaction_isolation"]; ok {
		return "@@transaction_isolation", nil
	}
	return "@@tx_isolation", nil
}

// older compares a version such as "10.11.6-MariaDB-log" with a number. A
// server may claim to be an old MySQL before it says which MariaDB it is:
// "5.5.5-10.6.16-MariaDB".
func older(version string, than [3]int) bool {
	version = strings.TrimPrefix(version, "5.5.5-")
	version, _, _ = strings.Cut(version, "-")
	parts := strings.SplitN(version, ".", 3)
	for i, want := range than {
		got := 0
		if i < len(parts) {
			got, _ = strconv.Atoi(parts[i])
		}
		if got != want {
			return got < want
		}
	}
	return false
}
