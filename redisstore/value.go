package redisstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tierlock/tierlock"
)

// leaseOffset is where the lease begins in a token's JSON.
const leaseOffset = len(`{"lease":"`)

// checkLease returns why a lease cannot be stored. JSON would make two that are
// not valid UTF-8 one.
func checkLease(lease string) error {
	if lease == "" {
		return errors.New("lease is empty")
	}
	if !utf8.ValidString(lease) {
		return fmt.Errorf("lease %q is not valid UTF-8", lease)
	}
	return nil
}

// wireLease is the lease as it stands in a token's JSON, with its closing
// quote, so that no lease is a prefix of another.
func wireLease(lease string) string { return string(appendWireLease(nil, lease)) }

func appendWireLease(b []byte, lease string) []byte {
	if !simple(lease) {
		return append(b, appendText(nil, lease)[1:]...)
	}
	return append(append(b, lease...), '"')
}

// storable is t as it can be stored: with a tier, and in valid UTF-8, so that
// what is granted equals what is read.
func storable(t tierlock.Token) tierlock.Token {
	if t.Tier == 0 {
		t.Tier = tierlock.Redis
	}
	for _, text := range [...]*string{&t.ID, &t.Resource, &t.Key, &t.Holder, &t.App, &t.Host, &t.RequestID} {
		*text = strings.ToValidUTF8(*text, "\ufffd")
	}
	return t
}

// appendFormat appends the token's JSON with verbs for the fields that only the
// server knows, as a format for the script: byte for byte what
// Token.MarshalJSON would write, in a tenth of the time.
func appendFormat(b []byte, t *tierlock.Token) []byte {
	text := func(name, value string) {
		b = append(b, name...)
		start := len(b)
		if b = appendText(b, value); strings.IndexByte(value, '%') >= 0 {
			b = append(b[:start], bytes.ReplaceAll(b[start:], []byte("%"), []byte("%%"))...)
		}
	}
	text(`{"lease":`, t.Lease)
	b = strconv.AppendUint(append(b, `,"fence":"%d","epoch":`...), epoch, 10)
	b = append(b, `,"seq":%d,"serverTime":%d,"expireAt":%d`...)
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
	client := int64(0)
	if !t.ClientTime.IsZero() {
		client = t.ClientTime.UnixMicro()
	}
	b = strconv.AppendInt(append(b, `,"clientTime":`...), client, 10)
	text(`,"requestId":`, t.RequestID)
	return append(b, '}')
}

// appendText appends a JSON string as encoding/json writes it.
func appendText(b []byte, s string) []byte {
	if !simple(s) {
		quoted, _ := json.Marshal(s) // a string has no encoding that fails
		return append(b, quoted...)
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// simple tells a text that stands in JSON as it is.
func simple(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// Fences: see tierlock.Token and lua/grant.lua.
const (
	epoch     = 1 // a single store is always in epoch 1
	seqBits   = 49
	seqOrigin = 1735689600000000 // 2025-01-01 UTC in Unix µs, where seq begins
	seqLead   = 500000           // a grant's seq is a second ahead of the clock
)

// granted is the token of a plain grant at the given server time, equal to
// what the script stored.
func granted(t tierlock.Token, ttl time.Duration, server int64) tierlock.Token {
	t.Epoch = epoch
	t.Seq = uint64((server-seqOrigin)/2 + seqLead)
	return stamped(t, ttl, server)
}

// stamped fills in what follows from epoch, seq and server time, and brings
// the rest to the precision of the stored form.
func stamped(t tierlock.Token, ttl time.Duration, server int64) tierlock.Token {
	t.Fence = t.Epoch<<seqBits | t.Seq
	t.ServerTime = time.UnixMicro(server).UTC()
	t.ExpireAt = t.ServerTime.Add(ttl)
	t.TTL = t.TTL.Truncate(time.Millisecond)
	if !t.ClientTime.IsZero() {
		t.ClientTime = time.UnixMicro(t.ClientTime.UnixMicro()).UTC()
	}
	return t
}

// readToken decodes a stored token. Its zero value is the answer to a value
// that is none: the key is held all the same.
func readToken(value string) tierlock.Token {
	var t tierlock.Token
	if err := t.UnmarshalJSON([]byte(value)); err != nil {
		return tierlock.Token{}
	}
	return t
}
