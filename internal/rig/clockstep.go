package rig

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed preload/clockstep.c
var clockstepC []byte

// WallClock is the wall clock of one server process, which the test can step.
// Its monotonic clock stays as it is, as on a machine whose clock was set. A wait
// until a time of the wall clock that is under way at a step ends when it would
// have; on such a machine it would notice.
type WallClock struct {
	t    testing.TB
	file *os.File
	off  time.Duration
	env  []string // starts a process on this clock
}

// RedisWithClock is [Redis] with a wall clock of its own. It compiles a small
// library that the server is started with, so it needs a C compiler, as the
// race detector does; the test fails where there is none.
func RedisWithClock(t testing.TB, args ...string) (*RedisServer, *WallClock) {
	t.Helper()
	c := newWallClock(t)
	s := newRedis("redis-server", args...)
	s.env = c.env
	return startRedis(t, s, nil), c
}

func newWallClock(t testing.TB) *WallClock {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Fatalf("rig: no C compiler; install one with `apt-get install gcc libc6-dev` (%v)", err)
	}
	dir := t.TempDir()
	source, library, offset := filepath.Join(dir, "clockstep.c"), filepath.Join(dir, "clockstep.so"), filepath.Join(dir, "offset")
	if err := os.WriteFile(source, clockstepC, 0o600); err != nil {
		t.Fatalf("rig: %v", err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("rig: compiling the clock: %v\n%s", err, out)
	}
	c := &WallClock{t: t, env: []string{"LD_PRELOAD=" + library, "RIG_CLOCK=" + offset}}
	if c.file, err = os.Create(offset); err != nil {
		t.Fatalf("rig: %v", err)
	}
	t.Cleanup(func() { c.file.Close() })
	c.set(0)
	return c
}

// Step sets the server's clock forward by d, or back where d is negative. It
// may be called while the server runs, from one goroutine at a time.
func (c *WallClock) Step(d time.Duration) {
	c.t.Helper()
	c.off += d
	c.set(c.off)
}

func (c *WallClock) set(d time.Duration) {
	c.t.Helper()
	// One write of eight aligned bytes: the server sees the old or the new.
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d.Nanoseconds())), 0); err != nil {
		c.t.Fatalf("rig: %v", err)
	}
}
