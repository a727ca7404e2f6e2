package mysqlstore_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// Migrate makes the tables, and does nothing where they are; several processes may
// call it at once, and a user who may not create tables where they exist. The
// store itself, whatever it is asked, never makes one.
func TestMigrate(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t, "--general-log=1", "--log-output=TABLE")
	db := admin(t, srv)
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT CREATE TEMPORARY TABLES ON tierlock.* TO app@'127.0.0.1'")
	app := open(t, appDSN(srv.DSN("")), calm)
	wantClass(t, "migrate without CREATE", app.Migrate(t.Context()), tierlock.ErrMisconfigured, "lock_record", "1142")

	var all sync.WaitGroup
	for range 4 {
		s := open(t, srv.DSN(""), calm)
		all.Go(func() {
			if err := s.Migrate(background); err != nil {
				t.Errorf("migrate, four at once: %v", err)
			}
		})
	}
	all.Wait()
	if err := open(t, srv.DSN(""), calm).Migrate(t.Context()); err != nil {
		t.Errorf("migrate again: %v", err)
	}
	execute(t, db, grants)
	if err := app.Migrate(t.Context()); err != nil {
		t.Errorf("migrate over existing tables without CREATE: %v", err)
	}
	ddl := func() int64 {
		return number(t, db, "SELECT COUNT(*) FROM mysql.general_log WHERE argument NOT LIKE 'SELECT%general_log%' AND argument RLIKE '^ *(CREATE|ALTER|DROP|RENAME|TRUNCATE) '")
	}
	before := ddl()
	for what, err := range every(app) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	app.Close()
	if n := ddl() - before; n != 0 {
		t.Errorf("%d statements of DDL by a store in use", n)
	}

	// The statements of Schema, run by somebody else, are the same tables.
	execute(t, db, "DROP TABLE lock_record, lock_member, lock_mode, lock_permit; "+mysqlstore.Schema()+mysqlstore.Schema())
	if err := open(t, appDSN(srv.DSN("")), calm).Migrate(t.Context()); err != nil {
		t.Errorf("migrate after Schema: %v", err)
	}

	srv.Kill()
	ctx, cancel := withTimeout(5 * time.Second)
	defer cancel()
	wantClass(t, "migrate without a server", open(t, srv.DSN(""), calm).Migrate(ctx), tierlock.ErrUnavailable)
}

// Each thing that is wrong with a table is named, and nothing is changed.
func TestMigrateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)
	for what, c := range map[string]struct{ alter, says string }{
		"type":               {"MODIFY namespace VARCHAR(32) NOT NULL", "column namespace is varchar(32), wanted varbinary(32)"},
		"length":             {"MODIFY holder_id VARBINARY(511) NOT NULL", "column holder_id is varbinary(511), wanted varbinary(512)"},
		"sign":               {"MODIFY fence BIGINT NOT NULL", "column fence is bigint, wanted bigint unsigned"},
		"size":               {"MODIFY entries BLOB NULL", "column entries is blob, wanted mediumblob"},
		"precision":          {"MODIFY expire_at DATETIME(3) NOT NULL", "column expire_at is datetime(3), wanted datetime(6)"},
		"no precision":       {"MODIFY expire_at DATETIME NOT NULL", "column expire_at is datetime, wanted datetime(6)"},
		"timestamp":          {"MODIFY create_time TIMESTAMP(6) NOT NULL", "column create_time is timestamp(6)"},
		"not null":           {"MODIFY entries MEDIUMBLOB NOT NULL", "column entries is NOT NULL"},
		"missing column":     {"DROP COLUMN attempt", "column attempt is missing"},
		"foreign column":     {"ADD COLUMN extra INT NOT NULL", "column extra"},
		"missing index":      {"DROP INDEX taken", "index taken (fence) is missing"},
		"index of others":    {"DROP INDEX taken, ADD INDEX taken (epoch)", "index taken (fence) is missing"},
		"no primary key":     {"DROP PRIMARY KEY", "index PRIMARY (namespace,resource_id,business_id) is missing"},
		"order of the key":   {"DROP PRIMARY KEY, ADD PRIMARY KEY (business_id,resource_id,namespace)", "index PRIMARY (namespace,resource_id,business_id) is missing"},
		"key without a name": {"DROP PRIMARY KEY, ADD PRIMARY KEY (namespace,resource_id)", "index PRIMARY (namespace,resource_id,business_id) is missing"},
		"key of a prefix":    {"DROP PRIMARY KEY, ADD PRIMARY KEY (namespace,resource_id,business_id(8))", "index PRIMARY (namespace,resource_id,business_id) is missing"},
		"unique index":       {"ADD UNIQUE INDEX one_lease (lease_id,business_id)", "index one_lease is unique"},
		"engine":             {"ENGINE=MyISAM", "engine is MyISAM, wanted InnoDB"},
	} {
		t.Run(what, func(t *testing.T) {
			execute(t, db, "DROP TABLE lock_record; "+mysqlstore.Schema()+"ALTER TABLE lock_record "+c.alter)
			defer execute(t, db, "DROP TABLE lock_record; "+mysqlstore.Schema())
			shown := func() (name, ddl string) {
				if err := db.QueryRow("SHOW CREATE TABLE lock_record").Scan(&name, &ddl); err != nil {
					t.Fatal(err)
				}
				return name, ddl
			}
			_, before := shown()
			err := s.Migrate(t.Context())
			wantClass(t, "migrate", err, tierlock.ErrMisconfigured, "table lock_record: ", c.says)
			if err == nil {
				return
			}
			if strings.Contains(err.Error(), ";") {
				t.Errorf("names more than the one thing that is wrong: %v", err)
			}
			if _, after := shown(); after != before {
				t.Errorf("changed\n%s\nto\n%s", before, after)
			}
		})
	}
	// What does no harm is no problem.
	execute(t, db, "ALTER TABLE lock_record ADD COLUMN note TEXT NULL, ADD COLUMN made INT NOT NULL DEFAULT 7, ADD INDEX born (create_time), ADD INDEX taken_too (fence, epoch), RENAME INDEX taken TO their_own")
	if err := s.Migrate(t.Context()); err != nil {
		t.Errorf("with harmless additions: %v", err)
	}
	mustAcquire(t, s, ask("k", newLease(), patience))
	execute(t, db, "ALTER TABLE lock_mode MODIFY server VARBINARY(64) NOT NULL; ALTER TABLE lock_permit MODIFY digest VARBINARY(128) NOT NULL, DROP COLUMN digest_sum")
	wantClass(t, "migrate", s.Migrate(t.Context()), tierlock.ErrMisconfigured,
		"table lock_mode: column server is varbinary(64), wanted varbinary(512)", "table lock_permit: column digest is varbinary(128), wanted varbinary(4600)", "column digest_sum is missing")
	execute(t, db, "ALTER TABLE lock_member DROP COLUMN beat; ALTER TABLE lock_record DROP COLUMN token, ENGINE=MyISAM")
	wantClass(t, "migrate", s.Migrate(t.Context()), tierlock.ErrMisconfigured,
		"table lock_member: column beat is missing", "table lock_record: engine is MyISAM", "column token is missing")
}

// Replicas would execute the statements at their own time.
func TestBinaryLogOfStatementsIsRefused(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t, "--log-bin=binlog", "--server-id=1", "--binlog-format=STATEMENT")
	if err := open(t, srv.DSN("binlog_format=%27ROW%27"), calm).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	res, err := open(t, srv.DSN(""), calm).Acquire(t.Context(), ask("k", "l", time.Minute))
	if !errors.Is(err, tierlock.ErrMisconfigured) || !strings.Contains(err.Error(), "binlog_format") {
		t.Errorf("got granted %v, error %v; wanted misconfigured, about binlog_format", res.Granted, err)
	}
	for _, format := range []string{"ROW", "MIXED"} {
		s := open(t, srv.DSN("binlog_format=%27"+format+"%27"), calm)
		mustAcquire(t, s, ask(format, "l", time.Minute))
	}
	// In both formats the log has rows of lock_record, and no statement on it.
	events, err := pool(t, srv.DSN("")).Queryx("SHOW BINLOG EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	rows := 0
	for events.Next() {
		event := make(map[string]any)
		if err := events.MapScan(event); err != nil {
			t.Fatal(err)
		}
		kind, info := string(event["Event_type"].([]byte)), string(event["Info"].([]byte))
		if kind == "Query" && strings.Contains(info, "INSERT INTO lock_record") {
			t.Errorf("the log has a statement: %.100s", info)
		}
		if strings.HasPrefix(kind, "Write_rows") {
			rows++
		}
	}
	if rows < 2 {
		t.Errorf("the log has %d events of new rows; wanted two", rows)
	}
}
