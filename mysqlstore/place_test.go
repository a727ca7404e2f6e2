package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// placeOf is the place of most calls here: epoch 5.
func placeOf(exclusive bool) tierlock.Place { return tierlock.Place{Epoch: 5, Exclusive: exclusive} }

// placeKinds is what there may be of a lock, from the view of a caller with the lease
// "own" and, where explicit, the holder "me".
var placeKinds = []struct {
	name     string
	explicit bool   // so is the call
	lease    string // of the row, "" for none
	holder   string
	free     bool // released
}{
	{"own", false, "own", "", false},
	{"other", false, "other", "", false},
	{"free", false, "other", "", true},
	{"entered", true, "own", "me", false},
	{"enterable", true, "other", "me", false},
	{"foreign", true, "other", "you", false},
	{"free to enter", true, "other", "me", true},
}

// placeTable is what each operation of epoch 5 does to a row of epoch 3, 5 and 7, in
// the order of placeKinds.
//
//	new, same, entered  granted: a hold of its own, the one that is there, a lease
//	                    of an explicit hold; with the epoch of the row afterwards
//	held, owned, taken, gone, epoch  as the store says; nothing was changed, but for
//	                    owned
var placeTable = map[string]map[bool]map[uint16][]string{
	"acquire": {
		true: {
			3: {"new 5", "new 5", "new 5", "new 5", "new 5", "new 5", "new 5"},
			5: {"same 5", "held", "new 5", "same 5", "entered 5", "held", "new 5"},
			7: {"epoch", "epoch", "epoch", "epoch", "epoch", "epoch", "epoch"},
		},
		false: {
			3: {"same 3", "held", "new 5", "same 5", "entered 5", "held", "new 5"},
			5: {"same 5", "held", "new 5", "same 5", "entered 5", "held", "new 5"},
			7: {"same 7", "held", "new 7", "same 7", "entered 7", "held", "new 7"},
		},
	},
	"renew": {
		true: {
			3: {"gone", "gone", "gone", "gone", "gone", "gone", "gone"},
			5: {"owned 5", "taken", "gone", "owned 5", "taken", "taken", "gone"},
			7: {"epoch", "epoch", "epoch", "epoch", "epoch", "epoch", "epoch"},
		},
		false: {
			3: {"owned 3", "taken", "gone", "owned 3", "taken", "taken", "gone"},
			5: {"owned 5", "taken", "gone", "owned 5", "taken", "taken", "gone"},
			7: {"owned 7", "taken", "gone", "owned 7", "taken", "taken", "gone"},
		},
	},
	// As renewed, and then there is nobody.
	"release": {
		true: {
			3: {"gone", "gone", "gone", "gone", "gone", "gone", "gone"},
			5: {"owned 5", "taken", "gone", "owned 5", "taken", "taken", "gone"},
			7: {"epoch", "epoch", "epoch", "epoch", "epoch", "epoch", "epoch"},
		},
		false: {
			3: {"owned 3", "taken", "gone", "owned 3", "taken", "taken", "gone"},
			5: {"owned 5", "taken", "gone", "owned 5", "taken", "taken", "gone"},
			7: {"owned 7", "taken", "gone", "owned 7", "taken", "taken", "gone"},
		},
	},
	// Of a hold with a fence smaller than the row's.
	"adopt": {
		true: {
			3: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
			5: {"owned 5", "taken", "owned 5", "owned 5", "owned 5", "taken", "owned 5"},
			7: {"epoch", "epoch", "epoch", "epoch", "epoch", "epoch", "epoch"},
		},
		false: {
			3: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
			5: {"owned 5", "taken", "owned 5", "owned 5", "owned 5", "taken", "owned 5"},
			7: {"owned 7", "taken", "owned 7", "owned 7", "owned 7", "taken", "owned 7"},
		},
	},
	// Of one with a fence that is not smaller, where there can be one.
	"adopt younger": {
		true: {
			3: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
			5: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
			7: {"epoch", "epoch", "epoch", "epoch", "epoch", "epoch", "epoch"},
		},
		false: {
			3: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
			5: {"owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5", "owned 5"},
		},
	},
}

// placeRow is all that a row has.
type placeRow struct {
	text           string
	lease, entries string
	epoch          uint16
	fence          uint64
	left           time.Duration
}

func readPlaceRow(t testing.TB, db *sql.DB, key string) (r placeRow) {
	t.Helper()
	var left int64
	if err := db.QueryRow("SELECT CONCAT_WS('|',lease_id,holder_id,fence,epoch,attempt,reentrant,entries,token,expire_at,create_time),lease_id,COALESCE(entries,''),epoch,fence,"+
		"TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expire_at) FROM lock_record WHERE "+row(key)).
		Scan(&r.text, &r.lease, &r.entries, &r.epoch, &r.fence, &left); err != nil {
		t.Fatalf("row of %s: %v", key, err)
	}
	r.left = time.Duration(left) * time.Microsecond
	return r
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db := admin(t, srv)
	for _, params := range []string{"", "interpolateParams=true&clientFoundRows=true", "tx_isolation='READ-COMMITTED'"} {
		s := open(t, srv.DSN(params), calm)
		if strings.HasPrefix(params, "tx") { // by the statements for several, too
			s.GatherAlways()
		}
		for op, table := range placeTable {
			for exclusive, epochs := range table {
				for epoch, wants := range epochs {
					for i, want := range wants {
						kind := placeKinds[i]
						t.Run(fmt.Sprintf("%s/exclusive %v/row of %d/%s/%s", op, exclusive, epoch, kind.name, params), func(t *testing.T) {
							testPlace(t, s, db, op, exclusive, epoch, i, want)
						})
					}
				}
			}
		}
	}
}

func testPlace(t *testing.T, s *mysqlstore.Store, db *sql.DB, op string, exclusive bool, epoch uint16, i int, want string) {
	const ttl = 50 * time.Second // longer than what is there
	kind, key := placeKinds[i], t.Name()
	if len(key) > 128 {
		key = key[len(key)-128:]
	}
	lease := func(which string) string { return fmt.Sprintf("%-32.32s", memberID(77)) + which }
	setup := ask(key, lease(kind.lease), patience)
	setup.Explicit, setup.Place.Epoch = kind.explicit, epoch
	if kind.explicit {
		setup.Token.Holder = kind.holder
	}
	there := mustAcquire(t, s, setup)
	if there.Epoch != uint64(epoch) || there.Fence>>49 != uint64(epoch) || there.Fence&(1<<49-1) != there.Seq {
		t.Fatalf("granted is %+v; wanted epoch %d", there, epoch)
	}
	if kind.free {
		mustRelease(t, s, tierlock.ReleaseRequest{Name: setup.Name, Lease: setup.Token.Lease, Explicit: setup.Explicit}, tierlock.LeaseOwned)
	}
	if op == "acquire" && strings.HasPrefix(want, "new") && !kind.free {
		// However long it has left: a grant over it is not for as long.
		execute(t, db, "UPDATE lock_record SET expire_at=expire_at+INTERVAL 10 MINUTE WHERE "+row(key))
	}
	before := readPlaceRow(t, db, key)
	req := ask(key, lease("own"), ttl)
	req.Place, req.Explicit = placeOf(exclusive), kind.explicit
	if kind.explicit {
		req.Token.Holder = "me"
	}
	got, err := "", error(nil)
	state := func(o tierlock.Ownership) {
		if got = o.String(); o == tierlock.LeaseOwned {
			got = fmt.Sprintf("owned %d", readPlaceRow(t, db, key).epoch)
		}
	}
	fence := uint64(2)<<49 | 12345
	switch op {
	case "acquire":
		var res tierlock.AcquireResult
		if res, err = s.Acquire(t.Context(), req); err == nil {
			switch {
			case !res.Granted:
				got = "held"
				if res.Token != there {
					t.Errorf("held by %+v; wanted %+v", res.Token, there)
				}
			case res.Reentered:
				got = fmt.Sprintf("entered %d", readPlaceRow(t, db, key).epoch)
				if res.Token.Fence != there.Fence || res.Token.Epoch != uint64(readPlaceRow(t, db, key).epoch) {
					t.Errorf("entered %+v with %+v", there, res.Token)
				}
			case res.Token == there:
				got = fmt.Sprintf("same %d", readPlaceRow(t, db, key).epoch)
			default:
				r := readPlaceRow(t, db, key)
				got = fmt.Sprintf("new %d", r.epoch)
				if res.Token.Fence <= there.Fence || res.Token.Fence != r.fence || res.Token.Epoch != uint64(r.epoch) || res.Token.Fence>>49 != res.Token.Epoch {
					t.Errorf("granted %+v after %+v, the row has fence %d and epoch %d", res.Token, there, r.fence, r.epoch)
				}
				if r.left > ttl {
					t.Errorf("granted for %v; wanted %v", r.left, ttl)
				}
				if rec := mustInspect(t, s, key); rec.Token != res.Token || rec.Holds != 1 {
					t.Errorf("stored is\n%+v, granted was\n%+v", rec, res.Token)
				}
			}
			if left := readPlaceRow(t, db, key).left; res.Granted && left < ttl-10*time.Second {
				t.Errorf("granted for %v", left)
			}
			if res.Granted { // again, as after a lost reply
				again, err := s.Acquire(t.Context(), req)
				if err != nil || !again.Granted || again.Token.Fence != res.Token.Fence {
					t.Errorf("again: %+v, %v; wanted %+v", again, err, res.Token)
				}
			}
		}
	case "renew":
		res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit, TTL: ttl, Place: req.Place}})[0]
		if err = res.Err; err == nil {
			state(res.State)
		}
		if left := readPlaceRow(t, db, key).left; res.State == tierlock.LeaseOwned && left < ttl-10*time.Second {
			t.Errorf("renewed, and %v left", left)
		}
	case "release":
		var o tierlock.Ownership
		o, err = s.Release(t.Context(), tierlock.ReleaseRequest{Name: req.Name, Lease: req.Token.Lease, Explicit: req.Explicit, Place: req.Place})
		if err == nil {
			state(o)
		}
		if left := readPlaceRow(t, db, key).left; o == tierlock.LeaseOwned && left > 0 {
			t.Errorf("released, and %v left", left)
		}
	case "adopt younger":
		if fence = there.Fence + 1; epoch > 5 {
			fence = 5<<49 | 12345
		}
		fallthrough
	default:
		a := adoptOf(req, fence)
		for try := range 2 { // it may be repeated
			res := s.Adopt(t.Context(), []tierlock.AdoptRequest{a})[0]
			if err = res.Err; err == nil {
				state(res.State)
			}
			after := readPlaceRow(t, db, key)
			if after.fence < before.fence {
				t.Errorf("the fence went from %d to %d", before.fence, after.fence)
			}
			if res.State != tierlock.LeaseOwned {
				continue
			}
			if after.left < ttl-10*time.Second || after.fence < fence {
				t.Errorf("try %d: %v left, fence %d; wanted %v and %d", try, after.left, after.fence, ttl, fence)
			}
			rec := mustInspect(t, s, key)
			kept := a.Token
			kept.Epoch = 5
			// Another lease of the same explicit hold, or a token of our own that
			// is further, stays.
			stays := kind.name == "own" || kind.name == "entered" || kind.name == "enterable"
			if rec.Token != kept && !(stays && fence < there.Fence && rec.Token == there) {
				t.Errorf("try %d: stored is\n%+v, adopted was\n%+v", try, rec.Token, kept)
			}
			if both := kind.name == "enterable" && (epoch >= 5 || !exclusive); both != (rec.Holds == 2) {
				t.Errorf("%d leases in the hold", rec.Holds)
			}
		}
	}
	if errors.Is(err, tierlock.ErrEpoch) {
		got = "epoch"
		wantClass(t, op, err, tierlock.ErrEpoch)
		err = nil
	}
	if err != nil || got != want {
		t.Errorf("%s: got %q, %v; wanted %q", op, got, err, want)
	}
	switch got {
	case "held", "taken", "gone", "epoch":
		if after := readPlaceRow(t, db, key); after.text != before.text {
			t.Errorf("%s, and the row changed from\n%s to\n%s", got, before.text, after.text)
		}
	}
}

// adoptOf is the adoption of the hold that a request would be granted.
func adoptOf(req tierlock.AcquireRequest, fence uint64) tierlock.AdoptRequest {
	t := req.Token
	t.Fence, t.Epoch, t.Seq = fence, fence>>49, fence&(1<<49-1)
	t.Tier, t.ServerTime = tierlock.Redis, time.UnixMicro(1800000000000001).UTC()
	t.ExpireAt = t.ServerTime.Add(t.TTL)
	t.ClientTime = time.UnixMicro(t.ClientTime.UnixMicro()).UTC()
	return tierlock.AdoptRequest{Name: req.Name, Token: t, Explicit: req.Explicit, TTL: req.TTL, Place: req.Place}
}
