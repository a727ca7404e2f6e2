package mysqlstore

import (
	"fmt"

	"github.com/tierlock/tierlock/degrade"
)

// The statements that change the mode and the permits. They are sent as texts: one
// round trip each, and they are rare.
//
// Their locks. A refresh and an ack lock the row of the mode for reading until they
// are committed, and then that of the member. So nothing changes the mode between
// their condition and their effect, and members do not wait for each other. A start
// and an opening lock the mode alone, and a removal goes in the order of a refresh:
// there is no circle to wait in.
//
// LAST_INSERT_ID(x) is evaluated where a row is found, and is the answer.

// phases are the words of the column phase.
const (
	phaseOpen  = "OPEN"
	phaseDrain = "DRAIN"
	phaseHard  = "HARD" // a drain that only time opens
)

func phaseOf(m degrade.Mode) string {
	switch {
	case m.Hard:
		return phaseHard
	case m.Drain:
		return phaseDrain
	}
	return phaseOpen
}

// bytes is text that stays what it is where sql_mode takes the empty string for
// NULL.
func (q *statement) bytes(s string) {
	if s == "" {
		q.add("x''")
		return
	}
	q.text(s)
}

// isMode adds the condition that the row m is that of a mode, whole.
func (q *statement) isMode(namespace string, m degrade.Mode) {
	q.add("m.namespace=")
	q.text(namespace)
	q.add(" AND m.epoch=")
	q.int(int64(m.Epoch))
	q.mode(" AND ", m)
}

// mode adds the columns of a mode but its epoch, with their values, each after sep.
func (q *statement) mode(sep string, m degrade.Mode) {
	q.add(sep, "m.phase=")
	q.text(phaseOf(m))
	q.add(sep, "m.tier=")
	q.text(m.Tier.String())
	q.add(sep, "m.incarnation=")
	q.bytes(m.Incarnation)
	q.add(sep, "m.server=")
	q.bytes(m.Server)
	q.add(sep, "m.term=")
	q.int(m.Term.Microseconds())
	q.add(sep, "m.drift=")
	q.int(int64(m.Drift))
}

// here is the condition that the row m is of the very server that executes the
// statement.
const here = "m.server=" + identity

// may adds what each statement asks of server and session.
func (q *statement) may(srv *server) { q.add(" AND ", writable, " AND ", srv.sound) }

// why adds a note for people.
func (q *statement) why(what string, self degrade.Self) {
	q.text(clip(fmt.Sprintf("%s by %s@%s#%d, member %s", what, clip(self.App, 64), clip(self.Host, 255), self.PID, self.Member), 512))
}

// createMode inserts the first mode, if there is none, on the server that its
// Server names.
func createMode(srv *server, self degrade.Self, a degrade.Action) (q statement) {
	q.add(srv.prefix, "INSERT INTO lock_mode (namespace,epoch,phase,tier,incarnation,server,term,drift,reason,changed_at) SELECT ")
	q.text(self.Namespace)
	q.add(",LAST_INSERT_ID(")
	q.int(int64(a.To.Epoch))
	q.add("),")
	q.text(phaseOf(a.To))
	q.add(",")
	q.text(a.To.Tier.String())
	q.add(",")
	q.bytes(a.To.Incarnation)
	q.add(",")
	q.bytes(a.To.Server)
	q.add(",")
	q.int(a.To.Term.Microseconds())
	q.add(",")
	q.int(int64(a.To.Drift))
	q.add(",")
	q.why("created", self)
	q.add(",UTC_TIMESTAMP(6) FROM DUAL WHERE ", identity, "=")
	q.bytes(a.To.Server)
	q.may(srv)
	q.add(" ON DUPLICATE KEY UPDATE epoch=IF(LAST_INSERT_ID(0)=0,lock_mode.epoch,0)")
	return q
}

// writePermit is a refresh or an ack: it writes the member's row if the mode is
// the one that it is for.
func writePermit(srv *server, self degrade.Self, a degrade.Action, beat uint64) (q statement) {
	epoch, acked, column := int64(a.From.Epoch), int64(0), "epoch"
	if a.Kind == degrade.Ack {
		epoch, acked, column = acked, epoch, "acked_epoch"
	}
	q.add(srv.prefix, "INSERT INTO lock_permit (namespace,member,epoch,acked_epoch,beat,redis_down,redis_up,incarnation,digest,digest_sum,app,host,pid,seen_at) SELECT ")
	q.text(self.Namespace)
	q.add(",")
	q.text(self.Member)
	q.add(",")
	q.int(epoch)
	q.add(",")
	q.int(acked)
	q.add(",LAST_INSERT_ID(")
	q.uint(beat)
	q.add(")")
	for _, vote := range []bool{a.Vote.Down, a.Vote.Up} {
		if vote {
			q.add(",1")
		} else {
			q.add(",0")
		}
	}
	for _, s := range []string{a.Vote.Incarnation, self.Digest, sumOf(self.Digest), clip(self.App, 64), clip(self.Host, 255)} {
		q.add(",")
		q.bytes(s)
	}
	q.add(",")
	q.int(int64(self.PID))
	q.add(",UTC_TIMESTAMP(6) FROM lock_mode AS m WHERE ")
	q.isMode(self.Namespace, a.From)
	q.add(" AND ", here)
	q.may(srv)
	q.add(" LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE ")
	for i, c := range []string{column, "beat", "redis_down", "redis_up", "incarnation", "digest", "digest_sum", "seen_at"} {
		if i > 0 {
			q.add(",")
		}
		q.add("lock_permit.", c, "=VALUES(lock_permit.", c, ")")
	}
	return q
}

// setMode adds the assignments that make the row m that of a mode.
func (q *statement) setMode(m degrade.Mode, why string, self degrade.Self) {
	q.add("UPDATE lock_mode AS m SET m.epoch=LAST_INSERT_ID(")
	q.int(int64(m.Epoch))
	q.add(")")
	q.mode(",", m)
	q.add(",m.reason=")
	q.why(why, self)
	q.add(",m.changed_at=UTC_TIMESTAMP(6) WHERE ")
}

func startDrain(srv *server, self degrade.Self, a degrade.Action) (q statement) {
	q.add(srv.prefix)
	q.setMode(a.To, "drain started", self)
	q.isMode(self.Namespace, a.From)
	q.add(" AND ", here)
	q.may(srv)
	return q
}

// openMode writes the row of the mode alone. That no member is un-acked was read
// before: it stays true in a drain, and to ask again here would lock the members'
// rows against their refreshes.
func openMode(srv *server, self degrade.Self, a degrade.Action) (q statement) {
	to := a.From
	to.Drain, to.Hard = false, false
	q.add(srv.prefix)
	q.setMode(to, "opened", self)
	q.isMode(self.Namespace, a.From)
	q.add(" AND ", here)
	q.may(srv)
	return q
}

// takeMode makes a row that another server has written, or that has gone back in
// time, that of a server.
func takeMode(srv *server, self degrade.Self, a degrade.Action, server string) (q statement) {
	to := a.To
	to.Server = server
	q.add(srv.prefix)
	q.setMode(to, "taken over", self)
	q.isMode(self.Namespace, a.From)
	q.add(" AND (m.server<>", identity, " OR m.epoch<")
	q.int(int64(a.Known))
	q.add(") AND ", identity, "=")
	q.bytes(server)
	q.may(srv)
	return q
}

// deletePermit deletes a member's row, if its beat is still the given one. The mode
// comes first, as in a refresh.
func deletePermit(srv *server, namespace, member string, beat *uint64) (q statement) {
	q.add(srv.prefix, "DELETE p FROM lock_mode AS m STRAIGHT_JOIN lock_permit AS p ON p.namespace=")
	q.text(namespace)
	q.add(" AND p.member=")
	q.text(member)
	if beat != nil {
		q.add(" AND p.beat=")
		q.uint(*beat)
	}
	q.add(" WHERE m.namespace=")
	q.text(namespace)
	q.add(" AND ", here)
	q.may(srv)
	return q
}
