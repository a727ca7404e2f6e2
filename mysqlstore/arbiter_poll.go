package mysqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
)

// pollRow is the mode, one member of it if there is any, and who answers.
type pollRow struct {
	Here     []byte `db:"here"`
	Sound    bool   `db:"sound"`
	Writable bool   `db:"writable"`
	Settled  bool   `db:"settled"`

	Epoch       uint16 `db:"epoch"` // 0: there is no mode
	Phase       []byte `db:"phase"`
	Tier        []byte `db:"tier"`
	Incarnation []byte `db:"incarnation"`
	Server      []byte `db:"server"`
	Term        int64  `db:"term"` // µs
	Drift       int    `db:"drift"`

	Member      []byte `db:"member"` // NULL: there is no member
	MemberEpoch uint16 `db:"member_epoch"`
	Acked       uint16 `db:"acked_epoch"`
	Beat        uint64 `db:"beat"`
	Down        bool   `db:"redis_down"`
	Up          bool   `db:"redis_up"`
	Seen        []byte `db:"seen"`
	Digest      []byte `db:"digest"` // NULL: that of the sum is known
	Sum         []byte `db:"digest_sum"`
	App         []byte `db:"app"`
	Host        []byte `db:"host"`
}

// digests are those that the last poll has shown, by their sums. Members that register
// the same resources have the same digest, some kilobytes perhaps, and it stays, so that
// each is read once instead of for each member in each poll.
type digests struct {
	mu    sync.Mutex
	bySum map[string]string // never changed, only replaced
}

// known may be read, not written.
func (d *digests) known() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bySum
}

func (d *digests) replace(bySum map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bySum = bySum
}

// sumOf stands for a digest.
func sumOf(digest string) string {
	sum := sha256.Sum256([]byte(digest))
	return hex.EncodeToString(sum[:16])
}

// unknown adds the column digest, for sums that are none of these.
func (q *statement) unknown(known map[string]string) {
	if len(known) == 0 {
		q.add("p.digest")
		return
	}
	q.add("IF(p.digest_sum IN (")
	list(q, slices.Collect(maps.Keys(known)), q.text)
	q.add("),NULL,p.digest) AS digest")
}

// poll reads the mode and its members as they are at one moment: a statement reads
// all of its tables as of when it began. It locks nothing.
//
// What a replica shows is older, and what a session shows that reads uncommitted
// rows, or an old snapshot, may never have been: such an answer is none.
func (s *Store) poll(ctx context.Context, db session, srv *server, namespace string) (degrade.Reply, error) {
	var q statement
	q.add("SELECT ", identity, " AS here,", srv.sound, " AS sound,", writable, " AS writable,", srv.isolation, "<>'READ-UNCOMMITTED' AS settled,"+
		"COALESCE(m.epoch,0) AS epoch,m.phase,m.tier,m.incarnation,m.server,COALESCE(m.term,0) AS term,COALESCE(m.drift,0) AS drift,"+
		"p.member,COALESCE(p.epoch,0) AS member_epoch,COALESCE(p.acked_epoch,0) AS acked_epoch,COALESCE(p.beat,0) AS beat,"+
		"COALESCE(p.redis_down,0) AS redis_down,COALESCE(p.redis_up,0) AS redis_up,p.incarnation AS seen,p.digest_sum,p.app,p.host,")
	known := s.digests.known()
	q.unknown(known)
	q.add(" FROM (SELECT 1 AS one) AS always LEFT JOIN lock_mode AS m ON m.namespace=")
	q.text(namespace)
	q.add(" LEFT JOIN lock_permit AS p ON p.namespace=")
	q.text(namespace)
	q.add(" LIMIT 1000000") // the session's own may be less
	var rows []pollRow
	if err := db.SelectContext(ctx, &rows, q.String()); err != nil {
		return degrade.Reply{}, err
	}
	if len(rows) == 0 {
		return degrade.Reply{}, errNoEffect
	}
	first := &rows[0]
	switch {
	case !first.Writable:
		return degrade.Reply{}, fmt.Errorf("%w: the server is read-only, so it is not the primary", tierlock.ErrUnavailable)
	case !first.Sound:
		return degrade.Reply{}, errNoEffect
	case !first.Settled:
		return degrade.Reply{}, misfit("the session reads what is not committed: remove the isolation level READ UNCOMMITTED from the DSN or from init_connect")
	}
	mode, err := first.mode()
	if err != nil {
		return degrade.Reply{}, fmt.Errorf("namespace %s: %w", namespace, err)
	}
	r := degrade.Reply{OK: true, Mode: mode, Server: string(first.Here)}
	seen := make(map[string]string)
	for _, row := range rows {
		if row.Member == nil {
			continue
		}
		sum, digest := string(row.Sum), string(row.Digest)
		if row.Digest == nil {
			digest = known[sum]
		}
		seen[sum] = digest
		r.Members = append(r.Members, degrade.Member{
			ID: string(row.Member), Epoch: row.MemberEpoch, Acked: row.Acked, Beat: row.Beat,
			Vote:   degrade.Vote{Down: row.Down, Up: row.Up, Incarnation: string(row.Seen)},
			Digest: digest, App: string(row.App), Host: string(row.Host),
		})
	}
	s.digests.replace(seen)
	return r, nil
}

// mode is the mode that the row tells. One that was written by hand, or by a
// version that knows more, may make no sense here.
func (r *pollRow) mode() (degrade.Mode, error) {
	if r.Epoch == 0 && r.Phase == nil {
		return degrade.Mode{}, nil
	}
	m := degrade.Mode{
		Epoch: r.Epoch, Incarnation: string(r.Incarnation), Server: string(r.Server),
		Term: time.Duration(r.Term) * time.Microsecond, Drift: r.Drift,
	}
	phase, tier := string(r.Phase), string(r.Tier)
	m.Hard = phase == phaseHard
	m.Drain = m.Hard || phase == phaseDrain
	for _, t := range []degrade.Tier{degrade.Redis, degrade.MySQL} {
		if tier == t.String() {
			m.Tier = t
		}
	}
	if m.Epoch == 0 || m.Epoch > degrade.MaxEpoch || m.Tier == degrade.NoTier || !m.Drain && phase != phaseOpen || m.Term <= 0 || m.Drift < 0 || m.Drift > 999 {
		return degrade.Mode{}, misfit("the row of lock_mode cannot be understood: epoch %d, phase %q, tier %q, term %d, drift %d", r.Epoch, phase, tier, r.Term, r.Drift)
	}
	return m, nil
}
