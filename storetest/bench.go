package storetest

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

const (
	// slack is how far a time left may be off what the calls' own times
	// allow: rounding, and clocks that run differently fast.
	slack = 50 * time.Millisecond
	// patience is how late something may come that has to come at some time.
	// It is long for the sake of busy machines; nothing waits it out in vain.
	patience = 20 * time.Second
	// callLimit ends the suite where a store hangs.
	callLimit = 20 * time.Second
	// long is a TTL that does not run out during a check.
	long = 30 * time.Second
)

// tb is what a check may do to its test. It is not *testing.T, so that the
// suite's own tests can see a check fail.
type tb interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// bench is what one check works with: two stores over one backend, names and
// lease ids of its own, and the backend's time.
type bench struct {
	tb
	h       Harness
	a, b    *side
	ns      string
	apart   bool // each name has a namespace of its own, see place
	data    data // of those namespaces
	leases  atomic.Int64
	start   time.Time
	watches []tierlock.Watch // closed at the end, also of a check that fails
	skipped time.Duration    // how much further the backend's clock was moved than ours
}

// side is one of the two processes that a check plays.
type side struct {
	tierlock.Store
	member string // what its lease ids begin with
	data   *data
}

func newBench(t *testing.T, report tb, h Harness) *bench {
	b := &bench{tb: report, h: h, ns: "st-" + random(8), start: time.Now()}
	b.a, b.b = &side{h.Open(t), random(16), &b.data}, &side{h.Open(t), random(16), &b.data}
	return b
}

func (b *bench) run(c check) {
	if reflect.TypeOf(b.a.Store).Comparable() && b.a.Store == b.b.Store {
		b.Fatalf("harness: Open gave the same store value twice, want independent ones")
	}
	defer b.closeWatches()
	c.run(b)
}

// Errorf and Fatalf write names and tokens so that they can be read, whatever
// the keys hold.
func (b *bench) Errorf(format string, args ...any) {
	b.Helper()
	b.tb.Errorf(format, readable(args)...)
}

func (b *bench) Fatalf(format string, args ...any) {
	b.Helper()
	b.tb.Fatalf(format, readable(args)...)
}

func readable(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case tierlock.Name, tierlock.Token:
			args[i] = strings.Trim(strconv.QuoteToASCII(fmt.Sprint(arg)), `"`)
		case error:
			args[i] = errors.New(strings.Trim(strconv.QuoteToASCII(arg.Error()), `"`))
		}
	}
	return args
}

func random(bytes int) string {
	p := make([]byte, bytes)
	rand.Read(p) // never fails
	return hex.EncodeToString(p)
}

func (b *bench) fenced() bool { return b.a.Guarantee() != tierlock.ProcessLocal }

// now is the backend's time since the check began.
func (b *bench) now() time.Duration { return time.Since(b.start) + b.skipped }

func (b *bench) advance(d time.Duration) {
	if b.h.Advance == nil {
		time.Sleep(d)
		return
	}
	before := time.Now()
	b.h.Advance(d)
	if took := time.Since(before); took < d {
		b.skipped += d - took
	}
}

func (b *bench) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callLimit)
}

func (b *bench) name(key string) tierlock.Name {
	ns := b.ns
	if b.apart {
		sum := sha1.Sum([]byte(key))
		ns += "." + hex.EncodeToString(sum[:6])
		b.data.know(ns, func() string { return b.probing(b.a, ns, 0).Incarnation })
	}
	return tierlock.Name{Namespace: ns, Resource: "storetest", Key: key}
}

// window is when a call was sent and when its answer was there: the store
// executed it in between.
type window struct{ sent, got time.Duration }

func (b *bench) in(call func(ctx context.Context)) window {
	ctx, cancel := b.ctx()
	defer cancel()
	w := window{sent: b.now()}
	call(ctx)
	w.got = b.now()
	return w
}

// hold is one granted lease.
type hold struct {
	req   tierlock.AcquireRequest
	token tierlock.Token
	re    bool // Reentered
	more  int  // Fences
	ttl   time.Duration
	window
}

// over reports whether the hold may have ended before a call was executed: a slow
// machine may come too late to see a short one.
func (h hold) over(asked window) bool { return asked.got-h.sent >= h.ttl-2*time.Millisecond }

func (h hold) renewal(ttl time.Duration) tierlock.RenewRequest {
	return tierlock.RenewRequest{Name: h.req.Name, Lease: h.req.Token.Lease, Explicit: h.req.Explicit, TTL: ttl, Place: h.req.Place}
}

func (h hold) giveUp(keep time.Duration) tierlock.ReleaseRequest {
	return tierlock.ReleaseRequest{Name: h.req.Name, Lease: h.req.Token.Lease, Explicit: h.req.Explicit, Keep: keep, Place: h.req.Place}
}

// request is what a Locker would send for a new lease through s.
func (b *bench) request(s *side, name tierlock.Name, ttl time.Duration) tierlock.AcquireRequest {
	n := b.leases.Add(1)
	return tierlock.AcquireRequest{
		Name: name, TTL: ttl, Budget: callLimit,
		Token: tierlock.Token{
			Lease: fmt.Sprintf("%s-%d", s.member, n), ID: fmt.Sprintf("hold-%d", n),
			Resource: name.Resource, Key: name.Key, Holder: "storetest@here:1", App: "storetest", Host: "here", PID: 1,
			Tier: s.Tier(), TTL: ttl, ClientTime: time.Now().UTC().Truncate(time.Microsecond),
		},
	}
}

// explicit is request for the caller's own holder id.
func (b *bench) explicit(s *side, name tierlock.Name, holder string, ttl time.Duration) tierlock.AcquireRequest {
	req := b.request(s, name, ttl)
	req.Explicit, req.Token.Holder = true, holder
	return req
}

func (b *bench) acquire(s *side, req tierlock.AcquireRequest) (tierlock.AcquireResult, window) {
	b.Helper()
	var res tierlock.AcquireResult
	var err error
	w := b.in(func(ctx context.Context) { res, err = s.Acquire(ctx, req) })
	if err != nil {
		b.Fatalf("Acquire %s by %s: got error %v, want an answer", req.Name, req.Token.Lease, err)
	}
	return res, w
}

// grant acquires what has to be granted, and checks all of the grant.
func (b *bench) grant(s *side, req tierlock.AcquireRequest) hold {
	b.Helper()
	res, w := b.acquire(s, req)
	if !res.Granted {
		b.Fatalf("Acquire %s by %s: got held by {%v} for another %v, want granted", req.Name, req.Token.Lease, res.Token, res.Left)
	}
	b.checkGrant(req, res.Token, res.Reentered)
	if res.Fences < 0 || res.Fences > max(0, req.Fences) || req.Explicit && res.Fences != 0 {
		b.Errorf("Acquire %s: got %d further fences, want 0 to the %d asked for, and none for an explicit holder", req.Name, res.Fences, req.Fences)
	}
	return hold{req: req, token: res.Token, re: res.Reentered, more: res.Fences, ttl: req.TTL, window: w}
}

// lock grants a new lease of the key.
func (b *bench) lock(s *side, name tierlock.Name, ttl time.Duration) hold {
	b.Helper()
	h := b.grant(s, b.request(s, name, ttl))
	if h.re {
		b.Errorf("Acquire %s by %s: got Reentered, want a hold of its own", name, h.req.Token.Lease)
	}
	return h
}

// refuse acquires what has to be held by h, and checks what is said of h.
func (b *bench) refuse(s *side, req tierlock.AcquireRequest, h hold) {
	b.Helper()
	res, w := b.acquire(s, req)
	if res.Granted {
		if h.over(w) {
			b.release(s, hold{req: req}.giveUp(0), tierlock.LeaseOwned)
			return
		}
		b.Fatalf("Acquire %s by %s: got granted, want held by %s", req.Name, req.Token.Lease, h.token.Lease)
	}
	if d := differ(h.token, res.Token); d != "" {
		b.Errorf("Acquire %s, held: token of the holder differs from what was granted: %s", req.Name, d)
	}
	b.checkLeft("Acquire, held", res.Left, h, w)
}

// heldBy inspects a key that has to be held by h.
func (b *bench) heldBy(s *side, h hold, holds int) {
	b.Helper()
	rec, w := b.inspect(s, h.req.Name)
	if !rec.Held {
		if h.over(w) {
			return
		}
		b.Fatalf("Inspect %s: got free, want held by %s", h.req.Name, h.token.Lease)
	}
	if d := differ(h.token, rec.Token); d != "" {
		b.Errorf("Inspect %s: token differs from what was granted: %s", h.req.Name, d)
	}
	if rec.Holds != holds {
		b.Errorf("Inspect %s: got %d holds, want %d", h.req.Name, rec.Holds, holds)
	}
	b.checkLeft("Inspect", rec.Left, h, w)
}

// checkLeft compares a time left with the bounds that the times of the two
// calls leave. They hold however slow the machine is.
func (b *bench) checkLeft(what string, left time.Duration, h hold, asked window) {
	b.Helper()
	low := h.ttl - (asked.got - h.sent) - slack
	high := h.ttl - (asked.sent - h.got) + slack
	if left < low || left > high || left <= 0 {
		b.Errorf("%s %s: got %v left, want more than 0 and %v to %v", what, h.req.Name, left, low, high)
	}
}

func (b *bench) inspect(s *side, name tierlock.Name) (tierlock.Record, window) {
	b.Helper()
	var rec tierlock.Record
	var err error
	w := b.in(func(ctx context.Context) { rec, err = s.Inspect(ctx, name) })
	if err != nil {
		b.Fatalf("Inspect %s: got error %v, want an answer", name, err)
	}
	return rec, w
}

func (b *bench) isFree(s *side, name tierlock.Name) {
	b.Helper()
	if rec, _ := b.inspect(s, name); rec != (tierlock.Record{}) {
		b.Fatalf("Inspect %s: got %+v, want a free key: the zero Record", name, rec)
	}
}

// freeWithin waits until the key is free.
func (b *bench) freeWithin(s *side, name tierlock.Name, d time.Duration) {
	b.Helper()
	for end := b.now() + d; ; b.advance(20 * time.Millisecond) {
		rec, _ := b.inspect(s, name)
		if !rec.Held {
			return
		}
		if b.now() > end {
			b.Fatalf("Inspect %s: still held by {%v} for %v, want free within %v", name, rec.Token, rec.Left, d)
		}
	}
}

// renew sends one renewal. Where it has to be owned it gives the hold with its
// new time.
func (b *bench) renew(s *side, h hold, ttl time.Duration, want tierlock.Ownership) hold {
	b.Helper()
	var res []tierlock.RenewResult
	w := b.in(func(ctx context.Context) { res = s.Renew(ctx, []tierlock.RenewRequest{h.renewal(ttl)}) })
	if len(res) != 1 {
		b.Fatalf("Renew of 1: got %d results, want 1", len(res))
	}
	if res[0].Err != nil || res[0].State != want {
		b.Fatalf("Renew %s by %s: got %v and error %v, want %v", h.req.Name, h.req.Token.Lease, res[0].State, res[0].Err, want)
	}
	h.ttl, h.window = ttl, w
	return h
}

func (b *bench) release(s *side, req tierlock.ReleaseRequest, want tierlock.Ownership) window {
	b.Helper()
	var own tierlock.Ownership
	var err error
	w := b.in(func(ctx context.Context) { own, err = s.Release(ctx, req) })
	if err != nil || own != want {
		b.Fatalf("Release %s by %s, Keep %v: got %v and error %v, want %v", req.Name, req.Lease, req.Keep, own, err, want)
	}
	return w
}

// checkGrant compares a granted token with the request: the store fills in
// five fields and leaves the others alone.
func (b *bench) checkGrant(req tierlock.AcquireRequest, got tierlock.Token, entered bool) {
	b.Helper()
	want := req.Token
	want.Fence, want.Epoch, want.Seq = got.Fence, got.Epoch, got.Seq
	want.ServerTime, want.ExpireAt = got.ServerTime, got.ExpireAt
	if d := differ(want, got); d != "" {
		b.Errorf("Acquire %s: granted token differs from the request's: %s", req.Name, d)
	}
	if got.Epoch == 0 {
		b.Errorf("Acquire %s: got epoch 0, want at least 1", req.Name)
	}
	switch {
	case !b.fenced() && (got.Fence != 0 || got.Seq != 0):
		b.Errorf("Acquire %s: got fence %d and seq %d, want 0 in a process-local store", req.Name, got.Fence, got.Seq)
	case b.fenced() && (got.Seq == 0 || got.Seq >= 1<<49 || got.Fence != got.Epoch<<49|got.Seq):
		b.Errorf("Acquire %s: got fence %d with epoch %d and seq %d, want epoch<<49 | seq with 0 < seq < 2^49", req.Name, got.Fence, got.Epoch, got.Seq)
	}
	if got.ServerTime.IsZero() {
		b.Errorf("Acquire %s: got no ServerTime, want the store's clock", req.Name)
	}
	if entered {
		return // the times may be the hold's or the lease's own
	}
	if d := got.ExpireAt.Sub(got.ServerTime) - req.TTL; d < -2*time.Millisecond || d > 2*time.Millisecond {
		b.Errorf("Acquire %s: got ExpireAt %v after ServerTime, want the TTL %v", req.Name, got.ExpireAt.Sub(got.ServerTime), req.TTL)
	}
}

// differ names the fields in which two tokens differ. Times count as instants.
func differ(want, got tierlock.Token) string {
	var d []string
	add := func(field string, want, got any) {
		if want != got {
			d = append(d, fmt.Sprintf("%s is %+q, want %+q", field, fmt.Sprint(got), fmt.Sprint(want)))
		}
	}
	add("Lease", want.Lease, got.Lease)
	add("ID", want.ID, got.ID)
	add("Resource", want.Resource, got.Resource)
	add("Key", want.Key, got.Key)
	add("Holder", want.Holder, got.Holder)
	add("App", want.App, got.App)
	add("Host", want.Host, got.Host)
	add("PID", want.PID, got.PID)
	add("Fence", want.Fence, got.Fence)
	add("Epoch", want.Epoch, got.Epoch)
	add("Seq", want.Seq, got.Seq)
	add("Tier", want.Tier, got.Tier)
	add("Reentrant", want.Reentrant, got.Reentrant)
	add("MaxRenewals", want.MaxRenewals, got.MaxRenewals)
	add("TTL", want.TTL, got.TTL)
	add("ServerTime", want.ServerTime.UnixMicro(), got.ServerTime.UnixMicro())
	add("ClientTime", want.ClientTime.UnixMicro(), got.ClientTime.UnixMicro())
	add("ExpireAt", want.ExpireAt.UnixMicro(), got.ExpireAt.UnixMicro())
	add("RequestID", want.RequestID, got.RequestID)
	return strings.Join(d, "; ")
}
