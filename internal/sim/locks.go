package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// This file is what the scripts and statements about locks do, each in one step
// under its server's mutex. now is the server's clock, incarnation its data.

// refused says why a call is not of this server's present.
func (t *table) refused(p tierlock.Place, incarnation string, r row) error {
	if !p.Exclusive {
		return nil
	}
	if p.Incarnation != "" && p.Incarnation != incarnation && !t.broken.AnyIncarnation {
		return t.epochError("meant for the data of %s, here is %s", p.Incarnation, incarnation)
	}
	if r.latest() > p.Epoch && !t.broken.LaterEpochTaken && (r.held() || !t.broken.LaterRecordTaken) {
		return t.epochError("meant for epoch %d, here is %d", p.Epoch, r.latest())
	}
	return nil
}

func (t *table) epochError(format string, args ...any) error {
	class := tierlock.ErrEpoch
	if t.broken.EpochIsError {
		class = errors.New("refused")
	}
	return fmt.Errorf("%w: "+format, append([]any{class}, args...)...)
}

// gone reports whether an exclusive call takes what is held for not there.
func (t *table) gone(p tierlock.Place, r row) bool {
	return p.Exclusive && r.held() && r.epoch < p.Epoch
}

func (t *table) acquire(now, latest int64, incarnation string, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	if now > latest {
		if t.broken.LateClears {
			t.put(req.Name, row{})
		}
		return tierlock.AcquireResult{}, fmt.Errorf("%w: by %d µs", tierlock.ErrLate, now-latest)
	}
	p := req.Place
	r := t.view(req.Name, now)
	if err := t.refused(p, incarnation, r); err != nil {
		if t.broken.HeldForGood {
			r.members = []member{{token: req.Token, until: now + 60_000_000}}
			t.put(req.Name, r)
		}
		return tierlock.AcquireResult{}, err
	}
	if t.broken.ZeroRefused && p.Epoch == 0 && r.latest() > 1 {
		return tierlock.AcquireResult{}, tierlock.ErrUnavailable
	}
	if t.gone(p, r) && !t.broken.EarlierBlocks {
		r.members = nil
	}
	if t.broken.EpochsApart && r.held() && r.epoch != max(p.Epoch, 1) {
		r.members = nil
	}
	until := now + req.TTL.Microseconds()
	if !r.held() {
		tok := t.granted(now, p, r, req)
		r = row{explicit: req.Explicit, token: tok, members: []member{{token: tok, until: until}},
			epoch: uint16(tok.Epoch), fence: max(tok.Fence, r.fence)}
		t.put(req.Name, r)
		return tierlock.AcquireResult{Granted: true, Token: tok}, nil
	}
	if i := r.find(req.Token.Lease); i >= 0 {
		m := &r.members[i]
		m.until = max(m.until, until)
		t.put(req.Name, r)
		return tierlock.AcquireResult{Granted: true, Token: m.token, Reentered: m.entered}, nil
	}
	if r.explicit && req.Explicit && r.token.Holder == req.Token.Holder {
		tok := contract.Stamped(req.Token, req.TTL, now)
		tok.Fence, tok.Epoch, tok.Seq = r.token.Fence, r.token.Epoch, r.token.Seq
		r.members = append(r.members, member{token: tok, until: until, entered: true})
		t.put(req.Name, r)
		return tierlock.AcquireResult{Granted: true, Token: tok, Reentered: true}, nil
	}
	return tierlock.AcquireResult{Token: r.token, Left: micros(r.until() - now)}, nil
}

// granted is the token of a new hold.
func (t *table) granted(now int64, p tierlock.Place, r row, req tierlock.AcquireRequest) tierlock.Token {
	epoch := max(p.Epoch, r.latest(), 1)
	if t.broken.EpochOfCall {
		epoch = max(p.Epoch, 1)
	}
	tok := req.Token
	tok.Epoch, tok.Seq = uint64(epoch), uint64((now-contract.SeqOrigin)/2+contract.SeqLead)
	if last := r.fence & (1<<contract.SeqBits - 1); r.fence>>contract.SeqBits == tok.Epoch && !t.broken.FencesFromClock {
		tok.Seq = max(tok.Seq, last+1)
	}
	tok = contract.Stamped(tok, req.TTL, now)
	switch {
	case t.broken.FenceWithoutEpoch:
		tok.Fence = max(r.fence, tok.Seq) + 1
	case t.broken.SmallFences:
		tok.Fence = uint64(float64(tok.Fence))
	}
	return tok
}

func (t *table) renew(now int64, incarnation string, req tierlock.RenewRequest) tierlock.RenewResult {
	r := t.view(req.Name, now)
	i, own, err := t.lease(req.Place, incarnation, r, req.Lease)
	if own == tierlock.LeaseOwned {
		r.members[i].until = max(r.members[i].until, now+req.TTL.Microseconds())
		t.put(req.Name, r)
	}
	return tierlock.RenewResult{State: own, Err: err}
}

func (t *table) release(now int64, incarnation string, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	r := t.view(req.Name, now)
	i, own, err := t.lease(req.Place, incarnation, r, req.Lease)
	if own == tierlock.LeaseOwned {
		m := &r.members[i]
		if req.Keep > 0 {
			m.until = min(m.until, now+req.Keep.Microseconds())
		} else {
			m.until = now
		}
		t.put(req.Name, r)
	}
	return own, err
}

// lease finds a lease as a renewal or a release may.
func (t *table) lease(p tierlock.Place, incarnation string, r row, lease string) (int, tierlock.Ownership, error) {
	if err := t.refused(p, incarnation, r); err != nil {
		return 0, 0, err
	}
	if !r.held() || t.gone(p, r) && !t.broken.EarlierRenewed {
		return 0, tierlock.LeaseGone, nil
	}
	i := r.find(lease)
	if i < 0 || t.broken.EpochsApart && r.epoch != max(p.Epoch, 1) {
		return 0, tierlock.LeaseTaken, nil
	}
	return i, tierlock.LeaseOwned, nil
}

func (t *table) adopt(now int64, incarnation string, req tierlock.AdoptRequest) tierlock.RenewResult {
	p, x := req.Place, &t.broken
	r := t.view(req.Name, now)
	if err := t.refused(p, incarnation, r); err != nil {
		return tierlock.RenewResult{Err: err}
	}
	until, own := now+req.TTL.Microseconds(), r.find(req.Token.Lease)
	joins := r.held() && r.explicit && req.Explicit && r.token.Holder == req.Token.Holder &&
		r.token.Fence == req.Token.Fence && r.epoch == p.Epoch && !x.AdoptAlone
	switch {
	case x.AdoptOverwrites, joins:
	case x.AdoptRefuses && r.held() && own < 0,
		r.epoch >= p.Epoch && r.held() && own < 0 && (r.token.Fence > req.Token.Fence || r.epoch > p.Epoch):
		return tierlock.RenewResult{State: tierlock.LeaseTaken}
	}
	tok := req.Token
	if !x.AdoptOldEpoch {
		tok.Epoch = uint64(p.Epoch)
	}
	if x.AdoptRestamps {
		tok.Fence++
	}
	record := max(r.fence, tok.Fence)
	switch {
	case x.AdoptLowersRecord:
		record = tok.Fence
	case x.AdoptKeepsRecord:
		record = r.fence
	}
	if own >= 0 {
		if !x.AdoptShortens {
			until = max(until, r.members[own].until)
		}
		if r.members[own].token.Fence > tok.Fence {
			tok.Fence, tok.Seq = r.members[own].token.Fence, r.members[own].token.Seq
		}
		m := member{token: tok, until: until, entered: r.members[own].entered}
		if p.Exclusive && r.epoch < p.Epoch {
			// The others of an explicit holder count once they are adopted, too.
			r.members, own = []member{m}, 0
		}
		r.members[own] = m
		if own == 0 {
			r.token = tok
		}
		r.epoch = max(r.epoch, p.Epoch)
	} else if joins {
		r.members = append(r.members, member{token: tok, until: until, entered: true})
	} else {
		r = row{explicit: req.Explicit, token: tok, members: []member{{token: tok, until: until}}, epoch: max(p.Epoch, 1)}
	}
	r.fence = record
	t.put(req.Name, r)
	return tierlock.RenewResult{State: tierlock.LeaseOwned}
}

func (t *table) inspect(now int64, name tierlock.Name) tierlock.Record {
	r := t.view(name, now)
	if !r.held() {
		return tierlock.Record{}
	}
	return tierlock.Record{Held: true, Token: r.token, Left: micros(r.until() - now), Holds: len(r.members)}
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
