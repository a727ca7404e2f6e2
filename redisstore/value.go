package redisstore

import (
	"bytes"
	"strconv"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// leaseOffset is where the lease begins in a token's JSON.
const leaseOffset = len(`{"lease":"`)

// wireLease is the lease as it stands in a token's JSON, with its closing
// quote, so that no lease is a prefix of another.
func wireLease(lease string) string { return string(appendWireLease(nil, lease)) }

func appendWireLease(b []byte, lease string) []byte {
	if !contract.Plain(lease) {
		return append(b, contract.AppendText(nil, lease)[1:]...)
	}
	return append(append(b, lease...), '"')
}

// appendFormat appends the token's JSON with verbs for the fields that only the
// server knows, as a format for the script. In a chain these are the two parts of
// the fence and the epoch as well, see grant_chain.lua.
func appendFormat(b []byte, t *tierlock.Token, chain bool) []byte {
	start := len(b)
	b = contract.AppendText(append(b, `{"lease":`...), t.Lease)
	b = doubled(b, start)
	if chain {
		b = append(b, `,"fence":"%d%06d","epoch":%d`...)
	} else {
		b = strconv.AppendUint(append(b, `,"fence":"%d","epoch":`...), contract.Epoch, 10)
	}
	b = append(b, `,"seq":%d,"serverTime":%d,"expireAt":%d`...)
	start = len(b)
	return doubled(contract.AppendRest(b, t), start)
}

// doubled doubles each "%" from start on, so that the format gives it as it is.
func doubled(b []byte, start int) []byte {
	if bytes.IndexByte(b[start:], '%') < 0 {
		return b
	}
	return append(b[:start], bytes.ReplaceAll(b[start:], []byte("%"), []byte("%%"))...)
}
