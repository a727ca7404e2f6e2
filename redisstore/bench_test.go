package redisstore_test

import (
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// serverTime is what the server spent in scripts since the last RESETSTAT.
func serverTime(b *testing.B, srv *rig.RedisServer) (us float64) {
	b.Helper()
	for _, m := range regexp.MustCompile(`cmdstat_(?:evalsha|eval):calls=\d+,usec=(\d+)`).FindAllStringSubmatch(srv.Text("INFO", "commandstats"), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		us += n
	}
	return us
}

// BenchmarkPair is one acquire and release of a free lock, against the least
// that two scripts of such a lock have to do.
func BenchmarkPair(b *testing.B) {
	srv := rig.Redis(b)
	client, err := rueidis.NewClient(redisstore.RecommendedOptions(srv.Addr))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	acquire := rueidis.NewLuaScript(`local t = redis.call('TIME')
if t[1] * 1000000 + t[2] > tonumber(ARGV[3]) then return -1 end
if redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 1 end
return 0`)
	release := rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
	bare := func(key string) error {
		lease := newLease()
		keys := []string{key}
		bound := strconv.FormatInt(time.Now().Add(time.Minute).UnixMicro(), 10)
		if n, err := acquire.Exec(background, client, keys, []string{lease, "30000", bound}).AsInt64(); err != nil || n != 1 {
			return fmt.Errorf("acquire: %d, %v", n, err)
		}
		if n, err := release.Exec(background, client, keys, []string{lease}).AsInt64(); err != nil || n != 1 {
			return fmt.Errorf("release: %d, %v", n, err)
		}
		return nil
	}
	s := open(b, srv.Addr)
	ours := func(key string) error {
		req := ask(key, newLease(), 30*time.Second)
		req.Token.RequestID = "req-1"
		if res, err := s.Acquire(background, req); err != nil || !res.Granted {
			return fmt.Errorf("acquire: %+v, %v", res, err)
		}
		_, err := s.Release(background, drop(key, req.Token.Lease))
		return err
	}
	for _, goroutines := range []int{1, 64} {
		for _, way := range []struct {
			name string
			pair func(string) error
		}{{"bare", bare}, {"store", ours}} {
			b.Run(fmt.Sprintf("%s/%d", way.name, goroutines), func(b *testing.B) {
				b.ReportAllocs()
				srv.Do("CONFIG", "RESETSTAT")
				var next atomic.Int64
				work := func(more func() bool) {
					key := fmt.Sprint("bench-", next.Add(1))
					for more() {
						if err := way.pair(key); err != nil {
							b.Error(err)
							return
						}
					}
				}
				b.ResetTimer()
				if goroutines == 1 {
					n := 0
					work(func() bool { n++; return n <= b.N })
				} else {
					b.SetParallelism(goroutines / 2)
					b.RunParallel(func(pb *testing.PB) { work(pb.Next) })
				}
				b.StopTimer()
				b.ReportMetric(serverTime(b, srv)/float64(b.N), "server-µs/op")
			})
		}
	}
}
