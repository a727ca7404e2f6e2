package mysqlstore_test

import (
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/storetest"
)

// Whatever the session of a connection is like, the contract is the same.
func TestConformance(t *testing.T) {
	srv := rig.MariaDB(t)
	migrate(t, srv)
	for _, mode := range []struct{ name, params string }{
		{"plain", ""},
		{"found rows, elsewhere", "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{NoPush: true, Open: func(t *testing.T) tierlock.Store {
					return open(t, srv.DSN(mode.params), calm)
				}}
			})
		})
	}
}
