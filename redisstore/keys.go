package redisstore

import (
	"strconv"
	"sync"

	"github.com/tierlock/tierlock"
)

// Suffixes of the names beside the lock. The lock's own key ends in a brace,
// so no suffix can be mistaken for the end of another lock's key.
const (
	holdsSuffix = ":holds"
	wakeSuffix  = ":wake"
)

// lockKey is the key of the lock, with one of the suffixes or none. Two names
// never share one: a checked namespace holds no brace, so it ends at the first; a checked resource holds
// no slash, so it ends at the first after that; the rest up to the last brace
// is the key.
//
// The name with any suffix hashes to the same slot as without: what Redis
// hashes is the text between the first "{" and the first "}" after it, which
// is not empty (it starts with the resource) and ends before any suffix,
// whatever braces the key holds.
func lockKey(n tierlock.Name, suffix string) string {
	return string(append(appendLockKey(make([]byte, 0, 128), &n), suffix...))
}

func appendLockKey(b []byte, n *tierlock.Name) []byte {
	b = append(append(b, "lock:"...), n.Namespace...)
	b = append(append(b, ":{"...), n.Resource...)
	b = append(append(b, '/'), n.Key...)
	return append(b, '}')
}

// appendFenceKey appends the key of the fence record of a slot: the largest seq
// that was given to any lock in it. It is in that slot itself. No lock has this
// key: the braces of a lock's hold a slash.
//
// One record a slot costs less than one a lock: it is written with each grant,
// so most grants change a key that is there instead of making one that has to
// expire later, and what is kept does not grow with the number of locks.
func appendFenceKey(b []byte, namespace string, slot uint16) []byte {
	b = append(append(b, "lock:"...), namespace...)
	b = append(append(b, ":{"...), slotTags()[slot]...)
	return append(b, "}:fence"...)
}

// appendMarkerKey appends the marker of a slot. No lock has it either.
func appendMarkerKey(b []byte, namespace string, slot uint16) []byte {
	b = append(append(b, "lock:"...), namespace...)
	b = append(append(b, ":{"...), slotTags()[slot]...)
	return append(b, "}:marker"...)
}

// slotTags gives for each slot a short text that hashes to it.
var slotTags = sync.OnceValue(func() *[slots]string {
	tags := new([slots]string)
	for i, found := int64(0), 0; found < slots; i++ {
		tag := strconv.FormatInt(i, 36)
		if s := slotOf(tag); tags[s] == "" {
			tags[s] = tag
			found++
		}
	}
	return tags
})

const slots = 1 << 14

// slotOf is the Cluster slot of a key, as the server computes it: CRC16
// (XMODEM) of the hash tag, modulo the number of slots.
func slotOf[T string | []byte](key T) uint16 {
	from, to := 0, len(key)
	for i := 0; i < len(key); i++ {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j > i+1 {
					from, to = i+1, j
				}
				break
			}
		}
		break
	}
	var crc uint16
	for i := from; i < to; i++ {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return crc % slots
}

// crc16 is CRC16 (XMODEM: polynomial 0x1021) of each byte.
var crc16 = func() (table [256]uint16) {
	for b := range table {
		crc := uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[b] = crc
	}
	return table
}()
