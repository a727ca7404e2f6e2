package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// The cause of a ctx is the caller's: it matches, but does not make an unknown
// outcome a known one.
func TestCauseDecidesNoClass(t *testing.T) {
	srv := rig.Redis(t)
	proxy := rig.NewProxy(t, srv.Addr)
	opt := patient(proxy.Addr)
	opt.ConnWriteTimeout = 5 * time.Minute
	s := connected(t, openWith(t, opt, unhurried))
	wrong := &rueidis.RedisError{}
	own := errors.New("own")
	for i, cause := range []error{
		tierlock.ErrLate, tierlock.ErrMisconfigured, rueidis.ErrNoCache, wrong,
		fmt.Errorf("x: %w", errors.Join(own, tierlock.ErrMisconfigured, tierlock.ErrUnavailable)),
	} {
		release := proxy.HoldReply()
		ctx, cancel := context.WithCancelCause(background)
		stop := time.AfterFunc(30*time.Millisecond, func() { cancel(cause) })
		_, err := s.Acquire(ctx, ask(fmt.Sprint("k", i), newLease(), 30*time.Second))
		stop.Stop()
		cancel(nil)
		wantClass(t, fmt.Sprintf("cause %v", cause), err, tierlock.ErrUnavailable)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cause %v: %v; wanted %v in it", cause, err, context.Canceled)
		}
		if errors.Is(cause, own) && !errors.Is(err, own) {
			t.Errorf("cause %v: not found in %v", cause, err)
		}
		release()
	}
}

// A watch that cannot be had is unavailable, whatever the reason.
func TestWatchErrorsHaveOneClass(t *testing.T) {
	s := redisstore.New(nil, redisstore.Options{})
	_, err := s.Watch(background, name("k"))
	wantClass(t, "watch without a client", err, tierlock.ErrUnavailable)
	_, err = s.Inspect(background, name("k"))
	wantClass(t, "inspect without a client", err, tierlock.ErrMisconfigured)
}

// A script that is refused halfway leaves neither the lock nor anything that
// stays for ever.
func TestRefusedHalfway(t *testing.T) {
	srv := rig.Redis(t)
	base := []string{"ACL", "SETUSER", "u", "reset", "on", ">p", "~lock:*", "&lock:*",
		"+eval", "+evalsha", "+time", "+get", "+set", "+getrange", "+pttl", "+ping", "+hello", "+client"}
	z := []string{"+zadd", "+zrem", "+zscore", "+zcard", "+zcount", "+zrange", "+zremrangebyscore"}
	for _, c := range []struct {
		name  string
		more  []string
		spoil func()
		plain bool // a plain acquire is refused too
	}{
		{"no z-commands", []string{"+del", "+pexpire"}, nil, false},
		{"no PEXPIRE", append(z, "+del"), nil, false},
		{"no DEL", append(z, "+pexpire"), nil, false},
		{"a record of another type", append(z, "+del", "+pexpire"), func() { srv.Do("LPUSH", redisstore.FenceKey(name("k")), "x") }, true},
		{"a lock of another type", append(z, "+del", "+pexpire"), func() { srv.Do("LPUSH", keyOf("k"), "x"); srv.Do("PEXPIRE", keyOf("k"), "60000") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv.Do("FLUSHALL")
			srv.Do(append(append([]string{}, base...), c.more...)...)
			opt := patient(srv.Addr)
			opt.Username, opt.Password = "u", "p"
			s := openWith(t, opt, calm)
			for _, explicit := range []bool{true, false} {
				if !explicit && !c.plain {
					continue
				}
				if c.spoil != nil {
					c.spoil()
				}
				req := ask("k", newLease(), 30*time.Second)
				req.Explicit = explicit
				_, err := s.Acquire(t.Context(), req)
				wantClass(t, "acquire", err, tierlock.ErrMisconfigured)
				if got := srv.Do("TYPE", keyOf("k")); got == "string" {
					t.Errorf("explicit %v: the lock stays", explicit)
				}
				for _, k := range srv.Do("KEYS", "*:holds").([]any) {
					if srv.Int("PTTL", k.(string)) == -1 {
						t.Errorf("explicit %v: %v has no TTL", explicit, k)
					}
				}
			}
		})
	}
}

// A key that somebody else wrote is held by others, and is left alone.
func TestForeignValues(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, v := range []string{"", "x", "x ", "1 ", "null ", "[] ", "{} ", "0123456789", `{"lease":"`} {
		srv.Do("SET", keyOf("k"), v, "PX", "60000")
		srv.Do("ZADD", keyOf("k")+":holds", "9e15", "x") // or nobody would look at the value
		srv.Do("PEXPIRE", keyOf("k")+":holds", "60000")
		for _, explicit := range []bool{false, true} {
			req := ask("k", newLease(), time.Second)
			req.Explicit = explicit
			if res, err := s.Acquire(t.Context(), req); err != nil || res.Granted || res.Left <= 0 {
				t.Errorf("value %q, explicit %v: acquire: got %+v, %v; wanted held", v, explicit, res, err)
			}
			rel := drop("k", newLease())
			rel.Explicit = explicit
			mustRelease(t, s, rel, tierlock.LeaseTaken)
			res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: newLease(), Explicit: explicit, TTL: time.Second}})
			if res[0].Err != nil || res[0].State != tierlock.LeaseTaken {
				t.Errorf("value %q, explicit %v: renewal: got %+v; wanted taken", v, explicit, res[0])
			}
		}
		if got := srv.Text("GET", keyOf("k")); got != v {
			t.Errorf("value %q became %q", v, got)
		}
	}
}

// What JSON would change must not make two identities one.
func TestInvalidText(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	_, err := s.Acquire(t.Context(), ask("k", "lease\xff", time.Second))
	wantClass(t, "acquire with an invalid lease", err, tierlock.ErrMisconfigured)
	_, err = s.Acquire(t.Context(), askAs("\xff", "k", newLease(), time.Second))
	wantClass(t, "acquire with an invalid holder", err, tierlock.ErrMisconfigured)
	_, err = s.Release(t.Context(), drop("k", "\xff"))
	wantClass(t, "release with an invalid lease", err, tierlock.ErrMisconfigured)
	wantClass(t, "renewal with an invalid lease", renewOne(t, s, "k", "\xff", time.Second).Err, tierlock.ErrMisconfigured)
	req := ask("k", newLease(), 30*time.Second)
	req.Token.RequestID, req.Token.Host, req.Token.Holder = "a\xff\xfeb", "\xff", "app@\xff/1"
	got := mustAcquire(t, s, req)
	rec, err := s.Inspect(t.Context(), name("k"))
	if err != nil || rec.Token != got || got.RequestID != "a\ufffdb" {
		t.Errorf("granted %+v, read %+v (%v)", got, rec.Token, err)
	}
}

// However long a key is to be kept, it is neither freed nor prolonged.
func TestKeepForVeryLong(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, explicit := range []bool{false, true} {
		req := ask("k", newLease(), 30*time.Second)
		req.Explicit = explicit
		mustAcquire(t, s, req)
		rel := drop("k", req.Token.Lease)
		rel.Explicit, rel.Keep = explicit, math.MaxInt64
		mustRelease(t, s, rel, tierlock.LeaseOwned)
		if left := srv.Int("PTTL", keyOf("k")); left <= 0 || left > 30000 {
			t.Errorf("explicit %v: %d ms left; wanted what was left of 30 s", explicit, left)
		}
		srv.Do("FLUSHALL")
	}
}
