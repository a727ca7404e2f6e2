package mysqlstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Migrate finds what would break locks, lets be what would not, and sees the same
// whatever the session is like.
func TestMigrateChecksTables(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	db := pool(t, srv.DSN(""))
	for _, params := range []string{"", "sql_mode=%27ORACLE%27", "sql_mode=%27ANSI,ONLY_FULL_GROUP_BY%27", "sql_select_limit=1", "group_concat_max_len=4"} {
		if err := open(t, srv.DSN(params), calm).Migrate(t.Context()); err != nil {
			t.Errorf("%q: %v; wanted the tables to be right", params, err)
		}
	}
	s := open(t, srv.DSN(""), calm)
	for _, c := range []struct{ do, undo, problem string }{
		{"ALTER TABLE lock_record ADD note VARCHAR(10) NOT NULL DEFAULT ''", "ALTER TABLE lock_record DROP note", ""},
		{"ALTER TABLE lock_record ADD note VARCHAR(10)", "ALTER TABLE lock_record DROP note", ""},
		{"ALTER TABLE lock_record ADD note VARCHAR(10) NOT NULL", "ALTER TABLE lock_record DROP note", "note"},
		{"ALTER TABLE lock_record ADD id BIGINT AUTO_INCREMENT, ADD KEY(id)", "ALTER TABLE lock_record DROP id", "AUTO_INCREMENT"},
		{"ALTER TABLE lock_record DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, resource_id, business_id(10))",
			"ALTER TABLE lock_record DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, resource_id, business_id)", "index PRIMARY"},
		{"ALTER TABLE lock_record DROP KEY taken", "ALTER TABLE lock_record ADD KEY taken (fence)", "index taken"},
		{"ALTER TABLE lock_record ADD UNIQUE KEY u (lease_id)", "ALTER TABLE lock_record DROP KEY u", "unique"},
		{"ALTER TABLE lock_record ENGINE=Aria", "ALTER TABLE lock_record ENGINE=InnoDB", "Aria"},
		{"RENAME TABLE lock_record TO r", "RENAME TABLE r TO lock_record", "-"}, // below
	} {
		db.MustExec(c.do)
		if c.problem == "-" {
			db.MustExec("CREATE VIEW lock_record AS SELECT * FROM r")
			c.problem = "engine"
			c.undo = "DROP VIEW lock_record"
		}
		err := s.Migrate(t.Context())
		if c.problem == "" && err != nil {
			t.Errorf("%s: got %v; wanted no problem", c.do, err)
		}
		if c.problem != "" && (!errors.Is(err, tierlock.ErrMisconfigured) || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%s: got %v; wanted misconfigured, about %s", c.do, err, c.problem)
		}
		db.MustExec(c.undo)
	}
}

// What only a change of settings mends is not taken for an outage.
func TestSettingsThatFit(t *testing.T) {
	t.Parallel()
	srv := rig.MariaDB(t)
	migrate(t, srv)
	for _, params := range []string{
		"sql_mode=%27STRICT_ALL_TABLES,EMPTY_STRING_IS_NULL%27", "sql_mode=%27NONSENSE%27", "time_zone=%27Nowhere%2FAt_all%27",
		"charset=nonsense", "collation_connection=nonsense", "no_such_variable=1", "max_connections=1", "version=1",
		"tx_isolation=%27NONSENSE%27", "sql_big_selects=0&max_join_size=1", "maxAllowedPacket=40",
	} {
		req := ask("k", "l", time.Minute)
		req.Token.Holder = ""
		_, err := open(t, srv.DSN(params), calm).Acquire(t.Context(), req)
		if !errors.Is(err, tierlock.ErrMisconfigured) {
			t.Errorf("%s: got %v; wanted misconfigured", params, err)
		}
	}
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
