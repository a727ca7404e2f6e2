package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A lease may serve several holds in turn, each with a fence of its own, out of a
// range that is reserved when it is taken. The column fence has the last of the
// range, so that whatever is decided by it holds for all of them; the token has the
// present one.

// rangeBits is where the number of further fences stands in the answer of
// rangeStatement, above the time of the grant.
const rangeBits = 52

// rangeStatement is takeStatement for a request with further fences, of which it
// has five parameters more: n, n<<rangeBits, n, n, n. The last fence is the one that a
// grant without a range would have, the first is n less, or the next after the
// row's where that is larger. A row that is new gives no range: where the table was
// lost, anything up to a second ahead of the clock may have been given out.
//
// The token and the answer come before the fence, since they go by the former one.
func rangeStatement(session string, f form) string {
	first := "IF(fence<" + f.least + ",GREATEST(fence+1," + f.least + "-?),fence+1)"
	insert, update, _ := strings.Cut(takeStatement("NULL", session, f), " ON DUPLICATE KEY UPDATE ")
	decision, _, _ := strings.Cut(update, ",fence=")
	q := insert + " ON DUPLICATE KEY UPDATE " + decision +
		",epoch=IF(" + f.won + ",IF(LAST_INSERT_ID(IF(" + f.fresh + " AND fence<VALUES(fence)-?" + f.same + "," + now + "+?,1))>0," + f.granted + ",0)," +
		"IF(LAST_INSERT_ID(0)=0,epoch,0))" +
		",token=IF(" + f.anew + ",REPLACE(VALUES(token),CONCAT('\"fence\":\"'," + stampAny("VALUES(fence)") + "),CONCAT('\"fence\":\"'," + stampAny(first) + ")),token)" +
		",fence=IF(" + f.anew + ",GREATEST(fence+1," + f.least + "),fence)"
	for _, column := range [...]string{"lease_id", "holder_id", "reentrant", "entries", "create_time"} {
		q += fmt.Sprintf(",%s=IF("+f.anew+",VALUES(%[1]s),%[1]s)", column)
	}
	return q + ",expire_at=IF(" + f.won + "," + f.end + ",expire_at)"
}

// further is how many fences were reserved with a lease whose row and token were
// read: none with one that was adopted, over a row with a larger fence perhaps.
func (a *attempt) further(r *row, t tierlock.Token) int {
	if adopted := t.Tier != tierlock.MySQL || t.Epoch != t.Fence>>contract.SeqBits; adopted || r.Fence <= t.Fence {
		return 0
	}
	return int(min(r.Fence-t.Fence, uint64(contract.Fences(a.req))))
}

const (
	// keptText is where the fence begins in a token's JSON: a text that stands
	// nowhere else in it, where other quotes are escaped.
	keptText = `'"fence":"'`
	// keptFence is the fence of the kept token, and of what is none the column's,
	// which may be larger. What is no number is an error in a session that is strict.
	keptFence = "IF(LOCATE(" + keptText + ",token)>0,CAST(CONCAT('0',SUBSTRING_INDEX(SUBSTRING(token,LOCATE(" + keptText + ",token)+9),'\"',1)) AS UNSIGNED),fence)"
)

// updateToken answers with a number for a row of the lease, so that it is told
// whether there was one: 1 where its token stays, 2 where it was replaced.
const updateToken = "UPDATE lock_record SET token=IF(LAST_INSERT_ID(IF(" + keptFence + "<?,2,1))=2,?,token) WHERE " + ours

// Update implements [tierlock.Updater] in one statement.
func (s *Store) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	until := time.Now().Add(s.timeout)
	t := contract.Storable(req.Token, tierlock.MySQL)
	token := string(contract.AppendToken(nil, &t))
	err := errors.Join(contract.CheckName(req.Name), checkLease(t.Lease))
	if err == nil && len(token) > maxToken {
		err = fmt.Errorf("token is %d bytes as JSON, wanted at most %d", len(token), maxToken)
	}
	if err != nil {
		return 0, invalid("update", req.Name, err)
	}
	srv, err := s.known(ctx, until)
	if err != nil {
		return 0, failed("update", req.Name, err)
	}
	state, err := call(s, s.places, ctx, until, func(ctx context.Context) (tierlock.Ownership, error) {
		number, err := s.write(ctx, srv, updateToken+" AND "+srv.sound, t.Fence, token,
			req.Name.Namespace, req.Name.Resource, req.Name.Key, t.Lease, s.explained())
		if err != nil || number != 0 {
			return tierlock.LeaseOwned, err
		}
		r, err := s.read(ctx, &req.Name)
		if err != nil {
			return 0, err
		}
		state, owned := r.state(t.Lease, false)
		if owned {
			return 0, errNoEffect // in a session that is not sound
		}
		return state, nil
	})
	if err != nil {
		return 0, failed("update", req.Name, err)
	}
	return state, nil
}
