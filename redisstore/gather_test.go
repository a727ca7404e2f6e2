package redisstore_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock/redisstore"
)

// Where a processor is taken by those who only compute, a worker may wait for them
// once, to make its pipeline longer, but not with each pipeline.
func TestWorkerYieldsSeldomToTheBusy(t *testing.T) {
	s, err := redisstore.Open(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var stop atomic.Bool
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for !stop.Load() {
			}
		})
	}
	defer busy.Wait()
	defer stop.Store(true)
	waits := func() (time.Duration, bool) {
		began := time.Now()
		s.Yield()
		took := time.Since(began)
		return took, took > 5*time.Millisecond
	}
	runtime.Gosched() // until all of them are under way
	if took, waited := waits(); !waited {
		t.Fatalf("a yield to 4 busy goroutines took %v; wanted some 40 ms, else this test tests nothing", took)
	}
	// Counted, since the machine may stand still, too.
	more := 0
	for range 10 {
		if _, waited := waits(); waited {
			more++
		}
	}
	if more > 5 {
		t.Errorf("%d of 10 more yields waited; wanted most to be left out", more)
	}
}
