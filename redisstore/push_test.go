package redisstore_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// A channel that the server forbids is no business of the other watches.
func TestForbiddenChannel(t *testing.T) {
	srv := rig.Redis(t)
	srv.Do("ACL", "SETUSER", "u", "reset", "on", ">p", "~lock:*", "&lock:test:*", "+@all")
	opt := patient(srv.Addr)
	opt.Username, opt.Password = "u", "p"
	s := openWith(t, opt, calm)
	good, err := s.Watch(t.Context(), name("good"))
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	defer good.Close()
	for range 20 {
		_, err := s.Watch(t.Context(), tierlock.Name{Namespace: "other", Resource: "r", Key: "k"})
		wantClass(t, "watch of a forbidden channel", err, tierlock.ErrUnavailable)
		if !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("watch of a forbidden channel: %v; wanted the reason", err)
		}
		other, err := s.Watch(t.Context(), name("other"))
		if err != nil {
			t.Fatalf("watch of an allowed channel: %v", err)
		}
		other.Close()
	}
	select {
	case <-good.C():
		t.Error("a forbidden channel cost another watch its subscription")
	default:
	}
	lease := newLease()
	mustAcquire(t, s, ask("good", lease, time.Second))
	mustRelease(t, s, drop("good", lease), tierlock.LeaseOwned)
	select {
	case <-good.C():
	case <-time.After(patience):
		t.Error("no signal of a release")
	}
}

// Where the caller's own use takes all connections of the client's pool, one
// goroutine waits for one, however many watches are tried.
func TestNoConnectionForPush(t *testing.T) {
	rig.NoLeak(t)
	srv := rig.Redis(t)
	opt := patient(srv.Addr)
	opt.BlockingPoolSize = 1
	client, err := rueidis.NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	taken, giveBack := client.Dedicate()
	if err := taken.Do(background, taken.B().Ping().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	s := redisstore.New(client, redisstore.Options{CallTimeout: 50 * time.Millisecond})
	defer s.Close()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		_, err := s.Watch(background, name("k"))
		wantClass(t, "watch without a connection", err, tierlock.ErrUnavailable)
	}
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if n := strings.Count(string(stacks), "singleClient).Dedicate("); n != 1 {
		t.Errorf("%d goroutines wait for a connection; wanted 1", n)
	}
	giveBack()
	var w tierlock.Watch
	rig.Eventually(t, patience, "a watch can be had", func() bool {
		w, err = s.Watch(background, name("k"))
		return err == nil
	})
	w.Close()
}
