package mysqlstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// What is granted is what is stored, wherever the fence comes from: the clock, or
// a row that is ahead of it. A text that looks like the place of the fence in the
// token is left alone.
func TestFenceOfARowAheadOfTheClock(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN("interpolateParams=true"), calm)
	for kind, explicit := range map[string]bool{"plain": false, "explicit": true} {
		t.Run(kind, func(t *testing.T) {
			key := kind + `","fence":"1`
			request := func() tierlock.AcquireRequest {
				req := ask(key, newLease(), patience)
				req.Explicit = explicit
				req.Token.Holder, req.Token.RequestID = `"fence":"0","epoch":1,"seq":0`, `{"fence":"0"`
				return req
			}
			var last tierlock.Token
			for i := range 6 {
				ahead := int64(0)
				if i%2 == 1 { // an hour ahead of the clock
					ahead = int64(last.Fence) + 3600e6/2
					execute(t, db, "UPDATE lock_record SET fence=? WHERE "+row(key), ahead)
				}
				req := request()
				got := mustAcquire(t, s, req)
				if got.Fence <= last.Fence || ahead > 0 && got.Fence != uint64(ahead)+1 {
					t.Errorf("fence %d after %d, with %d in the row", got.Fence, last.Fence, ahead)
				}
				if got.Epoch != got.Fence>>49 || got.Seq != got.Fence&(1<<49-1) {
					t.Errorf("fence %d has epoch %d and seq %d", got.Fence, got.Epoch, got.Seq)
				}
				if rec := mustInspect(t, other, key); rec.Token != got {
					t.Errorf("round %d: stored is\n%+v, granted was\n%+v", i, rec.Token, got)
				}
				if again := mustAcquire(t, other, req); again != got {
					t.Errorf("round %d: repeated gives\n%+v, after\n%+v", i, again, got)
				}
				if stored := number(t, db, "SELECT fence FROM lock_record WHERE "+row(key)); uint64(stored) != got.Fence {
					t.Errorf("the column says %d, the token %d", stored, got.Fence)
				}
				last = got
				mustRelease(t, s, tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: explicit}, tierlock.LeaseOwned)
			}
		})
	}
}

// Names and holders of every odd character, by statements with parameters and by
// those that carry them as text, over sessions that read a text in other ways.
func TestOddNamesAndHolders(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	odd := []string{
		"a", "A", "a ", " a", "a\x00", "a\x00\x00", "'", "''", `\`, `\'`, `"`, "`", "%", "_", "--", "/*", ";", "\n", "\r\n", "\t", "\x1a", "\x7f",
		"é", "e\u0301", "ß", "ss", "\u00a0", "\u200b", "\ufeff", "\ufffd", "日本語", "\U0001f512", "?", ":a", "@a", "x'41'", "NULL", "{}", `{"lease":"`,
	}
	for range 2 {
		odd = append(odd, string(slices.Repeat([]rune{[]rune{'\U0001f512', '\''}[len(odd)%2]}, 128)))
	}
	for _, params := range []string{
		"", "interpolateParams=true&charset=latin1&sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27", "sql_mode=%27%27&charset=utf8mb4&collation=utf8mb4_general_ci",
	} {
		t.Run(params, func(t *testing.T) {
			s := open(t, srv.DSN(params), calm)
			var reqs []tierlock.AcquireRequest
			var renewals []tierlock.RenewRequest
			for i, text := range odd {
				req := ask(text, newLease(), patience)
				if holder := "h" + text; i%2 == 1 && len(holder) <= 512 {
					req = askAs(holder, text, newLease(), patience)
				}
				req.Token.RequestID, req.Token.App, req.Token.Host = text, text, text
				if len(text) < 30 {
					req.Token.Lease += text
				}
				got := mustAcquire(t, s, req)
				if rec := mustInspect(t, s, text); rec.Token != got || rec.Token.RequestID != text || rec.Token.Holder != req.Token.Holder {
					t.Errorf("%q: stored is\n%+v, granted was\n%+v", text, rec.Token, got)
				}
				reqs = append(reqs, req)
				renewals = append(renewals, tierlock.RenewRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit, TTL: 2 * patience})
			}
			for i, res := range s.Renew(t.Context(), renewals) {
				if res.Err != nil || res.State != tierlock.LeaseOwned {
					t.Errorf("renew %q: %v, %v", renewals[i].Name.Key, res.State, res.Err)
				}
			}
			for _, req := range reqs {
				if rec := mustInspect(t, s, req.Name.Key); rec.Left < patience+patience/2 {
					t.Errorf("%q has %v left after its renewal", req.Name.Key, rec.Left)
				}
				mustRelease(t, s, tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit}, tierlock.LeaseOwned)
			}
		})
	}
	if n := number(t, admin(t, srv), "SELECT COUNT(*) FROM lock_record"); n != int64(len(odd)) {
		t.Errorf("%d rows of %d names", n, len(odd))
	}
}

// A renewal batch of everything at once: each gets its own answer, in order.
func TestRenewOfAllKinds(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	s, other := open(t, srv.DSN(""), calm), open(t, srv.DSN(""), calm)
	var reqs []tierlock.RenewRequest
	var want []tierlock.Ownership
	add := func(key, lease string, explicit bool, ttl time.Duration, state tierlock.Ownership) {
		reqs = append(reqs, tierlock.RenewRequest{Name: name(key), Lease: lease, Explicit: explicit, TTL: ttl})
		want = append(want, state)
	}
	for i := range 200 {
		key, lease := fmt.Sprintf("%d'", i), newLease()
		switch i % 5 {
		case 0:
			mustAcquire(t, other, ask(key, lease, patience))
			add(key, lease, false, 2*patience, tierlock.LeaseOwned)
			add(key, lease, false, 2*patience, tierlock.LeaseOwned) // twice
			add(key, newLease(), false, 2*patience, tierlock.LeaseTaken)
		case 1:
			mustAcquire(t, other, ask(key, newLease(), patience))
			add(key, lease, false, 2*patience, tierlock.LeaseTaken)
		case 2:
			add(key, lease, false, patience, tierlock.LeaseGone) // never there
		case 3:
			mustAcquire(t, other, askAs("h", key, lease, patience))
			add(key, lease, true, 2*patience, tierlock.LeaseOwned)
			add(key, lease, false, 2*patience, tierlock.LeaseTaken) // of the other kind
			add(key, newLease(), true, 2*patience, tierlock.LeaseTaken)
		case 4:
			mustAcquire(t, other, ask(key, lease, patience))
			mustRelease(t, other, drop(key, lease), tierlock.LeaseOwned)
			add(key, lease, false, time.Second, tierlock.LeaseGone)
		}
	}
	results := s.Renew(t.Context(), reqs)
	if len(results) != len(reqs) {
		t.Fatalf("%d results of %d requests", len(results), len(reqs))
	}
	for i, res := range results {
		if res.Err != nil || res.State != want[i] {
			t.Errorf("%d: %+v: got %v, %v; wanted %v", i, reqs[i], res.State, res.Err, want[i])
		}
		if want[i] == tierlock.LeaseOwned {
			if rec := mustInspect(t, other, reqs[i].Name.Key); rec.Left < patience+patience/2 {
				t.Errorf("%s has %v left", reqs[i].Name, rec.Left)
			}
		}
	}
	// A bad request spoils no other.
	bad := slices.Clone(reqs[:3])
	bad[1].TTL = 0
	bad[2].Name.Key = ""
	results = s.Renew(t.Context(), bad)
	if results[0].Err != nil || results[0].State != tierlock.LeaseOwned {
		t.Errorf("beside bad ones: %+v", results[0])
	}
	wantClass(t, "no TTL", results[1].Err, tierlock.ErrMisconfigured)
	wantClass(t, "no key", results[2].Err, tierlock.ErrMisconfigured)
}

// Rows that another version wrote, or nobody: they are held by whoever has them,
// until they expire.
func TestRowsOfOthers(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	s := open(t, srv.DSN(""), calm)

	// A later version's token has fields that we do not know.
	lease := newLease()
	was := mustAcquire(t, s, ask("newer", lease, patience))
	execute(t, db, `UPDATE lock_record SET token=CONCAT('{"later":{"a":[1,"x"]},',SUBSTRING(token,2)) WHERE `+row("newer"))
	if rec := mustInspect(t, s, "newer"); rec.Token != was {
		t.Errorf("with unknown fields: got %+v; wanted %+v", rec.Token, was)
	}
	if again := mustAcquire(t, s, ask("newer", lease, patience)); again != was {
		t.Errorf("repeated over unknown fields: got %+v; wanted %+v", again, was)
	}

	for what, token := range map[string]string{"empty": "", "cut": was.String()[:10], "array": "[]", "text": "\xff\x00"} {
		key, lease := "token/"+what, newLease()
		mustAcquire(t, s, ask(key, lease, patience))
		execute(t, db, "UPDATE lock_record SET token=? WHERE "+row(key), token)
		if rec := mustInspect(t, s, key); !rec.Held || !rec.Token.IsZero() || rec.Left <= 0 {
			t.Errorf("%s token: %+v; wanted held by nobody known", what, rec)
		}
		if res, err := s.Acquire(t.Context(), ask(key, newLease(), patience)); err != nil || res.Granted || res.Left <= 0 {
			t.Errorf("%s token: another got %+v, %v", what, res, err)
		}
		// Its own repeat cannot be given a token, and so no grant.
		res, err := s.Acquire(t.Context(), ask(key, lease, patience))
		if res.Granted {
			t.Errorf("%s token: repeated gives %+v", what, res)
		}
		wantClass(t, what+" token, repeated", err, tierlock.ErrUnavailable)
		mustRelease(t, s, drop(key, lease), tierlock.LeaseOwned)
		mustAcquire(t, s, ask(key, newLease(), patience))
	}

	for what, entries := range map[string]string{"empty": "", "cut": `{"a":1`, "array": "[]", "null": "null", "strings": `{"a":"b"}`, "fractions": `{"a":1.5}`} {
		key, lease := "entries/"+what, newLease()
		mustAcquire(t, s, askAs("h", key, lease, patience))
		execute(t, db, "UPDATE lock_record SET entries=? WHERE "+row(key), entries)
		if res, err := s.Acquire(t.Context(), askAs("h", key, newLease(), patience)); err != nil || res.Granted {
			t.Errorf("%s entries: the holder's second got %+v, %v; wanted held", what, res, err)
		}
		if rec := mustInspect(t, s, key); !rec.Held || rec.Holds != 1 {
			t.Errorf("%s entries: %+v", what, rec)
		}
		mustRelease(t, s, dropAs(key, lease), tierlock.LeaseTaken)
		renewed := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name(key), Lease: lease, Explicit: true, TTL: patience}})
		if renewed[0].Err != nil || renewed[0].State != tierlock.LeaseTaken {
			t.Errorf("%s entries: renewal got %+v", what, renewed[0])
		}
		// Once it has expired it can be taken.
		execute(t, db, "UPDATE lock_record SET expire_at=UTC_TIMESTAMP(6) WHERE "+row(key))
		mustAcquire(t, s, askAs("h", key, lease, patience))
		mustRelease(t, s, dropAs(key, lease), tierlock.LeaseOwned)
	}
}
