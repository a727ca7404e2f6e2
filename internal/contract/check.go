// Package contract is what the stores over a network share in keeping the
// contract of [tierlock.Store]: the checks of requests, the arithmetic of fences
// and tokens, what is known of a server's clock, and errors of a context.
package contract

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tierlock/tierlock"
)

// CheckName returns why a lock cannot have the name, as tierlock.Name says.
func CheckName(n tierlock.Name) error {
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

// MaxTTL is as far as the arithmetic of every server is exact.
const MaxTTL = 100 * 365 * 24 * time.Hour

// CheckTTL returns why a lease cannot last that long.
func CheckTTL(d time.Duration) error {
	if d < time.Millisecond || d%time.Millisecond != 0 || d > MaxTTL {
		return fmt.Errorf("TTL %v: wanted whole milliseconds, 1 ms to a century", d)
	}
	return nil
}

// CheckLease returns why a lease cannot be stored. JSON would make two that are
// not valid UTF-8 one.
func CheckLease(lease string) error {
	if lease == "" {
		return errors.New("lease is empty")
	}
	if !utf8.ValidString(lease) {
		return fmt.Errorf("lease %q is not valid UTF-8", lease)
	}
	return nil
}
