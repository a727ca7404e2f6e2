package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
)

// expiry: leases end at their TTL, to the millisecond. scenarios 51 and 91
func expiry(b *bench) {
	ttls := []time.Duration{100, 101, 250, 300, 999, 1000, 1001, 1500}
	holds := make(map[int]hold)
	for i, ms := range ttls {
		h := b.lock(b.a, b.name(fmt.Sprintf("for %d ms", ms)), ms*time.Millisecond)
		// A slow machine may come too late to see a short one alive.
		if rec, asked := b.inspect(b.b, h.req.Name); rec.Held {
			b.checkLeft("Inspect", rec.Left, h, asked)
		} else if lived := asked.got - h.sent; lived < h.ttl-2*time.Millisecond {
			b.Errorf("Inspect %s: got free after %v, want held", h.req.Name, lived)
		}
		holds[i] = h
	}
	for ; len(holds) > 0; b.advance(10 * time.Millisecond) {
		for i, h := range holds {
			res, w := b.acquire(b.b, b.request(b.b, h.req.Name, long))
			switch {
			case res.Granted:
				delete(holds, i)
				// The answer came after the end, so the end was no later than
				// it; the lease began after its request was sent.
				if lived := w.got - h.sent; lived < h.ttl-2*time.Millisecond {
					b.Errorf("%s: granted to another after %v, want not before the TTL", h.req.Name, lived)
				}
			case w.sent-h.got > h.ttl+patience:
				b.Fatalf("%s: still held %v after the grant", h.req.Name, w.sent-h.got)
			case w.sent-h.got > h.ttl+slack && res.Left > slack:
				// It need not be free at once, but it must not live on by
				// rounding.
				b.Errorf("%s: has %v left %v after the grant, want none", h.req.Name, res.Left, w.sent-h.got)
				delete(holds, i)
			}
		}
	}
}

func inspectStates(b *bench) {
	name := b.name("42")
	b.isFree(b.a, name)
	h := b.lock(b.a, name, time.Second)
	for range 3 {
		b.heldBy(b.b, h, 1) // to inspect changes nothing
	}
	b.freeWithin(b.b, name, h.ttl+patience)
	b.isFree(b.a, name)
	b.isFree(b.b, name)
	h = b.lock(b.b, name, long)
	b.heldBy(b.a, h, 1)
	b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
	b.isFree(b.a, name)
}

// tokenRoundTrip: a token is kept as it is, whatever its texts hold.
func tokenRoundTrip(b *bench) {
	for i, text := range []string{
		"",
		"plain",
		`quotes " ' ` + "`" + ` and \ and \\ and \u0041 and \n`,
		"line\nfeed, tab\t, return\r, bell\a, nul\x00, delete\x7f",
		"braces } { }} {{ ]] [[",
		`{"lease":"x","fence":"1"}`,
		"Grüße, Ωmega, 日本語, 🔒🗝, e\u0301, \u2028\u2029, \u200d, \ufeff",
		"<script>&amp;</script> % %s %d ? :name $1 ' OR '1'='1' -- ;",
		strings.Repeat("🔒", 16), // the 64 bytes that a holder id may have
	} {
		name := b.name(fmt.Sprint("token ", i))
		req := b.request(b.a, name, 59*time.Second)
		req.Token.ID = "id " + text
		req.Token.Holder = text // no longer than 64 bytes
		req.Token.App, req.Token.Host, req.Token.RequestID = text, text, text
		req.Token.PID = 1<<22 + i
		req.Token.MaxRenewals = 1<<31 - 1 - i
		req.Token.Reentrant = i%2 == 0
		req.Token.ClientTime = time.Date(2031, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
		req.Explicit = i%3 == 1
		h := b.grant(b.a, req)
		b.heldBy(b.a, h, 1)
		b.heldBy(b.b, h, 1)
		b.refuse(b.b, b.request(b.b, name, long), h)
		b.renew(b.b, h, long, tierlock.LeaseOwned)
		b.heldBy(b.b, h, 1)
		b.release(b.b, h.giveUp(0), tierlock.LeaseOwned)
		b.isFree(b.a, name)
	}
}
