package rig

// For the rig's own tests.
var (
	MainCode          = mainCode
	NoLeakWithin      = noLeak
	ReadReply         = readReply
	Encode            = encode
	ParseCommandStats = parseCommandStats
)
