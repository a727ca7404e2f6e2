package degrade_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock/degrade"
)

// What is asked without the mutex is what the machine says at that moment, also where
// nothing but time has passed since its last input.
func TestRunnerLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newFakeDB()
		r := startFake(t, db, "a")
		waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
		db.set(func(f *fakeDB) { f.down, f.hang = true, true })
		silent, ended := 0, 0
		for range 62000 {
			time.Sleep(time.Millisecond)
			st := r.State()
			if _, may := r.MayGrant(); may != (st.Permit > 0) {
				t.Fatalf("MayGrant says %v with a permit of %v", may, st.Permit)
			}
			if _, settled := r.BestEffort(); settled == st.Silent {
				t.Fatalf("BestEffort says settled %v, State silent %v", settled, st.Silent)
			}
			if st.Silent {
				silent++
			}
			if st.Permit == 0 {
				ended++
			}
		}
		if silent == 0 || ended == 0 {
			t.Errorf("the arbiter was silent for %d ms, the permit over for %d; wanted both", silent, ended)
		}
		db.set(func(f *fakeDB) { f.down, f.hang = false, false })
		closeRun(t, r)
	})
}

// A caller does not wait for another one, nor for the machine's turn. In real time: a
// fake clock stands still while somebody waits for a mutex.
func TestRunnerLooksWithoutMutex(t *testing.T) {
	db := newFakeDB()
	stop, stopped, goOn := make(chan bool, 1), make(chan struct{}), make(chan struct{})
	r := startFake(t, db, "a", func(c *degrade.RunnerConfig) {
		now := c.Now
		c.Now = func() degrade.Instant {
			select {
			case <-stop:
				close(stopped)
				<-goOn
			default:
			}
			return now()
		}
	})
	waitFor(t, time.Minute, "a permit", r.grantsOn(degrade.Redis))
	stop <- true
	go r.State() // unless the loop comes first: one of them has the mutex until goOn is closed
	<-stopped
	asked := make(chan bool, 1)
	go func() {
		_, may := r.MayGrant()
		_, settled := r.BestEffort()
		r.Changed()
		asked <- may && settled && r.Mode().Known()
	}()
	select {
	case ok := <-asked:
		if !ok {
			t.Error("it says something else than before")
		}
	case <-time.After(20 * time.Second):
		t.Error("a caller waits for the mutex")
	}
	close(goOn)
	closeRun(t, r)
}
