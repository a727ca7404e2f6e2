package mysqlstore_test

import (
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m, nil) }
