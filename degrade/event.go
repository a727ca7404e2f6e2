package degrade

// EventKind is what an Event tells.
type EventKind uint8

// The kinds of events.
const (
	// Draining: nobody grants until Opened; Mode is the coming one.
	Draining EventKind = iota + 1
	// Opened: Mode is in force. Holds that the machine still knows are part of it.
	Opened
	// HoldEnded: belief in Hold is over for Reason; Places are to be freed.
	HoldEnded
	// Stray: the arbiter is another server than the one that wrote the mode row,
	// or has gone back in time.
	Stray
	// Exhausted: epochs are nearly used up. The arbiter can no longer be taken
	// over, and soon no switch is possible. Told with each of the last modes.
	Exhausted
)

// Reason says why a hold ended.
type Reason uint8

// The reasons.
const (
	// Lapsed: its lease or the permit ended by this process's clock.
	Lapsed Reason = iota + 1
	// LeftBehind: a mode came into force of which it is not part.
	LeftBehind
	// Refused: the new store did not adopt it.
	Refused
)

// Event is something that the rest of the process should hear about.
type Event struct {
	Kind   EventKind
	Mode   Mode
	Hold   HoldID
	Reason Reason
	Places []Ticket
}

func (m *Machine) tell(e Event) { m.events = append(m.events, e) }

// Events hands over what has happened since the last call. Beliefs that end by
// the clock alone are not among it until something else happens: who has to act on
// such an end at once keeps a timer for [Machine.Belief].
func (m *Machine) Events() []Event {
	e := m.events
	m.events = nil
	return e
}
