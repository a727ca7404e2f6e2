//go:build unix

package load_test

import (
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"testing"

	"github.com/tierlock/tierlock/bench/internal/load"
	"github.com/tierlock/tierlock/internal/rig"
)

func TestMain(m *testing.M) {
	roles := map[string]func(args []string){"intruder": intrude}
	maps.Copy(roles, load.Roles())
	rig.Main(m, roles)
}

// intrude goes inside a guard and does not come out until it is told.
func intrude(args []string) {
	g, err := load.OpenGuard(args[0])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	atomic.AddInt32(g.Inside(), 1)
	fmt.Println("inside")
	var word string
	fmt.Scan(&word)
	atomic.AddInt32(g.Inside(), -1)
	fmt.Println("outside")
}
