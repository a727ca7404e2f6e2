package redisstore

import (
	"strconv"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// message is a call of a script.
type message struct {
	script *script
	slot   uint16
	// keys and args have room in the message itself, so that they cost nothing
	// where it stays on the stack.
	keys, args []string
	room       [11]string
}

// acquire makes m all of an acquire but its args[1], the latest server time. The
// parts are cut from one string: one allocation instead of five.
func (m *message) acquire(req *tierlock.AcquireRequest) {
	b := appendLockKey(make([]byte, 0, 1024), &req.Name)
	key := len(b)
	slot := slotOf(b)
	b = appendFenceKey(b, req.Name.Namespace, slot)
	fence := len(b)
	b = appendFormat(b, &req.Token, req.Place.Epoch != 0)
	if req.Explicit {
		b = append(b, ' ') // the mark of an explicit hold
	}
	format := len(b)
	b = strconv.AppendInt(b, req.TTL.Milliseconds(), 10)
	ttl := len(b)
	b = appendWireLease(b, req.Token.Lease)
	s := string(b)
	m.script, m.slot = &acquireScript, slot
	m.keys = append(m.room[:0:4], s[:key], s[key:fence])
	m.args = append(m.room[4:4], s[fence:format], "", s[format:ttl])
	if req.Explicit {
		m.script, m.keys = &enterScript, append(m.keys, s[:key]+holdsSuffix)
		m.args = append(m.args, req.Token.Lease, req.Token.Holder)
	} else {
		m.args = append(m.args, s[ttl:])
		// In a chain other arguments stand behind.
		if n := contract.Fences(req); n > 0 || req.Place.Epoch != 0 {
			m.args = append(m.args, strconv.Itoa(n))
		}
	}
	if req.Place.Epoch != 0 {
		m.script = grantScript(req.Explicit, req.Place)
		m.args = appendPlace(m.args, req.Place)
	}
}

// release makes m a release, likewise.
func (m *message) release(req *tierlock.ReleaseRequest, keep string) {
	b := appendLockKey(make([]byte, 0, 256), &req.Name)
	key := len(b)
	b = append(b, wakeSuffix...)
	wake := len(b)
	b = appendWireLease(b, req.Lease)
	lease := len(b)
	b = strconv.AppendInt(b, int64(leaseOffset+lease-wake-1), 10)
	s := string(b)
	m.keys = append(m.room[:0:4], s[:key])
	if req.Explicit {
		m.script, m.keys = &releaseEnteredScript, append(m.keys, s[:key]+holdsSuffix)
		m.args = append(m.room[4:4], req.Lease, s[:wake], keep)
	} else {
		m.script = &releaseScript
		m.args = append(m.room[4:4], s[wake:lease], s[lease:], s[:wake], keep)
	}
	if judged(req.Place) {
		m.script = releaseExclusive[req.Explicit]
		m.args = appendPlace(m.args, req.Place)
	}
}

// leaseEnd is the offset of the lease's closing quote in the stored token.
func leaseEnd(lease string) string { return strconv.Itoa(leaseOffset + len(lease) - 1) }
