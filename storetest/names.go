package storetest

import (
	"strings"
	"time"

	"github.com/tierlock/tierlock"
)

// wide is a key one character short of the longest, in the widest characters.
var wide = strings.Repeat("🔒", 127)

// apart is keys of which no two are the same lock, and all of which a careless
// store mixes up: by trimming, padding, folding case, normalising, comparing
// as numbers or patterns, cutting at a NUL, joining with a separator, or
// cutting out what stands between braces.
func apart() []string {
	return []string{
		"42", "42 ", " 42", "42\t", "42\n", "42\x00", "42\x00x", "\x0042", "042", "42.0", "4.2e1", "+42",
		"a", "A", "á", "a\u0301", "À", "ß", "ss", "SS", "ẞ", "i", "I", "ı", "İ", "K", "\u212a",
		"{", "}", "{}", "}{", "{a}", "{a", "a}", "a}b", "{a}b", "b{a}", "{{a}}", "{a}{b}", "a}:fence", "a}:holders", ":fence", ":",
		"'", `"`, "`", `\`, `\\`, "%", "_", "*", "?", "[a]", "^", "$", "a%", "a_", "a*", "a|b", "a/b", "a//b", "a/b/", "../a", "/",
		" ", "  ", "\n", "\r\n", "\r", "\x00", "\x00\x00", "null", "NULL", "\ufeff", "\ufeffa", "\u200b", "a\u200b", "\u202ea",
		"🔒", "🔑", "\U0010ffff", "\uffff", "\ufffd",
		wide + "🔒", wide + "🔑", wide, strings.Repeat("🔒", 64), strings.Repeat("a", 128), strings.Repeat("a", 127), strings.Repeat("\x00", 128),
	}
}

func (b *bench) apartNames() []tierlock.Name {
	var names []tierlock.Name
	for _, key := range apart() {
		names = append(names, b.name(key))
	}
	ns, full := b.ns, b.ns+":x"
	longest := b.ns + strings.Repeat("n", 32-len(b.ns))
	resource := strings.Repeat("r", 64)
	return append(names,
		// One text when joined by a colon or by nothing.
		tierlock.Name{Namespace: ns, Resource: "order", Key: "settle:42"},
		tierlock.Name{Namespace: ns, Resource: "order:settle", Key: "42"},
		tierlock.Name{Namespace: ns, Resource: "order", Key: ":settle:42"},
		tierlock.Name{Namespace: ns, Resource: "order:", Key: "settle:42"},
		tierlock.Name{Namespace: ns, Resource: "ordersettle", Key: ":42"},
		tierlock.Name{Namespace: ns, Resource: "x:order", Key: "42"},
		tierlock.Name{Namespace: full, Resource: "order", Key: "42"},
		tierlock.Name{Namespace: ns, Resource: "x", Key: "order/42"},
		tierlock.Name{Namespace: ns, Resource: "x", Key: "order:42"},
		// Namespaces and resources count, with case.
		tierlock.Name{Namespace: ns, Resource: "order", Key: "42"},
		tierlock.Name{Namespace: ns, Resource: "Order", Key: "42"},
		tierlock.Name{Namespace: ns, Resource: "order.", Key: "42"},
		tierlock.Name{Namespace: strings.ToUpper(ns), Resource: "order", Key: "42"},
		tierlock.Name{Namespace: ns + ".", Resource: "order", Key: "42"},
		tierlock.Name{Namespace: ns + "-", Resource: "order", Key: "42"},
		// The longest of all, and those that differ at the very end.
		tierlock.Name{Namespace: longest, Resource: resource, Key: wide + "🔒"},
		tierlock.Name{Namespace: longest, Resource: resource, Key: wide + "🔑"},
		tierlock.Name{Namespace: longest, Resource: resource[:63], Key: wide + "🔒"},
		tierlock.Name{Namespace: longest[:31], Resource: resource, Key: wide + "🔒"},
	)
}

// namesApart: names that differ anywhere are different locks. scenario 68
func namesApart(b *bench) {
	names := b.apartNames()
	holds := make([]hold, len(names))
	for i, name := range names {
		res, w := b.acquire(b.side(i), b.request(b.side(i), name, time.Minute))
		if !res.Granted {
			b.Fatalf("Acquire %+q: got held by %+q / %+q, want granted: it is another name", name, res.Token.Resource, res.Token.Key)
		}
		holds[i] = hold{req: tierlock.AcquireRequest{Name: name, Token: res.Token}, token: res.Token, ttl: time.Minute, window: w}
	}
	for i := range holds {
		b.heldBy(b.side(i+1), holds[i], 1)
	}
	// Every other key goes; the rest must not.
	for i := 0; i < len(holds); i += 2 {
		b.release(b.side(i+1), holds[i].giveUp(0), tierlock.LeaseOwned)
	}
	for i, h := range holds {
		if i%2 == 0 {
			b.isFree(b.b, h.req.Name)
			continue
		}
		h = b.renew(b.a, h, time.Minute, tierlock.LeaseOwned)
		b.heldBy(b.b, h, 1)
		b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
	}
}
