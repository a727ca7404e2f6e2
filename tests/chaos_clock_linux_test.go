package tests_test

import "golang.org/x/sys/unix"

// machineTime is a monotonic clock that all processes of the machine share, in
// nanoseconds.
func machineTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}
