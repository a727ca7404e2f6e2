package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unicode/utf8"

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

func checkName(n tierlock.Name) error {
	if !plain(n.Namespace, 32) {
		return fmt.Errorf("namespace %q: wanted 1 to 32 of A-Z a-z 0-9 _ . : -", n.Namespace)
	}
	if !plain(n.Resource, 64) {
		return fmt.Errorf("resource %q: wanted 1 to 64 of A-Z a-z 0-9 _ . : -", n.Resource)
	}
	if n.Key == "" {
		return errors.New("key is empty")
	}
	// Bytes bound runes, so the usual key is not decoded twice.
	if !utf8.ValidString(n.Key) || len(n.Key) > 128 && utf8.RuneCountInString(n.Key) > 128 {
		return fmt.Errorf("key %q: wanted valid UTF-8 of at most 128 characters", n.Key)
	}
	return nil
}

func plain(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '_', c == '.', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}

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
