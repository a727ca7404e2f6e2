package tierlock

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"
)

// Token is the serialisable identity of a hold: who holds which key, since
// when, and with which fence. It is the value of a Redis key, it stands in
// every log line and event about a lock, and it may be passed on to whatever
// the lock protects.
//
// A Token is a plain value; copies are independent and safe for concurrent
// use. The fields are fixed at the grant: a renewal rewrites nothing, so
// ExpireAt is the expiry as granted. [Resource.Inspect] gives the present one.
type Token struct {
	// Lease is the id that the store compares at renewal and release. It
	// begins with the 32 hexadecimal digits of the process's member id.
	Lease string
	// ID is the id of this hold. Several holds may follow each other on one
	// lease, each with its own ID and Fence.
	ID string
	// Resource and Key name what is locked.
	Resource, Key string
	// Holder is the id given with the option [Holder], else a text made of
	// app, host and process id.
	Holder string
	// App, Host and PID say which process took the lock.
	App, Host string
	PID       int
	// Fence grows strictly with each new hold of the key and is to be
	// compared by the protected resource: it is Epoch<<49 | Seq. Zero means
	// that there is no fence (the process-local tier).
	Fence uint64
	// Epoch is the number of the chain's mode at the grant; a single store
	// is always in epoch 1.
	Epoch uint64
	// Seq is the part of Fence within the epoch.
	Seq uint64
	// Tier is the kind of store that granted the lease.
	Tier Tier
	// Reentrant says whether the resource allows re-entry.
	Reentrant bool
	// MaxRenewals is the bound on renewals; 0 means none.
	MaxRenewals int
	// TTL is the lease as granted, in whole milliseconds.
	TTL time.Duration
	// ServerTime is the store's clock at the grant, in whole microseconds.
	ServerTime time.Time
	// ClientTime is the holder's wall clock just before the request was
	// sent, in whole microseconds. It is for people; nothing decides by it.
	ClientTime time.Time
	// ExpireAt is when the lease would end by the store's clock were it
	// never renewed.
	ExpireAt time.Time
	// RequestID is the caller's own correlation id, from [RequestID].
	RequestID string
}

// IsZero reports whether t is the zero Token, which stands for "no lock".
func (t Token) IsZero() bool { return t == Token{} }

// wireToken is the JSON form. The order of the fields is part of the format:
// the lease comes first, at a fixed offset, so that a Redis script compares it
// without decoding; the five fields that only the store knows come next, so
// that a script can write them without decoding either.
type wireToken struct {
	Lease       string `json:"lease"`
	Fence       string `json:"fence"` // decimal: JSON and Lua are exact only to 2^53
	Epoch       uint64 `json:"epoch"`
	Seq         uint64 `json:"seq"`
	ServerTime  int64  `json:"serverTime"`
	ExpireAt    int64  `json:"expireAt"`
	ID          string `json:"id"`
	Resource    string `json:"resource"`
	Key         string `json:"key"`
	Holder      string `json:"holder"`
	App         string `json:"app"`
	Host        string `json:"host"`
	PID         int    `json:"pid"`
	Tier        string `json:"tier"`
	Reentrant   bool   `json:"reentrant"`
	MaxRenewals int    `json:"maxRenewals"`
	TTLMillis   int64  `json:"ttlMs"`
	ClientTime  int64  `json:"clientTime"`
	RequestID   string `json:"requestId"`
}

// MarshalJSON writes every field, always, with the lease first. Times are
// Unix microseconds, the TTL is milliseconds, the fence a decimal string.
func (t Token) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireToken{
		Lease: t.Lease, Fence: strconv.FormatUint(t.Fence, 10), Epoch: t.Epoch, Seq: t.Seq,
		ServerTime: toMicros(t.ServerTime), ExpireAt: toMicros(t.ExpireAt),
		ID: t.ID, Resource: t.Resource, Key: t.Key, Holder: t.Holder,
		App: t.App, Host: t.Host, PID: t.PID, Tier: t.Tier.String(), Reentrant: t.Reentrant,
		MaxRenewals: t.MaxRenewals, TTLMillis: t.TTL.Milliseconds(),
		ClientTime: toMicros(t.ClientTime), RequestID: t.RequestID,
	})
}

// UnmarshalJSON reads what [Token.MarshalJSON] or a store's script wrote.
// Unknown fields are ignored, so that versions may run side by side; a token
// without a lease, with a fence that is no number, with an unknown tier or with
// a TTL that is no duration is an error, and leaves t as it was.
func (t *Token) UnmarshalJSON(data []byte) error {
	var w wireToken
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("tierlock: token: %w", err)
	}
	if w.Lease == "" {
		return fmt.Errorf("tierlock: token: field lease is missing or empty")
	}
	fence, err := strconv.ParseUint(w.Fence, 10, 64)
	if err != nil {
		return fmt.Errorf("tierlock: token: field fence: %w", err)
	}
	tier, err := parseTier(w.Tier)
	if err != nil {
		return fmt.Errorf("tierlock: token: field tier: %w", err)
	}
	if w.TTLMillis < 0 || w.TTLMillis > math.MaxInt64/int64(time.Millisecond) {
		return fmt.Errorf("tierlock: token: field ttlMs: %d is no duration", w.TTLMillis)
	}
	*t = Token{
		Lease: w.Lease, ID: w.ID, Resource: w.Resource, Key: w.Key, Holder: w.Holder,
		App: w.App, Host: w.Host, PID: w.PID, Fence: fence, Epoch: w.Epoch, Seq: w.Seq,
		Tier: tier, Reentrant: w.Reentrant, MaxRenewals: w.MaxRenewals,
		TTL:        time.Duration(w.TTLMillis) * time.Millisecond,
		ServerTime: fromMicros(w.ServerTime), ClientTime: fromMicros(w.ClientTime),
		ExpireAt: fromMicros(w.ExpireAt), RequestID: w.RequestID,
	}
	return nil
}

// String is the one-line form for logs and errors.
func (t Token) String() string {
	if t.IsZero() {
		return "no token"
	}
	s := fmt.Sprintf("%s/%s hold=%s fence=%d tier=%s holder=%s", t.Resource, printable(t.Key), t.ID, t.Fence, t.Tier, printable(t.Holder))
	if t.RequestID != "" {
		s += " request=" + printable(t.RequestID)
	}
	return s
}

// LogValue is the structured form for log/slog.
func (t Token) LogValue() slog.Value {
	if t.IsZero() {
		return slog.GroupValue()
	}
	attrs := []slog.Attr{
		slog.String("resource", t.Resource), slog.String("key", t.Key),
		slog.String("hold", t.ID), slog.String("lease", t.Lease),
		slog.Uint64("fence", t.Fence), slog.String("tier", t.Tier.String()),
		slog.String("holder", t.Holder),
	}
	if t.RequestID != "" {
		attrs = append(attrs, slog.String("request", t.RequestID))
	}
	return slog.GroupValue(attrs...)
}

// toMicros and fromMicros keep the zero time zero, which is not the Unix epoch.
func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// printable is s if it can stand in a line as it is, else quoted.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) || r == '"' {
			return strconv.Quote(s)
		}
	}
	return s
}
