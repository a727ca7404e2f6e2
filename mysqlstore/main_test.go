package mysqlstore_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestMain(m *testing.M) {
	// Broken connections are what most tests here make.
	_ = mysql.SetLogger(&mysql.NopLogger{}) // fails for nil only
	rig.Main(m, nil)
}
