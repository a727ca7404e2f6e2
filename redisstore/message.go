package redisstore

import (
	"strconv"

	"github.com/tierlock/tierlock"
)

// message is a call of a script.
type message struct {
	script     *script
	slot       uint16
	keys, args []string
}

// acquireMessage makes all of an acquire but its args[1], the latest server
// time. Its parts are cut from one string: one allocation instead of five.
func acquireMessage(req *tierlock.AcquireRequest) message {
	b := appendLockKey(make([]byte, 0, 1024), &req.Name)
	key := len(b)
	slot := slotOf(b)
	b = appendFenceKey(b, req.Name.Namespace, slot)
	fence := len(b)
	b = appendFormat(b, &req.Token)
	if req.Explicit {
		b = append(b, ' ') // the mark of an explicit hold
	}
	format := len(b)
	b = strconv.AppendInt(b, req.TTL.Milliseconds(), 10)
	ttl := len(b)
	b = appendWireLease(b, req.Token.Lease)
	s := string(b)
	m := message{script: &acquireScript, slot: slot, keys: []string{s[:key], s[key:fence]},
		args: []string{s[fence:format], "", s[format:ttl], s[ttl:]}}
	if req.Explicit {
		m.script, m.keys = &enterScript, append(m.keys, s[:key]+holdsSuffix)
		m.args = append(m.args[:3], req.Token.Lease, req.Token.Holder)
	}
	return m
}

// releaseMessage makes a release as acquireMessage makes an acquire.
func releaseMessage(req *tierlock.ReleaseRequest, keep string) message {
	b := appendLockKey(make([]byte, 0, 256), &req.Name)
	key := len(b)
	b = append(b, wakeSuffix...)
	wake := len(b)
	b = appendWireLease(b, req.Lease)
	lease := len(b)
	b = strconv.AppendInt(b, int64(leaseOffset+lease-wake-1), 10)
	s := string(b)
	if req.Explicit {
		return message{script: &releaseEnteredScript, keys: []string{s[:key], s[:key] + holdsSuffix},
			args: []string{req.Lease, s[:wake], keep}}
	}
	return message{script: &releaseScript, keys: []string{s[:key]},
		args: []string{s[wake:lease], s[lease:], s[:wake], keep}}
}

// leaseEnd is the offset of the lease's closing quote in the stored token.
func leaseEnd(lease string) string { return strconv.Itoa(leaseOffset + len(lease) - 1) }
