package tests_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// README.md names only tests that there are, and lists each scenario of the
// groups B, C, D, H and I once.
func TestIndexOfScenarios(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z_/]+_test\\.go):(Test[A-Za-z]+)`").FindAllStringSubmatch(string(readme), -1)
	if len(named) < 50 {
		t.Errorf("README.md names %d tests only", len(named))
	}
	for _, m := range named {
		code, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(m[1])))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(code), "\nfunc "+m[2]+"(") {
			t.Errorf("README.md names %s in %s, which has no such test", m[2], m[1])
		}
	}
	rows := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([0-9, ]+) \|`).FindAllStringSubmatch(string(readme), -1) {
		for _, n := range strings.Split(m[1], ", ") {
			rows[n]++
		}
	}
	for _, n := range strings.Fields("14 16 17 18 19 21 23 24 25 27 28 29 30 31 32 34 35 36 38 40 41 42 44 45 46 47 49 50 51 52 83 85 86 89 91 94 95 96 97 100 102 103 105") {
		if rows[n] != 1 {
			t.Errorf("README.md has %d rows of scenario %s", rows[n], n)
		}
	}
}
