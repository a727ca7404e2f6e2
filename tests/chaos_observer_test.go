package tests_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// sight is what the server held at one moment between two times.
type sight struct {
	From, To int64
	Locks    map[string]stored // by resource/key; a key that is not there is not in it
}

// stored is what the server's token says.
type stored struct {
	Lease string
	Fence uint64
}

// observer reads all locks from the server, past the proxies, again and again.
type observer struct {
	srv   *rig.RedisServer
	names []string // resource/key
	stop  chan struct{}
	wg    sync.WaitGroup
	seen  []sight
	bad   []string
}

func observe(srv *rig.RedisServer) *observer {
	o := &observer{srv: srv, stop: make(chan struct{})}
	for _, name := range chaosNames() {
		o.names = append(o.names, name.resource+"/"+name.key)
	}
	o.wg.Go(func() {
		for {
			select {
			case <-o.stop:
				return
			case <-time.After(15 * time.Millisecond):
				o.look()
			}
		}
	})
	return o
}

func (o *observer) look() {
	args := []string{"MGET"}
	for _, name := range o.names {
		args = append(args, "lock:"+namespace+":{"+name+"}")
	}
	s := sight{From: machineTime(), Locks: map[string]stored{}}
	answer, err := o.srv.Try(args...)
	s.To = machineTime()
	if err != nil {
		return // the server is down, or starts
	}
	for i, v := range answer.([]any) {
		text, held := v.(string)
		if !held {
			continue
		}
		var token tierlock.Token
		if err := json.Unmarshal([]byte(text), &token); err != nil {
			o.bad = append(o.bad, fmt.Sprintf("%s: %v: %s", o.names[i], err, text))
		}
		s.Locks[o.names[i]] = stored{token.Lease, token.Fence}
	}
	o.seen = append(o.seen, s)
}

// end stops looking and gives what was seen.
func (o *observer) end(t *testing.T) []sight {
	close(o.stop)
	o.wg.Wait()
	for _, what := range o.bad {
		t.Error(what)
	}
	return o.seen
}
