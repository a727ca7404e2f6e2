package sim

// Broken takes single rules of a server away. The zero value has all in force.
type Broken struct {
	// Of locks.
	AnyIncarnation    bool // a call is executed whatever data there is
	LaterEpochTaken   bool // a later epoch refuses nothing
	LaterRecordTaken  bool // … not while nobody holds the key
	EarlierBlocks     bool // an earlier epoch's key blocks an exclusive grant
	EarlierRenewed    bool // … and is renewed and freed by exclusive calls
	EpochsApart       bool // calls that are not exclusive look at the epoch, too
	EpochOfCall       bool // a grant is of the call's epoch, whatever was there
	FenceWithoutEpoch bool // fences are counted on, whatever the epoch
	FencesFromClock   bool // … or are the clock's, whatever was there
	SmallFences       bool // fences are computed in doubles
	HeldForGood       bool // a grant that was refused for its epoch keeps the others out
	LateClears        bool // a grant that comes too late frees what it would take
	EpochIsError      bool // the refusal is any error
	StepsBelieved     bool // clients believe a clock that was stepped forward
	SlackOfCall       bool // … by as much as their call may take
	ReleaseSilent     bool // a release in a chain wakes nobody
	ZeroRefused       bool // a call without a place is refused after a chain

	// Of adoptions.
	AdoptOverwrites   bool // an adoption takes whatever is there
	AdoptRefuses      bool // … or only what is free
	AdoptLowersRecord bool // … and fences are counted from its own
	AdoptKeepsRecord  bool // … or are not
	AdoptShortens     bool
	AdoptRestamps     bool // … changes the fence
	AdoptOldEpoch     bool // … keeps the epoch
	AdoptAlone        bool // … has no second lease under an explicit holder
	AdoptUnordered    bool // the answers to a batch are turned round
	ProbeAnything     bool // each probe names other data
	ProbeLowers       bool // … notes its epoch, whatever was noted
	ProbeForgets      bool // … or tells none
	FlushUnseen       bool // FLUSHALL leaves the incarnation
	FlushUntold       bool // … or is not told

	// Of the arbiter.
	RefreshInDrain    bool // a refresh asks for the epoch before a drain only
	RefreshUnguarded  bool // … or for nothing
	AckUnguarded      bool
	AckIsRefresh      bool // an ack makes its member one of the new epoch altogether
	RefreshForgets    bool // a refresh forgets what was acked
	OpenUnguarded     bool
	StartUnguarded    bool
	StartKeepsTier    bool
	BeatKept          bool // an ack does not change the beat
	BeatFromOne       bool // beats are counted, from one in a new row
	RemoveIgnoresBeat bool
	RemoveIgnoresRow  bool // a removal says OK whatever it has found
	LeaveAll          bool
	CreateAgain       bool
	TakeoverUnguarded bool
	TakeoverRefused   bool
	TakeoverNames     bool // a takeover writes the server that it was told
	ServerUnchecked   bool // statements are executed on whatever server
	NamespacesMixed   bool
	VoteForgotten     bool
	PollStale         bool // a reading shows what was before the last change of the mode
	EndedSent         bool // a call whose context has ended is sent all the same
}
