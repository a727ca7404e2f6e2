package redisstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// awkward are keys that quote, end or imitate what stands around them.
func awkward() []string {
	keys := []string{
		"42", " 42", "42 ", "{", "}", "{}", "}{", "}:fence", "}:holds", "}:wake", ":fence", "a}:fence", "a",
		"a}", "a{b}c", "settle:42", "/", "a/b", "{order:settle/42}", "\x00", "\n", "é", "É", "*", "?",
		strings.Repeat("\U0001F512", 128), strings.Repeat("}", 128),
	}
	for _, a := range []string{"{", "}", "/", ":", "fence"} {
		for _, b := range []string{"{", "}", "/", ":", "holds"} {
			keys = append(keys, a+b, a+"x"+b)
		}
	}
	return keys
}

// Scenario 68: two names never share a key, and what belongs to one name
// always shares a slot, as the server computes it; names of one slot share its
// fence record.
func TestKeysNeitherCollideNorLeaveTheirSlot(t *testing.T) {
	srv := rig.Redis(t, cluster(t)...)
	owner := make(map[string]string)
	note := func(key, of string) {
		if other, ok := owner[key]; ok && other != of {
			t.Errorf("key %q belongs to %s and to %s", key, other, of)
		}
		owner[key] = of
	}
	for _, ns := range []string{"a", "a:b", "lock", ":"} {
		for _, res := range []string{"b", "b:c", ":fence", "order:settle"} {
			for _, key := range awkward() {
				n := tierlock.Name{Namespace: ns, Resource: res, Key: key}
				if err := contract.CheckName(n); err != nil {
					t.Fatalf("%q: %v; wanted a valid name", n, err)
				}
				lock, beside := redisstore.Keys(n)
				note(lock, fmt.Sprintf("the lock %q", n))
				slot := redisstore.SlotOf(lock)
				for i, k := range beside {
					if i == 0 {
						note(k, fmt.Sprintf("the fence record of slot %d in %q", slot, ns))
					} else {
						note(k, fmt.Sprintf("suffix %d of %q", i, n))
					}
					if got := redisstore.SlotOf(k); got != slot {
						t.Errorf("%q is in slot %d; wanted %d, as %q", k, got, slot, lock)
					}
				}
				if ns != "a:b" { // one of each is enough for the server's opinion
					continue
				}
				for _, k := range append(beside[:], lock) {
					if got := srv.Int("CLUSTER", "KEYSLOT", k); got != int64(slot) {
						t.Errorf("the server says slot %d for %q; wanted %d", got, k, slot)
					}
				}
			}
		}
	}
	if len(owner) < 4*4*50*3 {
		t.Fatalf("only %d keys were compared", len(owner))
	}
}

func TestNamesThatAreRefused(t *testing.T) {
	ok := tierlock.Name{Namespace: "a", Resource: "b", Key: "c"}
	for what, n := range map[string]tierlock.Name{
		"empty namespace":    {Resource: "b", Key: "c"},
		"long namespace":     {Namespace: strings.Repeat("a", 33), Resource: "b", Key: "c"},
		"brace in namespace": {Namespace: "a{", Resource: "b", Key: "c"},
		"empty resource":     {Namespace: "a", Key: "c"},
		"slash in resource":  {Namespace: "a", Resource: "b/c", Key: "c"},
		"brace in resource":  {Namespace: "a", Resource: "}", Key: "c"},
		"long resource":      {Namespace: "a", Resource: strings.Repeat("b", 65), Key: "c"},
		"empty key":          {Namespace: "a", Resource: "b"},
		"key not UTF-8":      {Namespace: "a", Resource: "b", Key: "\xff"},
		"key of 129":         {Namespace: "a", Resource: "b", Key: strings.Repeat("é", 129)},
	} {
		if contract.CheckName(n) == nil {
			t.Errorf("%s: %q was accepted", what, n)
		}
	}
	if err := contract.CheckName(ok); err != nil {
		t.Errorf("%q: %v; wanted it accepted", ok, err)
	}
}
