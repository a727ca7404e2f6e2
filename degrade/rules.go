package degrade

// rules are the protective rules of the machine, each with a switch that takes it
// away. The zero value, the only one outside this package's tests, has all in
// force. The exhaustive checker in the tests turns each off in turn and has to
// find two holders or a fence out of order; a rule for which it finds none is
// either not needed or not checked.
type rules struct {
	noPermitCap        bool // belief outlives the permit
	noPermitCapAdopted bool // … once the ack is confirmed
	noOldLeaseCap      bool // once acked, the adopted lease alone counts
	capWhenConfirmed   bool // the adopted lease caps only after the ack's reply
	adoptedWhenSent    bool // an adoption counts when it is sent, not confirmed
	retryMovesCap      bool // repeating an adoption moves the cap unconfirmed
	ackAfterFirst      bool // one adopted hold of several is enough for the ack
	openAtOnce         bool // a drain is opened without acks and without waiting
	waitTerm           bool // the wait of a drain ignores the drift of clocks
	starterOpensAtOnce bool // who meets a drain as the first thing need not wait
	countFromReply     bool // permits count from the reply, not from the sending
	grantInDrain       bool // a reply that comes after the drain is learned grants
	grantAnyPermit     bool // a grant needs no permit
	grantForeignPermit bool // a grant is content with another epoch's permit
	lateRevives        bool // a reply renews what had ended
	keepSkipped        bool // a hold lives on when a whole drain was missed
	keepUnadopted      bool // … or when the epoch opens without it
	keepRefused        bool // … or when its adoption is refused
	permitFromRead     bool // reading the mode is as good as a refresh
	hardOpensByAcks    bool // a drain after the arbiter's loss opens by acks
	hardWaitsNothing   bool // … or at once
	jumpByOne          bool // … and the epoch rises by one only
	removeAtOnce       bool // a silent member is removed without waiting
	leaveWithHolds     bool // the member row is removed while holds live
}
