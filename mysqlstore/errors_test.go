package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// grants are the rights that the documentation asks for.
const grants = "GRANT SELECT, INSERT, UPDATE, DELETE ON tierlock.lock_record TO app@'127.0.0.1';" +
	"GRANT SELECT, INSERT, UPDATE, DELETE ON tierlock.lock_member TO app@'127.0.0.1';" +
	"GRANT SELECT, INSERT, UPDATE ON tierlock.lock_mode TO app@'127.0.0.1';" +
	"GRANT SELECT, INSERT, UPDATE, DELETE ON tierlock.lock_permit TO app@'127.0.0.1'"

// appDSN is the DSN of a user with these rights and no more.
func appDSN(dsn string) string { return strings.Replace(dsn, "root@", "app:secret@", 1) }

// every calls each method for a key that is free, and gives their errors.
func every(s tierlock.Store) map[string]error {
	errs := make(map[string]error)
	_, errs["acquire"] = s.Acquire(background, ask("every", newLease(), patience))
	_, errs["explicit acquire"] = s.Acquire(background, askAs("h", "every as", newLease(), patience))
	errs["renew"] = s.Renew(background, []tierlock.RenewRequest{{Name: name("every"), Lease: "none", TTL: patience}})[0].Err
	_, errs["release"] = s.Release(background, drop("every", "none"))
	_, errs["inspect"] = s.Inspect(background, name("every"))
	return errs
}

// A setting that is wrong is told as one, with what to do about it, by every
// call, and is no outage. When it has been set right, the same store works.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret';"+grants)
	dsn := appDSN(srv.DSN(""))
	for _, c := range []struct {
		what, dsn    string
		spoil, mend  string
		only         string // the call that notices it, "" for each
		says         []string
		needsNewPool bool
	}{
		{what: "wrong password", dsn: strings.Replace(dsn, "secret", "wrong", 1), says: []string{"1045", "Access denied"}},
		{what: "no such user", dsn: strings.Replace(dsn, "app", "nobody", 1), says: []string{"1045"}},
		{what: "no such database", dsn: strings.Replace(srv.DSN(""), "/tierlock", "/nothing", 1), says: []string{"1049", "nothing"}},
		{what: "no database", dsn: strings.Replace(srv.DSN(""), "/tierlock", "/", 1), says: []string{"1046"}},
		{what: "missing table", dsn: srv.DSN(""), spoil: "RENAME TABLE lock_record TO away", mend: "RENAME TABLE away TO lock_record",
			says: []string{"1146", "lock_record", "Migrate"}},
		{what: "missing column", dsn: srv.DSN(""), spoil: "ALTER TABLE lock_record RENAME COLUMN attempt TO tries",
			mend: "ALTER TABLE lock_record RENAME COLUMN tries TO attempt", says: []string{"1054", "attempt", "Migrate"}},
		{what: "missing column that is written only", dsn: srv.DSN(""), spoil: "ALTER TABLE lock_record RENAME COLUMN create_time TO born",
			mend: "ALTER TABLE lock_record RENAME COLUMN born TO create_time", only: "acquire", says: []string{"1054", "create_time", "Migrate"}},
		{what: "a column of somebody else's", dsn: srv.DSN(""), spoil: "ALTER TABLE lock_record ADD COLUMN extra BLOB NOT NULL",
			mend: "ALTER TABLE lock_record DROP COLUMN extra", only: "acquire", says: []string{"1364", "extra", "Migrate"}},
		{what: "entries must not be null", dsn: srv.DSN(""), spoil: "DELETE FROM lock_record; ALTER TABLE lock_record MODIFY entries MEDIUMBLOB NOT NULL",
			mend: "ALTER TABLE lock_record MODIFY entries MEDIUMBLOB NULL", only: "acquire", says: []string{"1048", "entries", "Migrate"}},
		{what: "short column", dsn: srv.DSN(""), spoil: "DELETE FROM lock_record; ALTER TABLE lock_record MODIFY lease_id VARBINARY(8) NOT NULL",
			mend: "ALTER TABLE lock_record MODIFY lease_id VARBINARY(128) NOT NULL", only: "acquire", says: []string{"1406", "lease_id", "Migrate"}},
		{what: "no INSERT", dsn: dsn, spoil: "REVOKE INSERT ON tierlock.lock_record FROM app@'127.0.0.1'", mend: grants,
			only: "acquire", says: []string{"1142", "INSERT", "DELETE on lock_record"}},
		{what: "no UPDATE", dsn: dsn, spoil: "REVOKE UPDATE ON tierlock.lock_record FROM app@'127.0.0.1'", mend: grants,
			only: "release", says: []string{"1142", "UPDATE", "DELETE on lock_record"}},
		{what: "no SELECT", dsn: dsn, spoil: "REVOKE SELECT ON tierlock.lock_record FROM app@'127.0.0.1'", mend: grants,
			only: "inspect", says: []string{"SELECT", "DELETE on lock_record"}},
		{what: "autocommit is off", dsn: srv.DSN("autocommit=0"), says: []string{"autocommit is off", "DSN"}},
		{what: "names would be converted", dsn: srv.DSN("character_set_connection=latin1"), says: []string{"character_set_connection", "DSN"}},
		{what: "unknown variable in the DSN", dsn: srv.DSN("no_such_variable=1"), says: []string{"1193", "no_such_variable"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := open(t, c.dsn, calm)
			if c.spoil != "" {
				for what, err := range every(s) {
					if err != nil {
						t.Fatalf("before it is spoilt: %s: %v", what, err)
					}
				}
				execute(t, db, c.spoil)
			}
			for what, err := range every(s) {
				if c.only == "" || what == c.only {
					wantClass(t, what, err, tierlock.ErrMisconfigured, c.says...)
				}
			}
			if c.spoil != "" {
				execute(t, db, c.mend)
				for what, err := range every(s) {
					if err != nil && !strings.Contains(err.Error(), "held") {
						t.Errorf("after it was mended: %s: %v", what, err)
					}
				}
			}
		})
		execute(t, db, "UPDATE lock_record SET expire_at='2000-01-01'")
	}
}

// Servers on which the statements would not be right are refused.
func TestServersThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		option string
		says   []string
	}{
		{"--sysdate-is-now", []string{"SYSDATE", "sysdate-is-now"}},
		{"--version=5.5.5-10.5.29-MariaDB", []string{"10.5.29", "10.6"}},
		{"--version=8.0.18", []string{"8.0.18", "8.0.19"}},
		{"--version=5.7.44-log", []string{"5.7.44", "8.0.19"}},
		{"--init-connect=SET autocommit=0", nil},
	} {
		t.Run(c.option, func(t *testing.T) {
			srv := migrated(t, c.option)
			s := open(t, srv.DSN(""), calm)
			if c.says == nil { // it does not hold for root
				db := admin(t, srv)
				execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret';"+grants)
				s, c.says = open(t, appDSN(srv.DSN("")), calm), []string{"autocommit is off", "init_connect"}
			}
			for what, err := range every(s) {
				wantClass(t, what, err, tierlock.ErrMisconfigured, c.says...)
			}
		})
	}
}

// A nil pool and bad options are told by every call.
func TestBadConstruction(t *testing.T) {
	t.Parallel()
	for what, s := range map[string]*mysqlstore.Store{
		"the pool is nil": mysqlstore.New(nil, mysqlstore.Options{}),
		"pool is nil":     mysqlstore.New(&sqlx.DB{}, mysqlstore.Options{}),
		"CallTimeout":     mysqlstore.New(&sqlx.DB{}, mysqlstore.Options{CallTimeout: -1}),
		"MaxCalls":        mysqlstore.New(&sqlx.DB{}, mysqlstore.Options{MaxCalls: -1}),
	} {
		for call, err := range every(s) {
			wantClass(t, call, err, tierlock.ErrMisconfigured, what)
		}
		wantClass(t, "migrate", s.Migrate(background), tierlock.ErrMisconfigured, what)
		s.Close()
	}
}

// A closed store says so, by every call.
func TestClosed(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s := open(t, srv.DSN(""), calm)
	mustInspect(t, s, "k")
	s.Close()
	s.Close()
	for call, err := range every(s) {
		wantClass(t, call, err, tierlock.ErrUnavailable, "closed")
	}
}

// The server is there and refuses: unavailable, never "held" or misconfigured;
// and when it no longer does, the same store works.
func TestServerRefusesForNow(t *testing.T) {
	t.Parallel()
	const most = 12
	srv := migrated(t, fmt.Sprint("--max-connections=", most))
	db := admin(t, srv)
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret';"+grants)
	for _, c := range []struct {
		what     string
		params   string
		begin    func(t *testing.T) (end func())
		newConns bool // only new connections are refused
		reads    bool // reads go on
		says     string
	}{
		{what: "read only", reads: true, says: "1290", begin: func(t *testing.T) func() {
			execute(t, db, "SET GLOBAL read_only=1")
			return func() { execute(t, db, "SET GLOBAL read_only=0") }
		}},
		{what: "too many connections", newConns: true, says: "1040", begin: func(t *testing.T) func() {
			before := sessions(t, db)
			others := pool(t, srv.DSN(""))
			var open []interface{ Close() error }
			for {
				conn, err := others.Conn(background)
				if err != nil {
					break
				}
				open = append(open, conn)
			}
			return func() {
				for _, c := range open {
					c.Close()
				}
				others.Close()
				untilLeft(t, db, before)
			}
		}},
		{what: "too many connections of the user", newConns: true, says: "1226", begin: func(t *testing.T) func() {
			execute(t, db, "ALTER USER app@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1")
			before := sessions(t, db)
			other := pool(t, appDSN(srv.DSN("")))
			conn, err := other.Conn(background)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				conn.Close()
				other.Close()
				untilLeft(t, db, before)
				execute(t, db, "ALTER USER app@'127.0.0.1' WITH MAX_USER_CONNECTIONS 0")
			}
		}},
		{what: "a locked table", says: "", begin: func(t *testing.T) func() {
			conn, err := db.Conn(background)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, conn, "LOCK TABLES lock_record WRITE")
			return func() { execute(t, conn, "UNLOCK TABLES"); conn.Close() }
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := pool(t, appDSN(srv.DSN(c.params)))
			s := mysqlstore.New(p, mysqlstore.Options{CallTimeout: 4 * time.Second})
			t.Cleanup(s.Close)
			inspectSoon(t, s, "k")
			lease := newLease()
			mustAcquire(t, s, ask("held", lease, time.Hour))
			if c.newConns {
				p.SetMaxIdleConns(0) // which closes those that there are
			}
			end := c.begin(t)
			for what, err := range every(s) {
				if c.reads && what == "inspect" {
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
					continue
				}
				wantClass(t, what, err, tierlock.ErrUnavailable, c.says)
			}
			_, err := s.Acquire(background, ask("held", newLease(), patience))
			wantClass(t, "acquire of a held lock", err, tierlock.ErrUnavailable)
			end()
			mustRelease(t, open(t, srv.DSN(""), calm), drop("held", lease), tierlock.LeaseOwned)
			mustAcquire(t, s, ask("afterwards/"+c.what, newLease(), patience))
			for what, err := range every(s) {
				if err != nil {
					t.Errorf("afterwards: %s: %v", what, err)
				}
			}
		})
		execute(t, db, "UPDATE lock_record SET expire_at='2000-01-01'")
	}
}

// sessions is how many connections the server knows of. It may be behind with those that
// were closed.
func sessions(t *testing.T, db *sql.DB) int64 {
	t.Helper()
	return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist")
}

func untilLeft(t *testing.T, db *sql.DB, before int64) {
	t.Helper()
	rig.Eventually(t, patience, "the closed connections have ended", func() bool { return sessions(t, db) <= before })
}
