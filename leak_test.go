package tierlock_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
)

// Scenario 34: nothing grows with the keys that were ever used, or with the
// calls that were ever made: no memory, no goroutine.
func TestNothingGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _, _ := twoLockers(t)
		cycle := func(key string) {
			k := mustLock(t, a, "re", key)
			mustUnlock(t, mustLockCtx(t, k.Context(), a, "re", key))
			for _, l := range []*tierlock.Locker{a, b} {
				_, err := l.TryLock(bg, "re", key)
				wantIs(t, "TryLock", err, tierlock.ErrHeld)
			}
			ctx, cancel := context.WithCancel(bg)
			gone, waits := lockAsync(ctx, b, "re", key), lockAsync(bg, b, "re", key)
			cancel()
			<-gone
			mustUnlock(t, k)
			r := <-waits
			if r.err != nil {
				t.Fatal(r.err)
			}
			mustUnlock(t, r.k)
		}
		measure := func() (heap uint64, running int) {
			time.Sleep(time.Minute)
			synctest.Wait()
			runtime.GC()
			runtime.GC() // what the first one finalised
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc, goroutines()
		}
		for i := range 500 {
			cycle(fmt.Sprint("warm-up ", i))
		}
		heap, running := measure()
		const keys = 2000
		for i := range keys {
			cycle(fmt.Sprint("key ", i))
		}
		heap2, running2 := measure()
		if running2 > running {
			t.Errorf("%d goroutines after %d keys, %d before", running2, keys, running)
		}
		if grown := int64(heap2) - int64(heap); grown > keys*150 {
			t.Errorf("%d bytes more after %d keys, %d a key", grown, keys, grown/keys)
		}
	})
}
