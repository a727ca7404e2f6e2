package rig

import "testing"

// For the rig's own tests.
var (
	MainCode          = mainCode
	NoLeakWithin      = noLeak
	ReadReply         = readReply
	Encode            = encode
	ParseCommandStats = parseCommandStats
)

// SetSuperuserDirs replaces, for the time of a test, the directories in which
// mariadbd is looked for besides PATH.
func SetSuperuserDirs(t *testing.T, dirs ...string) {
	before := superuserDirs
	t.Cleanup(func() { superuserDirs = before })
	superuserDirs = dirs
}
