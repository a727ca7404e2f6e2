package mysqlstore_test

import (
	"strings"
	"testing"

	"github.com/tierlock/tierlock/degrade"
)

// A digest that the last poll has shown is not sent again: what is read is known by its
// sum, for every member that has it.
func TestArbiterReadsADigestOnce(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db, s := admin(t, srv), open(t, srv.DSN(""), calm)
	mode := firstMode(t, s)
	putMode(t, db, "n", mode)
	long := strings.Repeat("d", degrade.MaxDigest)
	for n := range 3 {
		self := chainSelf("n", n)
		self.Digest = long
		if n == 2 {
			self.Digest = "other"
		}
		arbitrate(t, s, self, degrade.Action{Kind: degrade.Refresh, From: mode})
	}
	want := func(what string, digests ...string) {
		t.Helper()
		for _, again := range []string{"", ", again"} {
			for i, m := range pollMode(t, s, "n").Members {
				if m.Digest != digests[i] {
					t.Errorf("%s%s: the digest of member %d is %.8q of %d bytes, want %.8q of %d", what, again, i, m.Digest, len(m.Digest), digests[i], len(digests[i]))
				}
			}
		}
	}
	want("as written", long, long, "other")
	execute(t, db, "UPDATE lock_permit SET digest='never read'")
	want("with the sums as before", long, long, "other")
	execute(t, db, "UPDATE lock_permit SET digest_sum='new' WHERE member=?", memberID(1))
	want("with another sum", long, "never read", "other")
	// Known is what the last poll has shown, and nothing for ever.
	execute(t, db, "UPDATE lock_permit SET digest='read', digest_sum='new'")
	want("with one sum", "never read", "never read", "never read")
	execute(t, db, "UPDATE lock_permit SET digest_sum='newer' WHERE member=?", memberID(1))
	want("with a sum that is new", "never read", "read", "never read")
	execute(t, db, "UPDATE lock_permit SET digest_sum='newer'")
	want("without the former", "read", "read", "read")
	execute(t, db, "UPDATE lock_permit SET digest='read again', digest_sum='new'")
	want("with the former again", "read again", "read again", "read again")
}
