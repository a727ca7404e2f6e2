package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// In any epoch a range of fences ends a second ahead of the clock and begins above
// the record; a record of another epoch gives none, since it says nothing of this.
func TestRangeOfAnyEpoch(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	mustAcquire(t, s, ask("warm", newLease(), time.Second)) // the clock is known
	for _, epoch := range []uint64{1, 2, 16, 16383} {
		for _, exclusive := range []bool{false, true} {
			place := tierlock.Place{Epoch: uint16(epoch), Exclusive: exclusive}
			write := func(of uint64, seq uint64) string {
				if of == 1 {
					return fmt.Sprint(seq)
				}
				return fmt.Sprintf("%d %d", of, seq)
			}
			for _, c := range []struct {
				name   string
				of     uint64 // epoch of the record
				ahead  int64  // ms that its seq is ahead of one made now
				fences int
			}{
				{"none", 0, 0, 0},
				{"long ago", epoch, -1_000_000, 64},
				{"ahead", epoch, 3000, 0},
				{"an earlier epoch's", epoch - 1, -1_000_000, 0},
				{"an earlier epoch's, ahead", epoch - 1, 3000, 0},
				{"a later epoch's", epoch + 1, -1_000_000, 0},
				{"a later epoch's, ahead", epoch + 1, 3000, 0},
			} {
				if c.name != "none" && (c.of == 0 || c.of > 16383 || c.of > epoch && exclusive) {
					continue
				}
				what := fmt.Sprintf("%+v, record %s", place, c.name)
				record := uint64(int64(seqNow(t, srv)+seqsPerSecond) + c.ahead*seqsPerSecond/1000)
				srv.Do("DEL", redisstore.FenceKey(name("k")), keyOf("k"))
				if c.of > 0 {
					srv.Do("SET", redisstore.FenceKey(name("k")), write(c.of, record), "PX", "60000")
				}
				req := askIn(place, askRange("k", newLease()))
				res, last := acquireRange(t, s, req)
				if res.Fences != c.fences {
					t.Errorf("%s: got %d further fences; wanted %d", what, res.Fences, c.fences)
				}
				of := max(c.of, epoch)
				if res.Token.Epoch != of || res.Token.Fence != of<<49|res.Token.Seq || c.of == of && res.Token.Seq <= record {
					t.Errorf("%s: got fence %d of epoch %d, seq %d", what, res.Token.Fence, res.Token.Epoch, res.Token.Seq)
				}
				if stored := tokenOf(t, srv, "k"); stored != res.Token {
					t.Errorf("%s: stored\n%+v\ngranted\n%+v", what, stored, res.Token)
				}
				if got := recordOf(srv, "k"); got != write(of, last.Seq) {
					t.Errorf("%s: the record is %q; wanted the end of the range, %q", what, got, write(of, last.Seq))
				}
				if c.of > epoch {
					continue
				}
				again, _ := acquireRange(t, s, req)
				if again.Fences != res.Fences || again.Token != res.Token {
					t.Errorf("%s, a repeat: got %+v; wanted %+v", what, again, res)
				}
			}
		}
	}
}

// The token of a lease goes forward by single fences in any epoch, and the key
// stays of the epoch that it was moved to.
func TestUpdateInAnyEpoch(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, epoch := range []uint64{1, 17, 16383} {
		srv.Do("FLUSHALL")
		place := tierlock.Place{Epoch: 16383, Exclusive: true}
		req := ask("k", "lease", time.Minute)
		adopt := adoptIn(place, req, epoch, 1<<48)
		mustAdopt(t, s, adopt)
		token := adopt.Token
		update := func(d int) tierlock.Token {
			t.Helper()
			next := token
			next.ID = fmt.Sprint("hold ", d)
			next.Fence += uint64(d)
			next.Seq += uint64(d)
			if state, err := s.Update(background, tierlock.UpdateRequest{Name: name("k"), Token: next}); err != nil || state != tierlock.LeaseOwned {
				t.Fatalf("update: got %v, %v", state, err)
			}
			next.Epoch = 16383
			return next
		}
		for d := 1; d < 4; d++ {
			want := update(d)
			if got := tokenOf(t, srv, "k"); got != want {
				t.Errorf("epoch %d, update %d: stored\n%+v\nwanted\n%+v", epoch, d, got, want)
			}
		}
		want := update(5)
		update(4)
		update(5)
		if got := tokenOf(t, srv, "k"); got != want {
			t.Errorf("epoch %d, back: stored\n%+v\nwanted\n%+v", epoch, got, want)
		}
		if res := renewIn(t, s, place, "k", "lease", false, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
			t.Errorf("epoch %d: renewal where the lease was moved to: got %+v", epoch, res)
		}
	}
}
