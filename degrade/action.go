package degrade

import "fmt"

// Kind is what an Action asks for.
type Kind uint8

// The kinds of actions. Each of those on the arbiter is one autocommit statement
// on the primary, in which all conditions are judged together with the effect; it
// also requires that the row's Server is the very server that executes it, except
// for Poll, Create and Takeover.
const (
	// Poll reads the mode row and the member rows in one statement. It proves
	// nothing but what it shows: no permit comes from it.
	Poll Kind = iota + 1
	// Create inserts the first mode row, Action.To, if there is none.
	Create
	// Refresh writes the own member row (epoch = Action.From.Epoch, the beat, the
	// vote) if the mode is From: same epoch, open. The beat is a number that no row
	// of a member has had before: at random, say. To count would not do, since a row
	// may be removed in between, and an arbiter that has lost the latest writes in a
	// failover would give their numbers again, which somebody may have seen.
	Refresh
	// Start changes the mode from From, open, to To, a drain.
	Start
	// Adopt writes Action.Holds, with their lease ids and fences, into the store of
	// the drain From: each over what is free, of an earlier epoch, of its own
	// lease id, or of a fence not larger than its own, and never lowers the
	// record that fences are counted from.
	Adopt
	// Ack writes acked_epoch = From.Epoch, the beat and the vote into the own member
	// row, inserting it if need be, if the mode is the drain From.
	Ack
	// Open changes the mode from From, a drain, to From opened. It writes that row
	// alone.
	Open
	// Takeover changes the mode from From to To if the row's Server is not the
	// executing server, or From's epoch is below Action.Known; and sets Server to
	// the executing one.
	Takeover
	// Remove deletes the row of Action.Member if its beat is still Action.Beat.
	Remove
	// Leave deletes the own row.
	Leave
	// Probe asks Redis whether it works and for its incarnation.
	Probe

	kinds
)

// String is the name used in logs.
func (k Kind) String() string {
	names := [kinds]string{Poll: "poll", Create: "create", Refresh: "refresh", Start: "start", Adopt: "adopt", Ack: "ack",
		Open: "open", Takeover: "takeover", Remove: "remove", Leave: "leave", Probe: "probe"}
	if k < kinds && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Action is something that the machine wants done or, once begun, is being done.
type Action struct {
	Kind     Kind
	From, To Mode
	Known    uint16
	Holds    []HoldID
	Member   string
	Beat     uint64
	Vote     Vote // with Refresh and Ack

	// Sent is when the action was begun. What its reply gives counts from here,
	// however late the request leaves or the reply comes.
	Sent Instant
}

// Reply is what came of an action.
type Reply struct {
	// Lost means that no answer came in time, or an error that leaves open
	// whether the action was or will be executed. Nothing else counts then.
	Lost bool
	// OK: the statement wrote its row, the probe succeeded.
	OK bool
	// Poll: the row (unknown if there is none), the identity of the server that
	// answered, all member rows.
	Mode    Mode
	Server  string
	Members []Member
	// Adopt: one per hold, in the action's order. Missing ones count as Unknown.
	Adopted []Adoption
	// Probe: the incarnation that was seen.
	Incarnation string
}

// Adoption is what came of one hold of a batch.
type Adoption uint8

// The outcomes of an adoption.
const (
	Unknown  Adoption = iota
	Taken             // the key is the hold's in the new epoch
	NotTaken          // somebody else has it
)

// can reports whether an action would be safe to begin at now. Whether it is
// useful is not asked here: the checker begins whatever can be, whenever it
// likes, so that no rule about *when* is needed for exclusion.
func (m *Machine) can(now Instant, a Action) bool {
	open, drain := m.mode.Known() && !m.mode.Drain, m.mode.Drain
	at := a.From == m.mode
	switch a.Kind {
	case Poll, Probe:
		return true
	case Create:
		return !m.mode.Known()
	case Refresh:
		return open && at && (!m.closing || !m.noneAlive(now))
	case Start:
		return open && at && m.mode.Epoch < MaxEpoch && a.To == m.mode.next(a.To.Tier, a.To.Incarnation)
	case Adopt:
		return drain && at && len(a.Holds) > 0
	case Ack:
		return drain && at && m.joined && m.mayAck(now)
	case Open:
		return drain && at && m.mayOpen(now)
	case Takeover:
		return m.stray.Known() && a.From == m.stray && a.To.Known() && a.To == m.takeover(m.stray)
	case Remove:
		return m.mayRemove(now, a)
	case Leave:
		return m.closing && (m.noneAlive(now) || m.rules.LeaveWithHolds)
	}
	return false
}

// Begin tells that an action is about to be carried out, and gives it back as it
// has to be handed to Done. If it reports false the action has become pointless or
// unsafe and must not be carried out. Every action that was begun is finished with
// Done, with Reply.Lost at the latest when its caller gives up.
func (m *Machine) Begin(now Instant, a Action) (Action, bool) {
	if !m.can(now, a) {
		return a, false
	}
	a.Sent = now
	switch a.Kind {
	case Refresh:
		m.joined = true
	case Ack:
		// Before the sending, not with the reply: the arbiter may have the ack,
		// and open, long before we hear of it, if ever.
		m.ackSent = true
	case Adopt:
		m.beginAdopt(now, a)
	case Leave:
		m.joined = false // nothing may write the row again
	}
	m.policy.busy[a.Kind] = true
	return a, true
}

// Done tells what came of an action that was begun. A reply may come at any time
// and more than once, also after Done was told that it was lost: everything is
// judged by when the action was begun and by what is known now.
func (m *Machine) Done(now Instant, a Action, r Reply) {
	defer m.planNext(now, a, r) // last: it goes by what is known then
	if a.Kind == Adopt {
		m.doneAdopt(now, a, r)
		return
	}
	if a.Kind == Probe {
		m.watch.probed(now, a, r)
		return
	}
	if r.Lost {
		return
	}
	switch a.Kind {
	case Poll:
		m.polled(now, a, r)
	case Create:
		if r.OK {
			m.learn(now, a.To)
		}
	case Refresh:
		if r.OK && m.mode == a.From {
			m.permitted(now, a, a.From)
		}
	case Start, Takeover:
		if r.OK {
			to := a.To
			if a.Kind == Takeover {
				to.Server, m.stray = r.Server, Mode{}
			}
			m.learn(now, to)
		}
	case Ack:
		// Also if the epoch has opened meanwhile: then it did so with this ack.
		if r.OK && m.mode.Epoch == a.From.Epoch {
			m.acked = m.mode.Drain
			m.permitted(now, a, a.From)
		}
	case Open:
		if r.OK {
			m.learn(now, a.From.opened())
		}
	}
}

// permitted takes in a permit for a mode that was asked for by a.
func (m *Machine) permitted(now Instant, a Action, mode Mode) {
	// Holds that lived under the old permit and have outlived it are over, even
	// though nobody has looked since.
	if now >= m.permit && !m.rules.LateRevives {
		m.lapse(now)
	}
	from := a.Sent
	if m.rules.CountFromReply {
		from = now
	}
	until := from.Add(mode.Term)
	if until <= now {
		return // of no use, and its epoch must not look permitted
	}
	m.permit, m.permitEpoch = max(m.permit, until), mode.Epoch
}

// lapse ends the exclusive holds that are believed no more.
func (m *Machine) lapse(now Instant) {
	for _, id := range m.ids() {
		if h := m.holds[id]; h.exclusive && now >= m.belief(h) {
			m.end(id, Lapsed)
		}
	}
}

func (m *Machine) noneAlive(now Instant) bool {
	for _, h := range m.holds {
		if m.alive(now, h) {
			return false
		}
	}
	return true
}

// polled takes in a reading of the arbiter's tables.
func (m *Machine) polled(now Instant, a Action, r Reply) {
	m.observe(now, a, r)
	if !r.Mode.Known() {
		m.policy.empty = r.Server
		return
	}
	if r.Mode.Server != r.Server || m.mode.after(r.Mode) {
		// Either the answer is merely late, or the arbiter is not what wrote the
		// row, or it has forgotten. Takeover judges that when it is executed.
		if m.stray != r.Mode {
			m.stray = r.Mode
			m.tell(Event{Kind: Stray, Mode: r.Mode})
		}
	} else {
		m.stray = Mode{}
	}
	if r.Mode.Server == r.Server {
		m.learn(now, r.Mode)
		if m.rules.PermitFromRead && m.mode == r.Mode && !m.mode.Drain {
			m.permitted(now, a, m.mode)
		}
	}
	if m.mode == r.Mode && m.mode.Drain && unacked(r.Members, m.mode.Epoch) == 0 {
		// No refresh writes in a drain, so no new member of the old epoch can
		// appear: once true it stays true, and an Open may come any time later.
		m.clear = true
	}
	if m.othersDoubt(now) {
		m.Doubt(now)
	}
}

// takeover is the drain that ends the rule of a row whose server is gone. Commits
// may be lost with it: acks, members, even switches. So the epoch jumps over all
// that may have been, acks open nothing, and the wait is longer.
func (m *Machine) takeover(row Mode) Mode {
	to := row
	to.Epoch = max(row.Epoch, m.mode.Epoch, m.maxSeen()) + jump
	if m.rules.JumpByOne {
		to.Epoch = row.Epoch + 1
	}
	to.Drain, to.Hard, to.Server = true, true, ""
	if to.Epoch > MaxEpoch {
		return Mode{}
	}
	return to
}

// never is a time that does not come.
const never = Instant(1<<63 - 1)
