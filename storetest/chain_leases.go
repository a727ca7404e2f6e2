package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
)

// leaseCall is a renewal or a release of the cross products below.
type leaseCall func(s *side, h hold) (tierlock.Ownership, window, error)

// placeLeases tries a call on every kind of what may be there. done checks what an
// owned one has done.
func (b *bench) placeLeases(what string, call leaseCall, done func(h hold, w window)) {
	b.Helper()
	p := b.place(3)
	for _, exclusive := range []bool{true, false} {
		for _, who := range []string{"own lease", "other lease", "own explicit lease", "other explicit lease"} {
			tag := fmt.Sprintf("exclusive %v, %s", exclusive, who)
			explicit := who == "own explicit lease" || who == "other explicit lease"
			own := who == "own lease" || who == "own explicit lease"
			for _, r := range b.remains(p, tag, explicit, alive, released, expired) {
				h := r.hold
				if !own {
					h = hold{req: b.request(b.b, h.req.Name, long)}
					h.req.Explicit = explicit
				}
				h.req.Place = p
				h.req.Place.Exclusive = exclusive
				got, w, err := call(b.b, h)
				said := fmt.Sprintf("%s %s at epoch 3, epoch %d there", what, h.req.Name, r.epoch)
				later := exclusive && r.epoch > 3
				switch {
				case later && r.state == alive:
					b.epochError(said, err)
				case later && errors.Is(err, tierlock.ErrEpoch):
					// A record may show the epoch, or not.
					b.epochError(said, err)
				case err != nil:
					b.Fatalf("%s: got error %v, want an answer", said, err)
				case r.state != alive:
					if got != tierlock.LeaseGone {
						b.Errorf("%s: got %v, want gone", said, got)
					}
				case exclusive && r.epoch < 3:
					if got != tierlock.LeaseGone && got != tierlock.LeaseTaken {
						b.Errorf("%s: got %v, want gone or taken: what an earlier epoch left is not there", said, got)
					}
				case own:
					if got != tierlock.LeaseOwned {
						b.Errorf("%s: got %v, want owned", said, got)
					}
					done(h, w)
					continue
				case got != tierlock.LeaseTaken:
					b.Errorf("%s: got %v, want taken", said, got)
				}
				b.untouched(r.hold, r.state != alive)
			}
		}
	}
}

func placeRenew(b *bench) {
	b.placeLeases("Renew", func(s *side, h hold) (tierlock.Ownership, window, error) {
		return b.renewing(s, h.renewal(2*long))
	}, func(h hold, w window) {
		h.ttl, h.window = 2*long, w
		b.heldBy(b.a, h, 1)
	})
}

func placeRelease(b *bench) {
	b.placeLeases("Release", func(s *side, h hold) (tierlock.Ownership, window, error) {
		return b.releasing(s, h.giveUp(0))
	}, func(h hold, _ window) {
		b.isFree(b.a, h.req.Name)
	})
}

func placeReleaseKeep(b *bench) {
	const keep = 5 * time.Second
	b.placeLeases("Release with Keep", func(s *side, h hold) (tierlock.Ownership, window, error) {
		return b.releasing(s, h.giveUp(keep))
	}, func(h hold, w window) {
		rec, asked := b.inspect(b.a, h.req.Name)
		// Released: whether it still shows is the store's affair, but not for longer.
		if high := keep - (asked.sent - w.got) + slack; rec.Left > high {
			b.Errorf("Inspect %s after a release with Keep %v: got %v left, want at most %v", h.req.Name, keep, rec.Left, high)
		}
		if !rec.Held && asked.got-w.sent < keep-slack {
			b.Errorf("Inspect %s after a release with Keep %v: got free after %v, want held", h.req.Name, keep, asked.got-w.sent)
		}
	})
}

// placeRenewBatch: one batch of all kinds, the answers in their order; one that is
// refused does not stop the others.
func placeRenewBatch(b *bench) {
	p := b.place(3)
	var reqs []tierlock.RenewRequest
	var want []any // an Ownership, or nil for ErrEpoch
	add := func(h hold, p tierlock.Place, w any) {
		h.req.Place = p
		reqs, want = append(reqs, h.renewal(2*long)), append(want, w)
	}
	for i := range 40 {
		name := func(kind string) tierlock.Name { return b.name(fmt.Sprint(kind, " ", i)) }
		now := b.lockAt(b.a, at(b.request(b.a, name("now"), long), p), 3)
		later := b.lockAt(b.a, at(b.request(b.a, name("later"), long), ofEpoch(p, 4)), 4)
		earlier := b.lockAt(b.a, at(b.request(b.a, name("earlier"), long), ofEpoch(p, 2)), 2)
		none := b.lock(b.a, name("none"), long)
		job := b.lockAt(b.a, at(b.explicit(b.a, name("job"), "job", long), p), 3)
		add(now, p, tierlock.LeaseOwned)
		add(later, p, nil)
		add(earlier, shared(p), tierlock.LeaseOwned)
		add(hold{req: b.request(b.b, name("now"), long)}, p, tierlock.LeaseTaken)
		add(hold{req: b.request(b.b, name("gone"), long)}, p, tierlock.LeaseGone)
		add(later, shared(p), tierlock.LeaseOwned)
		add(job, p, tierlock.LeaseOwned)
		add(none, tierlock.Place{}, tierlock.LeaseOwned)
		if i%3 == 0 {
			add(later, ofEpoch(p, 4), tierlock.LeaseOwned)
		}
	}
	ctx, cancel := b.ctx()
	defer cancel()
	res := b.a.Renew(ctx, reqs)
	if len(res) != len(reqs) {
		b.Fatalf("Renew of %d: got %d results", len(reqs), len(res))
	}
	for i, r := range res {
		what := fmt.Sprintf("Renew of a batch, result %d of %d, %s at epoch %d", i, len(res), reqs[i].Name, reqs[i].Place.Epoch)
		if want[i] == nil {
			b.epochError(what, r.Err)
		} else if r.Err != nil || r.State != want[i] {
			b.Fatalf("%s: got %v and error %v, want %v", what, r.State, r.Err, want[i])
		}
	}
}

// placeIncarnation: other data refuse what is exclusive, and nothing else.
func placeIncarnation(b *bench) {
	b.otherData("plain", b.request)
	b.otherData("explicit", func(s *side, name tierlock.Name, ttl time.Duration) tierlock.AcquireRequest {
		return b.explicit(s, name, "job", ttl)
	})
}

func (b *bench) otherData(tag string, request func(*side, tierlock.Name, time.Duration) tierlock.AcquireRequest) {
	p := b.place(3)
	other := p
	// A store of several parts joins theirs by commas, and each may look for its own.
	wrong := func(change func(part string) string) string {
		parts := strings.Split(p.Incarnation, ",")
		for i := range parts {
			parts[i] = change(parts[i])
		}
		return strings.Join(parts, ",")
	}
	free := b.name("free " + tag)
	for _, inc := range []string{
		wrong(func(part string) string {
			if part[0] == '0' {
				return "1" + part[1:]
			}
			return "0" + part[1:]
		}),
		"x",
		wrong(func(part string) string { return part + "0" }),
		wrong(func(part string) string { return part[:len(part)-1] }),
	} {
		other.Incarnation = inc
		_, err := b.try(b.a, at(request(b.a, free, long), other))
		b.epochError("Acquire of a free key on other data", err)
		b.isFree(b.b, free)
	}
	for i, epoch := range []uint16{2, 3} { // nor is there something to overwrite
		h := b.lockAt(b.a, at(request(b.a, b.name(fmt.Sprint("held ", tag, i)), long), ofEpoch(p, epoch)), epoch)
		wrong := h
		wrong.req.Place = other
		_, err := b.try(b.a, wrong.req)
		b.epochError("Acquire by the own lease on other data", err)
		_, err = b.try(b.b, at(request(b.b, h.req.Name, long), other))
		b.epochError("Acquire by another on other data", err)
		_, _, err = b.renewing(b.a, wrong.renewal(2*long))
		b.epochError("Renew on other data", err)
		_, _, err = b.releasing(b.a, wrong.giveUp(0))
		b.epochError("Release on other data", err)
		_, err = b.adoptOne(b.a, adoption(h, other, 2*long))
		b.epochError("Adopt on other data", err)
		b.heldBy(b.b, h, 1)
		// Any data will do for "", and for what is not exclusive.
		wrong.req.Place = shared(other)
		if epoch == 3 {
			wrong.req.Place = tierlock.Place{Epoch: 3, Exclusive: true}
		}
		wrong = b.renew(b.a, wrong, 2*long, tierlock.LeaseOwned)
		b.heldBy(b.b, wrong, 1)
		b.release(b.a, wrong.giveUp(0), tierlock.LeaseOwned)
		b.lockAt(b.b, at(request(b.b, h.req.Name, long), wrong.req.Place), 3)
	}
}
