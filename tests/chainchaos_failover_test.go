package tests_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// hardPause is how long nothing exclusive is given after a failover of the arbiter: as
// long as any permit may last, and a minute.
var hardPause = switchWait + time.Minute

func failsOver(s step) bool { return s.What == failOverMySQL }

// replicated starts a MySQL with a semi-synchronous replica, which has whatever a
// client has been told of.
func replicated(t *testing.T) (primary, replica *rig.MariaDBServer) {
	t.Helper()
	binlog := []string{"--log-bin=binlog", "--binlog-format=MIXED"}
	primary = rig.MariaDB(t, append(binlog, "--server-id=1", "--rpl-semi-sync-master-enabled=1",
		"--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-wait-no-slave=0", "--rpl-semi-sync-master-timeout=3600000")...)
	replica = rig.MariaDB(t, append(binlog, "--server-id=2", "--rpl-semi-sync-slave-enabled=1")...)
	db := mysqlPool(t, primary.DSN(""))
	for _, q := range []string{"CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'secret'", "GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'", "RESET MASTER"} {
		execSQL(t, db, q)
	}
	to := mysqlPool(t, replica.DSN(""))
	for _, q := range []string{"SET GLOBAL read_only=1", fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='repl',"+
		" MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1", primary.Port), "START SLAVE"} {
		execSQL(t, to, q)
	}
	following(t, db.DB)
	if err := openMySQL(t, primary.DSN(""), mysqlstore.Options{}).Migrate(bg); err != nil {
		t.Fatal(err)
	}
	return primary, replica
}

// following waits until the primary waits for its replica at each commit.
func following(t *testing.T, db *sql.DB) {
	t.Helper()
	rig.Eventually(t, patience, "the replica follows", func() bool {
		var name, status string
		err := db.QueryRow("SHOW STATUS LIKE 'Rpl_semi_sync_master_status'").Scan(&name, &status)
		return err == nil && status == "ON"
	})
}

// failOver ends the primary, whatever it was doing, and sends everybody to its replica.
func (s *chainStage) failOver() {
	t := s.t
	t.Helper()
	if s.mysqlDown { // what it had not replicated when it was killed comes first
		s.mysql.Start()
		s.mysqlDown = false
	}
	s.mysql.Resume()
	following(t, s.db)
	s.mysql.Kill()
	db := mysqlPool(t, s.replica.DSN("")).DB
	execSQL(t, db, "STOP SLAVE IO_THREAD")
	rig.Eventually(t, patience, "the replica has executed what it has", func() bool { return executed(t, db) })
	for _, q := range []string{"STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only=0"} {
		execSQL(t, db, q)
	}
	s.mysql, s.replica = s.replica, nil
	for _, p := range append(s.toMySQL(), s.past) {
		p.Aim(s.mysql.Addr)
		p.Cut()
	}
}

// executed reports whether a replica has executed all that it was sent.
func executed(t *testing.T, db *sql.DB) bool {
	rows, err := db.Query("SHOW SLAVE STATUS")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatalf("the replica is none: %v", err)
	}
	values, row := make([]sql.NullString, len(names)), map[string]string{}
	to := make([]any, len(names))
	for i := range values {
		to[i] = &values[i]
	}
	if err := rows.Scan(to...); err != nil {
		t.Fatal(err)
	}
	for i, n := range names {
		row[n] = values[i].String
	}
	return row["Read_Master_Log_Pos"] == row["Exec_Master_Log_Pos"] && row["Master_Log_File"] == row["Relay_Master_Log_File"]
}

func (s *chainStage) toMySQL() (all []*rig.Proxy) {
	for i := range chainProcesses {
		all = append(all, s.links[chainLink(i, 1)]...)
	}
	return all
}
