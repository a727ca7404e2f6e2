package mysqlstore_test

import (
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/storetest"
)

// Whatever the session of a connection is like, the contract is the same; also with
// the statements that MySQL gets, here from a server that says that it is one.
func TestConformance(t *testing.T) {
	maria, other := rig.MariaDB(t), rig.MariaDB(t, "--version=8.0.36")
	migrate(t, maria)
	migrate(t, other)
	for _, mode := range []struct {
		name   string
		srv    *rig.MariaDBServer
		params string
		again  bool // each lock is taken as if its row were there
	}{
		{"plain", maria, "", false},
		{"again", maria, "", true},
		{"again, as MySQL", other, "innodb_lock_wait_timeout=1", true},
		{"as MySQL", other, "innodb_lock_wait_timeout=1", false},
		{"found rows, elsewhere", maria, "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27", true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{NoPush: true, Open: func(t *testing.T) tierlock.Store {
					s := open(t, mode.srv.DSN(mode.params), calm)
					if mode.again {
						s.RetakeAlways()
					}
					return s
				}}
			})
		})
	}
}

// As a store of a chain, too.
func TestChainConformance(t *testing.T) {
	maria, other := rig.MariaDB(t), rig.MariaDB(t, "--version=8.0.36")
	migrate(t, maria)
	migrate(t, other)
	for _, mode := range []struct {
		name   string
		srv    *rig.MariaDBServer
		params string
		always bool // even a call that is alone goes by the statement for several
		again  bool // each lock is taken as if its row were there
	}{
		{"plain", maria, "", false, false},
		{"together", maria, "", true, false},
		{"again", maria, "", false, true},
		{"as MySQL", other, "innodb_lock_wait_timeout=1", false, false},
		{"found rows, elsewhere", maria, "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27", false, true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			storetest.RunChain(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{NoPush: true, Open: func(t *testing.T) tierlock.Store {
					s := open(t, mode.srv.DSN(mode.params), calm)
					if mode.always {
						s.GatherAlways()
					}
					if mode.again {
						s.RetakeAlways()
					}
					return s
				}}
			})
		})
	}
}

// And as the arbiter of a chain.
func TestArbiterConformance(t *testing.T) {
	maria, other := rig.MariaDB(t), rig.MariaDB(t, "--version=8.0.36")
	migrate(t, maria)
	migrate(t, other)
	for _, mode := range []struct {
		name   string
		srv    *rig.MariaDBServer
		params string
	}{
		{"plain", maria, ""},
		{"as MySQL", other, "innodb_lock_wait_timeout=1"},
		{"found rows, elsewhere", maria, "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			storetest.RunArbiter(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{NoPush: true, Open: func(t *testing.T) tierlock.Store {
					return open(t, mode.srv.DSN(mode.params), calm)
				}}
			})
		})
	}
}
