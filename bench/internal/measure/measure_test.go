//go:build unix

package measure_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/bench/internal/measure"
	"github.com/tierlock/tierlock/internal/rig"
)

const info = "# Commandstats\r\n" +
	"cmdstat_evalsha:calls=10,usec=300,usec_per_call=30.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_eval:calls=2,usec=50,usec_per_call=25.00,rejected_calls=0,failed_calls=1\r\n" +
	"cmdstat_set:calls=12,usec=24,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_client|setinfo:calls=3,usec=3,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_info:calls=4,usec=400,usec_per_call=100.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_flushall:calls=1,usec=400,usec_per_call=400.00,rejected_calls=0,failed_calls=0\r\n" +
	"# CPU\r\n" +
	"used_cpu_sys:1.250000\r\nused_cpu_user:2.500000\r\n" +
	"used_cpu_sys_children:7.000000\r\nused_cpu_user_children:7.000000\r\n" +
	"used_cpu_sys_main_thread:1.200000\r\nused_cpu_user_main_thread:2.400000\r\n"

func TestParseServer(t *testing.T) {
	s, err := measure.ParseServer(info)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3750 * time.Millisecond; s.CPU != want {
		t.Errorf("CPU %v, want %v", s.CPU, want)
	}
	if want := 350 * time.Microsecond; s.Scripts != want {
		t.Errorf("in scripts %v, want %v", s.Scripts, want)
	}
	if got, want := s.Total(), int64(10+2+12+3); got != want {
		t.Errorf("%d commands, want %d: all but the benchmark's own", got, want)
	}
	if got := s.Commands["client|setinfo"]; got != 3 {
		t.Errorf("client|setinfo %d, want 3", got)
	}
	later := strings.NewReplacer("evalsha:calls=10,usec=300", "evalsha:calls=15,usec=420",
		"used_cpu_user:2.5", "used_cpu_user:3.0").Replace(info)
	l, err := measure.ParseServer(later)
	if err != nil {
		t.Fatal(err)
	}
	d := l.Sub(s)
	if d.CPU != 500*time.Millisecond || d.Scripts != 120*time.Microsecond || d.Total() != 5 {
		t.Errorf("the difference is %+v, want 500ms, 120µs and 5 commands", d)
	}
}

func TestParseServerRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no CPU":         strings.ReplaceAll(info, "used_cpu", "other"),
		"no number":      strings.ReplaceAll(info, "calls=12", "calls=many"),
		"no calls":       strings.ReplaceAll(info, "calls=12,", ""),
		"no usec":        strings.ReplaceAll(info, "usec=24,", ""),
		"CPU, no number": strings.ReplaceAll(info, "1.250000", "x"),
		"nothing":        "",
	} {
		if s, err := measure.ParseServer(text); err == nil {
			t.Errorf("%s: got %+v, want an error", name, s)
		}
	}
}

// What a real server says is what was done there.
func TestServerOfARealServer(t *testing.T) {
	srv := rig.Redis(t)
	read := func() measure.Server {
		t.Helper()
		s, err := measure.ParseServer(srv.Text("INFO", "commandstats") + srv.Text("INFO", "cpu"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := read()
	srv.Do("FLUSHALL")
	srv.Do("SET", "a", "b")
	srv.Do("EVAL", "for i = 1, 20000 do redis.call('GET', 'a') end", "0")
	d := read().Sub(before)
	if got := d.Total(); got != 20002 {
		t.Errorf("%d commands (%v), want SET, EVAL, and 20000 GET", got, d.Commands)
	}
	if d.Scripts <= 0 || d.CPU <= 0 || d.CPU > time.Minute {
		t.Errorf("in scripts %v, CPU %v, want some of both", d.Scripts, d.CPU)
	}
}

func TestQuantile(t *testing.T) {
	var hundred measure.Latencies
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	hundred = measure.Merge(hundred[:30], hundred[30:])
	for _, c := range []struct {
		of   measure.Latencies
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{measure.Latencies{7}, 0.5, 7}, {measure.Latencies{7}, 0.99, 7}, {measure.Latencies{7}, 1, 7},
		{measure.Latencies{1, 2}, 0.5, 1}, {measure.Latencies{1, 2, 3}, 0.5, 2},
		{hundred, 0, 1}, {hundred, 0.5, 50}, {hundred, 0.501, 51}, {hundred, 0.99, 99}, {hundred, 0.991, 100}, {hundred, 1, 100},
	} {
		if got := c.of.Quantile(c.q); got != c.want {
			t.Errorf("quantile %v of %d samples: %d, want %d", c.q, len(c.of), got, c.want)
		}
	}
}

var sink [][]byte

func TestClient(t *testing.T) {
	before := measure.ReadClient()
	sink = nil
	for range 1000 {
		sink = append(sink, make([]byte, 10_000))
	}
	for spin := time.Now(); measure.ReadClient().Sub(before).CPU < 20*time.Millisecond; {
		if time.Since(spin) > time.Minute {
			t.Fatal("a minute of work is less than 20ms of CPU time")
		}
	}
	d := measure.ReadClient().Sub(before)
	if d.Allocs < 1000 || d.Bytes < 10_000_000 {
		t.Errorf("%d allocations of %d bytes, want at least 1000 of 10,000,000", d.Allocs, d.Bytes)
	}
	if sum := d.Add(d); sum.CPU != 2*d.CPU || sum.Allocs != 2*d.Allocs || sum.Bytes != 2*d.Bytes {
		t.Errorf("twice %+v is %+v", d, sum)
	}
	rss, err := measure.RSS()
	if err != nil {
		t.Fatal(err)
	}
	heap := measure.LiveHeap()
	if heap < 10_000_000 || rss < 10_000_000 {
		t.Errorf("%d bytes of live heap and %d resident, with 10,000,000 in use", heap, rss)
	}
	sink = nil
	if less := measure.LiveHeap(); less > heap-9_000_000 {
		t.Errorf("live heap %d after %d, and 10,000,000 bytes were dropped", less, heap)
	}
}
