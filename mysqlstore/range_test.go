package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// A range ends where a grant without one has its fence, which stands in the row;
// it begins above the row's, and a row that is new gives none.
func TestRange(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db, s := admin(t, srv), open(t, srv.DSN(""), calm)
	stored := func() uint64 { return uint64(number(t, db, "SELECT fence FROM lock_record WHERE "+row("k"))) }
	take := func(lease string, n int) (tierlock.AcquireResult, uint64) {
		t.Helper()
		req := ask("k", lease, patience)
		req.Fences = n
		res, err := s.Acquire(t.Context(), req)
		if err != nil || !res.Granted {
			t.Fatalf("acquire: got %+v, %v; wanted a grant", res, err)
		}
		return res, res.Token.Fence + uint64(res.Fences)
	}
	release := func(lease string) { mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned) }
	first, before := take("one", 64)
	if first.Fences != 0 {
		t.Errorf("a new row: got %d further fences; wanted none", first.Fences)
	}
	release("one")
	for _, c := range []struct {
		what  string
		ahead int64 // of the row's fence, to the fence of a grant now, in µs
		want  func(n int) bool
	}{
		{"as it is", 0, func(n int) bool { return n == 64 }},
		{"long ago", -3_600_000_000, func(n int) bool { return n == 64 }},
		{"of a clock stepped back", 3_600_000_000, func(n int) bool { return n == 0 }},
		{"after that", 0, func(n int) bool { return n == 0 }},
	} {
		if c.ahead != 0 {
			execute(t, db, "UPDATE lock_record SET fence=CAST(fence AS SIGNED)+?", c.ahead/2)
			before = stored()
		}
		time.Sleep(time.Millisecond)
		lease := "of " + c.what
		res, last := take(lease, 64)
		if !c.want(res.Fences) || res.Token.Fence <= before {
			t.Errorf("row %s: got %d further fences after fence %d, the row's was %d", c.what, res.Fences, res.Token.Fence, before)
		}
		if in := stored(); in != last {
			t.Errorf("row %s: fence %d in the row; wanted the end of the range, %d", c.what, in, last)
		}
		again, _ := take(lease, 64)
		if again != res {
			t.Errorf("row %s, a repeat: got %+v; wanted %+v", c.what, again, res)
		}
		if rec := mustInspect(t, s, "k"); rec.Token != res.Token {
			t.Errorf("row %s: stored is\n%+v, granted was\n%+v", c.what, rec.Token, res.Token)
		}
		release(lease)
		plain, none := take("plain", 0)
		if plain.Fences != 0 || plain.Token.Fence <= last {
			t.Errorf("row %s, then without a range: got %+v; wanted a fence above %d, and no range", c.what, plain, last)
		}
		before = none
		release("plain")
	}
}
