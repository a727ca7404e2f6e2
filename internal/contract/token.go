package contract

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
)

// Fences: see tierlock.Token. The servers compute the same.
const (
	Epoch     = 1 // a single store is always in epoch 1
	SeqBits   = 49
	SeqOrigin = 1735689600000000 // 2025-01-01 UTC in Unix µs, where seq begins
	SeqLead   = 500000           // a grant's seq is a second ahead of the clock
)

// Granted is the token of a plain grant at the given server time, equal to
// what the server stored.
func Granted(t tierlock.Token, ttl time.Duration, server int64) tierlock.Token {
	t.Epoch = Epoch
	t.Seq = uint64((server-SeqOrigin)/2 + SeqLead)
	return Stamped(t, ttl, server)
}

// WithFence is t with another fence, of the same or another epoch.
func WithFence(t tierlock.Token, fence uint64) tierlock.Token {
	t.Fence, t.Epoch, t.Seq = fence, fence>>SeqBits, fence&(1<<SeqBits-1)
	return t
}

// MaxFences is how many further fences a grant reserves at most: two
// milliseconds of seq. Where a replica that is promoted has missed the last grant,
// so much sooner than SeqLead after it a fence could come again.
const MaxFences = 1024

// Fences is how many further fences a request asks for.
func Fences(req *tierlock.AcquireRequest) int {
	if req.Explicit {
		return 0
	}
	return max(0, min(req.Fences, MaxFences))
}

// Ahead is t, whose fence is the last of a range, with the first: n less.
func Ahead(t tierlock.Token, n int) tierlock.Token { return WithFence(t, t.Fence-uint64(n)) }

// Stamped fills in what follows from epoch, seq and server time, and brings
// the rest to the precision of the stored form.
func Stamped(t tierlock.Token, ttl time.Duration, server int64) tierlock.Token {
	t.Fence = t.Epoch<<SeqBits | t.Seq
	t.ServerTime = time.UnixMicro(server).UTC()
	t.ExpireAt = t.ServerTime.Add(ttl)
	t.TTL = t.TTL.Truncate(time.Millisecond)
	if !t.ClientTime.IsZero() {
		t.ClientTime = time.UnixMicro(t.ClientTime.UnixMicro()).UTC()
	}
	return t
}

// ReadToken decodes a stored token. Its zero value is the answer to a value
// that is none: the key is held all the same.
func ReadToken(value string) tierlock.Token {
	var t tierlock.Token
	if err := t.UnmarshalJSON([]byte(value)); err != nil {
		return tierlock.Token{}
	}
	return t
}

// Storable is t as it can be stored: with a tier (that given where it has none), and in valid UTF-8, so that
// what is granted equals what is read.
func Storable(t tierlock.Token, tier tierlock.Tier) tierlock.Token {
	if t.Tier == 0 {
		t.Tier = tier
	}
	for _, text := range [...]*string{&t.ID, &t.Resource, &t.Key, &t.Holder, &t.App, &t.Host, &t.RequestID} {
		*text = strings.ToValidUTF8(*text, "\ufffd")
	}
	return t
}

// AppendText appends a JSON string as encoding/json writes it.
func AppendText(b []byte, s string) []byte {
	if !Plain(s) {
		quoted, _ := json.Marshal(s) // a string has no encoding that fails
		return append(b, quoted...)
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// Plain tells a text that stands in JSON as it is.
func Plain(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// AppendToken appends the token's JSON, as Token.MarshalJSON writes it.
func AppendToken(b []byte, t *tierlock.Token) []byte {
	b = AppendText(append(b, `{"lease":`...), t.Lease)
	b = strconv.AppendUint(append(b, `,"fence":"`...), t.Fence, 10)
	b = strconv.AppendUint(append(b, `","epoch":`...), t.Epoch, 10)
	b = strconv.AppendUint(append(b, `,"seq":`...), t.Seq, 10)
	b = strconv.AppendInt(append(b, `,"serverTime":`...), micros(t.ServerTime), 10)
	b = strconv.AppendInt(append(b, `,"expireAt":`...), micros(t.ExpireAt), 10)
	return AppendRest(b, t)
}

// AppendRest appends the token's JSON from the field after those that only the
// server knows to the end: byte for byte what Token.MarshalJSON would write, in
// a tenth of the time.
func AppendRest(b []byte, t *tierlock.Token) []byte {
	text := func(name, value string) { b = AppendText(append(b, name...), value) }
	text(`,"id":`, t.ID)
	text(`,"resource":`, t.Resource)
	text(`,"key":`, t.Key)
	text(`,"holder":`, t.Holder)
	text(`,"app":`, t.App)
	text(`,"host":`, t.Host)
	b = strconv.AppendInt(append(b, `,"pid":`...), int64(t.PID), 10)
	text(`,"tier":`, t.Tier.String())
	b = strconv.AppendBool(append(b, `,"reentrant":`...), t.Reentrant)
	b = strconv.AppendInt(append(b, `,"maxRenewals":`...), int64(t.MaxRenewals), 10)
	b = strconv.AppendInt(append(b, `,"ttlMs":`...), t.TTL.Milliseconds(), 10)
	b = strconv.AppendInt(append(b, `,"clientTime":`...), micros(t.ClientTime), 10)
	text(`,"requestId":`, t.RequestID)
	return append(b, '}')
}

// micros keeps the zero time zero, which is not the Unix epoch.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
