package tests_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// scaleReport is what ./scale says after each step.
type scaleReport struct {
	Step       string
	Took       time.Duration
	Goroutines int
	Heap       int64
	Errors     []string
}

// scaleProcess is ./scale, compiled without the race detector, which would make
// a million locks take minutes.
type scaleProcess struct {
	t     *testing.T
	stdin io.Writer
	lines chan string
}

func startScale(t *testing.T, args ...string) *scaleProcess {
	t.Helper()
	// So that go test knows that its result depends on that file, too.
	if _, err := os.Stat(filepath.Join("scale", "main.go")); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "scale")
	if out, err := exec.Command("go", "build", "-o", bin, "./scale").CombinedOutput(); err != nil {
		t.Fatalf("go build ./scale: %v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(bg)
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // its end ends the process, too
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &scaleProcess{t: t, stdin: stdin, lines: make(chan string, 16)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = cmd.Wait() // killed, where it had not ended
	})
	return p
}

// step waits for the report of a step.
func (p *scaleProcess) step(name string, within time.Duration) scaleReport {
	p.t.Helper()
	var r scaleReport
	select {
	case line := <-p.lines:
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			p.t.Fatalf("scale wrote %q: %v", line, err)
		}
	case <-time.After(within):
		p.t.Fatalf("scale: step %q has not ended after %v", name, within)
	}
	if r.Step != name {
		p.t.Fatalf("scale: step %q, want %q", r.Step, name)
	}
	for _, e := range r.Errors {
		p.t.Errorf("scale, %s: %s", name, e)
	}
	p.t.Logf("%s: took %v, %d goroutines, heap %d KiB", name, r.Took.Round(time.Millisecond), r.Goroutines, r.Heap>>10)
	return r
}

// next lets it go on.
func (p *scaleProcess) next() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "next\n"); err != nil {
		p.t.Fatal(err)
	}
}

const (
	// idleCallers is how many goroutines a store keeps for calls to come. They
	// end with it.
	idleCallers = 256
	// scaleSteps bounds each step, on a busy machine.
	scaleSteps = 3 * time.Minute
)

// Scenario 56: 5,000 keys are waited for at once. When the waits are cancelled,
// and again when they end with the lock, no subscription and no goroutine is
// left.
func TestThousandsOfKeysWaitedFor(t *testing.T) {
	t.Parallel()
	const keys = 5000
	srv := rig.Redis(t)
	channels := func() int {
		return len(srv.Do("PUBSUB", "SHARDCHANNELS").([]any)) + len(srv.Do("PUBSUB", "CHANNELS").([]any))
	}
	p := startScale(t, "waiters", srv.Addr, fmt.Sprint(keys))
	base := p.step("held", scaleSteps)
	for _, round := range []string{"cancelled", "released"} {
		p.next()
		if r := p.step("waiting", scaleSteps); r.Goroutines < keys {
			t.Errorf("%d goroutines for %d waits", r.Goroutines, keys)
		}
		rig.Eventually(t, scaleSteps, "all are subscribed", func() bool { return channels() == keys+1 })
		p.next()
		r := p.step(round, scaleSteps)
		if r.Goroutines > base.Goroutines+2*idleCallers { // of two stores
			t.Errorf("%s: %d goroutines, before %d", round, r.Goroutines, base.Goroutines)
		}
		// One wait goes on, so it is not just that the connection has ended.
		rig.Eventually(t, patience, round+": no other subscription is left", func() bool { return channels() == 1 })
	}
	if n := len(srv.Do("KEYS", "lock:*}").([]any)); n != 1 {
		t.Errorf("%d locks are left, want the one", n)
	}
	p.next()
	if r := p.step("closed", scaleSteps); r.Goroutines > 1 {
		t.Errorf("%d goroutines when all is closed", r.Goroutines)
	}
	if n := channels(); n != 0 {
		t.Errorf("%d subscriptions when all is closed", n)
	}
}

// slotsOfCluster is how many slots there are, also where there is no Cluster.
const slotsOfCluster = 1 << 14

// A million keys are locked and released once each. Nothing has grown with them:
// not the process's heap, not its goroutines, and in Redis there are the fence
// records of the slots, for another minute at the longest.
func TestAMillionKeys(t *testing.T) {
	t.Parallel()
	keys := 1_000_000
	if testing.Short() {
		keys = 100_000
	}
	srv := rig.Redis(t)
	p := startScale(t, "locks", srv.Addr, fmt.Sprint(keys))
	warm := p.step("warm", scaleSteps)
	memory := func() int64 {
		var n int64
		for line := range strings.Lines(srv.Text("INFO", "memory")) {
			if _, err := fmt.Sscanf(line, "used_memory:%d", &n); err == nil {
				return n
			}
		}
		t.Fatal("INFO memory has no used_memory")
		return 0
	}
	srv.Do("FLUSHALL") // the records of the first few, to have something to come back to
	before := memory()
	p.next()
	done := p.step("done", 2*scaleSteps)
	t.Logf("%.0f locks a second; then %d keys and %d KiB in Redis, before %d KiB", float64(keys)/done.Took.Seconds(),
		srv.Int("DBSIZE"), memory()>>10, before>>10)
	// A map with an entry for each key would have 50 MB of keys alone.
	if grown := int64(done.Heap) - int64(warm.Heap); grown > 2<<20 {
		t.Errorf("the heap has grown by %d bytes over %d keys", grown, keys)
	}
	if done.Goroutines > warm.Goroutines+idleCallers {
		t.Errorf("%d goroutines, before %d", done.Goroutines, warm.Goroutines)
	}
	// Whatever is there is a record of a slot, and the last has a minute to live.
	// The script gives the least and the longest time to live, and what is no record.
	left := srv.Do("EVAL", `local least, most, other = 1e9, 0, 0
		for _, key in ipairs(redis.call('KEYS', '*')) do
			local ms = redis.call('PTTL', key)
			least, most = math.min(least, ms), math.max(most, ms)
			if string.sub(key, -6) ~= ':fence' then other = other + 1 end
		end
		return {least, most, other}`, "0").([]any)
	if n := srv.Int("DBSIZE"); n == 0 || n > slotsOfCluster {
		t.Errorf("%d records: without any this test proves nothing, and there is one a slot", n)
	}
	if left[0].(int64) < 0 || left[1].(int64) > 62_000 || left[2].(int64) != 0 {
		t.Errorf("what is left lives for %d to %d ms, and %d are no records", left...)
	}
	p.next()
	if r := p.step("closed", scaleSteps); r.Goroutines > 1 {
		t.Errorf("%d goroutines when all is closed", r.Goroutines)
	}
	// They expire by Redis' own doing; what they took comes back with them.
	srv.Do("FLUSHALL")
	rig.Eventually(t, patience, "Redis has its memory back", func() bool { return memory() < before+1<<20 })
}
