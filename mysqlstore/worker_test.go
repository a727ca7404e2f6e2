package mysqlstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Goroutines of calls are used again, few are kept, none for long, and none longer
// than the store.
func TestWorkersAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, Options{})
		together := func(n int) {
			enough, all := make(chan struct{}), make(chan struct{})
			for range n {
				go func() {
					defer func() { all <- struct{}{} }()
					_, _ = call(s, s.places, context.Background(), time.Now().Add(time.Minute), func(context.Context) (int, error) {
						<-enough
						return 0, nil
					})
				}()
			}
			synctest.Wait()
			close(enough)
			for range n {
				<-all
			}
			synctest.Wait()
		}
		want := func(what string, n int32) {
			t.Helper()
			if got := s.kept.Load(); got != n {
				t.Errorf("%s: %d goroutines are kept, wanted %d", what, got, n)
			}
		}
		want("before", 0)
		for range 10 {
			together(1)
		}
		want("after calls one by one", 1)
		together(20)
		want("after many at once", maxIdle)
		time.Sleep(idleFor / 2)
		together(1)
		time.Sleep(idleFor * 3 / 4)
		synctest.Wait()
		want("some time after", 1)
		time.Sleep(idleFor)
		synctest.Wait()
		want("long after", 0)
		together(3)
		s.Close()
		want("after Close", 0) // and the bubble ends only if none is left
	})
}
