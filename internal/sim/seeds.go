package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// RunSeeds runs a simulation, each seed in a subtest: the one given, or if that is 0
// all that are kept in dir and n at random. run says what was wrong, and what came
// before it. A seed that fails is kept in dir, as a file of that name; what is to be
// found again has to be committed. repeat is the command to run one, but for the
// seed.
func RunSeeds(t *testing.T, dir string, one uint64, n int, repeat string, run func(t *testing.T, seed uint64) (wrong, before []string)) {
	t.Helper()
	seeds := []uint64{one}
	if one == 0 {
		files, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		seeds = nil
		for _, f := range files {
			seed, err := strconv.ParseUint(f.Name(), 10, 64)
			if err != nil {
				t.Fatalf("%s: wanted a seed as the name: %v", filepath.Join(dir, f.Name()), err)
			}
			seeds = append(seeds, seed)
		}
		for range n {
			seeds = append(seeds, rand.Uint64N(1_000_000_000)+1)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			wrong, before := run(t, seed)
			if len(wrong) == 0 {
				return
			}
			for _, line := range before {
				t.Log(line)
			}
			for _, v := range wrong {
				t.Error(v)
			}
			t.Logf("to repeat: %s %d", repeat, seed)
			if err := keep(dir, seed); err != nil {
				t.Logf("the seed could not be kept: %v", err)
			}
		})
	}
}

func keep(dir string, seed uint64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strconv.FormatUint(seed, 10)), nil, 0o666)
}
