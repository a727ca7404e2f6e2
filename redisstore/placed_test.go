package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// askIn is a request of a place.
func askIn(p tierlock.Place, req tierlock.AcquireRequest) tierlock.AcquireRequest {
	req.Place = p
	return req
}

// shared and exclusive are places of an epoch, on whatever data.
func shared(epoch uint16) tierlock.Place { return tierlock.Place{Epoch: epoch} }
func exclusive(epoch uint16) tierlock.Place {
	return tierlock.Place{Epoch: epoch, Exclusive: true}
}

// adoptIn is a request to take over a hold with a fence.
func adoptIn(p tierlock.Place, req tierlock.AcquireRequest, epoch, seq uint64) tierlock.AdoptRequest {
	t := req.Token
	t.Epoch, t.Seq, t.Fence = epoch, seq, epoch<<49|seq
	t.ClientTime = time.UnixMicro(t.ClientTime.UnixMicro()).UTC() // as it was granted
	t.ServerTime, t.ExpireAt = time.UnixMicro(1800000000000000).UTC(), time.UnixMicro(1800000010000000).UTC()
	return tierlock.AdoptRequest{Name: req.Name, Token: t, Explicit: req.Explicit, TTL: req.TTL, Place: p}
}

func adoptOne(t testing.TB, s tierlock.Chained, req tierlock.AdoptRequest) tierlock.RenewResult {
	t.Helper()
	res := s.Adopt(t.Context(), []tierlock.AdoptRequest{req})
	if len(res) != 1 {
		t.Fatalf("adopt: got %d results for one request", len(res))
	}
	return res[0]
}

func mustAdopt(t testing.TB, s tierlock.Chained, req tierlock.AdoptRequest) {
	t.Helper()
	if res := adoptOne(t, s, req); res.Err != nil || res.State != tierlock.LeaseOwned {
		t.Fatalf("adopt %s: got %+v; wanted owned", req.Name, res)
	}
}

// recordOf is what the fence record of a key's slot says, "" if there is none.
func recordOf(srv *rig.RedisServer, key string) string {
	text, _ := srv.Do("GET", redisstore.FenceKey(name(key))).(string)
	return text
}

// keyState is all that is kept of a key, but for the time left.
func keyState(srv *rig.RedisServer, key string) string {
	value, _ := srv.Do("GET", keyOf(key)).(string)
	return fmt.Sprint(value, srv.Do("ZRANGE", keyOf(key)+":holds", "0", "-1", "WITHSCORES"), recordOf(srv, key))
}

// tokenOf is the token that a key holds.
func tokenOf(t testing.TB, srv *rig.RedisServer, key string) tierlock.Token {
	t.Helper()
	var tok tierlock.Token
	if err := tok.UnmarshalJSON([]byte(srv.Text("GET", keyOf(key)))); err != nil {
		t.Fatalf("key %q: %v", key, err)
	}
	return tok
}

func wantEpochError(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, tierlock.ErrEpoch) {
		t.Errorf("%s: got %v; wanted %v", what, err, tierlock.ErrEpoch)
		return
	}
	wantClass(t, what, err, nil)
}

// Every operation in epoch 5, over a key of epoch 4, 5 and 6 (without a record:
// the key alone is judged). The columns are the three keys.
//
//	new       granted with a fence of epoch 5, as if nothing had been there
//	same      granted as it stands
//	entered   granted beside the leases of the same explicit holder
//	put       adopted, with the token of the request
//	kept      adopted, and what stood there stays, being later
//	owned taken gone held    what the store says
//	refused   ErrEpoch
//
// Where nothing was granted, renewed or freed, nothing has changed.
func TestEpochsOfKeyAndPlace(t *testing.T) {
	srv := rig.Redis(t)
	s := open(t, srv.Addr)
	for _, row := range []struct {
		op, mode, who string
		want          string
	}{
		{"acquire", "exclusive", "own", "new same refused"},
		{"acquire", "exclusive", "other", "new held refused"},
		{"acquire", "exclusive", "member", "new same refused"},
		{"acquire", "exclusive", "joiner", "new entered refused"},
		{"acquire", "exclusive", "stranger", "new held refused"},
		{"acquire", "shared", "own", "same same same"},
		{"acquire", "shared", "other", "held held held"},
		{"acquire", "shared", "member", "same same same"},
		{"acquire", "shared", "joiner", "entered entered entered"},
		{"acquire", "shared", "stranger", "held held held"},

		{"renew", "exclusive", "own", "gone owned refused"},
		{"renew", "exclusive", "other", "gone taken refused"},
		{"renew", "exclusive", "member", "gone owned refused"},
		{"renew", "exclusive", "joiner", "gone taken refused"},
		{"renew", "exclusive", "stranger", "gone taken refused"},
		{"renew", "shared", "own", "owned owned owned"},
		{"renew", "shared", "other", "taken taken taken"},
		{"renew", "shared", "member", "owned owned owned"},
		{"renew", "shared", "joiner", "taken taken taken"},

		{"release", "exclusive", "own", "gone owned refused"},
		{"release", "exclusive", "other", "gone taken refused"},
		{"release", "exclusive", "member", "gone owned refused"},
		{"release", "exclusive", "joiner", "gone taken refused"},
		{"release", "exclusive", "stranger", "gone taken refused"},
		{"release", "shared", "own", "owned owned owned"},
		{"release", "shared", "other", "taken taken taken"},
		{"release", "shared", "member", "owned owned owned"},
		{"release", "shared", "joiner", "taken taken taken"},

		// With a fence of epoch 3, below those of the keys.
		{"adopt", "exclusive", "own", "put kept refused"},
		{"adopt", "exclusive", "other", "put taken refused"},
		{"adopt", "exclusive", "member", "put kept refused"},
		{"adopt", "exclusive", "joiner", "put taken refused"},
		{"adopt", "exclusive", "stranger", "put taken refused"},
		{"adopt", "shared", "own", "put kept kept"},
		{"adopt", "shared", "other", "put taken taken"},
		{"adopt", "shared", "member", "put kept kept"},
		{"adopt", "shared", "joiner", "put taken taken"},
		{"adopt", "shared", "stranger", "put taken taken"},
		// With a fence above all of them, as nobody should have.
		{"adopt above", "exclusive", "own", "put put refused"},
		{"adopt above", "exclusive", "other", "put put refused"},
		{"adopt above", "exclusive", "joiner", "put put refused"},
		{"adopt above", "shared", "other", "put put taken"},
		{"adopt above", "shared", "joiner", "put put taken"},
		// With the fence that the key has.
		{"adopt same", "exclusive", "own", "put kept refused"},
		{"adopt same", "exclusive", "member", "put kept refused"},
		{"adopt same", "exclusive", "joiner", "put kept refused"},
		{"adopt same", "shared", "own", "put kept kept"},
		{"adopt same", "shared", "member", "put kept kept"},
		{"adopt same", "shared", "joiner", "put kept kept"},
	} {
		for i, want := range strings.Fields(row.want) {
			of := uint16(4 + i)
			t.Run(fmt.Sprintf("%s %s %s of %d", row.mode, row.op, row.who, of), func(t *testing.T) {
				srv.Do("FLUSHALL")
				c := epochCase{t: t, srv: srv, s: s, place: shared(5)}
				if row.mode == "exclusive" {
					c.place = exclusive(5)
				}
				c.arrange(row.who, of)
				got := c.perform(row.op)
				if got != want {
					t.Errorf("got %s; wanted %s (key before: %s)", got, want, c.before)
				}
				noEternalKeys(t, srv)
			})
		}
	}
}

type epochCase struct {
	t      *testing.T
	srv    *rig.RedisServer
	s      *redisstore.Store
	place  tierlock.Place
	req    tierlock.AcquireRequest // of the one who acts
	stored tierlock.Token          // what the key held before
	before string
}

// arrange takes the key in an epoch for 30 s, for the one who acts or somebody
// else, and makes c.req a request for 60 s.
func (c *epochCase) arrange(who string, of uint16) {
	there := ask("k", newLease(), 30*time.Second)
	c.req = ask("k", newLease(), time.Minute)
	switch who {
	case "own":
		c.req.Token.Lease = there.Token.Lease
	case "member": // one of two leases of an explicit holder, and not the first
		there = askAs("h", "k", newLease(), 30*time.Second)
		c.req = askAs("h", "k", newLease(), time.Minute)
	case "joiner":
		there = askAs("h", "k", newLease(), 30*time.Second)
		c.req = askAs("h", "k", newLease(), time.Minute)
	case "stranger":
		there = askAs("h", "k", newLease(), 30*time.Second)
		c.req = askAs("g", "k", newLease(), time.Minute)
	}
	c.stored = mustAcquire(c.t, c.s, askIn(shared(of), there))
	if who == "member" {
		member := askIn(shared(of), c.req)
		member.TTL = 30 * time.Second
		mustAcquire(c.t, c.s, member)
	}
	if c.stored.Epoch != uint64(of) {
		c.t.Fatalf("a grant in epoch %d is of epoch %d", of, c.stored.Epoch)
	}
	c.srv.Do("DEL", redisstore.FenceKey(name("k")))
	c.before = keyState(c.srv, "k")
}

func (c *epochCase) perform(op string) string {
	c.t.Helper()
	switch op {
	case "acquire":
		return c.acquire()
	case "renew":
		res := c.s.Renew(c.t.Context(), []tierlock.RenewRequest{{
			Name: c.req.Name, Lease: c.req.Token.Lease, Explicit: c.req.Explicit, TTL: c.req.TTL, Place: c.place}})
		owned := c.state(res[0].State, res[0].Err)
		if owned == "owned" && !c.longer() {
			c.t.Error("not renewed")
		}
		return owned
	case "release":
		state, err := c.s.Release(c.t.Context(), tierlock.ReleaseRequest{
			Name: c.req.Name, Lease: c.req.Token.Lease, Explicit: c.req.Explicit, Place: c.place})
		owned := c.state(state, err)
		if owned == "owned" && keyState(c.srv, "k") == c.before {
			c.t.Error("not freed")
		}
		return owned
	}
	req := adoptIn(c.place, c.req, 3, 1000)
	switch op {
	case "adopt above":
		req = adoptIn(c.place, c.req, 9, 1000)
	case "adopt same":
		req = adoptIn(c.place, c.req, c.stored.Epoch, c.stored.Seq)
	}
	return c.adopt(req)
}

func (c *epochCase) acquire() string {
	c.t.Helper()
	res, err := c.s.Acquire(c.t.Context(), askIn(c.place, c.req))
	if err != nil || !res.Granted {
		if err == nil && res.Token != c.stored {
			c.t.Errorf("held by %+v; wanted %+v", res.Token, c.stored)
		}
		if said := c.state(tierlock.LeaseTaken, err); said != "taken" {
			return said
		}
		return "held"
	}
	now := tokenOf(c.t, c.srv, "k")
	switch {
	case now == c.stored && res.Token.Fence == now.Fence && res.Token.Epoch == now.Epoch && res.Token.Lease == c.req.Token.Lease:
		if !c.longer() {
			c.t.Error("granted for less than was asked")
		}
		if strings.Contains(c.before, c.req.Token.Lease) {
			return "same"
		}
		return "entered"
	case now == res.Token && now.Epoch == 5 && now.Fence>>49 == 5 && now.Lease == c.req.Token.Lease && now.Fence > c.stored.Fence:
		return "new"
	}
	c.t.Errorf("granted %+v; the key holds %+v", res.Token, now)
	return "?"
}

func (c *epochCase) adopt(req tierlock.AdoptRequest) string {
	c.t.Helper()
	res := adoptOne(c.t, c.s, req)
	if said := c.state(res.State, res.Err); said != "owned" {
		return said
	}
	if !c.longer() {
		c.t.Error("adopted for less than was asked")
	}
	if req.Explicit {
		if score, _ := c.srv.Do("ZSCORE", keyOf("k")+":holds", req.Token.Lease).(string); score == "" {
			c.t.Error("the lease is not in the set")
		}
	}
	want := req.Token
	want.Epoch = 5
	switch now := tokenOf(c.t, c.srv, "k"); now {
	case want:
		return "put"
	case c.stored:
		return "kept"
	default:
		c.t.Errorf("adopted %+v; the key holds %+v", req.Token, now)
		return "?"
	}
}

// state puts an answer into a word, and checks that nothing has changed where it
// says so.
func (c *epochCase) state(state tierlock.Ownership, err error) string {
	c.t.Helper()
	said := state.String()
	if err != nil {
		wantEpochError(c.t, "the call", err)
		said = "refused"
	}
	if said != "owned" {
		if now := keyState(c.srv, "k"); now != c.before {
			c.t.Errorf("%s, but the key has changed from\n%s\nto\n%s", said, c.before, now)
		}
		if c.longer() {
			c.t.Errorf("%s, but the key was prolonged", said)
		}
	}
	return said
}

// longer tells whether the key now lasts for about a minute.
func (c *epochCase) longer() bool { return c.srv.Int("PTTL", keyOf("k")) > 31_000 }
