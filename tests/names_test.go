package tests_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 68: names with braces, UTF-8, control characters and of the greatest
// length go through the whole API, and no two of them are one lock, nor one lock
// two.
func TestNames(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	// The resources are such that their names with a key could run together.
	resources := []string{"job", "job:a", "job.a-b_C", strings.Repeat("r", 64)}
	keys := []string{
		"a", "{", "}", "{}", "}{", "{a}", "a{b}c", "{job/a}", "a}:fence", "a}:holds", "a}:wake",
		"42", "42 ", " 42", "a/b", "a:b", "*", "?[a]", `\`, `"`, "'", "%s%d",
		"naïve-Straße-日本語-🔒", "é", "e\u0301", "line\nbreak\r\n", "nul\x00nul", "\x7f\t\x1b[0m", "\u2028", "<&>",
		strings.Repeat("k", 128), strings.Repeat("🔒", 128), strings.Repeat("}", 128),
	}
	srv := rig.Redis(t)
	var rs []tierlock.Resource
	for _, name := range resources {
		rs = append(rs, tierlock.Resource{Name: name, TTL: ttl, Reentrant: true})
	}
	s := newSpy(open(t, srv.Addr))
	a, b := newLocker(t, s, rs...), newLocker(t, open(t, srv.Addr), rs...)
	type name struct{ resource, key string }
	var names []name
	for _, r := range resources {
		for _, k := range keys {
			names = append(names, name{r, k})
		}
	}
	// All at once, so that any two that ran together would meet.
	locks := make([]*tierlock.Lock, len(names))
	each(len(names), func(i int) (err error) {
		n := names[i]
		if i%2 == 0 {
			locks[i], err = a.Lock(bg, n.resource, n.key, tierlock.Wait(patience))
		} else {
			locks[i], err = a.Lock(bg, n.resource, n.key, tierlock.Wait(patience), tierlock.Holder("h"))
		}
		if err != nil {
			return fmt.Errorf("%s/%q: %w", n.resource, n.key, err)
		}
		return nil
	}, t)
	if n := len(srv.Do("KEYS", "lock:*}").([]any)); n != len(names) {
		t.Errorf("%d locks in Redis, want %d", n, len(names))
	}
	time.Sleep(3 * ttl / 2) // all have to be renewed
	waiting := make([]*tierlock.Lock, len(names))
	done := make(chan error)
	go func() {
		errs := make(chan error, len(names))
		for i, n := range names {
			go func() {
				var err error
				waiting[i], err = b.Lock(bg, n.resource, n.key, tierlock.Wait(patience))
				errs <- err
			}()
		}
		var err error
		for range names {
			if e := <-errs; e != nil {
				err = e
			}
		}
		done <- err
	}()
	for i, n := range names {
		what := fmt.Sprintf("%s/%q", n.resource, n.key)
		k := locks[i]
		if k.Err() != nil || s.renewed(k.Token().Lease) == 0 {
			t.Errorf("%s: error %v, %d renewals", what, k.Err(), s.renewed(k.Token().Lease))
		}
		var rec tierlock.Record
		var err error
		rig.Eventually(t, patience, what+" is inspected", func() bool {
			rec, err = b.Inspect(bg, n.resource, n.key)
			return !errors.Is(err, tierlock.ErrUnavailable)
		})
		if err != nil || !rec.Held || rec.Token != k.Token() || rec.Token.Key != n.key || rec.Holds != 1 {
			t.Errorf("%s: Inspect: %+v, %v", what, rec, err)
		}
		if i%2 == 1 {
			h, err := a.Lock(bg, n.resource, n.key, tierlock.Holder("h"))
			if err != nil || h.Token().Fence != k.Token().Fence {
				t.Errorf("%s: re-entry: %v, %v", what, h.Token(), err)
			}
			if err := h.Unlock(); err != nil {
				t.Errorf("%s: unlock of the re-entry: %v", what, err)
			}
		}
	}
	wantHeld(t, "TryLock by another", b, names[0].resource, names[0].key)
	for i, n := range names {
		if err := locks[i].Unlock(); err != nil {
			t.Errorf("%s/%q: %v", n.resource, n.key, err)
		}
	}
	if err := <-done; err != nil {
		t.Fatalf("a waiter: %v", err)
	}
	for i := range names {
		if waiting[i].Token().Fence <= locks[i].Token().Fence {
			t.Errorf("%+v: fence %d after %d", names[i], waiting[i].Token().Fence, locks[i].Token().Fence)
		}
		mustUnlock(t, waiting[i])
	}
	if left := srv.Do("KEYS", "lock:*}").([]any); len(left) > 0 {
		t.Errorf("left in Redis: %q", left)
	}
	for _, key := range []string{"", strings.Repeat("k", 129), "\xff"} {
		_, err := a.Lock(bg, "job", key)
		wantIs(t, fmt.Sprintf("key %q", key), err, tierlock.ErrInvalid)
	}
}

// Scenario 46: the wait is longer than the TTL, the waiter's own and the
// holder's, in processes of their own. They have nothing to do with each other.
func TestWaitLongerThanTheTTL(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		const ttl, hold = 1500 * time.Millisecond, 5 * time.Second
		res := tierlock.Resource{Name: "job", TTL: ttl}
		p := newPeer(t, d.peer(d.addr, res))
		id, _ := p.lock("job", "k", patience)
		l := newLocker(t, d.open(t, d.addr), res)
		got := make(chan time.Time, 1)
		go func() {
			k, err := l.Lock(bg, "job", "k", tierlock.Wait(time.Minute))
			got <- time.Now()
			if err != nil {
				t.Error(err)
				return
			}
			if err := k.Unlock(); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-got:
			t.Fatal("it did not wait")
		case <-time.After(hold):
		}
		e := p.unlock(id)
		if e.Err != "" {
			t.Errorf("the holder: %s", e.Err)
		}
		between(t, "from the release to the lock", (<-got).Sub(e.at()), -slack, time.Second+slack)
	})
}
