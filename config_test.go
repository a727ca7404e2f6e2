package tierlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// invalids lists the *InvalidErrors that were joined into err.
func invalids(t *testing.T, what string, err error) (all []*tierlock.InvalidError) {
	t.Helper()
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, e := range errs {
		var bad *tierlock.InvalidError
		if !errors.As(e, &bad) || !errors.Is(e, tierlock.ErrInvalid) {
			t.Errorf("%s: got %v, want an *InvalidError", what, e)
			continue
		}
		all = append(all, bad)
	}
	return all
}

func wantInvalid(t *testing.T, what string, err error, field, bound string) {
	t.Helper()
	all := invalids(t, what, err)
	if len(all) != 1 || all[0].Field != field || !strings.Contains(all[0].Bound, bound) {
		t.Errorf("%s: got %v, want one error for field %q with a bound like %q", what, err, field, bound)
		return
	}
	for _, part := range []string{"tierlock: ", field, all[0].Bound} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: message %q does not name %q", what, err, part)
		}
	}
}

func goodConfig() tierlock.Config {
	return tierlock.Config{App: "app", Namespace: "ns", Stores: []tierlock.Store{localstore.New(localstore.Options{})},
		Resources: []tierlock.Resource{{Name: "r"}}}
}

// Each bound of the configuration, from both sides. Of the lease: scenarios 50
// and 51.
func TestConfigBounds(t *testing.T) {
	res := func(f func(*tierlock.Resource)) func(*tierlock.Config) {
		return func(c *tierlock.Config) { f(&c.Resources[0]) }
	}
	ttl := func(d time.Duration) func(*tierlock.Config) {
		return res(func(r *tierlock.Resource) { r.TTL = d })
	}
	resourceName := func(s string) func(*tierlock.Config) {
		return res(func(r *tierlock.Resource) { r.Name = s })
	}
	const chars = "characters of A-Z a-z 0-9 _ . : -"
	for _, c := range []struct {
		what   string
		change func(*tierlock.Config)
		field  string // "" where it is right
		bound  string
	}{
		{"as is", func(*tierlock.Config) {}, "", ""},
		{"no app", func(c *tierlock.Config) { c.App = "" }, "App", "1 to 64 " + chars},
		{"app of 64", func(c *tierlock.Config) { c.App = strings.Repeat("a", 64) }, "", ""},
		{"app of 65", func(c *tierlock.Config) { c.App = strings.Repeat("a", 65) }, "App", "1 to 64"},
		{"app with a space", func(c *tierlock.Config) { c.App = "my app" }, "App", chars},
		{"app with a newline at its end", func(c *tierlock.Config) { c.App = "app\n" }, "App", chars},
		{"no namespace", func(c *tierlock.Config) { c.Namespace = "" }, "Namespace", "1 to 32 " + chars},
		{"namespace of 32", func(c *tierlock.Config) { c.Namespace = strings.Repeat("n", 32) }, "", ""},
		{"namespace of 33", func(c *tierlock.Config) { c.Namespace = strings.Repeat("n", 33) }, "Namespace", "1 to 32"},
		{"namespace with a slash", func(c *tierlock.Config) { c.Namespace = "a/b" }, "Namespace", chars},
		{"no store", func(c *tierlock.Config) { c.Stores = nil }, "Stores", "one to three stores"},
		{"two stores", func(c *tierlock.Config) { c.Stores = append(c.Stores, c.Stores[0]) }, "Stores[1]", "each once"},
		{"nil store", func(c *tierlock.Config) { c.Stores[0] = nil }, "Stores[0]", "a store"},
		{"no resource", func(c *tierlock.Config) { c.Resources = nil }, "Resources", "at least one"},
		{"resource twice", func(c *tierlock.Config) { c.Resources = append(c.Resources, c.Resources[0]) },
			"Resources[1].Name", "unique, but Resources[0] has it"},
		{"call timeout negative", func(c *tierlock.Config) { c.CallTimeout = -1 }, "CallTimeout", "10ms to 10s"},
		{"call timeout 9.999 ms", func(c *tierlock.Config) { c.CallTimeout = 10*time.Millisecond - 1 }, "CallTimeout", "10ms to 10s"},
		{"call timeout 10 ms", func(c *tierlock.Config) { c.CallTimeout = 10 * time.Millisecond }, "", ""},
		{"call timeout 10 s", func(c *tierlock.Config) { c.CallTimeout = 10 * time.Second }, "", ""},
		{"call timeout over 10 s", func(c *tierlock.Config) { c.CallTimeout = 10*time.Second + 1 }, "CallTimeout", "10ms to 10s"},

		{"no resource name", resourceName(""), "Resources[0].Name", "1 to 64 " + chars},
		{"all characters", resourceName("AZaz09_.:-"), "", ""},
		{"resource name of 64", resourceName(strings.Repeat("r", 64)), "", ""},
		{"resource name of 65", resourceName(strings.Repeat("r", 65)), "Resources[0].Name", "1 to 64"},
		{"resource name with a brace", resourceName("a{b}"), "Resources[0].Name", chars},
		{"resource name with a slash", resourceName("a/b"), "Resources[0].Name", chars},
		{"resource name with an umlaut", resourceName("ä"), "Resources[0].Name", chars},
		{"resource name with a NUL", resourceName("a\x00"), "Resources[0].Name", chars},
		{"resource name with a newline", resourceName("a\n"), "Resources[0].Name", chars},

		{"TTL 0 is the default", ttl(0), "", ""},
		{"TTL negative", ttl(-1), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 1 ns", ttl(1), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 999 µs", ttl(999 * time.Microsecond), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 1 ms", ttl(time.Millisecond), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 99 ms", ttl(99 * time.Millisecond), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 100 ms", ttl(100 * time.Millisecond), "", ""},
		{"TTL 100.5 ms", ttl(100500 * time.Microsecond), "Resources[0].TTL", "whole number of milliseconds"},
		{"TTL 60 s", ttl(time.Minute), "", ""},
		{"TTL 60.001 s", ttl(time.Minute + time.Millisecond), "Resources[0].TTL", "100ms to 1m0s"},
		{"TTL 25 days", ttl(25 * 24 * time.Hour), "Resources[0].TTL", "100ms to 1m0s"},
		{"wait negative", res(func(r *tierlock.Resource) { r.Wait = -1 }), "Resources[0].Wait", "positive, or 0"},
		{"wait of an hour", res(func(r *tierlock.Resource) { r.Wait = time.Hour }), "", ""},
		{"max hold negative", res(func(r *tierlock.Resource) { r.MaxHold = -1 }), "Resources[0].MaxHold", "at least 100ms"},
		{"max hold 99 ms", res(func(r *tierlock.Resource) { r.MaxHold = 99 * time.Millisecond }), "Resources[0].MaxHold", "at least 100ms"},
		{"max hold 100 ms", res(func(r *tierlock.Resource) { r.MaxHold = 100 * time.Millisecond }), "", ""},
		{"max renewals negative", res(func(r *tierlock.Resource) { r.MaxRenewals = -1 }), "Resources[0].MaxRenewals", "positive, or 0"},
		{"min hold negative", res(func(r *tierlock.Resource) { r.MinHold = -1 }), "Resources[0].MinHold", "positive, or 0"},
		{"min hold over the TTL", res(func(r *tierlock.Resource) { r.TTL, r.MinHold = time.Second, time.Second+1 }),
			"Resources[0].MinHold", "at most the TTL, 1s"},
		{"min hold over the default TTL", res(func(r *tierlock.Resource) { r.MinHold = 31 * time.Second }),
			"Resources[0].MinHold", "at most the TTL, 30s"},
		{"min hold of a TTL", res(func(r *tierlock.Resource) { r.TTL, r.MinHold = time.Second, time.Second }), "", ""},
		{"min hold over max hold", res(func(r *tierlock.Resource) { r.MaxHold, r.MinHold = time.Second, 2*time.Second }),
			"Resources[0].MinHold", "at most MaxHold, 1s"},
		{"expect negative", res(func(r *tierlock.Resource) { r.Expect = -1 }), "Resources[0].Expect", "positive, or 0"},
		{"max waiters negative", res(func(r *tierlock.Resource) { r.MaxWaiters = -1 }), "Resources[0].MaxWaiters", "positive, or 0 for 1000"},
		{"max holds negative", res(func(r *tierlock.Resource) { r.MaxHolds = -1 }), "Resources[0].MaxHolds", "positive, or 0"},
	} {
		cfg := goodConfig()
		c.change(&cfg)
		l, err := tierlock.New(cfg)
		if (l == nil) != (err != nil) {
			t.Errorf("%s: New gave %v and %v, want exactly one", c.what, l, err)
		}
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.field != "":
			wantInvalid(t, c.what, err, c.field, c.bound)
		}
	}
}

func TestConfigTellsAllProblemsAtOnce(t *testing.T) {
	_, err := tierlock.New(tierlock.Config{
		App: "a b", CallTimeout: time.Nanosecond,
		Resources: []tierlock.Resource{
			{Name: "ok"},
			{Name: "a/b", TTL: time.Hour, Wait: -1, MaxHold: 1, MaxRenewals: -1, MinHold: -1, Expect: -1, MaxWaiters: -1, MaxHolds: -1},
			{Name: "ok"},
		},
	})
	want := []string{"App", "Namespace", "CallTimeout",
		"Resources[1].Name", "Resources[1].TTL", "Resources[1].Wait", "Resources[1].MaxHold", "Resources[1].MaxRenewals",
		"Resources[1].MinHold", "Resources[1].Expect", "Resources[1].MaxWaiters", "Resources[1].MaxHolds", "Resources[2].Name", "Stores"}
	var got []string
	for _, bad := range invalids(t, "New", err) {
		got = append(got, bad.Field)
		if bad.Bound == "" {
			t.Errorf("%s: no bound", bad.Field)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems of fields\n%q, want\n%q", got, want)
	}
}

func TestConfigIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := goodConfig()
		l, err := tierlock.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Resources[0] != (tierlock.Resource{Name: "r"}) || cfg.CallTimeout != 0 {
			t.Errorf("New filled in the caller's own configuration: %+v", cfg)
		}
		cfg.Resources[0] = tierlock.Resource{Name: "other", TTL: time.Second}
		k := mustLock(t, l, "r", "1")
		if got := k.Token().TTL; got != tierlock.DefaultTTL {
			t.Errorf("TTL %v, want the default %v", got, tierlock.DefaultTTL)
		}
		start := time.Now()
		if _, err := l.Lock(bg, "r", "1"); !errors.Is(err, tierlock.ErrHeld) || time.Since(start) != tierlock.DefaultWait {
			t.Errorf("second Lock after %v: %v, want ErrHeld after %v", time.Since(start), err, tierlock.DefaultWait)
		}
		mustUnlock(t, k)
		if err := l.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

// No call with a bad argument reaches a store. Options of time: scenarios 50
// and 51.
func TestBadArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy(nil)
		l := newLocker(t, s, withResources(
			tierlock.Resource{Name: "r", TTL: 3 * time.Second},
			tierlock.Resource{Name: "re", TTL: 3 * time.Second, Reentrant: true},
			tierlock.Resource{Name: "min", TTL: 3 * time.Second, MinHold: 2 * time.Second},
		))
		opts := func(o ...tierlock.Option) []tierlock.Option { return o }
		for _, c := range []struct {
			what, resource, key string
			opts                []tierlock.Option
			field, bound        string
		}{
			{"misspelt resource", "rr", "1", nil, "resource", "a registered resource"},
			{"no key", "r", "", nil, "key", "valid UTF-8 of 1 to 128 characters"},
			{"key is no UTF-8", "r", "a\xff", nil, "key", "valid UTF-8"},
			{"key of 129 characters", "r", strings.Repeat("a", 129), nil, "key", "1 to 128"},
			{"key of 129 long characters", "r", strings.Repeat("𝄞", 129), nil, "key", "1 to 128"},
			{"zero option", "r", "1", opts(tierlock.Option{}), "option", "option functions"},
			{"wait 0", "r", "1", opts(tierlock.Wait(0)), "option Wait", "positive"},
			{"wait negative", "r", "1", opts(tierlock.Wait(-time.Second)), "option Wait", "positive"},
			{"TTL 0", "r", "1", opts(tierlock.TTL(0)), "option TTL", "100ms to the resource's TTL, 3s"},
			{"TTL negative", "r", "1", opts(tierlock.TTL(-1)), "option TTL", "100ms"},
			{"TTL 1 ns", "r", "1", opts(tierlock.TTL(1)), "option TTL", "100ms"},
			{"TTL 999 µs", "r", "1", opts(tierlock.TTL(999 * time.Microsecond)), "option TTL", "100ms"},
			{"TTL 1 ms", "r", "1", opts(tierlock.TTL(time.Millisecond)), "option TTL", "100ms"},
			{"TTL 99 ms", "r", "1", opts(tierlock.TTL(99 * time.Millisecond)), "option TTL", "100ms"},
			{"TTL longer than the resource's", "r", "1", opts(tierlock.TTL(3001 * time.Millisecond)), "option TTL", "3s"},
			{"TTL 25 days", "r", "1", opts(tierlock.TTL(25 * 24 * time.Hour)), "option TTL", "3s"},
			{"lease 0", "r", "1", opts(tierlock.Lease(0)), "option Lease", "at least 100ms"},
			{"lease negative", "r", "1", opts(tierlock.Lease(-1)), "option Lease", "at least 100ms"},
			{"lease 99 ms", "r", "1", opts(tierlock.Lease(99 * time.Millisecond)), "option Lease", "at least 100ms"},
			{"expect 0", "r", "1", opts(tierlock.Expect(0)), "option Expect", "positive"},
			{"expect negative", "r", "1", opts(tierlock.Expect(-1)), "option Expect", "positive"},
			{"holder where none may enter", "r", "1", opts(tierlock.Holder("h")), "option Holder", "Reentrant resource only; r is not"},
			{"no holder", "re", "1", opts(tierlock.Holder("")), "option Holder", "1 to 64 bytes"},
			{"holder of 65 bytes", "re", "1", opts(tierlock.Holder(strings.Repeat("h", 65))), "option Holder", "1 to 64 bytes"},
			{"holder is no UTF-8", "re", "1", opts(tierlock.Holder("\xff")), "option Holder", "UTF-8"},
			{"request id of 129 bytes", "r", "1", opts(tierlock.RequestID(strings.Repeat("q", 129))), "option RequestID", "at most 128 bytes"},
			{"request id is no UTF-8", "r", "1", opts(tierlock.RequestID("\xff")), "option RequestID", "UTF-8"},
			{"TTL below MinHold", "min", "1", opts(tierlock.TTL(time.Second)), "option TTL or Lease", "MinHold, 2s"},
			{"lease below MinHold", "min", "1", opts(tierlock.Lease(time.Second)), "option TTL or Lease", "MinHold, 2s"},
			{"the bad one of two", "r", "1", opts(tierlock.TTL(time.Second), tierlock.Wait(0)), "option Wait", "positive"},
		} {
			k, err := l.Lock(bg, c.resource, c.key, c.opts...)
			wantInvalid(t, c.what, err, c.field, c.bound)
			wantNoLock(t, k)
			k, err = l.TryLock(bg, c.resource, c.key, c.opts...)
			wantInvalid(t, c.what, err, c.field, c.bound)
			wantNoLock(t, k)
			err = l.Do(bg, c.resource, c.key, func(context.Context) error {
				t.Error("the body was called")
				return nil
			}, c.opts...)
			wantInvalid(t, c.what, err, c.field, c.bound)
			if len(c.opts) == 0 {
				_, err = l.Inspect(bg, c.resource, c.key)
				wantInvalid(t, c.what, err, c.field, c.bound)
			}
		}
		for _, o := range []tierlock.Option{tierlock.Wait(time.Second), tierlock.UntilDone()} {
			k, err := l.TryLock(bg, "r", "1", o)
			wantInvalid(t, "TryLock with a wait", err, "option", "TryLock")
			wantNoLock(t, k)
		}
		_, err := l.Resource("rr")
		wantInvalid(t, "Resource", err, "resource", "a registered resource")
		if n := s.acquires.Load() + s.renews.Load() + s.releases.Load() + s.inspects.Load(); n != 0 {
			t.Errorf("%d calls reached the store, want none", n)
		}
	})
}

// wantNoLock checks a nil Lock: that it is one, and safe to call (scenarios 47
// and 80).
func wantNoLock(t *testing.T, k *tierlock.Lock) {
	t.Helper()
	if k != nil {
		t.Errorf("got a lock %v together with an error", k.Token())
		mustUnlock(t, k)
		return
	}
	for what, err := range map[string]error{"Err": k.Err(), "Unlock": k.Unlock(), "Ensure": k.Ensure(time.Second),
		"Context": context.Cause(k.Context())} {
		if !errors.Is(err, tierlock.ErrNotHeld) {
			t.Errorf("%s of a nil Lock: %v, want ErrNotHeld", what, err)
		}
	}
	if k.Context().Err() == nil || !k.Token().IsZero() || k.Guarantee() != 0 || !tierlock.TokenFrom(k.Context()).IsZero() {
		t.Errorf("a nil Lock has context error %v, token %v, guarantee %v", k.Context().Err(), k.Token(), k.Guarantee())
	}
}

// What the right options become on the way to the store.
func TestGoodArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got tierlock.AcquireRequest
		s := newSpy(nil)
		s.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
			got = req
			return s.Store.Acquire(ctx, req)
		}
		l := newLocker(t, s, withResources(
			tierlock.Resource{Name: "r", TTL: 3 * time.Second, MaxHold: 2 * time.Second, MaxRenewals: 7},
			tierlock.Resource{Name: "re", TTL: 3 * time.Second, Reentrant: true},
		))
		longKey := strings.Repeat("𝄞", 128)
		for _, c := range []struct {
			what, resource, key string
			opts                []tierlock.Option
			ttl                 time.Duration
			holder              string
		}{
			{"no options", "re", "1", nil, 3 * time.Second, ""},
			{"longest key", "re", longKey, nil, 3 * time.Second, ""},
			{"odd key", "re", " {}/:\x00\n\"\\ ", nil, 3 * time.Second, ""},
			{"shorter TTL", "re", "1", []tierlock.Option{tierlock.TTL(100 * time.Millisecond)}, 100 * time.Millisecond, ""},
			{"TTL of fractions", "re", "1", []tierlock.Option{tierlock.TTL(1999999 * time.Microsecond)}, 1999 * time.Millisecond, ""},
			{"the later of two counts", "re", "1", []tierlock.Option{tierlock.TTL(time.Second), tierlock.TTL(2 * time.Second)}, 2 * time.Second, ""},
			{"MaxHold cuts the TTL", "r", "1", nil, 2 * time.Second, ""},
			{"lease cuts the TTL", "re", "1", []tierlock.Option{tierlock.Lease(1500500 * time.Microsecond)}, 1500 * time.Millisecond, ""},
			{"a lease beyond MaxHold does not raise it", "r", "1", []tierlock.Option{tierlock.Lease(time.Hour)}, 2 * time.Second, ""},
			{"longest holder", "re", "1", []tierlock.Option{tierlock.Holder(strings.Repeat("h", 64))}, 3 * time.Second, strings.Repeat("h", 64)},
			{"wait after no wait", "re", "1", []tierlock.Option{tierlock.NoWait(), tierlock.Wait(time.Second)}, 3 * time.Second, ""},
		} {
			got = tierlock.AcquireRequest{}
			k, err := l.Lock(bg, c.resource, c.key, c.opts...)
			if err != nil {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			if got.TTL != c.ttl || got.Token.TTL != c.ttl || k.Token().TTL != c.ttl {
				t.Errorf("%s: TTL %v in the request, %v in its token, %v in the lock's; want %v", c.what, got.TTL, got.Token.TTL, k.Token().TTL, c.ttl)
			}
			if got.Name != name(c.resource, c.key) || got.Explicit != (c.holder != "") || c.holder != "" && k.Token().Holder != c.holder {
				t.Errorf("%s: request %+v", c.what, got)
			}
			if got.Budget <= 0 || got.Budget > c.ttl/20 {
				t.Errorf("%s: budget %v, want at most half a margin, %v", c.what, got.Budget, c.ttl/20)
			}
			if max := map[string]int{"r": 7}[c.resource]; k.Token().MaxRenewals != max || k.Token().Reentrant != (c.resource == "re") {
				t.Errorf("%s: token %+v", c.what, k.Token())
			}
			mustUnlock(t, k)
		}
	})
}
