//go:build !linux

package tests_test

import "time"

// machineTime is a clock that all processes of the machine share, in
// nanoseconds: here the wall clock, which nobody should step during the tests.
func machineTime() int64 { return time.Now().UnixNano() }
