package tests_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

// A relay is a process of which many goroutines want one key, again and again, so
// that its leases are handed over.
type relayConfig struct {
	Addr, DSN  string // of Redis or MySQL
	NoPush     bool
	Goroutines int
	Goal       int // leases of each process, after which both end
	For, Work  time.Duration
	Dir        string // of the files that tell who is inside
}

type relayResult struct {
	Rounds, Leases int
	Longest        time.Duration // wait
	Gone           int           // calls whose context ended first
	Errors         []string
}

// inside is what each holder does, of whatever process: nobody else may be inside,
// and its fence has to be larger than the last one.
func (c relayConfig) inside(tok tierlock.Token) error {
	in := filepath.Join(c.Dir, "in")
	f, err := os.OpenFile(in, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("somebody else is inside: %w", err)
	}
	defer os.Remove(in)
	defer f.Close()
	last := filepath.Join(c.Dir, "fence")
	b, err := os.ReadFile(last)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if len(b) == 8 && binary.BigEndian.Uint64(b) >= tok.Fence {
		return fmt.Errorf("fence %d after %d", tok.Fence, binary.BigEndian.Uint64(b))
	}
	time.Sleep(c.Work)
	return os.WriteFile(last, binary.BigEndian.AppendUint64(nil, tok.Fence), 0o600)
}

func runRelay(args []string) {
	var c relayConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		die(err)
	}
	var store tierlock.Store
	var err error
	if c.Addr != "" {
		store, err = openStore(c.Addr, redisstore.Options{NoPush: c.NoPush, CallTimeout: 2 * time.Second})
	} else {
		var db *sqlx.DB
		if db, err = sqlx.Open("mysql", c.DSN); err == nil {
			store = mysqlstore.New(db, mysqlstore.Options{CallTimeout: 2 * time.Second})
		}
	}
	if err != nil {
		die(err)
	}
	cfg := config(store, tierlock.Resource{Name: "r", TTL: 30 * time.Second})
	cfg.CallTimeout = 2 * time.Second
	l, err := tierlock.New(cfg)
	if err != nil {
		die(err)
	}
	var r relayResult
	var mu sync.Mutex
	leases := make(map[string]bool)
	var wg sync.WaitGroup
	end := time.Now().Add(c.For)
	var over atomic.Bool
	go func() {
		for mine := filepath.Join(c.Dir, fmt.Sprint("done ", os.Getpid())); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			mu.Lock()
			done := len(leases) >= c.Goal
			mu.Unlock()
			if done {
				if err := os.WriteFile(mine, nil, 0o600); err != nil {
					die(err)
				}
			}
			if all, _ := filepath.Glob(filepath.Join(c.Dir, "done *")); len(all) == 2 {
				break
			}
		}
		over.Store(true)
	}()
	for i := range c.Goroutines {
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				ctx, cancel := bg, context.CancelFunc(func() {})
				if i%4 == 3 { // some go away while they wait
					ctx, cancel = context.WithTimeout(bg, time.Duration(n%7)*200*time.Microsecond)
				}
				start := time.Now()
				k, err := l.Lock(ctx, "r", "1", tierlock.UntilDone())
				wait := time.Since(start)
				if err == nil {
					err = errors.Join(c.inside(k.Token()), k.Unlock())
				}
				gone := ctx.Err() != nil && errors.Is(err, ctx.Err())
				cancel()
				mu.Lock()
				switch {
				case err == nil:
					r.Rounds++
					leases[k.Token().Lease] = true
					r.Longest = max(r.Longest, wait)
				case gone:
					r.Gone++
				case len(r.Errors) < 5:
					r.Errors = append(r.Errors, err.Error())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		r.Errors = append(r.Errors, err.Error())
	}
	r.Leases = len(leases)
	out, err := json.Marshal(r)
	if err != nil {
		die(err)
	}
	fmt.Println("relay: " + string(out))
}

// Two processes that hand their leases over keep each other out, fences rise over
// both, each gets its turn again and again, and no key stays.
func TestHandOverInTwoProcesses(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]relayConfig{
		"redis": {}, "redis, 1 ms of work": {Work: time.Millisecond}, "redis without push, 1 ms of work": {NoPush: true, Work: time.Millisecond},
		"mysql": {DSN: "."}, "mysql, 1 ms of work": {DSN: ".", Work: time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			var see tierlock.Store
			if c.DSN != "" {
				srv := migratedServer(t)
				c.DSN = srv.DSN(mysqlParams)
				see = openMySQL(t, c.DSN, mysqlstore.Options{})
			} else {
				srv := rig.Redis(t)
				c.Addr = srv.Addr
				see = open(t, c.Addr)
			}
			c.Goroutines, c.Goal, c.For, c.Dir = 8, 10, 2*patience, t.TempDir()
			arg, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			var both [2]*rig.Process
			for i := range both {
				both[i] = rig.Spawn(t, "relay", string(arg))
			}
			for i, p := range both {
				var r relayResult
				if err := json.Unmarshal([]byte(p.Expect("relay:", 4*patience)), &r); err != nil {
					t.Fatal(err)
				}
				t.Logf("process %d: %d locks on %d leases, the longest wait %v; %d went away", i, r.Rounds, r.Leases, r.Longest, r.Gone)
				for _, e := range r.Errors {
					t.Errorf("process %d: %s", i, e)
				}
				if r.Leases < c.Goal || r.Rounds < 2*r.Leases {
					t.Errorf("process %d: %d locks on %d leases in %v, want %d leases, and more locks", i, r.Rounds, r.Leases, c.For, c.Goal)
				}
				if err := p.Wait(patience); err != nil {
					t.Error(err)
				}
			}
			if rec, err := see.Inspect(bg, tierlock.Name{Namespace: namespace, Resource: "r", Key: "1"}); err != nil || rec.Held {
				t.Errorf("at the end: %+v, %v; want a free key", rec, err)
			}
		})
	}
}

// Who looks at the key sees the hold that it serves now, within a second; and the
// key ends as ever.
func TestInspectAfterHandOver(t *testing.T) {
	t.Parallel()
	for what, open := range map[string]func(t *testing.T) tierlock.Store{
		"redis": func(t *testing.T) tierlock.Store { return open(t, rig.Redis(t).Addr) },
		"mysql": func(t *testing.T) tierlock.Store {
			return openMySQL(t, migratedServer(t).DSN(mysqlParams), mysqlstore.Options{})
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t)
			l := newLocker(t, s, tierlock.Resource{Name: "r", TTL: 10 * time.Second})
			n := tierlock.Name{Namespace: namespace, Resource: "r", Key: "1"}
			mustUnlock(t, mustLock(t, l, "r", "1")) // the fences have a record
			// A hand-over has 50 ms; a busy machine may take longer.
			for try := 1; ; try++ {
				k := mustLock(t, l, "r", "1")
				got := make(chan *tierlock.Lock, 2)
				for range 2 {
					go func() {
						k, err := l.Lock(bg, "r", "1", tierlock.UntilDone())
						if err != nil {
							t.Error(err)
						}
						got <- k
					}()
				}
				rig.Eventually(t, patience, "both wait", func() bool { return l.Status().Waiters == 2 })
				mustUnlock(t, k)
				first := <-got
				mustUnlock(t, first)
				k = <-got
				at := time.Now()
				if k.Token().Lease != first.Token().Lease {
					mustUnlock(t, k)
					if try == 50 {
						t.Fatal("no lease was handed over in 50 tries")
					}
					continue
				}
				rig.Eventually(t, time.Second+slack, "the present token is seen", func() bool {
					rec, err := s.Inspect(bg, n)
					return err == nil && rec.Token == k.Token()
				})
				t.Logf("seen after %v, in try %d", time.Since(at), try)
				mustUnlock(t, k)
				if rec, err := s.Inspect(bg, n); err != nil || rec.Held {
					t.Errorf("at the end: %+v, %v; want a free key", rec, err)
				}
				return
			}
		})
	}
}
