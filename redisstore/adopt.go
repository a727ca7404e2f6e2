package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Adopt implements [tierlock.Chained]. The batch goes out as that of Renew does,
// and within the same bound.
//
// An adoption that the server executes after its caller has gone writes what it
// would have written before: a key of the drain's epoch, for its TTL. It excludes
// nobody of a later epoch, takes from nobody with a larger fence, and does not
// set back what the hold itself has written since; but where the hold has ended
// and the key is free, it keeps it until the TTL unless the lease is released
// once more.
func (s *Store) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	until := time.Now().Add(s.timeout)
	results := make([]tierlock.RenewResult, len(reqs))
	todo := make([]renewal, 0, len(reqs))
	for i := range reqs {
		req := &reqs[i]
		if err := checkAdopt(req); err != nil {
			results[i].Err = invalid("adopt", req.Name, err)
			continue
		}
		r, err := s.adoption(i, req)
		if err != nil {
			results[i].Err = failed("adopt", req.Name, err)
			continue
		}
		todo = append(todo, r)
	}
	s.renewAll(ctx, until, "adopt", todo, results)
	return results
}

func checkAdopt(req *tierlock.AdoptRequest) error {
	err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL),
		contract.CheckLease(req.Token.Lease), checkPlace(req.Place))
	if req.Place.Epoch == 0 {
		err = errors.Join(err, errors.New("epoch 0: an adoption needs one"))
	}
	if req.Explicit && !utf8.ValidString(req.Token.Holder) {
		err = errors.Join(err, fmt.Errorf("holder %q is not valid UTF-8", req.Token.Holder))
	}
	return err
}

// adoption is the call of adopt.lua.
func (s *Store) adoption(index int, req *tierlock.AdoptRequest) (r renewal, err error) {
	t := contract.Storable(req.Token, tierlock.Redis)
	// The fence stays as it is, and so does what it is made of; it is not of the
	// epoch that the key is of.
	t.Epoch = uint64(req.Place.Epoch)
	key := lockKey(req.Name, "")
	fence := string(appendFenceKey(nil, req.Name.Namespace, slotOf(key)))
	r = renewal{index: index, name: req.Name, script: &adoptScript, keys: []string{key, fence}}
	value := contract.AppendToken(make([]byte, 0, 1024), &t)
	exclusive := "0"
	if req.Place.Exclusive {
		r.script, exclusive = &adoptExclusiveScript, "1"
	}
	if req.Explicit {
		value = append(value, ' ')
		r.keys = append(r.keys, key+holdsSuffix)
	}
	if r.keys, err = s.appendMarker(r.keys, req.Name.Namespace, req.Place); err != nil {
		return r, err
	}
	of := contract.WithFence(t, t.Fence)
	r.args = appendPlace([]string{
		string(value), wireLease(t.Lease), millis(req.TTL), strconv.FormatUint(t.Fence, 10),
		strconv.FormatUint(of.Epoch, 10), strconv.FormatUint(of.Seq, 10), t.Lease, t.Holder, exclusive,
	}, req.Place)
	return r, nil
}
