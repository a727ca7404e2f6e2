package mysqlstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tierlock/tierlock/internal/contract"
)

// lockTable has one row for each lock that was taken lately. Names are
// VARBINARY: a binary collation of a text type would still pad, so that "42"
// and "42 " were one lock.
//
// The index serves the clean-up: a fence is a time, so it finds what was taken
// long ago. It is written when a lock is taken, and not with each renewal and
// release, as an index on expire_at would be.
const lockTable = `CREATE TABLE IF NOT EXISTS lock_record (
  namespace   VARBINARY(32)     NOT NULL,
  resource_id VARBINARY(64)     NOT NULL,
  business_id VARBINARY(512)    NOT NULL,
  lease_id    VARBINARY(128)    NOT NULL,
  holder_id   VARBINARY(512)    NOT NULL,
  fence       BIGINT UNSIGNED   NOT NULL,
  epoch       SMALLINT UNSIGNED NOT NULL,
  attempt     BIGINT UNSIGNED   NOT NULL,
  reentrant   TINYINT           NOT NULL,
  entries     MEDIUMBLOB            NULL,
  token       BLOB              NOT NULL,
  expire_at   DATETIME(6)       NOT NULL,
  create_time DATETIME(6)       NOT NULL,
  PRIMARY KEY (namespace, resource_id, business_id),
  KEY taken (fence)
) ENGINE=InnoDB`

// memberTable has one row for each process that uses the locks of a namespace.
const memberTable = `CREATE TABLE IF NOT EXISTS lock_member (
  namespace   VARBINARY(32)     NOT NULL,
  member      VARBINARY(64)     NOT NULL,
  beat        BIGINT UNSIGNED   NOT NULL,
  floor       BIGINT UNSIGNED   NOT NULL,
  holds       INT UNSIGNED      NOT NULL,
  app         VARBINARY(64)     NOT NULL,
  host        VARBINARY(255)    NOT NULL,
  pid         BIGINT            NOT NULL,
  started_at  DATETIME(6)       NOT NULL,
  PRIMARY KEY (namespace, member)
) ENGINE=InnoDB`

// tables are all of them.
var tables = [...]struct{ name, ddl string }{
	{"lock_record", lockTable}, {"lock_member", memberTable}, {"lock_mode", modeTable}, {"lock_permit", permitTable},
}

// Schema is the DDL of the tables, as four statements, for whoever has the right
// to run it. They change nothing where the tables exist.
func Schema() string {
	all := make([]string, 0, len(tables))
	for _, t := range tables {
		all = append(all, t.ddl+";\n")
	}
	return strings.Join(all, "\n")
}

// wanted is what the code relies on: type of each column, and the indexes.
var wanted = map[string]struct {
	columns [][2]string
	indexes map[string]string
}{
	"lock_record": {
		columns: [][2]string{
			{"namespace", "varbinary(32)"}, {"resource_id", "varbinary(64)"}, {"business_id", "varbinary(512)"},
			{"lease_id", "varbinary(128)"}, {"holder_id", "varbinary(512)"}, {"fence", "bigint unsigned"},
			{"epoch", "smallint unsigned"}, {"attempt", "bigint unsigned"}, {"reentrant", "tinyint"},
			{"entries", "mediumblob"}, {"token", "blob"}, {"expire_at", "datetime(6)"}, {"create_time", "datetime(6)"},
		},
		indexes: map[string]string{"PRIMARY": "namespace,resource_id,business_id", "taken": "fence"},
	},
	"lock_member": {
		columns: [][2]string{
			{"namespace", "varbinary(32)"}, {"member", "varbinary(64)"}, {"beat", "bigint unsigned"},
			{"floor", "bigint unsigned"}, {"holds", "int unsigned"}, {"app", "varbinary(64)"},
			{"host", "varbinary(255)"}, {"pid", "bigint"}, {"started_at", "datetime(6)"},
		},
		indexes: map[string]string{"PRIMARY": "namespace,member"},
	},
	"lock_mode": {
		columns: [][2]string{
			{"namespace", "varbinary(32)"}, {"epoch", "smallint unsigned"}, {"phase", "varbinary(8)"}, {"tier", "varbinary(8)"},
			{"incarnation", "varbinary(4096)"}, {"server", "varbinary(512)"}, {"term", "bigint unsigned"},
			{"drift", "smallint unsigned"}, {"reason", "varbinary(512)"}, {"changed_at", "datetime(6)"},
		},
		indexes: map[string]string{"PRIMARY": "namespace"},
	},
	"lock_permit": {
		columns: [][2]string{
			{"namespace", "varbinary(32)"}, {"member", "varbinary(64)"}, {"epoch", "smallint unsigned"},
			{"acked_epoch", "smallint unsigned"}, {"beat", "bigint unsigned"}, {"redis_down", "tinyint"}, {"redis_up", "tinyint"},
			{"incarnation", "varbinary(4096)"}, {"digest", "varbinary(4600)"}, {"digest_sum", "varbinary(32)"}, {"app", "varbinary(64)"},
			{"host", "varbinary(255)"}, {"pid", "bigint"}, {"seen_at", "datetime(6)"},
		},
		indexes: map[string]string{"PRIMARY": "namespace,member"},
	},
}

// Migrate creates the tables where they are missing, which takes the right to
// CREATE, and then checks them: it names each column that is missing or of
// another type, each missing index, and a storage engine without transactions.
// It alters no table that exists. Nothing else in the package runs DDL.
//
// It is bounded by ctx, and by a minute. The error matches
// [tierlock.ErrMisconfigured] where a table is not as it has to be.
func (s *Store) Migrate(ctx context.Context) error {
	if s.wrong != nil {
		return fmt.Errorf("mysqlstore: migrate: %w", s.wrong)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var problems []string
	for _, table := range tables {
		// Where the table exists, the right to create one is not needed.
		found, err := s.problems(ctx, table.name)
		if err == nil && found == nil {
			continue
		}
		if len(found) > 0 && found[0] == noTable {
			if _, err = s.db.ExecContext(ctx, table.ddl); err == nil {
				found, err = s.problems(ctx, table.name)
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				err = contract.Ended(ctx)
			}
			return fmt.Errorf("mysqlstore: migrate: table %s: %w", table.name, classed(err))
		}
		for _, p := range found {
			problems = append(problems, "table "+table.name+": "+p)
		}
	}
	if problems != nil {
		return fmt.Errorf("mysqlstore: migrate: %w", misfit("%s (compare with Schema)", strings.Join(problems, "; ")))
	}
	return nil
}

const noTable = "does not exist"

// problems compares a table with what is wanted.
func (s *Store) problems(ctx context.Context, table string) ([]string, error) {
	engine := []string(nil)
	if err := s.db.SelectContext(ctx, &engine, "SELECT COALESCE(engine, '') FROM information_schema.tables "+
		"WHERE table_schema = DATABASE() AND table_name = '"+table+"' LIMIT 1"); err != nil {
		return nil, err
	}
	if len(engine) == 0 {
		return []string{noTable}, nil
	}
	var problems []string
	if !strings.EqualFold(engine[0], "InnoDB") {
		problems = append(problems, fmt.Sprintf("engine is %s, wanted InnoDB", engine[0]))
	}
	var columns []struct {
		Name     string `db:"name"`
		Type     string `db:"type"`
		Nullable bool   `db:"nullable"`
		Needed   bool   `db:"needed"`
	}
	// A session may have a limit of its own, to rows and to the length of a list.
	if err := s.db.SelectContext(ctx, &columns, "SELECT column_name AS name, column_type AS type, is_nullable='YES' AS nullable, "+
		"is_nullable = 'NO' AND column_default IS NULL AND extra='' OR extra LIKE '%auto_increment%' AS needed "+
		"FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = '"+table+"' LIMIT 10000"); err != nil {
		return nil, err
	}
	have, nullable := make(map[string]string), make(map[string]bool)
	for _, c := range columns {
		name := strings.ToLower(c.Name)
		have[name], nullable[name] = strings.ToLower(c.Type), c.Nullable
	}
	for _, c := range wanted[table].columns {
		switch got, ok := have[c[0]]; {
		case !ok:
			problems = append(problems, "column "+c[0]+" is missing")
		case !sameType(got, c[1]):
			problems = append(problems, fmt.Sprintf("column %s is %s, wanted %s", c[0], withoutWidth(got), c[1]))
		case c[0] == "entries" && !nullable[c[0]]: // NULL tells the kinds of holds apart
			problems = append(problems, "column entries is NOT NULL, wanted NULL")
		}
		delete(have, c[0])
	}
	for _, c := range columns {
		// One that nobody fills in would refuse every row, and one that counts
		// would take the number that comes with an answer.
		if _, extra := have[strings.ToLower(c.Name)]; extra && c.Needed {
			problems = append(problems, "column "+c.Name+" is not of this schema, and is NOT NULL without a default, or AUTO_INCREMENT")
		}
	}
	var parts []struct {
		Index  string `db:"name"`
		Column string `db:"part"`
		Prefix bool   `db:"prefix"`
		Plain  bool   `db:"plain"`
	}
	if err := s.db.SelectContext(ctx, &parts, "SELECT index_name AS name, COALESCE(LOWER(column_name),'') AS part, sub_part IS NOT NULL AS prefix, "+
		"non_unique AS plain FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = '"+table+"' ORDER BY index_name, seq_in_index LIMIT 10000"); err != nil {
		return nil, err
	}
	type index struct {
		Name, Columns string
		Plain         bool
	}
	var keys []index
	for _, p := range parts {
		if p.Prefix {
			p.Column += " (in part)" // keys that begin alike would be one lock
		}
		if n := len(keys); n > 0 && keys[n-1].Name == p.Index {
			keys[n-1].Columns += "," + p.Column
			continue
		}
		keys = append(keys, index{p.Index, p.Column, p.Plain})
	}
	for name, want := range wanted[table].indexes {
		found := ""
		for _, k := range keys {
			if k.Columns == want && (name != "PRIMARY" || k.Name == name) {
				found = k.Name
			}
		}
		if found == "" {
			problems = append(problems, fmt.Sprintf("index %s (%s) is missing", name, want))
		}
	}
	for _, k := range keys {
		// A further unique key is a second row to wait for: deadlocks.
		if !k.Plain && k.Name != "PRIMARY" {
			problems = append(problems, fmt.Sprintf("index %s is unique, wanted none but the primary key", k.Name))
		}
	}
	return problems, nil
}

// sameType compares two column types. The display width of an integer says
// nothing, and MySQL 8 does not show it.
func sameType(a, b string) bool { return withoutWidth(a) == withoutWidth(b) }

func withoutWidth(t string) string {
	name, rest, ok := strings.Cut(t, "(")
	if name == "blob" {
		return name // MariaDB shows one under sql_mode ORACLE
	}
	if !ok || !strings.HasSuffix(name, "int") {
		return t
	}
	_, rest, _ = strings.Cut(rest, ")")
	return name + rest
}
