package redisstore_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// The format that is sent, filled in, is what Token.MarshalJSON writes. (The
// verbs in it mean the same in Lua and in Go.)
func TestFormatMakesTheTokensJSON(t *testing.T) {
	text := func() string {
		const from = "abcXYZ09 \"\\/<>&{}%d%%s\n\t\x00\x1f\x7fé\u2028\U0001F512"
		r := []rune(from)
		var b strings.Builder
		for range rand.IntN(60) {
			b.WriteRune(r[rand.IntN(len(r))])
		}
		return b.String()
	}
	for range 2000 {
		tok := tierlock.Token{
			Lease: "l" + text(), ID: text(), Resource: text(), Key: text(), Holder: text(), App: text(), Host: text(),
			PID: rand.IntN(1 << 22), Fence: rand.Uint64N(1 << 63), Epoch: 1, Seq: rand.Uint64N(1 << 49),
			Tier: tierlock.Redis, Reentrant: rand.IntN(2) == 0, MaxRenewals: rand.IntN(9),
			TTL: time.Duration(rand.IntN(60000)) * time.Millisecond, RequestID: text(),
			ServerTime: time.UnixMicro(rand.Int64N(1 << 51)), ClientTime: time.UnixMicro(rand.Int64N(1 << 51)),
			ExpireAt: time.UnixMicro(rand.Int64N(1 << 51)),
		}
		whole, err := tok.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf(redisstore.Format(tok), tok.Fence, tok.Seq, tok.ServerTime.UnixMicro(), tok.ExpireAt.UnixMicro())
		if got != string(whole) {
			t.Fatalf("%s\nwanted\n%s", got, whole)
		}
	}
}

// The key's value is the granted token, to the last field and byte, with every
// field that a decoder expects.
func TestStoredValueIsTheGrantedToken(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	check := func(what, key string, tok tierlock.Token) {
		t.Helper()
		raw := srv.Text("GET", keyOf(key))
		var stored tierlock.Token
		if err := json.Unmarshal([]byte(raw), &stored); err != nil {
			t.Fatalf("%s: %v in %s", what, err, raw)
		}
		if stored != tok {
			t.Errorf("%s: stored\n%+v\ngranted\n%+v", what, stored, tok)
		}
		again, err := tok.MarshalJSON()
		if err != nil || strings.TrimRight(raw, " ") != string(again) {
			t.Errorf("%s: stored\n%s\nwanted\n%s", what, raw, again)
		}
		if got := tok.ExpireAt.Sub(tok.ServerTime); got != tok.TTL {
			t.Errorf("%s: expires %v after the grant; wanted %v", what, got, tok.TTL)
		}
		if d := time.Since(tok.ServerTime); d < -time.Second || d > time.Minute {
			t.Errorf("%s: server time %v is %v ago", what, tok.ServerTime, d)
		}
	}
	const key = `a"}{ \ é %d %%` + "\n\x00"
	plain := newLease()
	check("free", key, mustAcquire(t, s, ask(key, plain, 5*time.Minute)))
	check("again", key, mustAcquire(t, s, ask(key, plain, 5*time.Minute)))
	// A record ahead of the clock: the token is put together a second time.
	mustRelease(t, s, drop(key, plain), tierlock.LeaseOwned)
	srv.Do("SET", redisstore.FenceKey(name(key)), "99999999999999", "PX", "60000")
	check("record ahead", key, mustAcquire(t, s, ask(key, newLease(), 30*time.Second)))
	check("explicit", "e", mustAcquire(t, s, askAs("h1", "e", newLease(), time.Minute)))
	check("short lease id", "s", mustAcquire(t, s, ask("s", "x", time.Minute)))
	check("long odd lease id", "o", mustAcquire(t, s, ask("o", strings.Repeat(`é"<`, 40), time.Minute)))
	noEternalKeys(t, srv)
}

// A lease is compared whole: neither its beginning nor its continuation owns
// the lock.
func TestLeaseThatIsAPrefixOfAnother(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, ask("k", "abc", 30*time.Second))
	for _, other := range []string{"ab", "abcd", `abc"`} {
		if res, err := s.Acquire(t.Context(), ask("k", other, time.Second)); err != nil || res.Granted {
			t.Errorf("acquire with lease %q over %q: got %+v, %v; wanted it refused", other, "abc", res, err)
		}
		if res := renewOne(t, s, "k", other, time.Minute); res.Err != nil || res.State != tierlock.LeaseTaken {
			t.Errorf("renew with lease %q: got %+v; wanted taken", other, res)
		}
		mustRelease(t, s, drop("k", other), tierlock.LeaseTaken)
	}
	mustRelease(t, s, drop("k", "abc"), tierlock.LeaseOwned)
}

// Zero means unknown, which a lock in its last moment is not.
func TestTimeLeft(t *testing.T) {
	for ms, want := range map[int64]time.Duration{-1: 0, 0: time.Millisecond, 1: time.Millisecond, 30000: 30 * time.Second} {
		if got := redisstore.LeftOf(ms); got != want {
			t.Errorf("PTTL %d: got %v; wanted %v", ms, got, want)
		}
	}
}
