package degrade

// rules are the protective rules of the machine, each with a switch that takes it
// away. The zero value, the only one outside this package's tests, has all in
// force. The exhaustive checker in the tests turns each off in turn and has to
// find two holders or a fence out of order; a rule for which it finds none is
// either not needed or not checked.
type rules struct {
	NoPermitCap        bool // belief outlives the permit
	NoPermitCapAdopted bool // … once the ack is confirmed
	NoOldLeaseCap      bool // once acked, the adopted lease alone counts
	CapWhenConfirmed   bool // the adopted lease caps only after the ack's reply
	AdoptedWhenSent    bool // an adoption counts when it is sent, not confirmed
	RetryMovesCap      bool // repeating an adoption moves the cap unconfirmed
	AdoptRenewsAll     bool // an adoption renews the old lease also in other data
	AckAfterFirst      bool // one adopted hold of several is enough for the ack
	OpenAtOnce         bool // a drain is opened without acks and without waiting
	WaitTerm           bool // the wait of a drain ignores the drift of clocks
	StarterOpensAtOnce bool // who meets a drain as the first thing need not wait
	CountFromReply     bool // permits count from the reply, not from the sending
	GrantInDrain       bool // a reply that comes after the drain is learned grants
	GrantAnyPermit     bool // a grant needs no permit
	GrantForeignPermit bool // a grant is content with another epoch's permit
	LateRevives        bool // a reply renews what had ended
	KeepSkipped        bool // a hold lives on when a whole drain was missed
	KeepUnadopted      bool // … or when the epoch opens without it
	KeepRefused        bool // … or when its adoption is refused
	PermitFromRead     bool // reading the mode is as good as a refresh
	HardOpensByAcks    bool // a drain after the arbiter's loss opens by acks
	HardWaitsNothing   bool // … or at once
	JumpByOne          bool // … and the epoch rises by one only
	RemoveAtOnce       bool // a silent member is removed without waiting
	LeaveWithHolds     bool // the member row is removed while holds live
}
