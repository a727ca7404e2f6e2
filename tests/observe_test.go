package tests_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 100: against a real server each event comes once, with the labels,
// the token and the times of what happened, and one panicking and slow hook
// delays no lock. The token that the server keeps can be read as it is.
func TestObserver(t *testing.T) {
	t.Parallel()
	onEach(t, testObserver)
}

func testObserver(t *testing.T, d *deployment) {
	const ttl = 4 * time.Second
	proxy := rig.NewProxy(t, d.addr)
	var mu sync.Mutex
	var events []string
	tokens := make(map[string]tierlock.Token) // of the last event of a kind
	renewals := make(map[string][]int)        // their numbers, by hold
	overdue := 0
	note := func(kind string, l tierlock.Labels, tok tierlock.Token, detail any) {
		mu.Lock()
		defer mu.Unlock()
		if want := (tierlock.Labels{App: "test", Resource: "job", Tier: d.tier}); l != want {
			t.Errorf("%s: labels %+v, want %+v", kind, l, want)
		}
		tokens[kind] = tok
		switch kind { // these come when it is their time, whatever the test does
		case "renewed":
			renewals[tok.ID] = append(renewals[tok.ID], detail.(int))
		case "overdue":
			overdue++
		default:
			events = append(events, fmt.Sprint(kind, " ", detail))
		}
	}
	type mark struct{}
	cfg := config(d.open(t, proxy.Addr), tierlock.Resource{Name: "job", TTL: ttl, Reentrant: true})
	cfg.Observer = tierlock.Observer{
		AcquireStart: func(ctx context.Context, e tierlock.AcquireStart) context.Context {
			note("start", e.Labels, tierlock.Token{}, e.Key)
			return context.WithValue(ctx, mark{}, e.Key)
		},
		AcquireEnd: func(ctx context.Context, e tierlock.AcquireEnd) {
			note("end", e.Labels, e.Token, e.Result())
			// On a real clock a busy machine may use up AcquireStart's 5 ms;
			// then the call goes on with the caller's own context.
			if v := ctx.Value(mark{}); v != nil && v != e.Key {
				t.Errorf("AcquireEnd: the context of another call, %v", v)
			}
			if e.Waited < e.Latency || e.Err == nil && e.Latency <= 0 { // who queues may not ask
				t.Errorf("AcquireEnd: waited %v, latency %v", e.Waited, e.Latency)
			}
		},
		Queued:    func(e tierlock.QueuedEvent) { note("queued", e.Labels, tierlock.Token{}, e.Length) },
		Reentered: func(e tierlock.ReenteredEvent) { note("reentered", e.Labels, e.Token, e.Handles) },
		Renewed: func(e tierlock.RenewedEvent) {
			note("renewed", e.Labels, e.Token, e.Count)
			if e.TTL != ttl || e.Latency <= 0 {
				t.Errorf("Renewed: %+v", e)
			}
		},
		Lost:         func(e tierlock.LostEvent) { note("lost", e.Labels, e.Token, e.Err.Reason) },
		BoundReached: func(e tierlock.BoundEvent) { note("bound", e.Labels, e.Token, "") },
		Overdue: func(e tierlock.OverdueEvent) {
			if e.Expect != 250*time.Millisecond {
				t.Errorf("Overdue: expected %v", e.Expect)
			}
			note("overdue", e.Labels, e.Token, nil)
		},
		Released: func(e tierlock.ReleasedEvent) {
			note("released", e.Labels, e.Token, e.Err == nil)
			if e.Held <= 0 || e.Held > patience {
				t.Errorf("Released: held %v", e.Held)
			}
		},
		StoreChanged: func(e tierlock.StoreEvent) {
			note("store", tierlock.Labels{App: e.App, Resource: "job", Tier: e.Tier}, tierlock.Token{}, e.Err == nil)
			panic("a hook that panics")
		},
	}
	l := lockerOf(t, cfg)
	// expect waits for events and checks that there are these and no others.
	expect := func(step string, want ...string) {
		t.Helper()
		take := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(events)
		}
		rig.Eventually(t, patience, step+": events come", func() bool { return len(take()) >= len(want) })
		time.Sleep(50 * time.Millisecond) // one too many would come now
		got := take()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: events %q, want %q", step, got, want)
		}
		mu.Lock()
		events = nil
		mu.Unlock()
	}

	k := mustLock(t, l, "job", "k", tierlock.RequestID("req-1"), tierlock.Expect(250*time.Millisecond))
	expect("lock", "start k", "end ok")
	if tokens["end"] != k.Token() || k.Context().Value(mark{}) != "k" {
		t.Errorf("token %+v, want %+v; context value %v", tokens["end"], k.Token(), k.Context().Value(mark{}))
	}

	// What redis-cli GET and SELECT token show is the token.
	text := d.text(t, "job", "k")
	var stored tierlock.Token
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &stored); err != nil || stored != k.Token() {
		t.Errorf("stored %s: %+v, %v; want %+v", text, stored, err, k.Token())
	}
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields["fence"] != fmt.Sprint(k.Token().Fence) ||
		fields["requestId"] != "req-1" || fields["tier"] != d.name || len(fields) != 19 {
		t.Errorf("stored fields %v, %v", fields, err)
	}
	if text[:10] != `{"lease":"` || text[10:54] != k.Token().Lease {
		t.Errorf("the lease is not at its place: %s", text)
	}
	between(t, "the server's time of the grant", time.Since(stored.ServerTime), 0, slack)
	if d := stored.ExpireAt.Sub(stored.ServerTime); d != ttl {
		t.Errorf("expires %v after the grant, want %v", d, ttl)
	}

	inner, err := l.Lock(k.Context(), "job", "k")
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, inner)
	expect("re-entry", "reentered 2")

	_, err = l.Lock(bg, "job", "k", tierlock.Wait(50*time.Millisecond))
	wantIs(t, "another", err, tierlock.ErrHeld)
	expect("held", "start k", "queued 1", "end held")

	rig.Eventually(t, patience, "it is renewed twice", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(renewals[k.Token().ID]) >= 2 && tokens["renewed"] == k.Token()
	})
	rig.Eventually(t, patience, "it is overdue", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return tokens["overdue"] == k.Token()
	})
	mustUnlock(t, k)
	expect("release", "released true")

	k = mustLock(t, l, "job", "bounded", tierlock.Lease(time.Second))
	waitEnd(t, k)
	wantIs(t, "unlock at the bound", k.Unlock(), tierlock.ErrLeaseExceeded)
	expect("bound", "start bounded", "end ok", "bound ", "released false")

	k = mustLock(t, l, "job", "lost")
	d.remove(t, "job", "lost")
	waitEnd(t, k)
	expect("loss", "start lost", "end ok", "lost gone")
	wantLost(t, "unlock of the lost lock", k.Unlock(), "gone")
	expect("release after the loss", "released false")

	proxy.BlackHole()
	for range 3 {
		_, err = l.TryLock(bg, "job", "dark")
		wantIs(t, "in the dark", err, tierlock.ErrUnavailable)
	}
	expect("outage", "start dark", "end unavailable", "start dark", "end unavailable", "start dark", "end unavailable", "store false")
	proxy.Pass()
	k, err = l.Lock(bg, "job", "light", tierlock.UntilDone())
	if err != nil {
		t.Fatal(err)
	}
	expect("recovery", "start light", "end ok", "store true")
	mustUnlock(t, k)
	expect("last release", "released true")
	idle(t, l)
	mu.Lock()
	defer mu.Unlock()
	for hold, numbers := range renewals {
		for i, n := range numbers {
			if n != i+1 {
				t.Errorf("hold %s: renewals %v", hold, numbers)
				break
			}
		}
	}
	if overdue != 1 {
		t.Errorf("%d times overdue, want once", overdue)
	}
	if n := l.Status().DroppedEvents; n != 0 {
		t.Errorf("%d events dropped", n)
	}
}

// Scenario 100, the other half: hooks that take a second each do not delay locks
// on a real server.
func TestSlowObserverDelaysNothing(t *testing.T) {
	t.Parallel()
	onEach(t, testSlowObserver)
}

func testSlowObserver(t *testing.T, d *deployment) {
	const cycles = 20
	cfg := config(d.open(t, d.addr), tierlock.Resource{Name: "job"})
	release := make(chan struct{})
	slow := func() {
		select {
		case <-release:
		case <-time.After(time.Second):
		}
	}
	cfg.Observer.AcquireStart = func(ctx context.Context, _ tierlock.AcquireStart) context.Context { slow(); return ctx }
	cfg.Observer.AcquireEnd = func(context.Context, tierlock.AcquireEnd) { slow() }
	cfg.Observer.Released = func(tierlock.ReleasedEvent) { slow() }
	l := lockerOf(t, cfg)
	start := time.Now()
	for i := range cycles {
		mustUnlock(t, mustLock(t, l, "job", fmt.Sprint(i)))
	}
	// AcquireStart has 5 ms, the others none.
	between(t, "20 cycles", time.Since(start), 0, cycles*5*time.Millisecond+2*slack)
	close(release)
}
