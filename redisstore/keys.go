package redisstore

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/tierlock/tierlock"
)

// Suffixes of the keys beside the lock. The lock's own key ends in a brace,
// so no suffix can be mistaken for the end of another lock's key.
const (
	fenceSuffix = ":fence"
	holdsSuffix = ":holds"
	wakeSuffix  = ":wake"
)

// lockKey is the key of the lock, with one of the suffixes or none. Two names never share one: a checked
// namespace holds no brace, so it ends at the first; a checked resource holds
// no slash, so it ends at the first after that; the rest up to the last brace
// is the key.
//
// The name with any suffix hashes to the same slot as without: what Redis
// hashes is the text between the first "{" and the first "}" after it, which
// is not empty (it starts with the resource) and ends before any suffix,
// whatever braces the key holds.
func lockKey(n tierlock.Name, suffix string) string {
	return "lock:" + n.Namespace + ":{" + n.Resource + "/" + n.Key + "}" + suffix
}

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
// (XMODEM) of the hash tag, modulo 16384.
func slotOf(key string) uint16 {
	for i := 0; i < len(key); i++ {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j > i+1 {
					key = key[i+1 : j]
				}
				break
			}
		}
		break
	}
	var crc uint16
	for i := 0; i < len(key); i++ {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc & 16383
}
