package tierlock_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// goldenToken has a value in every field, with the fence beyond 2^53 and
// characters that JSON has to escape.
var goldenToken = tierlock.Token{
	Lease: "0123456789abcdef0123456789abcdef000000000001", ID: "89abcdef000000000001",
	Resource: "order:settle", Key: "4\"2}\n", Holder: "ünser <app>", App: "order", Host: "host-1", PID: 4711,
	Fence: 1<<49 | 9007199254740993, Epoch: 17, Seq: 562949953421311, Tier: tierlock.Redis, Reentrant: true, MaxRenewals: 3,
	TTL: 30 * time.Second, ServerTime: time.UnixMicro(1767225600000001).UTC(),
	ClientTime: time.UnixMicro(1767225599999999).UTC(), ExpireAt: time.UnixMicro(1767225630000001).UTC(), RequestID: "req-7",
}

// The form is a promise: scripts compare the lease at its offset, and other
// versions read what this one wrote.
func TestTokenJSONForm(t *testing.T) {
	const golden = `{"lease":"0123456789abcdef0123456789abcdef000000000001","fence":"9570149208162305",` +
		`"epoch":17,"seq":562949953421311,"serverTime":1767225600000001,"expireAt":1767225630000001,` +
		`"id":"89abcdef000000000001","resource":"order:settle","key":"4\"2}\n","holder":"ünser \u003capp\u003e","app":"order",` +
		`"host":"host-1","pid":4711,"tier":"redis","reentrant":true,"maxRenewals":3,"ttlMs":30000,` +
		`"clientTime":1767225599999999,"requestId":"req-7"}`
	got, err := json.Marshal(goldenToken)
	if err != nil || string(got) != golden {
		t.Errorf("got  %s\nwant %s\nerror %v", got, golden, err)
	}
	if i := bytes.Index(got, []byte(goldenToken.Lease)); i != 10 {
		t.Errorf("the lease is at offset %d, want 10", i)
	}
	// Nothing is left out and nothing is null where there is nothing to say.
	const zero = `{"lease":"","fence":"0","epoch":0,"seq":0,"serverTime":0,"expireAt":0,"id":"","resource":"","key":"",` +
		`"holder":"","app":"","host":"","pid":0,"tier":"tier(0)","reentrant":false,"maxRenewals":0,"ttlMs":0,"clientTime":0,"requestId":""}`
	if got, err := json.Marshal(tierlock.Token{}); err != nil || string(got) != zero {
		t.Errorf("zero token: got  %s\nwant %s\nerror %v", got, zero, err)
	}
}

func TestTokenJSONRoundTrip(t *testing.T) {
	for what, change := range map[string]func(*tierlock.Token){
		"as is":          func(*tierlock.Token) {},
		"only the lease": func(k *tierlock.Token) { *k = tierlock.Token{Lease: "l", Tier: tierlock.Local} },
		"largest fence":  func(k *tierlock.Token) { k.Fence = math.MaxUint64 },
		"mysql":          func(k *tierlock.Token) { k.Tier = tierlock.MySQL },
		"longest TTL":    func(k *tierlock.Token) { k.TTL = math.MaxInt64 / time.Millisecond * time.Millisecond },
		"strange key":    func(k *tierlock.Token) { k.Key = "\x00 \u2028 {} / \\ 𝄞" },
		"year 1900":      func(k *tierlock.Token) { k.ClientTime = time.Date(1900, 1, 1, 0, 0, 0, 1000, time.UTC) },
	} {
		want := goldenToken
		change(&want)
		data, err := json.Marshal(want)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		got := goldenToken // what is there is replaced as a whole
		if err := json.Unmarshal(data, &got); err != nil || got != want {
			t.Errorf("%s: got %+v, want %+v, error %v", what, got, want, err)
		}
	}
	// Finer times and TTLs than the form has are cut, not rounded up.
	in := goldenToken
	in.TTL += 999 * time.Microsecond
	in.ServerTime = in.ServerTime.Add(999)
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var got tierlock.Token
	if err := json.Unmarshal(data, &got); err != nil || got != goldenToken {
		t.Errorf("finer than the form: got %+v, want %+v, error %v", got, goldenToken, err)
	}
}

func TestTokenJSONAccepts(t *testing.T) {
	good, err := json.Marshal(goldenToken)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) string {
		if !strings.Contains(string(good), from) {
			t.Fatalf("no %q in %s", from, good)
		}
		return strings.Replace(string(good), from, to, 1)
	}
	for _, c := range []struct {
		what, json, message string // no message where it is right
	}{
		{"as written", string(good), ""},
		{"unknown fields", edit(`"epoch"`, `"new":{"a":[1,null]},"epoch"`), ""},
		{"a script's field order", `{"fence":"7","tier":"redis","lease":"l"}`, ""},
		{"no lease", edit(`"lease"`, `"base"`), "field lease"},
		{"empty lease", edit(goldenToken.Lease, ""), "field lease"},
		{"lease is null", `{"lease":null,"fence":"7","tier":"redis"}`, "field lease"},
		{"no fence", edit(`"fence"`, `"fende"`), "field fence"},
		{"fence is a number", edit(`"9570149208162305"`, `9570149208162305`), "fence"},
		{"fence is negative", edit(`"9570149208162305"`, `"-1"`), "field fence"},
		{"fence is a fraction", edit(`"9570149208162305"`, `"9.57e15"`), "field fence"},
		{"fence is too large", edit(`"9570149208162305"`, `"18446744073709551616"`), "field fence"},
		{"no tier", edit(`"tier"`, `"bier"`), "field tier"},
		{"unknown tier", edit(`"redis"`, `"etcd"`), "field tier"},
		{"upper case tier", edit(`"redis"`, `"Redis"`), "field tier"},
		{"TTL beyond a duration", edit(`"ttlMs":30000`, `"ttlMs":9223372036855`), "field ttlMs"},
		{"TTL negative", edit(`"ttlMs":30000`, `"ttlMs":-1`), "field ttlMs"},
		{"longest TTL", edit(`"ttlMs":30000`, `"ttlMs":9223372036854`), ""},
		{"pid is a text", edit(`4711`, `"4711"`), "pid"},
		{"no object", `"lease"`, "cannot unmarshal"},
		{"cut off", string(good[:len(good)-1]), "unexpected end"},
	} {
		before := tierlock.Token{Lease: "before"}
		got := before
		err := got.UnmarshalJSON([]byte(c.json))
		switch {
		case c.message == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.message == "" && got.Lease == "before":
			t.Errorf("%s: nothing was read", c.what)
		case c.message == "":
		case err == nil:
			t.Errorf("%s: accepted as %+v", c.what, got)
		case !strings.HasPrefix(err.Error(), "tierlock: token: ") || !strings.Contains(err.Error(), c.message):
			t.Errorf("%s: %v, want a message with %q", c.what, err, c.message)
		case got != before:
			t.Errorf("%s: refused, but changed to %+v", c.what, got)
		}
	}
}

// Whatever is read without an error can be written and read again, and is the
// same. A token comes from a server that others write to.
func FuzzTokenUnmarshalJSON(f *testing.F) {
	good, err := json.Marshal(goldenToken)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"lease":"l","fence":"7","tier":"local"}`,
		`{"lease":"\ud800","fence":"007","tier":"mysql","key":"\u0000","ttlMs":9223372036854775}`,
		`{"lease":"l","fence":"18446744073709551615","tier":"redis","serverTime":-62135596800000000,"clientTime":9223372036854775807}`,
		`{"LEASE":"l","Fence":"1","tier":"redis","expireAt":-9223372036854775808,"pid":-1,"maxRenewals":-1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second tierlock.Token
		if first.UnmarshalJSON(data) != nil {
			if !first.IsZero() {
				t.Fatalf("refused, but changed to %+v", first)
			}
			return
		}
		again, err := first.MarshalJSON()
		if err != nil {
			t.Fatalf("cannot write %+v, which was read: %v", first, err)
		}
		if err := second.UnmarshalJSON(again); err != nil || first != second {
			t.Fatalf("read %+v, then %+v, error %v", first, second, err)
		}
		if first.String() == "" || first.LogValue().Kind() != slog.KindGroup {
			t.Fatalf("no text form of %+v", first)
		}
	})
}

func TestTokenText(t *testing.T) {
	short := tierlock.Token{Lease: "L", ID: "I", Resource: "r", Key: "1", Holder: "h", Fence: 7, Tier: tierlock.MySQL}
	long := short
	long.RequestID = "q"
	for _, c := range []struct {
		token     tierlock.Token
		text, log string
	}{
		{tierlock.Token{}, "no token", "msg=x"},
		{short, "r/1 hold=I fence=7 tier=mysql holder=h",
			"msg=x token.resource=r token.key=1 token.hold=I token.lease=L token.fence=7 token.tier=mysql token.holder=h"},
		{long, "r/1 hold=I fence=7 tier=mysql holder=h request=q",
			"msg=x token.resource=r token.key=1 token.hold=I token.lease=L token.fence=7 token.tier=mysql token.holder=h token.request=q"},
	} {
		if got := c.token.String(); got != c.text {
			t.Errorf("String: %q, want %q", got, c.text)
		}
		if c.token.IsZero() != (c.text == "no token") {
			t.Errorf("IsZero of %v: %v", c.token, c.token.IsZero())
		}
		var out bytes.Buffer
		slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		}})).Info("x", "token", c.token)
		if got := strings.TrimSpace(out.String()); got != c.log {
			t.Errorf("log line %q, want %q", got, c.log)
		}
	}
	if b, err := json.Marshal(map[string]tierlock.Token{"t": short}); err != nil || !strings.HasPrefix(string(b), `{"t":{"lease":"L",`) {
		t.Errorf("inside another value: %s, %v", b, err)
	}
}

// One line stays one line, whatever the key and the holder are.
func TestTextFormsAreOneLine(t *testing.T) {
	tok := tierlock.Token{Lease: "l", ID: "i", Resource: "r", Key: "a\nb", Holder: "h\r\n", RequestID: "q\x00\u2028"}
	for what, s := range map[string]string{
		"token": tok.String(),
		"name":  tierlock.Name{Namespace: "n", Resource: "r", Key: "a\nb"}.String(),
		"held":  (&tierlock.HeldError{Resource: "r", Key: "a\nb", Holder: tok}).Error(),
		"lost":  (&tierlock.LostError{Token: tok}).Error(),
	} {
		if strings.ContainsAny(s, "\n\r\x00\u2028") {
			t.Errorf("%s: %q", what, s)
		}
		if !strings.Contains(s, `"a\nb"`) {
			t.Errorf("%s does not quote the key: %s", what, s)
		}
	}
	if s := (tierlock.Name{Namespace: "n", Resource: "r", Key: "订单 42"}).String(); s != "n:r/订单 42" {
		t.Errorf("a printable key is changed: %s", s)
	}
}
